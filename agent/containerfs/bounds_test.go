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
	"testing"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// mount mounts a file system in the box, until the test ends.
func (b *box) mount(source, target, kind string, flags uintptr, data string) {
	b.Helper()
	b.must(unix.Mount(source, b.path(target), kind, flags, data))
	b.Cleanup(func() { b.must(unix.Unmount(b.path(target), unix.MNT_DETACH)) })
}

// overlay mounts what a pod's root is, with the changes in a folder of the box.
func (b *box) overlay(target, changes string) {
	b.Helper()
	b.mkdir(changes+"/upper", changes+"/work", "lower")
	b.mount("overlay", target, "overlay", 0, "userxattr,lowerdir="+b.path("lower")+",upperdir="+b.path(changes+"/upper")+",workdir="+b.path(changes+"/work"))
}

func folder(name string) member {
	return member{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

// TestFilesInMemoryAreOnlyRead: what is written there counts as memory of who writes, which is not the pod.
func TestFilesInMemoryAreOnlyRead(t *testing.T) {
	b := newBox(t)
	b.mkdir("dst/mem", "dst/ram", "dst/disk")
	b.mount("tmpfs", "dst/mem", "tmpfs", 0, "")
	b.mount("ramfs", "dst/ram", "ramfs", 0, "")
	b.mkdir("dst/mem/sub")
	b.write("dst/mem/f", "text")
	const words = "files in memory cannot be written from outside"
	for _, p := range []string{"/dst/mem", "/dst/mem/sub", "/dst/ram", "/dst/disk/../mem"} {
		_, err := b.root.Into(p)
		wantCode(t, p, err, fleet.CodeNotAllowed, words)
	}
	for _, m := range []member{
		file("mem/x", "y"), file("mem/sub/x", "y"), file("ram/x", "y"), folder("mem/new"), folder("mem/sub"), folder("ram/a/b"), file("mem/a/b/x", "y"),
		{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "mem/l", Linkname: "x"}},
		{Header: tar.Header{Typeflag: tar.TypeLink, Name: "mem/h", Linkname: "mem/f"}},
	} {
		wantCode(t, m.Name, b.unpack("/dst", archive(t, m)), fleet.CodeNotAllowed, words)
	}
	for _, name := range []string{"dst/mem", "dst/ram"} {
		entries, err := os.ReadDir(b.path(name))
		if want := map[string]int{"dst/mem": 2}[name]; err != nil || len(entries) != want {
			t.Errorf("%s has %v, %v", name, entries, err)
		}
	}
	b.must(b.unpack("/dst/disk", archive(t, file("x", "y"))))
	data, err := b.pack("/dst/mem")
	if got := listing(t, data); err != nil || !strings.HasSuffix(got["mem/f"], "text") || len(got) != 3 {
		t.Errorf("read %v, %v", got, err)
	}
}

// gnuSparse is an entry in GNU's old form that says of a file of size bytes that nothing of it is stored.
func gnuSparse(name string, size int64) []byte {
	h := make([]byte, 512)
	field := func(at int, text string) { copy(h[at:], text) }
	field(0, name)
	field(100, "0000644\x00")
	field(108, "0000000\x00")
	field(116, "0000000\x00")
	field(124, "00000000000\x00")
	field(136, "00000000000\x00")
	field(156, "S")
	field(257, "ustar  \x00")
	field(386, fmt.Sprintf("%011o\x00", size))
	field(398, "00000000000\x00")
	field(483, fmt.Sprintf("%011o\x00", size))
	field(148, "        ")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	field(148, fmt.Sprintf("%06o\x00 ", sum))
	return append(h, make([]byte, 1024)...)
}

// paxSparse is an entry with records that say the same; the library writes none that are called so.
func paxSparse(t testing.TB, body string, records map[string]string) []byte {
	m := file("f", body)
	m.Format, m.PAXRecords = tar.FormatPAX, map[string]string{}
	for k, v := range records {
		m.PAXRecords["GNU_sparse."+k] = v
	}
	return bytes.ReplaceAll(archive(t, m), []byte("GNU_sparse."), []byte("GNU.sparse."))
}

func TestSparseEntriesAreRefused(t *testing.T) {
	for name, data := range map[string][]byte{
		"GNU":     gnuSparse("f", 32<<20),
		"PAX 0.0": paxSparse(t, "", map[string]string{"size": "33554432", "numblocks": "0"}),
		"PAX 0.1": paxSparse(t, "", map[string]string{"size": "33554432", "numblocks": "1", "map": "33554432,0"}),
		"PAX 1.0": paxSparse(t, "1\n33554432\n0\n"+strings.Repeat("\x00", 499), map[string]string{"major": "1", "minor": "0", "name": "f", "realsize": "33554432"}),
	} {
		b := newBox(t)
		wantCode(t, name, b.unpack("/", data), fleet.CodeInvalid, "sparse")
		if entries, err := os.ReadDir(b.dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: made %v, %v", name, entries, err)
		}
	}
}

// counter counts the open files of this process when it sees a text.
type counter struct {
	text string
	most int
	all  bytes.Buffer
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0, err
		}
		c.most = max(c.most, len(entries))
	}
	return c.all.Write(p)
}

