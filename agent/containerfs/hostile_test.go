package containerfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// TestAttackerThatSwapsNames swaps folders against links that lead out, while files are read from
// and written below them.
func TestAttackerThatSwapsNames(t *testing.T) {
	b := newBox(t)
	b.mkdir("d/sub", "dst/sub")
	b.write("d/sub/secret", "of the container")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() {
		stop()
		wg.Wait()
	}()
	for _, dir := range []string{"d", "dst"} {
		b.link(b.outer, dir+"/evil")
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = unix.Renameat2(unix.AT_FDCWD, b.path(dir+"/sub"), unix.AT_FDCWD, b.path(dir+"/evil"), unix.RENAME_EXCHANGE)
			}
		})
	}
	sub, err := os.Open(b.path("dst/sub"))
	b.must(err)
	t.Cleanup(func() { b.must(sub.Close()) }) // after the attackers
	wg.Go(func() {                            // what is not complete yet is swapped, too
		for ctx.Err() == nil {
			_, _ = sub.Seek(0, io.SeekStart)
			names, _ := sub.Readdirnames(-1)
			for _, name := range names {
				if strings.HasPrefix(name, tempPrefix) {
					_ = unix.Unlinkat(int(sub.Fd()), name, 0)
					_ = unix.Symlinkat(filepath.Join(b.outer, "secret"), int(sub.Fd()), name)
				}
			}
		}
	})
	data := archive(t, file("sub/secret", "changed"), file("sub/new", "x"), member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "sub/l", Linkname: "x", Uid: 3}})
	outcomes := map[bool]int{}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, p := range []string{"/d/sub/secret", "/d/sub/../sub/secret", "/d"} {
			got, err := b.pack(p)
			if bytes.Contains(got, []byte("of the host")) {
				t.Fatalf("%s: the host's file was read", p)
			}
			outcomes[err == nil]++
		}
		outcomes[b.unpack("/dst", data) == nil]++
		if _, err := os.Lstat(filepath.Join(b.outer, "new")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("a file was made outside: %v", err)
		}
	}
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("the attack did not meet the work: %v", outcomes)
	}
	var st syscall.Stat_t
	b.must(syscall.Stat(filepath.Join(b.outer, "secret"), &st))
	if st.Mode != syscall.S_IFREG|0o600 || st.Uid != 0 {
		t.Errorf("the host's file is %o of %d", st.Mode, st.Uid)
	}
}

func FuzzCheckEntry(f *testing.F) {
	for _, name := range []string{"a", "a/b", "/a", "../a", "a/../b", "./", ".", "", "a//b/", "..", "a/..", "...", "a\x00b", strings.Repeat("x/", 400)} {
		f.Add(name, "target", byte(tar.TypeReg), int64(0o7777), 0, 0)
		f.Add("l", name, byte(tar.TypeLink), int64(0), 1, 1)
		f.Add(name, name, byte(tar.TypeSymlink), int64(-1), -1, 1<<32)
	}
	f.Fuzz(func(t *testing.T, name, linkname string, flag byte, mode int64, uid, gid int) {
		e, err := checkEntry(&tar.Header{Typeflag: flag, Name: name, Linkname: linkname, Mode: mode, Uid: uid, Gid: gid}, 1)
		if err != nil {
			wantCode(t, "refused", err, fleet.CodeInvalid, "entry 1 of the archive")
			return
		}
		if e.kind == kindSkip {
			return
		}
		for _, part := range []string{e.folder, e.source} {
			if part != "" && (!filepath.IsLocal(part) || filepath.Clean(part) != part) {
				t.Errorf("%q leads to %q", name, part)
			}
		}
		if strings.ContainsAny(e.name, "/\x00") || e.name == ".." || e.name == "." || len(e.name) > maxName || e.name == "" && (e.kind != kindFolder || e.folder != "") {
			t.Errorf("%q is called %q", name, e.name)
		}
		if e.mode&^uint32(permBits|stickyBit) != 0 || e.uid < 0 || e.gid < 0 || e.uid > maxOwner || e.gid > maxOwner {
			t.Errorf("mode %o, owner %d:%d", e.mode, e.uid, e.gid)
		}
		if e.kind == kindHard && e.source == "" || e.kind == kindLink && e.target == "" {
			t.Errorf("a link to nothing: %+v", e)
		}
	})
}

// size returns how large the files of the box are together.
func (b *box) size() (sum int64) {
	b.must(filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st syscall.Stat_t
		err = syscall.Lstat(path, &st)
		sum += st.Size / max(int64(st.Nlink), 1) //nolint:unconvert // narrower elsewhere
		return err
	}))
	return sum
}

// FuzzUnpack unpacks what is thrown at it, into a folder whose surroundings must not change.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, file("a/b", "text"), member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"}}))
	f.Add(archive(f, file("l/x", "text"), member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "l/x"}}))
	f.Add([]byte("no archive"))
	f.Add(gnuSparse("f", 32<<20))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBox(t)
		into, err := b.root.Into("/")
		b.must(err)
		defer into.Close()
		_ = into.Unpack(t.Context(), bytes.NewReader(data))
		if size := b.size(); size > int64(len(data)) {
			t.Errorf("an archive of %d bytes became %d", len(data), size)
		}
	})
}
