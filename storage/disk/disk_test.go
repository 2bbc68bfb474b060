package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/test/program"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kinds are the mechanisms that this machine can show, and what each says when a disk is full.
var kinds = []struct {
	name      string
	mechanism string
	direct    bool
	full      error
}{
	{"loop", Loop, false, unix.ENOSPC},
	{"persistent loop", Loop, true, unix.ENOSPC},
	{"loop on btrfs", Loop, false, unix.ENOSPC},
}

// fileSystems make new file systems for the kinds that need one of their own.
var fileSystems = map[string]func(testing.TB) string{Loop: func(t testing.TB) string {
	if strings.HasSuffix(t.Name(), "btrfs") {
		return onBtrfs(t)
	}
	return t.TempDir()
}}

// forEach runs a test with an empty pool of each kind.
func forEach(t *testing.T, test func(t *testing.T, p *Pool, full error)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { test(t, openPool(t, k.mechanism, k.direct), k.full) })
	}
}

// openPool opens a pool in a new folder on a file system that has the mechanism, and sees that it leaves nothing.
func openPool(t testing.TB, mechanism string, direct bool) *Pool {
	t.Helper()
	on := fileSystems[mechanism]
	if on == nil {
		on = testing.TB.TempDir
	}
	base := on(t)
	p, err := Open(Config{Dir: filepath.Join(base, "pool"), Mechanism: mechanism, Direct: direct})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.Background() // the test's has ended
		names, err := p.Names()
		must(t, err)
		for _, name := range names {
			if err := p.Remove(ctx, name); err != nil {
				t.Error(err)
			}
		}
		if err := p.Release(ctx); err != nil {
			t.Error(err)
		}
		wantNothing(t, p)
	})
	return p
}

// onBtrfs mounts a new btrfs.
func onBtrfs(t testing.TB) string {
	t.Helper()
	base := t.TempDir()
	image, at := filepath.Join(base, "btrfs"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(at, 0o755))
	f, err := os.Create(image)
	must(t, err)
	must(t, f.Truncate(8<<30))
	must(t, f.Close())
	if out, err := exec.CommandContext(t.Context(), "mkfs.btrfs", "-q", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.btrfs (package btrfs-progs): %v: %s", err, out)
	}
	dev, err := attach(image, true)
	must(t, err)
	must(t, unix.Mount(dev.Name(), at, "btrfs", 0, ""))
	must(t, dev.Close())
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	return at
}

// wantNothing checks that the pool has no mounts, loop devices or disks.
func wantNothing(t testing.TB, p *Pool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		all, err := loops(p.dir)
		must(t, err)
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		names, err := p.Names()
		must(t, err)
		if len(all)+len(names) == 0 && !bytes.Contains(mounts, []byte(" "+p.dir+"/")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: loop devices %v, disks %v, mounts\n%s", all, names, mounts)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// fill allocates bytes in a new file, and writes the last few for real.
func fill(path string, size int64) error {
	const tail = 1 << 20
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if size > tail {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size-tail); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{1}, int(min(size, tail))), max(size-tail, 0)); err != nil {
		return err
	}
	return f.Sync()
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

func wantFile(t testing.TB, dir, name, text string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(b) != text {
		t.Errorf("%s: %q, %v; want %q", name, b, err, text)
	}
}

func entries(t testing.TB, dir string) (out []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

func TestADiskHoldsWhatWasPromisedAndNotMuchMore(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, full error) {
		for _, gb := range []int64{1, 3} {
			dir, err := p.Make(t.Context(), "d", gb)
			must(t, err)
			var st unix.Stat_t
			must(t, unix.Stat(dir, &st))
			if st.Uid != 0 || st.Gid != 0 || st.Mode&0o7777 != 0o755 || len(entries(t, dir)) != 0 {
				t.Errorf("owner %d:%d, mode %o, holds %v", st.Uid, st.Gid, st.Mode, entries(t, dir))
			}
			if err := fill(filepath.Join(dir, "promised"), gb*1_000_000_000); err != nil {
				t.Errorf("%d GB do not go in: %v", gb, err)
			}
			most := gb*1_000_000_000/20 + 100_000_000
			if err := fill(filepath.Join(dir, "more"), most); !errors.Is(err, full) {
				t.Errorf("%d bytes more: %v", most, err)
			}
		}
	})
}

