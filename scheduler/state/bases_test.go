package state

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// A batch sees what it did itself: no ids and no directory are given out twice.
func TestBasesAreChosenWithinABatch(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
	create := func(n int) CreateVolume {
		return CreateVolume{Volume: newVolume(fleet.VolumeID(fmt.Sprintf("n-%d", n)), "b-std")}
	}
	twice := create(9)
	twice.Volume.Dir = dirOf("n-1")
	res, err := w.s.Apply([]entry.Entry{
		w.entry(create(1), create(2), twice),
		w.entry(DeleteVolume{Account: "acme", Volume: "n-1", At: at(5)}, create(3), w.provides("host-a", VolumeReport{Volume: "n-1", Gone: true}), create(4)),
		w.entry(twice),
	})
	if err != nil {
		t.Fatal(err)
	}
	var bases []int
	for _, r := range slices.Concat(res...) {
		if v, ok := r.Value.(fleet.Volume); ok {
			bases = append(bases, int(v.IDBase-fleet.VolumeIDsFirst)/fleet.VolumeIDs)
		}
	}
	if want := []int{1, 2, 3, 4, 5}; !slices.Equal(bases, want) || fleet.CodeOf(res[0][2].Err) != fleet.CodeExists {
		t.Errorf("bases %v, want %v; %v", bases, want, res[0][2].Err)
	}
	w.check()
}

// The last base is given out, and what comes after it is refused by name.
func TestADataCenterHasNoMoreBases(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(UpdateAccount{Account: "acme", Limits: map[string]*int64{"networkVolumes": ptr(int64(volumeSlots + 1))}})
	full := w.volume("vol-1")
	w.inTxn(at(3), func(tx *txn) {
		for i := 1; i < volumeSlots-1; i++ {
			v := full
			v.ID, v.Dir = fleet.VolumeID(fmt.Sprintf("n-%05d", i)), fmt.Sprintf("%026d", i)
			v.IDBase = fleet.VolumeIDsFirst + uint32(i)*fleet.VolumeIDs
			tx.putVolume(&v)
		}
	})
	last := CreateVolume{Volume: newVolume("last", "b-std")}
	if v := w.must(last).(fleet.Volume); v.IDBase != fleet.VolumeIDsLast {
		t.Errorf("base %#x", v.IDBase)
	}
	w.must(DeleteVolume{Account: "acme", Volume: "n-00007", At: at(4)}, SetHostRoles{Host: "host-a", Roles: []fleet.HostRole{fleet.RoleStorage}})
	more := CreateVolume{Volume: newVolume("more", "b-fast")}
	w.refused(fleet.CodeConflictRule, more)
	if msg := w.message(more); msg != "data center dc-1 can have no more than 32766 network volumes" {
		t.Errorf("message %q", msg)
	}
	w.must(w.provides("host-a", VolumeReport{Volume: "n-00007", Gone: true}))
	if v := w.must(more).(fleet.Volume); slotIn(t, v) != 7 { // all others had their turn
		t.Errorf("base %#x", v.IDBase)
	}
}

func slotIn(t *testing.T, v fleet.Volume) int {
	t.Helper()
	i, ok := slotOf(&v)
	if !ok {
		t.Fatalf("base %#x", v.IDBase)
	}
	return i
}

// What was created after a copy was made is on the storage, and a restored cluster does not know it: it gives its
// volumes other ids, also when it is not the first that is restored from the copy, and in data centers without volumes.
func TestARestoredClusterGivesOutOtherBases(t *testing.T) {
	w := newWorld(t).settle().furnish()
	far := localBackend("far-fast")
	far.DataCenter, far.StorageHost = "dc-9", "host-far"
	tok := token("t9")
	tok.DataCenter = "dc-9"
	w.must(PutToken{tok, at(0)}, JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-far", MachineID: "machine-far"}, At: at(1)},
		PutBackend{Backend: far, New: true})
	saved := w.snapshot()
	given := map[fleet.DataCenterID]map[int]uint64{"dc-1": {}, "dc-9": {}}
	for lineage := range uint64(20) {
		if lineage > 0 {
			if err := w.s.Restore(bytes.NewReader(saved)); err != nil {
				t.Fatal(err)
			}
			w.must(restore(1_800_000_000 + lineage))
		}
		for i := range 40 {
			v := newVolume(fleet.VolumeID(fmt.Sprintf("n-%d", i)), "b-std")
			if i%2 == 1 {
				v.Backend, v.DataCenter, v.Type = far.ID, far.DataCenter, far.Type
			}
			i := slotIn(t, w.must(CreateVolume{Volume: v}).(fleet.Volume))
			if other, twice := given[v.DataCenter][i]; twice {
				t.Errorf("%s: base %d of lineage %d is given out by lineage %d", v.DataCenter, i, other, lineage)
			}
			if given[v.DataCenter][i] = lineage; lineage > 0 && i < unknownSlots {
				t.Errorf("lineage %d gives out %d, as the cluster of the copy may have", lineage, i)
			}
		}
	}
	w.check()
}
