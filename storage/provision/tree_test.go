package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deep makes folders in each other below a folder, deeper than any path is long, with a file in each.
func deep(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(at, "abcdefghij", 0o700))
		fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
		must(t, err)
		must(t, unix.Close(fd))
		next, err := unix.Openat(at, "abcdefghij", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
}

// hostile fills a volume with what a deletion must not go through, and returns a check that it did not.
func hostile(t *testing.T, dir string, depth int) (untouched func()) {
	t.Helper()
	victim := t.TempDir()
	must(t, os.Mkdir(filepath.Join(victim, "d"), 0o700))
	must(t, os.WriteFile(filepath.Join(victim, "d", "f"), []byte("x"), 0o600))
	for i, target := range []string{victim, victim + "/d/f", "..", "../..", "../../" + Marker, "/", "loop", "none"} {
		must(t, os.Symlink(target, filepath.Join(dir, fmt.Sprint("link", i))))
	}
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0))
	must(t, os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "hard")))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0))
	must(t, os.Mkdir(filepath.Join(dir, "closed"), 0))
	must(t, os.WriteFile(filepath.Join(dir, "closed", "f"), nil, 0))
	must(t, os.Mkdir(filepath.Join(dir, "-rf *\n"), 0o700))
	for i := range 600 { // more than are looked at together
		must(t, os.WriteFile(filepath.Join(dir, "-rf *\n", fmt.Sprint(i)), nil, 0o600))
	}
	deep(t, dir, depth)
	return func() {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(victim, "d", "f")); err != nil || string(b) != "x" {
			t.Errorf("something outside was touched: %q, %v", b, err)
		}
	}
}

func TestDeletionGoesOn(t *testing.T) {
	r := mounted(t)
	must(t, Make(t.Context(), r, volume(1)))
	must(t, Make(t.Context(), r, Volume{Dir: "stays", SizeGB: 1, IDBase: other}))
	must(t, os.WriteFile(filepath.Join(r.Dir, "stays", "f"), nil, 0o600))
	untouched := hostile(t, filepath.Join(r.Dir, name), 3000)
	must(t, Remove(t.Context(), r, name))
	var calls int
	for left := true; left; calls++ {
		if calls > 100 {
			t.Fatal("the deletion does not come to an end")
		}
		var err error
		left, err = RemoveSome(t.Context(), r, 500) // each as a new process would
		must(t, err)
	}
	if calls < 5 {
		t.Errorf("%d calls deleted thousands of files, 500 at most in each", calls)
	}
	if gone, err := Gone(t.Context(), r, name); !gone || err != nil {
		t.Errorf("not gone: %v", err)
	}
	untouched()
	if _, err := os.Stat(filepath.Join(r.Dir, "stays", "f")); err != nil {
		t.Error(err)
	}
}

func TestDeletionIsSlow(t *testing.T) {
	r := mounted(t)
	r.PerSecond = 1000
	must(t, Make(t.Context(), r, volume(1)))
	for i := range 150 {
		must(t, os.WriteFile(filepath.Join(r.Dir, name, fmt.Sprint(i)), nil, 0o600))
	}
	must(t, Remove(t.Context(), r, name))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	left, err := RemoveSome(ctx, r, 0)
	if err != nil || !left {
		t.Errorf("150 files in 50 ms, with 1000 a second: left %v, %v", left, err)
	}
	begin := time.Now()
	left, err = RemoveSome(t.Context(), r, 80)
	if took := time.Since(begin); err != nil || took < 60*time.Millisecond {
		t.Errorf("80 files took %s: left %v, %v", took, left, err)
	}
}

