package pod

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/storage/disk"
)

// diskData keeps data on real disks, and sees that nothing of them is left.
func diskData(t *testing.T) (Data, *disk.Pool) {
	t.Helper()
	pool, err := disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "persistent"), Mechanism: disk.Loop, Direct: true})
	must(t, err)
	t.Cleanup(func() { must(t, pool.Release(context.Background())) }) // the test's has ended
	return Data{pool.Dir(), pool}, pool
}

func wantPods(t *testing.T, d Data, want ...fleet.PodID) {
	t.Helper()
	got, err := d.Pods()
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("data of %v, %v; want %v", got, err, want)
	}
}

func TestDataOnDisks(t *testing.T) {
	d, pool := diskData(t)
	ctx := t.Context()
	path, err := d.Make(ctx, "p1", 1)
	must(t, err)
	writeTree(t, path, "note")
	must(t, os.Symlink("/etc/passwd", filepath.Join(path, "link")))
	again, err := d.Make(ctx, "p1", 2) // ordered to grow
	if err != nil || again != path {
		t.Fatal(again, err)
	}
	if u, err := pool.Usage(ctx, "p1"); err != nil || u.Size < 2_000_000_000 {
		t.Errorf("usage %+v, %v", u, err)
	}
	exists(t, filepath.Join(path, "note"), true)

	now := time.Unix(1000, 0)
	aside, err := d.SetAside(ctx, "p1", now)
	if err != nil || aside == "" {
		t.Fatal(aside, err)
	}
	if again, err := d.SetAside(ctx, "p1", now); err != nil || again != "" {
		t.Errorf("again: %q, %v", again, err)
	}
	wantPods(t, d)
	all, err := d.Lost()
	if err != nil || len(all) != 1 || all[0].Pod != "p1" || !all[0].At.Equal(now) {
		t.Fatalf("aside: %+v, %v", all, err)
	}
	_, err = d.Make(ctx, "p1", 1) // it comes back, and stays as large as it was
	must(t, err)
	exists(t, filepath.Join(path, "note"), true)
	wantPods(t, d, "p1")

	_, err = d.SetAside(ctx, "p1", now)
	must(t, err)
	must(t, pool.Release(ctx))
	path, err = d.Make(ctx, "p2", 1)
	must(t, err)
	writeTree(t, path, "note")
	_, err = d.SetAside(ctx, "p2", now)
	must(t, err)
	all, err = d.Lost()
	must(t, err)
	must(t, d.RemoveLost(ctx, all[0]))
	for range 2 {
		must(t, d.Remove(ctx, "p2")) // what was set aside, too
	}
	if names, err := pool.Names(); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// asideOnly are disks of which one was set aside and does not come back.
type asideOnly struct {
	Disks
	err  error
	kept bool
}

func (d *asideOnly) Names() ([]string, error)                     { return []string{"p1.7"}, nil }
func (d *asideOnly) Rename(context.Context, string, string) error { return d.err }
func (d *asideOnly) Keep(context.Context, string, int64) (string, error) {
	d.kept = true
	return "made", nil
}

// TestDataThatDoesNotComeBackIsNotReplaced by an empty disk, unless there is newer data in its place.
func TestDataThatDoesNotComeBackIsNotReplaced(t *testing.T) {
	for _, fault := range []error{unix.EIO, fs.ErrExist} {
		disks := &asideOnly{err: fault}
		path, err := Data{t.TempDir(), disks}.Make(t.Context(), "p1", 1)
		if newer := errors.Is(fault, fs.ErrExist); disks.kept != newer || (err == nil) != newer || (path == "made") != newer {
			t.Errorf("%v: %q, %v", fault, path, err)
		}
	}
}

// TestDataOfAnOlderAgentStays: its folders are not limited, and nothing of them is lost.
func TestDataOfAnOlderAgentStays(t *testing.T) {
	d, pool := diskData(t)
	ctx := t.Context()
	for _, id := range []fleet.PodID{"p1", "p2"} {
		path, err := MakeData(d.Dir, id)
		must(t, err)
		writeTree(t, path, "note")
	}
	_, err := SetAside(ctx, d.Dir, "p2", time.Unix(7, 0))
	must(t, err)
	wantPods(t, d, "p1")
	for _, id := range []fleet.PodID{"p1", "p2"} {
		path, err := d.Make(ctx, id, 5)
		must(t, err)
		exists(t, filepath.Join(path, "note"), true)
	}
	if all, err := d.Lost(); err != nil || len(all) != 0 {
		t.Errorf("aside: %+v, %v", all, err)
	}
	must(t, d.Remove(ctx, "p1"))
	path, err := d.Make(ctx, "p1", 1) // a new one is limited
	must(t, err)
	var st unix.Statfs_t
	must(t, unix.Statfs(path, &st))
	if size := int64(st.Blocks) * st.Bsize; size > 1_200_000_000 { //nolint:gosec // below 2^63
		t.Errorf("size %d", size)
	}
	must(t, d.Remove(ctx, "p1"))
	must(t, d.Remove(ctx, "p2"))
	if names, err := pool.Names(); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}
