package storage

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

// session counts how often it is woken.
type session struct {
	feed.Session
	wakes int
}

func (s *session) Wake()              { s.wakes++ }
func (s *session) Host() fleet.HostID { return "h" }

func ptr[T any](v T) *T { return &v }

// TestWhatAReportChangesOfAVolume: a size that it has, more than before, and whether it holds too much.
func TestWhatAReportChangesOfAVolume(t *testing.T) {
	ready := fleet.Volume{ID: "v", State: fleet.VolumeReady, SizeGB: 10, ProvisionedGB: 5}
	creating, deleting, full := ready, ready, ready
	creating.State, creating.ProvisionedGB, deleting.State, full.ReadOnly = fleet.VolumeCreating, 10, fleet.VolumeDeleting, true
	slow := fleet.Backend{Kind: fleet.BackendNFS, NFS: &fleet.NFSBackend{}}
	quick := fleet.Backend{Kind: fleet.BackendCeph, Ceph: &fleet.CephBackend{}}
	measured := func(used int64) *agentrpc.StorageReport {
		return &agentrpc.StorageReport{Measured: true, UsedBytes: used}
	}
	made := func(size int64) *agentrpc.StorageReport { return &agentrpc.StorageReport{ProvisionedGb: size} }
	yes, no := ptr(true), ptr(false)
	for name, c := range map[string]struct {
		v    fleet.Volume
		b    *fleet.Backend
		in   *agentrpc.StorageReport
		want *state.VolumeReport
	}{
		"nothing":           {ready, &slow, &agentrpc.StorageReport{}, nil},
		"it grew":           {ready, &slow, made(6), &state.VolumeReport{ProvisionedGB: 6}},
		"to all":            {ready, &slow, made(10), &state.VolumeReport{ProvisionedGB: 10}},
		"too large":         {ready, &slow, made(11), nil},
		"as it was":         {ready, &slow, made(5), nil},
		"below nothing":     {creating, &slow, made(-1), nil},
		"it is made":        {creating, &slow, made(10), &state.VolumeReport{ProvisionedGB: 10}},
		"it is not gone":    {deleting, &slow, made(6), nil},
		"it is gone":        {deleting, &slow, &agentrpc.StorageReport{Gone: true}, &state.VolumeReport{Gone: true}},
		"gone, but wanted":  {ready, &slow, &agentrpc.StorageReport{Gone: true}, nil},
		"a bit too full":    {ready, &slow, measured(10*tooMuch - 1), nil},
		"too full":          {ready, &slow, measured(10 * tooMuch), &state.VolumeReport{ReadOnly: yes}},
		"too full still":    {full, &slow, measured(10 * tooMuch), nil},
		"as full as it may": {full, &slow, measured(10 * gb), nil},
		"less than that":    {full, &slow, measured(10*gb - 1), &state.VolumeReport{ReadOnly: no}},
		"with a quota":      {full, &quick, measured(10 * tooMuch), &state.VolumeReport{ReadOnly: no}},
		"not measured":      {full, &slow, &agentrpc.StorageReport{UsedBytes: 1}, nil},
	} {
		got, changed := changeOf(&c.v, c.b, c.in)
		if changed != (c.want != nil) {
			t.Errorf("%s: changed %v: %+v", name, changed, got)
		} else if changed {
			c.want.Volume = "v"
			if d := cmp.Diff(*c.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
			}
		}
	}
}

// Of several changes of a volume that wait the last counts for each thing, and no more are taken than a command may have.
func TestChangesOfAVolumeThatWait(t *testing.T) {
	x := &line{}
	x.notes.busy = true // nobody records
	x.note(t.Context(), []state.VolumeReport{{Volume: "v", ReadOnly: ptr(true)}, {Volume: "v", ProvisionedGB: 7}, {Volume: "w", ReadOnly: ptr(true)}})
	x.note(t.Context(), []state.VolumeReport{{Volume: "v", ProvisionedGB: 5}, {Volume: "v", Gone: true}, {Volume: "w", ReadOnly: ptr(false)}})
	want := []state.VolumeReport{{Volume: "v", ProvisionedGB: 7, Gone: true, ReadOnly: ptr(true)}, {Volume: "w", ReadOnly: ptr(false)}}
	if d := cmp.Diff(want, x.notes.take()); d != "" || !x.notes.busy {
		t.Errorf("busy %v (-want +got):\n%s", x.notes.busy, d)
	}
	for i := range state.MaxVolumeReports + 1 {
		x.note(t.Context(), []state.VolumeReport{{Volume: fleet.VolumeID(rune(i + 1))}})
	}
	for _, n := range []int{state.MaxVolumeReports, 1, 0} {
		if got := x.notes.take(); len(got) != n || x.notes.busy != (n > 0) {
			t.Errorf("took %d, %d wait", len(got), len(x.notes.next))
		}
	}
}

// TestWhatAHostIsToldOfStorage: another set than it knows, and that there is nothing to do where it may remember something.
func TestWhatAHostIsToldOfStorage(t *testing.T) {
	one, again, two := &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{OwnDir: "a"}}}, &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{OwnDir: "a"}}}, &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{OwnDir: "b"}}}
	for name, c := range map[string]struct {
		old, set *agentrpc.StorageSet
		backends bool
		want     *agentrpc.StorageSet
	}{
		"nothing at all":    {nil, nil, false, nil},
		"nothing to do":     {nil, nil, true, noStorage},
		"nothing any more":  {one, nil, false, noStorage},
		"nothing still":     {noStorage, nil, true, noStorage},
		"the first":         {nil, one, true, one},
		"the same":          {one, again, true, one},
		"another":           {one, two, true, two},
		"something at last": {noStorage, one, true, one},
	} {
		woken := &session{}
		x := &line{session: woken}
		x.set.Store(c.old)
		x.tell(c.set, c.backends)
		if got := x.set.Load(); got != c.want || (woken.wakes > 0) != (c.want != c.old) {
			t.Errorf("%s: %v, told: %v", name, got, woken.wakes)
		}
		x.told = c.old
		if got := x.Next(nil, nil); (len(got) == 1) != (c.want != c.old) || len(x.Next(nil, nil)) != 0 {
			t.Errorf("%s: next %v", name, got)
		}
	}
}
