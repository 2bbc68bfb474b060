package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/volumes"
	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/storage/volume"
)

func linkVolume() *link.NetworkVolume {
	return &link.NetworkVolume{
		VolumeId: "vol1", Dir: "abcdefghijklmnopqrstuvwxyz", Path: "/workspace", IdBase: 0x8003_0000, ReadOnly: true, Ready: true,
		Backend: &link.VolumeBackend{
			Id: "ceph-a", Kind: "cephfs", Monitors: []string{"192.0.2.1:6789"}, FileSystem: "fs", User: "gantry", Key: "AQB-secret", Path: "/volumes",
		},
	}
}

func TestAnOrderBringsANetworkVolume(t *testing.T) {
	s := &sessions{log: slog.New(slog.DiscardHandler)}
	got := s.decode(&link.Assignment{PodId: "p", Volume: linkVolume()})
	want := pod.Assignment{
		Pod: "p", VolumePath: "/workspace", Volume: &volume.Volume{
			ID: "vol1", Dir: "abcdefghijklmnopqrstuvwxyz", IDBase: 0x8003_0000, ReadOnly: true, Ready: true,
			Backend: volume.Backend{
				ID: "ceph-a", Kind: fleet.BackendCeph, Monitors: []string{"192.0.2.1:6789"}, FileSystem: "fs", User: "gantry", Key: "AQB-secret", Path: "/volumes",
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := s.decode(&link.Assignment{PodId: "p"}); got.Volume != nil || got.VolumePath != "" || got.Refused != "" {
		t.Errorf("without one: %+v", got)
	}
}

// TestWhatAHostDoesNotTakeOfANetworkVolume: names become those of folders, and ids those of pods' roots.
func TestWhatAHostDoesNotTakeOfANetworkVolume(t *testing.T) {
	s := &sessions{log: slog.New(slog.DiscardHandler)}
	for name, spoil := range map[string]func(v *link.NetworkVolume){
		"no backend":      func(v *link.NetworkVolume) { v.Backend = nil },
		"backend's name":  func(v *link.NetworkVolume) { v.Backend.Id = "../etc" },
		"kind":            func(v *link.NetworkVolume) { v.Backend.Kind = "smb" },
		"backend's path":  func(v *link.NetworkVolume) { v.Backend.Path = "/a/../b" },
		"id":              func(v *link.NetworkVolume) { v.VolumeId = "" },
		"folder":          func(v *link.NetworkVolume) { v.Dir = "../abcdefghijklmnopqrst" },
		"no folder":       func(v *link.NetworkVolume) { v.Dir = "" },
		"root's own ids":  func(v *link.NetworkVolume) { v.IdBase = 0 },
		"pods' ids":       func(v *link.NetworkVolume) { v.IdBase = 0x1003_0000 },
		"no whole ids":    func(v *link.NetworkVolume) { v.IdBase++ },
		"ids at the end":  func(v *link.NetworkVolume) { v.IdBase = 0xFFFE_0000 },
		"no path":         func(v *link.NetworkVolume) { v.Path = "" },
		"a path outside":  func(v *link.NetworkVolume) { v.Path = "../workspace" },
		"a path with dot": func(v *link.NetworkVolume) { v.Path = "/workspace/../etc" },
	} {
		v := linkVolume()
		spoil(v)
		got := s.decode(&link.Assignment{PodId: "p", Volume: v})
		if got.Volume != nil || got.VolumePath != "" || !strings.HasPrefix(got.Refused, "the order ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAHostTellsItsNetworkVolumes(t *testing.T) {
	d := scrapable(t)
	m := d.Volumes.(*volumestest.Mounts)
	m.SetHealth(volume.Health{Backend: "good"}, volume.Health{Backend: "ceph-a", Down: time.Unix(1e9, 0), Text: "no answer"})
	inv := encodeInventory(d.inventory())
	if diff := cmp.Diff([]string{"local", "nfs"}, inv.GetVolumes()); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	var told []string
	for _, n := range inv.GetNotices() {
		if n.GetCode() == "volume_backend_down" {
			told = append(told, n.GetText())
			if n.GetSevere() {
				t.Error("the host takes no pods because of one backend")
			}
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "ceph-a") || !strings.Contains(told[0], "no answer") {
		t.Errorf("notices %q", told)
	}
}

// TestFilesOfAPodWhoseVolumeIsDead: nobody waits in the kernel for its server.
func TestFilesOfAPodWhoseVolumeIsDead(t *testing.T) {
	d := scrapable(t)
	a := order("p1", 1)
	a.Volume = &volume.Volume{Backend: volume.Backend{ID: "ceph-a"}}
	ledgertest.SetFull(t, d.book, a, order("p2", 1))
	files := &tunnels{ledger: d.book, dead: func(id fleet.BackendID) bool { return volumes.Dead(d.Volumes, id) }}
	if err := files.reachable("p1"); err != nil {
		t.Error(err)
	}
	d.Volumes.(*volumestest.Mounts).SetHealth(volume.Health{Backend: "ceph-a", Down: time.Unix(1e9, 0)})
	if err := files.reachable("p1"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("while it is dead: %v", err)
	}
	if err := files.reachable("p2"); err != nil {
		t.Errorf("a pod without one: %v", err)
	}
}
