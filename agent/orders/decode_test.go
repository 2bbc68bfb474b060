package orders

import (
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

func linkVolume() *agentrpc.NetworkVolume {
	return &agentrpc.NetworkVolume{
		VolumeId: "vol1", Dir: "abcdefghijklmnopqrstuvwxyz", Path: "/workspace", IdBase: 0x8003_0000, ReadOnly: true, Ready: true,
		Backend: &agentrpc.VolumeBackend{
			Id: "ceph-a", Kind: "cephfs", Monitors: []string{"192.0.2.1:6789"}, FileSystem: "fs", User: "gantry", Key: "AQB-secret", Path: "/volumes",
		},
	}
}

func TestAnOrderBringsANetworkVolume(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	got := s.decode(&agentrpc.Assignment{PodId: "p", Volume: linkVolume()})
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
	if got := s.decode(&agentrpc.Assignment{PodId: "p"}); got.Volume != nil || got.VolumePath != "" || got.Refused != "" {
		t.Errorf("without one: %+v", got)
	}
}

// TestWhatAHostDoesNotTakeOfANetworkVolume: names become those of folders, and ids those of pods' roots.
func TestWhatAHostDoesNotTakeOfANetworkVolume(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	for name, spoil := range map[string]func(v *agentrpc.NetworkVolume){
		"no backend":      func(v *agentrpc.NetworkVolume) { v.Backend = nil },
		"backend's name":  func(v *agentrpc.NetworkVolume) { v.Backend.Id = "../etc" },
		"kind":            func(v *agentrpc.NetworkVolume) { v.Backend.Kind = "smb" },
		"backend's path":  func(v *agentrpc.NetworkVolume) { v.Backend.Path = "/a/../b" },
		"id":              func(v *agentrpc.NetworkVolume) { v.VolumeId = "" },
		"folder":          func(v *agentrpc.NetworkVolume) { v.Dir = "../abcdefghijklmnopqrst" },
		"no folder":       func(v *agentrpc.NetworkVolume) { v.Dir = "" },
		"root's own ids":  func(v *agentrpc.NetworkVolume) { v.IdBase = 0 },
		"pods' ids":       func(v *agentrpc.NetworkVolume) { v.IdBase = 0x1003_0000 },
		"no whole ids":    func(v *agentrpc.NetworkVolume) { v.IdBase++ },
		"ids at the end":  func(v *agentrpc.NetworkVolume) { v.IdBase = 0xFFFE_0000 },
		"no path":         func(v *agentrpc.NetworkVolume) { v.Path = "" },
		"a path outside":  func(v *agentrpc.NetworkVolume) { v.Path = "../workspace" },
		"a path with dot": func(v *agentrpc.NetworkVolume) { v.Path = "/workspace/../etc" },
	} {
		v := linkVolume()
		spoil(v)
		got := s.decode(&agentrpc.Assignment{PodId: "p", Volume: v})
		if got.Volume != nil || got.VolumePath != "" || !strings.HasPrefix(got.Refused, "the order ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAssignmentIsDecodedWhole(t *testing.T) {
	got := New(Config{}).decode(&agentrpc.Assignment{
		PodId: "p1", Ports: []*agentrpc.Port{{Number: 22, Protocol: "tcp", Public: 30_001}, {Number: 80, Protocol: "http"}},
		PersistentGb: 20, PersistentPath: "/workspace", Registry: &agentrpc.Credential{Username: "u", Password: "p"}, EndpointId: "abcdefghijklmn",
	})
	want := pod.Assignment{
		Pod: "p1", Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}, {Number: 80, Protocol: "http"}},
		Mappings:   []fleet.PortMapping{{Private: 22, Public: 30_001}},
		Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/workspace"},
		Registry:   &fleet.Credential{Username: "u", Password: "p"},
		Endpoint:   "abcdefghijklmn",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestAnEndpointIsNamedByAnID: it may stand in paths.
func TestAnEndpointIsNamedByAnID(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	for _, id := range []string{"..", "a/b", "ABC", strings.Repeat("a", 300), " "} {
		if got := s.decode(&agentrpc.Assignment{PodId: "p", EndpointId: id}); got.Endpoint != "" || !strings.HasPrefix(got.Refused, "the order ") {
			t.Errorf("%q: %+v", id, got)
		}
	}
}

func placeOf(vni uint32, addr, name string) *agentrpc.OverlayPlace {
	return &agentrpc.OverlayPlace{OverlayId: "account-a", Vni: vni, Cidr: "10.64.0.0/16", Addr: addr, Link: name}
}

func TestPlacesOfAnOrder(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	got := s.decode(&agentrpc.Assignment{PodId: "p", Overlays: []*agentrpc.OverlayPlace{placeOf(4097, "10.64.0.3", "podnet2"), placeOf(4096, "10.64.0.2", "podnet1")}})
	cidr := netip.MustParsePrefix("10.64.0.0/16")
	want := []pod.Place{
		{Overlay: "account-a", VNI: 4096, CIDR: cidr, Addr: netip.MustParseAddr("10.64.0.2"), Link: "podnet1"},
		{Overlay: "account-a", VNI: 4097, CIDR: cidr, Addr: netip.MustParseAddr("10.64.0.3"), Link: "podnet2"},
	}
	if d := cmp.Diff(want, got.Overlays, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || got.Refused != "" {
		t.Errorf("%s %s", got.Refused, d)
	}
	for name, bad := range map[string][]*agentrpc.OverlayPlace{
		"an address outside": {placeOf(4096, "10.65.0.2", "podnet1")},
		"no VNI":             {placeOf(0, "10.64.0.2", "podnet1")},
		"a VNI too large":    {placeOf(1<<24, "10.64.0.2", "podnet1")},
		"the pod's own link": {placeOf(4096, "10.64.0.2", "eth0")},
		"a path for a link":  {placeOf(4096, "10.64.0.2", "../x")},
		"a VNI twice":        {placeOf(4096, "10.64.0.2", "podnet1"), placeOf(4096, "10.64.0.3", "podnet2")},
		"a link twice":       {placeOf(4096, "10.64.0.2", "podnet1"), placeOf(4097, "10.64.0.3", "podnet1")},
		"too many":           slices.Repeat([]*agentrpc.OverlayPlace{placeOf(4096, "10.64.0.2", "podnet1")}, 5),
	} {
		if got := s.decode(&agentrpc.Assignment{PodId: "p", Overlays: bad}); got.Refused == "" || got.Overlays != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestPlacesArePartOfAPodsNetwork gives a pod that does not run a place and takes it away again.