func TestMakeWipesAndRemoveLeavesNothing(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		for range 3 {
			dir, err := p.Make(t.Context(), "d", 1)
			must(t, err)
			if left := entries(t, dir); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			write(t, dir, "note", "secret")
		}
		for range 2 {
			must(t, p.Remove(t.Context(), "d"))
		}
		wantNothing(t, p)
		if _, err := p.Usage(t.Context(), "d"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
}

func TestKeepGrowsWithTheDataAndNeverShrinks(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, full error) {
		dir, err := p.Keep(t.Context(), "d", 1)
		must(t, err)
		write(t, dir, "note", "kept")
		before := usage(t, p, "d")
		for _, gb := range []int64{1, 4, 2} {
			again, err := p.Keep(t.Context(), "d", gb)
			if err != nil || again != dir {
				t.Fatalf("%d GB: %q, %v", gb, again, err)
			}
			wantFile(t, dir, "note", "kept")
		}
		if now := usage(t, p, "d"); before.Size < 1_000_000_000 || now.Size < 4_000_000_000 {
			t.Errorf("size %d, then %d", before.Size, now.Size)
		}
		must(t, fill(filepath.Join(dir, "promised"), 3_990_000_000))
		if err := fill(filepath.Join(dir, "more"), 300_000_000); !errors.Is(err, full) {
			t.Error("more:", err)
		}
	})
}

// TestADiskInUseGrowsOrSaysThatItIsInUse: the kernel makes a mounted ext4 larger only for CAP_SYS_RESOURCE, which
// root does not have everywhere.
func TestADiskInUseGrowsOrSaysThatItIsInUse(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		dir, err := p.Keep(t.Context(), "d", 1)
		must(t, err)
		write(t, dir, "note", "kept")
		open, err := os.Open(filepath.Join(dir, "note")) // a container may run on it
		must(t, err)
		_, err = p.Keep(t.Context(), "d", 3)
		if size := usage(t, p, "d").Size; err == nil && size < 3_000_000_000 || err != nil && (!errors.Is(err, ErrBusy) || size < 1_000_000_000) {
			t.Errorf("size %d, %v", size, err)
		}
		wantFile(t, dir, "note", "kept")
		must(t, open.Close())
		_, err = p.Keep(t.Context(), "d", 3)
		must(t, err)
		wantFile(t, dir, "note", "kept")
		if size := usage(t, p, "d").Size; size < 3_000_000_000 {
			t.Errorf("size %d", size)
		}
	})
}

// TestADiskOfWhichMountsAreCopiedStays: whoever has a copy of its mount holds it, and so does whoever opens it then.
func TestADiskOfWhichMountsAreCopiedStays(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	held, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = p.Keep(ctx, "d", 3)
	if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wantFile(t, dir, "note", "kept")
	must(t, unix.Close(held))
	_, err = p.Keep(t.Context(), "d", 3)
	must(t, err)
	wantFile(t, dir, "note", "kept")
}

// TestKeepGrowsFar grows a disk beyond what its first layout foresaw.
func TestKeepGrowsFar(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	_, err = p.Keep(t.Context(), "d", 500)
	must(t, err)
	wantFile(t, dir, "note", "kept")
	if u := usage(t, p, "d"); u.Size < 500_000_000_000 {
		t.Errorf("size %d", u.Size)
	}
	var st unix.Stat_t
	must(t, unix.Stat(p.all[0].(*images).file("d"), &st))
	if st.Blocks*512 > 1<<30 {
		t.Errorf("the file takes %d bytes of the host", st.Blocks*512)
	}
}

func usage(t testing.TB, p *Pool, name string) Usage {
	t.Helper()
	u, err := p.Usage(t.Context(), name)
	must(t, err)
	return u
}

func TestUsageIsWhatWasWritten(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		dir, err := p.Make(t.Context(), "d", 1)
		must(t, err)
		const size = 50_000_000
		must(t, fill(filepath.Join(dir, "f"), size))
		at, err := os.Open(dir)
		must(t, err)
		must(t, unix.Syncfs(int(at.Fd())))
		must(t, at.Close())
		u := usage(t, p, "d")
		if u.Used < size || u.Used > size+5_000_000 || u.Size < 1_000_000_000 || u.Size > 1_150_000_000 {
			t.Errorf("usage %+v", u)
		}
	})
}