func TestDeepTrees(t *testing.T) {
	b := newBox(t)
	deepest := strings.Repeat("d/", maxDepth-1)
	b.mkdir("top/" + deepest)
	b.write("top/"+deepest+"f", "BOTTOM")
	before := &counter{}
	_, _ = before.Write(nil)
	found, err := b.root.Find("/top")
	b.must(err)
	defer found.Close()
	at := &counter{text: "BOTTOM"}
	b.must(found.Pack(t.Context(), at))
	if opened := at.most - before.most; opened < 10 || opened > maxDepth+5 {
		t.Errorf("%d files are open for %d levels", opened, maxDepth)
	}
	b.mkdir("again")
	b.must(b.unpack("/again", at.all.Bytes())) // what can be read can be written
	b.mkdir("top/" + deepest + "d")
	data, err := b.pack("/top")
	wantCode(t, "too deep", err, fleet.CodeInvalid, "64 levels")
	r := tar.NewReader(bytes.NewReader(data))
	for err = nil; err == nil; {
		_, err = r.Next()
	}
	if bytes.HasSuffix(data, make([]byte, 1024)) {
		t.Error("the archive that was given up has an end")
	}
	wantCode(t, "too deep", b.unpack("/", archive(t, file("top/"+deepest+"d/f", "x"))), fleet.CodeInvalid, "64 levels")
	_, err = os.Stat(b.path("top/" + deepest + "d/f"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
}

func TestAFileWithALeaseIsLeftOut(t *testing.T) {
	b := newBox(t)
	b.mkdir("d")
	b.write("d/free", "text")
	b.write("d/held", "text")
	held, err := os.OpenFile(b.path("d/held"), os.O_RDWR, 0)
	b.must(err)
	defer held.Close()
	_, err = unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	b.must(err)
	data, err := b.pack("/d")
	if got := slices.Sorted(maps.Keys(listing(t, data))); err != nil || !slices.Equal(got, []string{"d/", "d/free"}) {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = b.pack("/d/held")
	wantCode(t, "the file itself", err, fleet.CodeNotAllowed, "lease")
}

// onRead calls do when the reader before it has ended.
type onRead struct{ do func() }

// Read implements io.Reader.
func (r onRead) Read([]byte) (int, error) {
	r.do()
	return 0, io.EOF
}

// TestNothingIsSeenOfAFileThatIsNotComplete: an agent that is killed then leaves nothing.
func TestNothingIsSeenOfAFileThatIsNotComplete(t *testing.T) {
	b := newBox(t)
	b.mkdir("plain", "over")
	b.overlay("over", "changes")
	data := archive(t, file("f", strings.Repeat("x", 100_000)))
	for _, dir := range []string{"plain", "over"} {
		b.write(dir+"/f", "old")
		into, err := b.root.Into("/" + dir)
		b.must(err)
		err = into.Unpack(t.Context(), io.MultiReader(bytes.NewReader(data[:50_000]), onRead{func() {
			entries, err := os.ReadDir(b.path(dir))
			if text, readErr := os.ReadFile(b.path(dir + "/f")); err != nil || readErr != nil || len(entries) != 1 || string(text) != "old" {
				t.Errorf("%s: in the middle there are %v, %v", dir, entries, err)
			}
		}}))
		wantCode(t, dir, err, fleet.CodeInvalid, "not a complete tar archive")
		b.must(into.Close())
		for range 2 {
			b.must(b.unpack("/"+dir, archive(t, file("f", "new"), file("g", "made"), member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "g"}})))
		}
		got, err := b.pack("/" + dir)
		if l := listing(t, got); err != nil || len(l) != 4 || l[dir+"/f"][len("0 644 0:0 "):] == "" || !strings.HasSuffix(l[dir+"/f"], " new") || !strings.HasSuffix(l[dir+"/h"], " made") {
			t.Errorf("%s: %v, %v", dir, l, err)
		}
	}
}

// TestAFileSystemWithoutUnnamedFiles takes names for what is not complete, and leaves none.
func TestAFileSystemWithoutUnnamedFiles(t *testing.T) {
	b := newBox(t)
	b.write("f", "old")
	dir, err := os.Open(b.dir)
	b.must(err)
	defer dir.Close()
	for _, content := range []string{"", strings.Repeat("x", 200_000)} {
		data := archive(t, file("f", content))
		for _, cut := range []int{len(data), 600} {
			u := &unpacker{ctx: context.Background(), dest: dir, buf: make([]byte, readSize)}
			u.read(bytes.NewReader(data[:min(cut, len(data))]))
			h, err := u.in.Next()
			b.must(err)
			e, err := checkEntry(h, 1)
			b.must(err)
			err = u.namedFile(dir, e, h.ModTime)
			if short := content != "" && cut == 600; short {
				wantCode(t, "cut", err, fleet.CodeInvalid, "not a complete tar archive")
			} else {
				b.must(err)
			}
		}
		if text, err := os.ReadFile(b.path("f")); err != nil || string(text) != content {
			t.Errorf("%d bytes, %v", len(text), err)
		}
		if left, _ := filepath.Glob(b.path("*")); len(left) != 1 {
			t.Errorf("there are %v", left)
		}
		b.must(os.WriteFile(b.path("f"), []byte("old"), 0o600))
	}
}

func TestEndOfContextEndsTheWork(t *testing.T) {
	b := newBox(t)
	b.write("f", "x")
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	found, err := b.root.Find("/f")
	b.must(err)
	defer found.Close()
	if err := found.Pack(ctx, io.Discard); !errors.Is(err, gone) {
		t.Errorf("pack: %v", err)
	}
	into, err := b.root.Into("/")
	b.must(err)
	defer into.Close()
	if err := into.Unpack(ctx, bytes.NewReader(archive(t, file("g", "x")))); !errors.Is(err, gone) {
		t.Errorf("unpack: %v", err)
	}
}
