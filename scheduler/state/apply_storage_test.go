package state

import (
	"bytes"
	"testing"

	"gantry/fleet"
)

// storing is a world with a pod of vol-1 on host-b, and host-a with the storage role.
func storing(t *testing.T) *world {
	w := newWorld(t).settle().furnish()
	p := podOn("pod-1", "host-b")
	p.Spec.Network = &fleet.NetworkMount{Volume: "vol-1", Path: "/data"}
	w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}}, CreateVolume{Volume: newVolume("vol-2", "b-fast")})
	w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
	return w
}

func TestHostsReportWhatTheyDidForVolumes(t *testing.T) {
	w := storing(t)
	before := w.pod("pod-1")
	index := w.s.Index()
	used := func(want bool) {
		t.Helper()
		w.view(func(v *View) {
			for _, b := range v.Backends() {
				if b.Used != want {
					t.Errorf("a volume was made on the backend %s: %t", b.ID, b.Used)
				}
			}
		})
	}
	used(false)
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}, VolumeReport{Volume: "vol-2", ProvisionedGB: 10}))
	if v := w.volume("vol-1"); v.State != fleet.VolumeReady || v.ProvisionedGB != 10 {
		t.Errorf("got %+v", v)
	}
	used(true)
	w.inTxn(at(9), func(tx *txn) { // as after its data was moved
		b := *tx.base.backends.Get(tx.Txn, "b-std")
		b.Used = false
		tx.base.backends.Put(tx.Txn, b.ID, &b)
	})
	moved := w.s.Index()
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}))
	if used(true); !w.said(moved)[Event{Kind: KindStorage, ID: "b-std"}] {
		t.Error("nobody is told that a volume was made there")
	}
	// The pod's host learns that it can begin; the pod's incarnation is what it was.
	if p := w.pod("pod-1"); p.Generation != before.Generation+1 || p.Incarnation != before.Incarnation || w.host("host-b").Generation != p.Generation {
		t.Errorf("got %+v", p)
	}
	said := w.said(index)
	for _, e := range []Event{{Kind: KindStorage, ID: "b-std"}, {Kind: KindStorage, ID: "b-fast"}, {Kind: KindAssign, ID: "host-b"}} {
		if !said[e] {
			t.Errorf("said is %v", said)
		}
	}
	if said[Event{Kind: KindAssign, ID: "host-a"}] {
		t.Error("a host without such a pod is told")
	}
	work := func(backend fleet.BackendID, want int) {
		t.Helper()
		w.view(func(v *View) {
			if got := v.StorageWork(backend); len(got) != want {
				t.Errorf("%d volumes of %s are to be looked at: %+v", len(got), backend, got)
			}
		})
	}
	work("b-std", 1) // it is measured
	work("b-fast", 0)
	hash := w.hash()
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10, ReadOnly: ptr(false)}, VolumeReport{Volume: "none", Gone: true}))
	if !bytes.Equal(hash, w.hash()) {
		t.Error("the same was written again")
	}
	w.must(UpdateVolume{Account: "acme", Volume: "vol-2", SizeGB: ptr(20), At: at(50)})
	work("b-fast", 1)
	if v := w.volume("vol-2"); v.State != fleet.VolumeReady {
		t.Errorf("a volume that grows is %s", v.State)
	}
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-2", ProvisionedGB: 5000}))
	work("b-fast", 1)
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-2", ProvisionedGB: 20}))
	work("b-fast", 0)
	w.check()
}

func TestAFullVolumeIsReadOnly(t *testing.T) {
	w := storing(t)
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}, VolumeReport{Volume: "vol-2", ProvisionedGB: 10}))
	for _, full := range []bool{true, false} {
		before := w.host("host-b").Generation
		w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ReadOnly: &full}, VolumeReport{Volume: "vol-2", ReadOnly: &full}))
		if v := w.volume("vol-1"); v.ReadOnly != full || w.pod("pod-1").Generation != before+1 || w.host("host-b").Generation != before+1 {
			t.Errorf("full %t: %+v, the host is at %d of %d", full, v, w.host("host-b").Generation, before)
		}
		if v := w.volume("vol-2"); v.ReadOnly {
			t.Error("a volume whose size is enforced is read-only")
		}
	}
	w.check()
}

func TestReportsOfVolumesThatAreNotTaken(t *testing.T) {
	w := storing(t)
	r := VolumeReport{Volume: "vol-2", ProvisionedGB: 10}
	late := w.provides("host-a", r)
	late.Epoch--
	w.refused(fleet.CodeStale, late)
	unknown := w.provides("host-a", r)
	unknown.Host = "host-z"
	w.refused(fleet.CodeNotFound, unknown)
	w.refused(fleet.CodeInvalid, w.provides("host-a", make([]VolumeReport, MaxVolumeReports+1)...))
	hash := w.hash()
	w.must(w.provides("host-b", r)) // it has no role
	if !bytes.Equal(hash, w.hash()) {
		t.Error("a host without the role was believed")
	}
	w.must(SetHostRoles{Host: "host-b", Roles: []fleet.HostRole{fleet.RoleStorage}})
	hash = w.hash()
	w.must(w.provides("host-b", r)) // another host looks after the backend
	if !bytes.Equal(hash, w.hash()) {
		t.Error("a host that does not look after the backend was believed")
	}
	w.must(w.provides("host-b", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}))
	if v := w.volume("vol-1"); v.State != fleet.VolumeReady {
		t.Errorf("any host may look after the other backend: %+v", v)
	}
	w.check()
}

// Sizes may have changed since a copy was made: after a restore all are applied again.
func TestARestoredClusterAppliesSizesAgain(t *testing.T) {
	w := storing(t)
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-1", ProvisionedGB: 10}, VolumeReport{Volume: "vol-2", ProvisionedGB: 10}))
	w.must(CreateVolume{Volume: newVolume("vol-3", "b-fast")}, DeleteVolume{Account: "acme", Volume: "vol-3", At: at(50)})
	index := w.s.Index()
	w.must(restore(7))
	for _, id := range []fleet.VolumeID{"vol-1", "vol-2"} {
		if v := w.volume(id); v.State != fleet.VolumeReady || v.ProvisionedGB != 0 {
			t.Errorf("got %+v", v)
		}
	}
	if !w.said(index)[Event{Kind: KindStorage, ID: "b-fast"}] {
		t.Error("who looks after the backend is not told")
	}
	w.view(func(v *View) {
		if got := v.StorageWork("b-fast"); len(got) != 2 || got[1].State != fleet.VolumeDeleting {
			t.Errorf("to be looked at are %+v", got)
		}
	})
	w.check()
}
