package containerfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// box is a folder that stands for a container's root, in a folder with what must not be reached.
type box struct {
	testing.TB
	outer string
	dir   string
	root  *Root
}

func newBox(t testing.TB) *box {
	t.Helper()
	outer := t.TempDir()
	b := &box{TB: t, outer: outer, dir: filepath.Join(outer, "root")}
	b.must(os.Mkdir(b.dir, 0o755))
	b.must(os.WriteFile(filepath.Join(outer, "secret"), []byte("of the host"), 0o600))
	dir, err := os.Open(b.dir)
	b.must(err)
	b.root = NewRoot(dir, nil, nil)
	t.Cleanup(func() {
		b.must(b.root.Close())
		text, err := os.ReadFile(filepath.Join(outer, "secret"))
		if err != nil || string(text) != "of the host" {
			t.Errorf("what is outside was changed: %q, %v", text, err)
		}
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 2 {
			t.Errorf("something was made outside: %v, %v", entries, err)
		}
	})
	return b
}

func (b *box) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

func (b *box) mkdir(names ...string) {
	b.Helper()
	for _, n := range names {
		b.must(os.MkdirAll(b.path(n), 0o755))
	}
}

func (b *box) write(name, text string) {
	b.Helper()
	b.must(os.WriteFile(b.path(name), []byte(text), 0o644))
}

func (b *box) link(target, name string) {
	b.Helper()
	b.must(os.Symlink(target, b.path(name)))
}

// pack reads a path.
func (b *box) pack(p string) ([]byte, error) {
	found, err := b.root.Find(p)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var out bytes.Buffer
	err = found.Pack(context.Background(), &out)
	return out.Bytes(), err
}

func (b *box) unpack(p string, archive []byte) error {
	into, err := b.root.Into(p)
	if err != nil {
		return err
	}
	defer into.Close()
	return into.Unpack(context.Background(), bytes.NewReader(archive))
}

// listing words the entries of an archive.
func listing(t testing.TB, archive []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("%c %o %d:%d %d", h.Typeflag, h.Mode, h.Uid, h.Gid, h.ModTime.Unix())
		if h.Typeflag == tar.TypeSymlink {
			text = "link " + h.Linkname
		}
		if h.Typeflag == tar.TypeDir {
			text = fmt.Sprintf("dir %o %d:%d", h.Mode, h.Uid, h.Gid)
		}
		out[h.Name] = text + " " + string(data)
	}
}

type member struct {
	tar.Header
	body string
}

func file(name, body string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body))}, body}
}

func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func wantCode(t testing.TB, what string, err error, code fleet.Code, words string) {
	t.Helper()
	if fleet.CodeOf(err) != code || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, words)
	}
}