// A volume that cannot be deleted does not hinder the next.
func TestDeletionOfOthersGoesOn(t *testing.T) {
	r := mounted(t)
	for _, dir := range []string{"bad", "good"} {
		must(t, Make(t.Context(), r, Volume{Dir: dir, SizeGB: 1, IDBase: base}))
	}
	at := filepath.Join(r.Dir, "bad", "mnt")
	must(t, os.Mkdir(at, 0o700))
	must(t, unix.Mount("test", at, "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(at, "f"), nil, 0o600))
	must(t, Remove(t.Context(), r, "bad"))
	must(t, Remove(t.Context(), r, "good"))
	moved := filepath.Join(r.Dir, trash, "bad", "mnt")
	left, err := RemoveSome(t.Context(), r, 0)
	if !left || err == nil {
		t.Errorf("a mount was deleted: left %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(moved, "f")); err != nil {
		t.Errorf("a file of another file system was deleted: %v", err)
	}
	if gone, err := Gone(t.Context(), r, "good"); !gone || err != nil {
		t.Errorf("the other volume is not gone: %v", err)
	}
	must(t, unix.Unmount(moved, unix.MNT_DETACH))
	left, err = RemoveSome(t.Context(), r, 0)
	if left || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

// measured counts a volume in slices.
func measured(t *testing.T, r Root, most int, between func()) (Progress, int) {
	t.Helper()
	var p Progress
	for calls := 1; ; calls++ {
		next, done, err := Measure(t.Context(), r, name, p, most)
		must(t, err)
		if done {
			return next, calls
		}
		if calls > 1000 {
			t.Fatal("the measurement does not come to an end")
		}
		p = next
		between()
	}
}

func TestMeasure(t *testing.T) {
	r := mounted(t)
	must(t, Make(t.Context(), r, volume(1)))
	dir := filepath.Join(r.Dir, name)
	hostile(t, dir, 3000)
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	data := make([]byte, 1<<20)
	for i := range 8 {
		must(t, os.WriteFile(filepath.Join(dir, "a/b", fmt.Sprint(i)), data, 0o600))
	}
	for i := range 9 { // one file of ten names
		must(t, os.Link(filepath.Join(dir, "a/b/0"), filepath.Join(dir, fmt.Sprint("again", i))))
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	must(t, sparse.Truncate(1<<40))
	must(t, sparse.Close())
	at := filepath.Join(dir, "mnt") // not of this volume
	must(t, os.Mkdir(at, 0o700))
	must(t, unix.Mount("test", at, "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(at, "f"), data, 0o600))

	used, err := Used(t.Context(), r, name)
	must(t, err)
	var st unix.Statfs_t
	must(t, unix.Statfs(r.Dir, &st))
	counted := int64(st.Blocks-st.Bfree) * st.Bsize
	if most := int64(8<<20 + 64<<10); used < 8<<20 || used > most || used > counted {
		t.Errorf("used %d bytes, of %d that the file system counts", used, counted)
	}
	whole, _ := measured(t, r, 0, nil)
	slices, calls := measured(t, r, 100, func() {})
	if whole.Bytes != used || slices.Bytes != used || slices.Files != whole.Files || calls < 60 {
		t.Errorf("%d bytes in one go, %d bytes of %d files in %d slices, %d of %d in one", used, slices.Bytes, slices.Files, calls, whole.Bytes, whole.Files)
	}
	// The tenant moves what is being measured.
	var turn int
	measured(t, r, 100, func() {
		turn++
		from, to := filepath.Join(dir, "abcdefghij"), filepath.Join(dir, "moved")
		if turn%2 == 0 {
			from, to = to, from
		}
		must(t, os.Rename(from, to))
	})
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	r := mounted(t)
	r.PerSecond = 1000
	must(t, Make(t.Context(), r, volume(1)))
	deep(t, filepath.Join(r.Dir, name), 100)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	p, done, err := Measure(ctx, r, name, Progress{}, 0)
	if done || err != nil || p.Files == 0 || len(p.At) == 0 {
		t.Errorf("200 files in 50 ms, with 1000 a second: %v, %d, %v", done, p.Files, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Used(ctx, r, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("used: %v", err)
	}
}

func TestTooDeepToMeasure(t *testing.T) {
	r := mounted(t)
	must(t, Make(t.Context(), r, volume(1)))
	deep(t, filepath.Join(r.Dir, name), mostDeep)
	if _, err := Used(t.Context(), r, name); err == nil {
		t.Error("was measured")
	}
	must(t, Remove(t.Context(), r, name))
	left, err := RemoveSome(t.Context(), r, 0)
	if left || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

// Where a project quota limits a disk, it is a folder: no kernel of a test has such.
func TestDisksThatAreFolders(t *testing.T) {
	r := sized(t)
	must(t, Make(t.Context(), r, volume(1)))
	const dir = "folder"
	path := filepath.Join(r.Dir, Path(r, dir))
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	at, err := open(r)
	must(t, err)
	defer at.close()
	must(t, at.handOver(Volume{Dir: dir, SizeGB: 1, IDBase: base}))
	wantGiven(t, path)
	must(t, os.Chown(path, base+1000, base+1000))
	must(t, at.handOver(Volume{Dir: dir, SizeGB: 1, IDBase: base}))
	if uid, _, _ := owner(t, path); uid != base+1000 {
		t.Errorf("the tenant's folder belongs to %d", uid)
	}
	untouched := hostile(t, path, 300)
	must(t, Remove(t.Context(), r, dir))
	calls := 0
	for left := true; left; calls++ {
		if calls > 100 {
			t.Fatal("the deletion does not come to an end")
		}
		left, err = RemoveSome(t.Context(), r, 500)
		must(t, err)
	}
	if gone, err := Gone(t.Context(), r, dir); !gone || err != nil || calls < 3 {
		t.Errorf("gone %v after %d calls: %v", gone, calls, err)
	}
	untouched()
	if gone, err := Gone(t.Context(), r, name); gone || err != nil {
		t.Errorf("another volume is gone: %v", err)
	}
	wantGone(t, r, filepath.Join(r.Dir, Path(r, name)))
}