// TestKeptDataSurvivesAReboot takes the mounts away as a reboot does.
func TestKeptDataSurvivesAReboot(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	write(t, dir, "lost+found", "a tenant's") // the file system's own is elsewhere
	must(t, unix.Unmount(filepath.Dir(dir), unix.MNT_DETACH))
	again, err := Open(Config{Dir: p.dir, Mechanism: Loop, Direct: true})
	must(t, err)
	if u := usage(t, again, "d"); u.Used == 0 || u.Size < 1_000_000_000 {
		t.Errorf("usage %+v of a disk that is not mounted", u)
	}
	back, err := again.Keep(t.Context(), "d", 2)
	if err != nil || back != dir {
		t.Fatal(back, err)
	}
	wantFile(t, dir, "note", "kept")
	if got := entries(t, dir); !slices.Equal(got, []string{"lost+found", "note"}) {
		t.Errorf("holds %v", got)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range bytes.Lines(mounts) {
		if bytes.Contains(line, []byte(p.dir)) && !bytes.Contains(line, []byte("rw,nosuid,nodev")) {
			t.Errorf("mounted as %s", line)
		}
	}
}

// TestAnUncleanFileSystemIsRepaired spoils the state that a crash of the host leaves.
func TestAnUncleanFileSystemIsRepaired(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	spoil(t, p, "d")
	dir, err = p.Keep(t.Context(), "d", 1)
	must(t, err)
	wantFile(t, dir, "note", "kept")
}

// spoil unmounts all disks, and gives one the state that a crash of the host leaves.
func spoil(t *testing.T, p *Pool, name string) {
	t.Helper()
	must(t, p.Release(t.Context()))
	f, err := os.OpenFile(p.all[0].(*images).file(name), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{2, 0}, 1024+0x3a) // not unmounted, errors found; the checksum is wrong, too
	must(t, err)
	must(t, f.Close())
}

// TestARepairGoesOnWhenNobodyWaits: that of a large disk takes longer than the start of a pod may.
func TestARepairGoesOnWhenNobodyWaits(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	spoil(t, p, "d")
	real, err := tool("e2fsck")
	must(t, err)
	bin := t.TempDir()
	begun, gate := filepath.Join(bin, "begun"), filepath.Join(bin, "gate")
	must(t, unix.Mkfifo(gate, 0o600))
	script := fmt.Sprintf("#!/bin/sh\n[ -s %[1]s ] && exec %[3]s \"$@\"\necho \"$@\" >>%[1]s\nread -r x <%[2]s\n%[3]s \"$@\"\n", begun, gate, real)
	program.Write(t, filepath.Join(bin, "e2fsck"), script)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := p.Keep(ctx, "d", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is repaired: %v", err)
	}
	again, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := p.Keep(again, "d", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is still repaired: %v", err)
	}
	must(t, os.WriteFile(gate, []byte("go\n"), 0))
	dir, err = p.Keep(t.Context(), "d", 1)
	must(t, err)
	wantFile(t, dir, "note", "kept")
}

// TestAFileSystemThatTheKernelGaveUpIsWritableAtTheNextStart has it read-only, as after an error.
func TestAFileSystemThatTheKernelGaveUpIsWritableAtTheNextStart(t *testing.T) {
	p := openPool(t, Loop, true)
	dir, err := p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "note", "kept")
	must(t, unix.Mount("", filepath.Dir(dir), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err = p.Keep(t.Context(), "d", 1)
	must(t, err)
	write(t, dir, "more", "written")
	wantFile(t, dir, "note", "kept")
}

// TestASmallFileFloodFillsTheDiskAlone runs out of inodes.
func TestASmallFileFloodFillsTheDiskAlone(t *testing.T) {
	p := openPool(t, Loop, false)
	dir, err := p.Make(t.Context(), "flood", 0) // the smallest there is
	must(t, err)
	other, err := p.Make(t.Context(), "other", 1)
	must(t, err)
	var before, after unix.Statfs_t
	must(t, unix.Statfs(p.dir, &before))
	at, err := os.Open(dir)
	must(t, err)
	defer func() { _ = at.Close() }()
	var st unix.Statfs_t
	must(t, unix.Statfs(other, &st))
	if st.Ffree < 1_000_000_000/bytesPerFile {
		t.Errorf("a disk of 1 GB holds %d files", st.Ffree)
	}
	const least, most = 5000, 100_000
	files := 0
	for ; err == nil && files < most; files++ {
		err = unix.Mknodat(int(at.Fd()), fmt.Sprint(files), unix.S_IFIFO|0o600, 0)
	}
	if !errors.Is(err, unix.ENOSPC) || files < least {
		t.Errorf("%d files, then %v", files, err)
	}
	write(t, other, "note", "there is room")
	must(t, unix.Statfs(p.dir, &after))
	if used := int64(before.Ffree) - int64(after.Ffree); used > 1000 { //nolint:gosec // small
		t.Errorf("the host lost %d inodes", used)
	}
}

func TestSpaceComesBackToTheHost(t *testing.T) {
	p := openPool(t, Loop, false)
	dir, err := p.Make(t.Context(), "d", 1)
	must(t, err)
	taken := func() int64 {
		var st unix.Stat_t
		must(t, unix.Stat(p.all[0].(*images).file("d"), &st))
		return st.Blocks * 512
	}
	empty := taken()
	write(t, dir, "f", string(make([]byte, 16<<20)))
	if grown := taken() - empty; grown < 16<<20 {
		t.Errorf("took %d", grown)
	}
	must(t, os.Remove(filepath.Join(dir, "f")))
	deadline := time.Now().Add(time.Minute)
	for taken() > empty+2<<20 {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes stay taken", taken()-empty)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