func TestTreeMakesARoundTrip(t *testing.T) {
	b := newBox(t)
	b.mkdir("src/deep/er", "src/empty", "dst")
	long := strings.Repeat("n", 200)
	b.mkdir("src/" + long)
	b.write("src/a", "text of a")
	b.write("src/deep/er/b", strings.Repeat("x", 300_000))
	b.write("src/"+long+"/ü\xffname", "odd name")
	b.write("src/none", "")
	b.link("a", "src/rel")
	b.link("/etc/passwd", "src/abs")
	b.link("../../../secret", "src/up")
	old := time.Unix(1_500_000_000, 0)
	for name, mode := range map[string]os.FileMode{"src/a": 0o600, "src/deep/er/b": 0o751, "src/deep": 0o700, "src/none": 0o444, "src/empty": os.ModeSticky | 0o777} {
		b.must(os.Chmod(b.path(name), mode))
	}
	b.must(os.Chown(b.path("src/a"), 1000, 1001))
	b.must(os.Chown(b.path("src/deep"), 7, 8))
	b.must(os.Chtimes(b.path("src/a"), old, old))
	data, err := b.pack("/src")
	b.must(err)
	b.must(b.unpack("/dst", data))
	again, err := b.pack("/dst/src")
	b.must(err)
	want, got := listing(t, data), listing(t, again)
	if !maps.Equal(want, got) || len(got) != 12 {
		t.Errorf("got %d entries\n%v\nwant\n%v", len(got), got, want)
	}
	if text := got["src/a"]; text != "0 600 1000:1001 1500000000 text of a" {
		t.Errorf("src/a is %q", text)
	}
	b.must(b.unpack("/dst", data)) // over what is there
	again, err = b.pack("/dst/src/")
	b.must(err)
	if got := listing(t, again); !maps.Equal(want, got) {
		t.Errorf("the second time: %v", got)
	}
	if left, _ := filepath.Glob(b.path("dst/src/" + tempPrefix + "*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestFindSeesWhatTheContainerSees(t *testing.T) {
	b := newBox(t)
	b.mkdir("etc", "a/b")
	b.write("etc/passwd", "of the container")
	b.write("secret", "of the container")
	b.link("/etc/passwd", "abs")
	b.link("../../../../../secret", "a/b/up")
	b.link("/a/b/../../etc", "folder")
	b.link("loop", "loop")
	for p, name := range map[string]string{
		"/etc/passwd": "passwd", "/abs": "abs", "/a/b/up": "up", "/a/../secret": "secret", "/../../secret": "secret",
		"/folder/passwd": "passwd", "//etc//passwd": "passwd",
	} {
		data, err := b.pack(p)
		if got := listing(t, data); err != nil || len(got) != 1 || !strings.HasSuffix(got[name], "of the container") {
			t.Errorf("%s: %v, %v", p, got, err)
		}
	}
	data, err := b.pack("/folder")
	if got := slices.Sorted(maps.Keys(listing(t, data))); err != nil || !slices.Equal(got, []string{"folder/", "folder/passwd"}) {
		t.Errorf("/folder: %v, %v", got, err)
	}
	data, err = b.pack("/")
	if got := listing(t, data); err != nil || got["./etc/passwd"] == "" || got["./"] == "" {
		t.Errorf("/: %v, %v", got, err)
	}
	for p, want := range map[string]fleet.Code{
		"/nothing": fleet.CodeNotFound, "/etc/passwd/x": fleet.CodeNotFound, "/etc/passwd/": fleet.CodeNotFound, "/loop": fleet.CodeNotAllowed,
		"relative": fleet.CodeInvalid, "": fleet.CodeInvalid, "/a\x00b": fleet.CodeInvalid, "/" + strings.Repeat("x", 300): fleet.CodeInvalid,
		"/" + strings.Repeat("x/", 3000): fleet.CodeInvalid, "/proc": fleet.CodeNotAllowed, "/sys/kernel": fleet.CodeNotAllowed, "/x/../proc/1": fleet.CodeNotAllowed,
	} {
		if _, err := b.pack(p); fleet.CodeOf(err) != want {
			t.Errorf("%.40q: %v, want %s", p, err, want)
		}
		if _, err := b.root.Into(p); fleet.CodeOf(err) != want {
			t.Errorf("into %.40q: %v, want %s", p, err, want)
		}
	}
	_, err = b.root.Into("/etc/passwd")
	wantCode(t, "into a file", err, fleet.CodeNotAllowed, "not a folder")
}

func TestWhatIsNotAFileIsNeverOpened(t *testing.T) {
	b := newBox(t)
	b.mkdir("d")
	b.must(unix.Mkfifo(b.path("d/pipe"), 0o600)) // to open it would wait for a writer
	b.must(unix.Mknod(b.path("d/device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	b.must(err)
	defer unix.Close(fd)
	b.must(unix.Bind(fd, &unix.SockaddrUnix{Name: b.path("d/socket")}))
	b.write("d/file", "text")
	data, err := b.pack("/d")
	if got := slices.Sorted(maps.Keys(listing(t, data))); err != nil || !slices.Equal(got, []string{"d/", "d/file"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, name := range []string{"pipe", "device", "socket"} {
		_, err := b.pack("/d/" + name)
		wantCode(t, name, err, fleet.CodeNotAllowed, "neither a file nor a folder")
	}
	b.must(b.unpack("/d", archive(t, file("pipe", "x"), file("device", "y"))))
	for _, name := range []string{"pipe", "device"} {
		if info, err := os.Lstat(b.path("d/" + name)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s was not replaced: %v, %v", name, info, err)
		}
	}
}

func TestTheKernelsInterfacesAreRefused(t *testing.T) {
	b := newBox(t)
	b.mkdir("d/bound", "d/pts")
	b.write("d/file", "")
	b.mount("/proc/sys", "d/bound", "", unix.MS_BIND, "")
	b.mount("/proc/version", "d/file", "", unix.MS_BIND, "")
	b.mount("devpts", "d/pts", "devpts", 0, "")
	data, err := b.pack("/d")
	if got := slices.Sorted(maps.Keys(listing(t, data))); err != nil || !slices.Equal(got, []string{"d/"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, p := range []string{"/d/bound", "/d/file", "/d/pts", "/d/bound/kernel"} {
		_, err := b.pack(p)
		wantCode(t, p, err, fleet.CodeNotAllowed, "interface of the kernel")
	}
	_, err = b.root.Into("/d/bound/kernel")
	wantCode(t, "into", err, fleet.CodeNotAllowed, "interface of the kernel")
	for _, name := range []string{"bound/x", "bound/kernel/hostname", "pts/0"} {
		wantCode(t, name, b.unpack("/d", archive(t, file(name, "x"))), fleet.CodeNotAllowed, "interface of the kernel")
	}
	wantCode(t, "a mount", b.unpack("/d", archive(t, file("file", "x"))), fleet.CodeNotAllowed, "mount")
}

func TestPlacesThatCannotBeWritten(t *testing.T) {
	b := newBox(t)
	b.mkdir("ro", "small", "changes", "dir")
	b.mount(b.path("ro"), "ro", "", unix.MS_BIND, "")
	b.must(unix.Mount("", b.path("ro"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	b.mount("tmpfs", "changes", "tmpfs", 0, "size=64k")
	b.overlay("small", "changes")
	wantCode(t, "read-only", b.unpack("/ro", archive(t, file("x", "y"))), fleet.CodeNotAllowed, "read-only")
	wantCode(t, "full", b.unpack("/small", archive(t, file("x", strings.Repeat("y", 100_000)))), fleet.CodeNotAllowed, "no space is left")
	if entries, err := os.ReadDir(b.path("small")); err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}
	wantCode(t, "a folder", b.unpack("/", archive(t, file("dir", "y"))), fleet.CodeNotAllowed, "stands in the way")
	b.write("plain", "")
	wantCode(t, "a file", b.unpack("/", archive(t, file("plain/x", "y"))), fleet.CodeNotAllowed, "stands in the way")
	wantCode(t, "a file", b.unpack("/", archive(t, member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "plain"}})), fleet.CodeNotAllowed, "stands in the way")
}

func TestHostileArchives(t *testing.T) {
	link := func(name, target string) member {
		return member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}}
	}
	hard := func(name, target string) member {
		return member{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
	}
	kind := func(flag byte) member { return member{Header: tar.Header{Typeflag: flag, Name: "x", Mode: 0o666}} }
	for name, tc := range map[string]struct {
		members []member
		code    fleet.Code
	}{
		"absolute":                {[]member{file("/secret", "x")}, fleet.CodeInvalid},
		"upwards":                 {[]member{file("../secret", "x")}, fleet.CodeInvalid},
		"upwards inside":          {[]member{file("a/../../secret", "x")}, fleet.CodeInvalid},
		"upwards at the end":      {[]member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "a/.."}}}, fleet.CodeInvalid},
		"long name":               {[]member{file(strings.Repeat("x", 256), "x")}, fleet.CodeInvalid},
		"deep":                    {[]member{file(strings.Repeat("x/", maxDepth+1)+"x", "x")}, fleet.CodeInvalid},
		"no name":                 {[]member{file(".", "x")}, fleet.CodeInvalid},
		"through its own link":    {[]member{link("l", ".."), file("l/secret", "x")}, fleet.CodeNotAllowed},
		"through a link":          {[]member{file("out/secret", "x")}, fleet.CodeNotAllowed},
		"folder over a link":      {[]member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "out", Mode: 0o777}}}, fleet.CodeNotAllowed},
		"hard link upwards":       {[]member{hard("h", "../secret")}, fleet.CodeInvalid},
		"hard link, absolute":     {[]member{hard("h", "/secret")}, fleet.CodeInvalid},
		"hard link to a link":     {[]member{link("l", "../secret"), hard("h", "l")}, fleet.CodeNotAllowed},
		"hard link through one":   {[]member{hard("h", "out/secret")}, fleet.CodeNotAllowed},
		"hard link to nothing":    {[]member{hard("h", "nothing")}, fleet.CodeNotFound},
		"character device":        {[]member{kind(tar.TypeChar)}, fleet.CodeInvalid},
		"block device":            {[]member{kind(tar.TypeBlock)}, fleet.CodeInvalid},
		"pipe":                    {[]member{kind(tar.TypeFifo)}, fleet.CodeInvalid},
		"owner below 0":           {[]member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d", Uid: -1}}}, fleet.CodeInvalid},
		"owner that is none":      {[]member{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d", Gid: 1<<32 - 1}}}, fleet.CodeInvalid},
		"hard link to a folder":   {[]member{hard("h", "dir")}, fleet.CodeNotAllowed},
		"hard link to the folder": {[]member{hard("h", ".")}, fleet.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.mkdir("dst/dir")
			b.link("../..", "dst/out")
			err := b.unpack("/dst", archive(t, tc.members...))
			wantCode(t, name, err, tc.code, "")
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error repeats the archive: %v", err)
			}
			if left, _ := filepath.Glob(b.path("dst/" + tempPrefix + "*")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func TestModesOwnersAndReplacement(t *testing.T) {
	b := newBox(t)
	b.mkdir("dst")
	b.write("victim", "stays")
	b.link("../victim", "dst/f")
	b.write("dst/h", "old")
	suid := file("f", "new")
	suid.Mode, suid.Uid = 0o6755, 12
	b.must(b.unpack("/dst/", archive(t, suid, file("a/b/c", "made"),
		member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "s", Mode: 0o7777}},
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "f"}},
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "f", Linkname: "f"}},
	)))
	var st syscall.Stat_t
	b.must(syscall.Lstat(b.path("dst/f"), &st))
	if st.Mode != syscall.S_IFREG|0o755 || st.Uid != 12 || st.Gid != 0 || st.Nlink != 2 {
		t.Errorf("the file is %o of %d:%d with %d names", st.Mode, st.Uid, st.Gid, st.Nlink)
	}
	if info, err := os.Stat(b.path("dst/s")); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the folder is %v, %v", info.Mode(), err)
	}
	for name, want := range map[string]string{"victim": "stays", "dst/f": "new", "dst/h": "new", "dst/a/b/c": "made"} {
		if text, err := os.ReadFile(b.path(name)); err != nil || string(text) != want {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	if left, _ := filepath.Glob(b.path("dst/" + tempPrefix + "*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestArchivesThatAreNone(t *testing.T) {
	b := newBox(t)
	good := archive(t, file("f", strings.Repeat("x", 5000)))
	for name, data := range map[string][]byte{
		"text": []byte(strings.Repeat("this is no archive ", 100)), "cut in the header": good[:100], "cut in the file": good[:2000],
	} {
		wantCode(t, name, b.unpack("/", data), fleet.CodeInvalid, "not a complete tar archive")
	}
	b.must(b.unpack("/", nil))
	broken := errors.New("broken")
	into, err := b.root.Into("/")
	b.must(err)
	defer into.Close()
	if err := into.Unpack(t.Context(), io.MultiReader(bytes.NewReader(good[:2000]), errReader{broken})); !errors.Is(err, broken) {
		t.Errorf("a stream that breaks: %v", err)
	}
	if err := into.Unpack(t.Context(), io.MultiReader(bytes.NewReader(good), errReader{broken})); !errors.Is(err, broken) {
		t.Errorf("a stream that breaks after the archive: %v", err)
	}
	if left, _ := filepath.Glob(b.path(tempPrefix + "*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// However a stream breaks off, a file is there whole or not at all.
func TestAStreamThatBreaksOffLeavesNoPart(t *testing.T) {
	broken := errors.Join(errors.New("let go"), io.EOF) // as when what carries the stream has ended in good order
	good := archive(t, file("d/f", strings.Repeat("x", 5000)), file("d/g", "text"))
	for _, cut := range []int{512, 600, 5000, 5700} {
		b := newBox(t)
		into, err := b.root.Into("/")
		b.must(err)
		err = into.Unpack(t.Context(), io.MultiReader(bytes.NewReader(good[:cut]), errReader{broken}))
		b.must(into.Close())
		if !errors.Is(err, broken) {
			t.Errorf("cut at %d: %v", cut, err)
		}
		if info, err := os.Stat(b.path("d/f")); err == nil && info.Size() != 5000 {
			t.Errorf("cut at %d: %d bytes are left under the file's name", cut, info.Size())
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestAFileThatChangesItsSizeKeepsTheFraming truncates and extends while the archive is read.
func TestAFileThatChangesItsSizeKeepsTheFraming(t *testing.T) {
	b := newBox(t)
	b.mkdir("d")
	for _, name := range []string{"d/1", "d/2", "d/3"} {
		b.write(name, strings.Repeat("x", 1<<20))
	}
	found, err := b.root.Find("/d")
	b.must(err)
	defer found.Close()
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := found.Pack(t.Context(), out)
		out.CloseWithError(err)
		packed <- err
	}()
	seen := 0
	for r := tar.NewReader(in); ; seen++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b.must(err)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		size := int64(10)
		if seen == 2 {
			size = 5 << 20
		}
		b.must(os.Truncate(b.path(h.Name), size))
		n, err := io.Copy(io.Discard, r)
		if err != nil || n != 1<<20 {
			t.Errorf("%s: %d bytes, %v", h.Name, n, err)
		}
	}
	if err := <-packed; err != nil || seen != 4 {
		t.Errorf("%d entries, %v", seen, err)
	}
}
