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

	"gantry/fleet"
)

// fakeDisks are disks that have names alone.
type fakeDisks struct {
	names []string
	err   error // of Keep and Rename
}

func (d *fakeDisks) Keep(_ context.Context, name string, _ int64) (string, error) {
	if d.err == nil && !slices.Contains(d.names, name) {
		d.names = append(d.names, name)
	}
	return "/disks/" + name, d.err
}

func (d *fakeDisks) Remove(_ context.Context, name string) error {
	d.names = slices.DeleteFunc(d.names, func(n string) bool { return n == name })
	return nil
}

func (d *fakeDisks) Rename(_ context.Context, from, to string) error {
	at := slices.Index(d.names, from)
	switch {
	case d.err != nil:
		return d.err
	case at < 0:
		return fs.ErrNotExist
	case slices.Contains(d.names, to):
		return fs.ErrExist
	}
	d.names[at] = to
	return nil
}

func (d *fakeDisks) Names() ([]string, error) { return slices.Clone(d.names), nil }

// TestWhoseADiskIs goes by its name: a pod's, a pod's that was set aside, or none of ours.
func TestWhoseADiskIs(t *testing.T) {
	disks := &fakeDisks{names: []string{"p2.5", "p1", "p1.7", "p1.5", "p1.x", "p1.-1", "p3.0", "a b.1", ".1", "-x", "p4"}}
	d := Data{t.TempDir(), disks}
	must(t, os.MkdirAll(filepath.Join(d.Dir, lost, "p1-6"), 0o700))
	wantPods(t, d, "p1", "p4")
	all, err := d.Lost()
	must(t, err)
	var got []string
	for _, l := range all {
		got = append(got, filepath.Base(l.Path))
	}
	if want := []string{"p3.0", "p1.5", "p2.5", "p1-6", "p1.7"}; !slices.Equal(got, want) {
		t.Errorf("aside: %v, want %v", got, want)
	}
	must(t, d.Remove(t.Context(), "p1"))
	if want := []string{"p2.5", "p1.x", "p1.-1", "p3.0", "a b.1", ".1", "-x", "p4"}; !slices.Equal(disks.names, want) {
		t.Errorf("left: %v, want %v", disks.names, want)
	}
	exists(t, filepath.Join(d.Dir, lost, "p1-6"), false)
}

func TestDisksAreSetAsideAndComeBack(t *testing.T) {
	broken := errors.New("broken")
	now := time.Unix(5, 0)
	for name, c := range map[string]struct {
		names, want []string
		err         error
		path        string
	}{
		"there":             {[]string{"p1", "p2"}, []string{"p1.5", "p2"}, nil, "p1.5"},
		"twice in a second": {[]string{"p1", "p1.5"}, []string{"p1.6", "p1.5"}, nil, "p1.6"},
		"none":              {[]string{"p2"}, []string{"p2"}, nil, ""},
		"it cannot be":      {[]string{"p1"}, []string{"p1"}, broken, ""},
	} {
		disks := &fakeDisks{names: c.names, err: c.err}
		d := Data{t.TempDir(), disks}
		path, err := d.SetAside(t.Context(), "p1", now)
		if !errors.Is(err, c.err) || path != "" && path != filepath.Join(d.Dir, c.path) || (path == "") != (c.path == "") || !slices.Equal(disks.names, c.want) {
			t.Errorf("%s: %q, %v, disks %v", name, path, err, disks.names)
		}
	}
	for name, c := range map[string]struct {
		names, want []string
		folder      bool // one was set aside before there were disks, and later than any disk
		back        bool // it is in its place
	}{
		"the newest":                 {[]string{"p1.5", "p1.7", "p2.9"}, []string{"p1.5", "p1", "p2.9"}, false, false},
		"none":                       {[]string{"p2.9"}, []string{"p2.9", "p1"}, false, false},
		"there is one":               {[]string{"p1.5", "p1"}, []string{"p1.5", "p1"}, false, false},
		"a folder":                   {nil, []string{"p1"}, true, true},
		"a folder, and there is one": {[]string{"p1"}, []string{"p1"}, true, false},
	} {
		disks := &fakeDisks{names: c.names}
		d := Data{t.TempDir(), disks}
		if c.folder {
			must(t, os.MkdirAll(filepath.Join(d.Dir, lost, "p1-8"), 0o700))
		}
		if path, err := d.Make(t.Context(), "p1", 1); err != nil || path != "/disks/p1" || !slices.Equal(disks.names, c.want) {
			t.Errorf("%s: %q, %v, disks %v", name, path, err, disks.names)
		}
		exists(t, filepath.Join(d.Dir, "p1"), c.back)
		exists(t, filepath.Join(d.Dir, lost, "p1-8"), c.folder && !c.back)
	}
}

func TestAFolderWhoseRemovalHasBegunIsOfItsPodOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, "p1"), 0o700), os.Mkdir(filepath.Join(dir, removed+"p1"), 0o700), os.Mkdir(filepath.Join(dir, removed+"p2"), 0o700)))
	got, err := DataOf(dir)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []fleet.PodID{"p1", "p2"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestADiskThatCannotBeMadeIsTriedAgain, and the pod's owner is told.
func TestADiskThatCannotBeMadeIsTriedAgain(t *testing.T) {
	deps := newFakeHost(t).deps(boot1)
	deps.Disks = &fakeDisks{err: errors.New("broken")}
	want := assignment(1, fleet.GoalRun)
	m := newMachine(deps, want)
	if mounts, err := m.persistent(t.Context(), want); err != nil || mounts != nil {
		t.Errorf("without one: %v, %v", mounts, err)
	}
	want.Persistent = &fleet.PersistentMount{SizeGB: 1, Path: "/workspace"}
	var e *Error
	if _, err := m.persistent(t.Context(), want); !errors.As(err, &e) || e.Class != Retry || e.Sentence != "the host cannot prepare the persistent disk now" {
		t.Errorf("%v", err)
	}
}

// TestTheLastLookBeforeAStart: whatever was free when the start began, what another pod has by now is not begun with.
func TestTheLastLookBeforeAStart(t *testing.T) {
	f := newFakeHost(t)
	deps := f.deps(boot1)
	deps.claims = newClaims()
	f.records["old"] = Record{Assignment: orderOf("old", 10, "GPU-1", 0), Begun: 1}
	for name, c := range map[string]struct {
		want Assignment
		err  error
	}{
		"its GPU is taken": {orderOf("new", 20, "GPU-1", 0), errSuperseded},
		"another GPU":      {orderOf("new", 20, "GPU-2", 0), nil},
		"no GPU":           {orderOf("new", 20, "", 0), nil},
	} {
		delete(f.records, "new")
		err := newMachine(deps, c.want).begun(c.want)
		if begun := f.records["new"].Begun == 1; !errors.Is(err, c.err) || begun != (c.err == nil) {
			t.Errorf("%s: %v, begun %v", name, err, begun)
		}
	}
}
