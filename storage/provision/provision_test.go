package provision

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/storage/disk"
	"gantry/test/cephtest"
)

const (
	base  = 0x8000_0000 // of the tenant
	other = base + 65536
	name  = "abcdefghijklmnopqrstuvwx23"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is the one that the package's tests share.
var cluster = sync.OnceValues(func() (*cephtest.Cluster, error) { return cephtest.Start("") })

func TestMain(m *testing.M) {
	code := m.Run()
	if started.Load() {
		if c, err := cluster(); err == nil && c.Close() != nil {
			code = 1
		}
	}
	os.Exit(code)
}

// mounted returns a new root on a mount of its own, as an NFS export would be.
func mounted(t *testing.T) Root {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("test", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return Root{Kind: NFS, Backend: "backendaaaaaaa", Dir: dir, Fresh: true}
}

// sized returns a new root in a folder of the host's own, and sees that nothing of it stays mounted.
func sized(t *testing.T) Root {
	t.Helper()
	r := Root{Kind: Local, Backend: "backendbbbbbbb", Dir: t.TempDir(), Sized: true, Fresh: true}
	t.Cleanup(func() { must(t, Release(context.Background(), r)) }) // the test's has ended
	return r
}

func volume(gb int64) Volume { return Volume{Dir: name, SizeGB: gb, IDBase: base} }

// as runs a shell command as a user of a user namespace that begins at an id.
func as(t *testing.T, first, uid int, dir, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", "cd /proc/self/fd/3; "+script) // the test's folders keep others out
	top, err := os.Open(dir)
	must(t, err)
	defer func() { _ = top.Close() }()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{top}
	ids := []syscall.SysProcIDMap{{HostID: first, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)},
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// owner returns the ids and the mode of a path, which is no link.
func owner(t *testing.T, path string) (uid, gid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	st := info.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid, info.Mode()
}

func wantGiven(t *testing.T, path string) {
	t.Helper()
	if uid, gid, mode := owner(t, path); uid != base || gid != base || mode != os.ModeDir|0o755 {
		t.Errorf("%s belongs to %d:%d and has mode %s", path, uid, gid, mode)
	}
}

func TestMarkerRules(t *testing.T) {
	ctx := t.Context()
	r := mounted(t)
	stale := r
	stale.Fresh = false
	if err := Check(ctx, r); !errors.Is(err, ErrNoMarker) {
		t.Errorf("a root without a marker: %v", err)
	}
	for what, err := range map[string]error{
		"make": Make(ctx, stale, volume(1)), "remove": Remove(ctx, stale, name),
		"not mounted": Make(ctx, Root{Kind: NFS, Backend: r.Backend, Dir: t.TempDir(), Fresh: true}, volume(1)),
	} {
		if !errors.Is(err, ErrNoMarker) {
			t.Errorf("%s where there is no marker: %v", what, err)
		}
	}
	if entries, _ := os.ReadDir(r.Dir); len(entries) > 0 {
		t.Errorf("something was made where there is no marker: %v", entries)
	}
	must(t, Make(ctx, r, volume(1)))
	must(t, Check(ctx, stale))
	if b, _ := os.ReadFile(filepath.Join(r.Dir, Marker)); string(b) != r.Backend+"\n" {
		t.Errorf("the marker holds %q", b)
	}
	if _, _, mode := owner(t, r.Dir); mode.Perm() != 0o711 {
		t.Errorf("the root has mode %s", mode)
	}
	for _, id := range []string{"backend", r.Backend + "x", "zzzzzzzzzzzzzz"} {
		another := r
		another.Backend = id
		_, err := RemoveSome(ctx, another, 1)
		for _, err := range []error{err, Check(ctx, another), Make(ctx, another, volume(1)), Remove(ctx, another, name)} {
			if !errors.Is(err, ErrOtherMarker) {
				t.Errorf("the backend %q at the root of another: %v", id, err)
			}
		}
	}
	must(t, os.Remove(filepath.Join(r.Dir, Marker)))
	must(t, os.Symlink("/etc/hostname", filepath.Join(r.Dir, Marker)))
	if err := Check(ctx, r); err == nil {
		t.Error("a link is a marker")
	}
	must(t, os.Remove(filepath.Join(r.Dir, Marker)))
	must(t, unix.Mkfifo(filepath.Join(r.Dir, Marker), 0o600))
	if err := Check(ctx, r); err == nil {
		t.Error("a pipe is a marker")
	}
}

func TestNamesOfVolumes(t *testing.T) {
	r := mounted(t)
	for _, dir := range []string{"", ".", "..", "../x", "a/b", "/etc", ".trash", "A", "a-b", "a\x00", strings.Repeat("a", 65)} {
		v := volume(1)
		v.Dir = dir
		_, gone := Gone(t.Context(), r, dir)
		_, used := Used(t.Context(), r, dir)
		for _, err := range []error{Make(t.Context(), r, v), Remove(t.Context(), r, dir), gone, used} {
			if err == nil || !strings.Contains(err.Error(), "cannot be the folder") {
				t.Errorf("%q: %v", dir, err)
			}
		}
	}
}

func TestPlainVolume(t *testing.T) {
	ctx := t.Context()
	r := mounted(t)
	path := filepath.Join(r.Dir, Path(r, name))
	must(t, Make(ctx, r, volume(1)))
	wantGiven(t, path)
	_, err := as(t, base, 0, path, "mkdir d; echo hi >f; chmod 700 .; chown 1000:1000 .")
	must(t, err)
	must(t, Make(ctx, r, volume(2)))
	if uid, _, mode := owner(t, path); uid != base+1000 || mode.Perm() != 0o700 {
		t.Errorf("the tenant's folder was changed: %d %s", uid, mode)
	}
	// An earlier call ended between two steps.
	v := Volume{Dir: "half", SizeGB: 1, IDBase: base}
	must(t, os.Mkdir(filepath.Join(r.Dir, half+v.Dir), 0o700))
	must(t, Make(ctx, r, v))
	wantGiven(t, filepath.Join(r.Dir, v.Dir))

	must(t, Remove(ctx, r, name))
	must(t, Remove(ctx, r, name))
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("a removed volume is still there: %v", err)
	}
	if err := Make(ctx, r, volume(1)); !errors.Is(err, ErrRemoved) {
		t.Errorf("make a removed volume: %v", err)
	}
	if gone, err := Gone(ctx, r, name); gone || err != nil {
		t.Errorf("gone before it was deleted: %v, %v", gone, err)
	}
	left, err := RemoveSome(ctx, r, 0)
	must(t, err)
	if gone, err := Gone(ctx, r, name); !gone || left || err != nil {
		t.Errorf("not gone: left %v, %v", left, err)
	}
	if _, err := Used(ctx, r, name); !errors.Is(err, ErrMissing) {
		t.Errorf("used of a volume that is gone: %v", err)
	}
	must(t, Check(ctx, r))
}

func TestLinkInPlaceOfAVolume(t *testing.T) {
	r := mounted(t)
	must(t, Make(t.Context(), r, Volume{Dir: "x", SizeGB: 1, IDBase: base}))
	victim := t.TempDir()
	must(t, os.WriteFile(filepath.Join(victim, "f"), []byte("x"), 0o600))
	must(t, os.Symlink(victim, filepath.Join(r.Dir, name)))
	if err := Make(t.Context(), r, volume(1)); err == nil {
		t.Error("a link is a volume")
	}
	if _, err := Used(t.Context(), r, name); err == nil {
		t.Error("a link was measured")
	}
	must(t, Remove(t.Context(), r, name))
	_, err := RemoveSome(t.Context(), r, 0)
	must(t, err)
	if _, err := os.Stat(filepath.Join(victim, "f")); err != nil {
		t.Error(err)
	}
}

func TestSizedVolume(t *testing.T) {
	ctx := t.Context()
	r := sized(t)
	path := filepath.Join(r.Dir, Path(r, name))
	must(t, Make(ctx, r, volume(1)))
	wantGiven(t, path)
	_, err := as(t, base, 0, path, "test -z \"$(ls -A)\"; echo hi >f; chmod 700 .; chown 1000 .; fallocate -l 1000000000 big")
	must(t, err)
	if out, err := as(t, base, 0, path, "fallocate -l 100000000 more"); err == nil || !strings.Contains(out, "No space left") {
		t.Errorf("1.1 GB in a volume of 1 GB: %v: %s", err, out)
	}
	if used, err := Used(ctx, r, name); err != nil || used < 1_000_000_000 {
		t.Errorf("used %d of 10^9 bytes: %v", used, err)
	}
	must(t, os.Remove(filepath.Join(path, "big")))
	must(t, Release(ctx, r)) // what was mounted is not after a reboot
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the volume is still mounted: %v", err)
	}
	must(t, Make(ctx, r, volume(2)))
	must(t, Make(ctx, r, volume(1))) // not smaller
	if uid, _, mode := owner(t, path); uid != base+1000 || mode.Perm() != 0o700 {
		t.Errorf("the tenant's folder was changed: %d %s", uid, mode)
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(path, &st))
	if size := int64(st.Bavail) * st.Bsize; size < 2_000_000_000 {
		t.Errorf("a volume of 2 GB has room for %d bytes", size)
	}
	if b, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(b) != "hi\n" {
		t.Errorf("the file holds %q: %v", b, err)
	}
	f, err := os.Open(filepath.Join(path, "f"))
	must(t, err)
	if err := Remove(ctx, r, name); !errors.Is(err, disk.ErrBusy) {
		t.Errorf("remove a volume with an open file: %v", err)
	}
	must(t, f.Close())
	wantGone(t, r, path)
}

// wantGone removes a volume and checks that nothing is left of it.
func wantGone(t *testing.T, r Root, path string) {
	t.Helper()
	ctx := t.Context()
	must(t, Remove(ctx, r, name))
	must(t, Remove(ctx, r, name))
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("a removed volume is still there: %v", err)
	}
	if gone, err := Gone(ctx, r, name); gone || err != nil {
		t.Errorf("gone before it was deleted: %v, %v", gone, err)
	}
	if err := Make(ctx, r, volume(1)); !errors.Is(err, ErrRemoved) {
		t.Errorf("make a removed volume: %v", err)
	}
	left, err := RemoveSome(ctx, r, 0)
	must(t, err)
	if gone, err := Gone(ctx, r, name); !gone || left || err != nil {
		t.Errorf("not gone: left %v, %v", left, err)
	}
}

// What the kernel's NFS server exports it knows by the UUID of the file system.
func TestSizedVolumesAreToldApart(t *testing.T) {
	r := sized(t)
	seen := map[unix.Fsid]string{}
	for _, dir := range []string{"one", "two", "three"} {
		must(t, Make(t.Context(), r, Volume{Dir: dir, SizeGB: 1, IDBase: base}))
		var st unix.Statfs_t
		must(t, unix.Statfs(filepath.Join(r.Dir, Path(r, dir)), &st))
		if was := seen[st.Fsid]; was != "" {
			t.Errorf("%s and %s have the same id", was, dir)
		}
		seen[st.Fsid] = dir
	}
}

func TestProcessesWaitForEachOther(t *testing.T) {
	r := sized(t)
	must(t, Make(t.Context(), r, volume(1)))
	at, err := open(r)
	must(t, err)
	defer at.close()
	must(t, at.marked())
	must(t, at.locked(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Used(ctx, r, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("two processes in one folder: %v", err)
	}
}
