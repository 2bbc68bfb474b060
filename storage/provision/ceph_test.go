package provision

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gantry/internal/sleep"
	"gantry/test/cephtest"
)

var started atomic.Bool // cluster was asked for

// onCeph returns the root as the storage host has it, and as all hosts have it.
func onCeph(t *testing.T) (admin Root, plain string) {
	t.Helper()
	started.Store(true)
	c, err := cluster()
	must(t, err)
	dir, err := c.Mount(t.Context(), cephtest.Admin)
	must(t, err)
	plain, err = c.Mount(t.Context(), cephtest.Plain)
	must(t, err)
	return Root{Kind: CephFS, Backend: "backendccccccc", Dir: dir, Fresh: true}, plain
}

func TestCephVolume(t *testing.T) {
	ctx := t.Context()
	r, plain := onCeph(t)
	path := filepath.Join(plain, Path(r, name))
	must(t, Make(ctx, r, volume(1)))
	wantGiven(t, path)
	must(t, Check(ctx, Root{Kind: CephFS, Backend: r.Backend, Dir: plain}))
	t.Run("ids", func(t *testing.T) { tryIDs(t, path) })
	t.Run("limits", func(t *testing.T) { tryLimits(t, path) })
	t.Run("quota", func(t *testing.T) { tryQuota(t, r, path) })
	untouched := hostile(t, filepath.Join(r.Dir, Path(r, name)), 50)
	wantGone(t, r, path)
	untouched()
}

// tryIDs checks who may do what in a volume of CephFS.
func tryIDs(t *testing.T, path string) {
	out, err := as(t, base, 0, path, "echo hi >f; mkdir d; chown 1000:1000 f; chmod 600 f; cat f; echo more >>f; chown 1000 d")
	if err != nil || out != "hi\n" {
		t.Errorf("root of the tenant: %v: %s", err, out)
	}
	if uid, gid, mode := owner(t, filepath.Join(path, "f")); uid != base+1000 || gid != base+1000 || mode != 0o600 {
		t.Errorf("the file belongs to %d:%d and has mode %s", uid, gid, mode)
	}
	if out, err := as(t, base, 1000, path, "cat f; echo again >>f; touch d/new"); err != nil {
		t.Errorf("the file's user: %v: %s", err, out)
	}
	for _, refused := range []struct {
		first, uid int
		script     string
	}{
		{base, 1000, "touch new"},
		{base, 1000, "chown 0 f"},
		{base, 1001, "cat f"},
		{base, 1001, "touch d/x"},
		{base, 0, "mknod dev b 8 0"},
		{other, 0, "cat f"},
		{other, 0, "echo x >>f"},
		{other, 0, "rm f"},
		{other, 0, "touch d/x"},
		{other, 0, "chown 0 f"},
		{other, 1000, "cat f"},
	} {
		out, err := as(t, refused.first, refused.uid, path, refused.script)
		if err == nil || !strings.Contains(out, "ermi") { // permission denied, operation not permitted
			t.Errorf("%d of %#x: %s: %v: %s", refused.uid, refused.first, refused.script, err, out)
		}
	}
}

// tryLimits checks that root of the tenant, with the plain key, changes neither quotas nor layouts nor snapshots.
func tryLimits(t *testing.T, path string) {
	for _, script := range []string{
		"setfattr -n ceph.quota.max_bytes -v 100000000000 .",
		"setfattr -n ceph.quota.max_bytes -v 0 .",
		"setfattr -n ceph.quota.max_files -v 7 .",
		"setfattr -n ceph.quota -v 'max_bytes=0 max_files=0' .",
		"setfattr -x ceph.quota.max_bytes .",
		"setfattr -n ceph.quota.max_bytes -v 100000000000 d",
		"setfattr -n ceph.dir.layout -v pool=data d",
		"setfattr -n ceph.dir.layout.stripe_count -v 2 d",
		"setfattr -n ceph.dir.pin -v 0 d",
		"mkdir .snap/x",
		"mkdir d/.snap/x",
	} {
		if out, err := as(t, base, 0, path, script); err == nil {
			t.Errorf("%s was not refused: %s", script, out)
		}
	}
	if out, err := as(t, base, 0, path, "setfattr -n user.x -v 1 d; getfattr --only-values -n ceph.quota ."); err != nil || !strings.Contains(out, "max_bytes=1002438656") {
		t.Errorf("the quota: %v: %s", err, out)
	}
}

// tryQuota writes more than 1 GB into a volume of 1 GB, most of it a hole, and makes it larger while it is mounted.
func tryQuota(t *testing.T, r Root, path string) {
	const hole = 980_000_000
	_, err := as(t, base, 0, path, "truncate -s 980000000 hole")
	must(t, err)
	wantUsed(t, r, hole)
	out, err := as(t, base, 0, path, "dd if=/dev/zero of=big bs=64k count=1000")
	if err == nil || !strings.Contains(out, "quota exceeded") {
		t.Fatalf("more than 1 GB in a volume of 1 GB: %v: %s", err, out)
	}
	info, err := os.Stat(filepath.Join(path, "big"))
	must(t, err)
	t.Logf("a volume of 1 GB held %d bytes", hole+info.Size())
	if held := hole + info.Size(); held < 1_000_000_000 || held > 1_010_000_000 {
		t.Errorf("a volume of 1 GB held %d bytes", held)
	}
	wantUsed(t, r, hole+info.Size())
	must(t, Make(t.Context(), r, volume(2)))
	must(t, Make(t.Context(), r, volume(1))) // not smaller
	if out, err := as(t, base, 0, path, "dd if=/dev/zero of=more bs=1M count=20"); err != nil {
		t.Errorf("100 MB more after the volume has 2 GB: %v: %s", err, out)
	}
}

// wantUsed waits until the metadata server has counted what was written.
func wantUsed(t *testing.T, r Root, least int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		used, err := Used(ctx, r, name)
		must(t, err)
		if used >= least {
			return
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			t.Fatalf("used %d of %d bytes", used, least)
		}
	}
}

// The plain key cannot do what is the storage host's.
func TestCephPlainKey(t *testing.T) {
	admin, plain := onCeph(t)
	must(t, Make(t.Context(), admin, Volume{Dir: "first", SizeGB: 1, IDBase: base}))
	r := Root{Kind: CephFS, Backend: admin.Backend, Dir: plain}
	err := Make(t.Context(), r, Volume{Dir: "second", SizeGB: 1, IDBase: base})
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "right p") {
		t.Errorf("a quota with the plain key: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(plain, "second")); !os.IsNotExist(err) {
		t.Errorf("a volume without a quota: %v", err)
	}
}
