package tunnels

import (
	"strings"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/volumes"
	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/storage/volume"
)

// TestFilesOfAPodWhoseVolumeIsDead: nobody waits in the kernel for its server.
func TestFilesOfAPodWhoseVolumeIsDead(t *testing.T) {
	book, mounts := ledgertest.Open(t, t.TempDir()), &volumestest.Mounts{}
	mounts.SetHealth(volume.Health{Backend: "ceph-a"})
	a := pod.Assignment{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1}
	a.Volume = &volume.Volume{Backend: volume.Backend{ID: "ceph-a"}}
	ledgertest.SetFull(t, book, a, pod.Assignment{Pod: "p2", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1})
	files := New(Config{Ledger: book, Dead: func(id fleet.BackendID) bool { return volumes.Dead(mounts, id) }})
	if err := files.reachable("p1"); err != nil {
		t.Error(err)
	}
	if err := New(Config{Ledger: book}).reachable("p1"); err != nil {
		t.Errorf("where nothing tells of backends: %v", err)
	}
	mounts.SetHealth(volume.Health{Backend: "ceph-a", Down: time.Unix(1e9, 0)})
	if err := files.reachable("p1"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("while it is dead: %v", err)
	}
	if err := files.reachable("p2"); err != nil {
		t.Errorf("a pod without one: %v", err)
	}
}
