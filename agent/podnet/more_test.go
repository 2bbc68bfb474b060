package podnet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// place is one in a private network.
func place(vni uint32, cidr, addr string) pod.Place {
	return pod.Place{Overlay: "account-a", VNI: vni, CIDR: netip.MustParsePrefix(cidr), Addr: netip.MustParseAddr(addr), Link: "podnet1"}
}

// TestTwoPodsHaveNoPlaceInCommon: first have those that run what they hold, the later order first among them; a network has one range.
func TestTwoPodsHaveNoPlaceInCommon(t *testing.T) {
	const red = "10.64.0.0/16"
	one, two := place(4096, red, "10.64.0.2"), place(4096, red, "10.64.0.3")
	other, wide := place(4097, "10.65.0.0/16", "10.65.0.2"), place(4096, "10.64.0.0/15", "10.64.0.4")
	record := func(id fleet.PodID, generation uint64, runs bool, places ...pod.Place) pod.Record {
		rec := pod.Record{Addr: netip.MustParseAddr("10.88.0.5"), Assignment: pod.Assignment{
			Pod: id, Incarnation: 1, Goal: fleet.GoalRun, Generation: generation, Overlays: places,
		}}
		if runs {
			rec.Begun, rec.Held = 1, &pod.Holding{Overlays: places}
			rec.Assignment.Overlays = []pod.Place{other} // what is ordered since is no more than an order
		}
		return rec
	}
	for what, c := range map[string]struct {
		records []pod.Record
		want    map[fleet.PodID][]pod.Place
	}{
		"none in common": {
			[]pod.Record{record("a", 1, false, one, other), record("b", 2, false, two)},
			map[fleet.PodID][]pod.Place{"a": {one, other}, "b": {two}},
		},
		"two orders": {
			[]pod.Record{record("a", 2, false, one), record("b", 1, false, one, other)},
			map[fleet.PodID][]pod.Place{"a": {one}, "b": {other}},
		},
		"an order and one that runs": {
			[]pod.Record{record("a", 9, false, one), record("b", 1, true, one)},
			map[fleet.PodID][]pod.Place{"a": {}, "b": {one}},
		},
		"two that run": {
			[]pod.Record{record("a", 1, true, one), record("b", 2, true, one, two)},
			map[fleet.PodID][]pod.Place{"a": {}, "b": {one, two}},
		},
		"two ranges": {
			[]pod.Record{record("a", 1, false, wide), record("b", 2, false, one), record("c", 3, false, other)},
			map[fleet.PodID][]pod.Place{"a": {}, "b": {one}, "c": {other}},
		},
		"two ranges, of which the older runs": {
			[]pod.Record{record("a", 1, true, wide), record("b", 2, false, one)},
			map[fleet.PodID][]pod.Place{"a": {wide}, "b": {}},
		},
	} {
		for range 2 { // in either order
			slices.Reverse(c.records)
			var order []uint64
			for _, a := range Attached(slices.Clone(c.records), func(netip.Addr) uint32 { return 7 }) {
				if !slices.Equal(a.Link.Overlays, c.want[a.Pod]) {
					t.Errorf("%s: %s is at %v", what, a.Pod, a.Link.Overlays)
				}
				for _, rec := range c.records {
					if rec.Assignment.Pod == a.Pod {
						order = append(order, rec.Assignment.Generation)
					}
				}
			}
			if len(order) != len(c.want) || !slices.IsSorted(order) {
				t.Errorf("%s: by their orders they come as %v", what, order) // the last has a public port that two name
			}
		}
	}
}

// faulty is a network controller of which one call fails.
type faulty struct {
	netctl.Controller
	call string
}

var errFault = errors.New("the kernel says no")

func (f *faulty) fault(call string) error {
	if f.call == call {
		return errFault
	}
	return nil
}

func (f *faulty) Has(ctx context.Context, id string) (bool, error) {
	if err := f.fault("has"); err != nil {
		return true, err
	}
	return f.Controller.Has(ctx, id)
}

func (f *faulty) Left(ctx context.Context, id string) (bool, error) {
	if err := f.fault("left"); err != nil {
		return false, err
	}
	return f.Controller.Left(ctx, id)
}

func (f *faulty) IDBase(ctx context.Context, id string) (uint32, error) {
	if err := f.fault("base"); err != nil {
		return 0, err
	}
	return f.Controller.IDBase(ctx, id)
}

func (f *faulty) Published(ctx context.Context, id string) ([]netctl.Port, error) {
	if err := f.fault("published"); err != nil {
		return nil, err
	}
	return f.Controller.Published(ctx, id)
}

func (f *faulty) AddPod(ctx context.Context, p netctl.Pod) error {
	if err := f.fault("add"); err != nil {
		return err
	}
	return f.Controller.AddPod(ctx, p)
}

func (f *faulty) RemovePod(ctx context.Context, id string) error {
	if err := f.fault("remove"); err != nil {
		return err
	}
	return f.Controller.RemovePod(ctx, id)
}

// TestFaultsOfTheNetworkAreTold, and none leaves the pod's places to others while something of its network may be there.
func TestFaultsOfTheNetworkAreTold(t *testing.T) {
	control := &faulty{Controller: newControl(t)}
	n := Network{"0a1b", control, newKeeper(t, control)}
	want := pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Account: "a", Overlays: []pod.Place{place(4096, "10.64.0.0/16", "10.64.0.2")}}
	ready := func(call string, wantErr error) (some, whole bool) {
		t.Helper()
		control.call = call
		some, whole, err := n.Ready(t.Context(), "p1", want)
		if !errors.Is(err, wantErr) {
			t.Errorf("with a fault of %q: %v", call, err)
		}
		control.call = ""
		return some, whole
	}
	for _, call := range []string{"add", "published"} {
		control.call = call
		if err := n.Ensure(t.Context(), "p1", want); !errors.Is(err, errFault) {
			t.Errorf("with a fault of %q the network is made: %v", call, err)
		}
		if len(n.Overlays.At("p1")) != 1 {
			t.Errorf("with a fault of %q the pod has left its place", call)
		}
		control.call = ""
		if call == "add" {
			ready("left", errFault)
			if len(n.Overlays.At("p1")) != 1 {
				t.Error("it has left its place, and nobody knows what is left")
			}
			if some, _ := ready("", nil); some || len(n.Overlays.At("p1")) != 0 {
				t.Errorf("of a start that came to nothing is left: %v, %v", some, n.Overlays.At("p1"))
			}
		}
	}
	for _, call := range []string{"has", "base", "published"} {
		if _, whole := ready(call, errFault); whole {
			t.Errorf("with a fault of %q the network is whole", call)
		}
	}
	if some, whole := ready("", nil); !some || !whole {
		t.Errorf("some %v, whole %v", some, whole)
	}
	other := want
	other.IDBase = 1 << 28
	if some, whole, err := n.Ready(t.Context(), "p1", other); !some || whole || err != nil {
		t.Errorf("in another user namespace than it should have: some %v, whole %v, %v", some, whole, err)
	}
	control.call = "remove"
	if err := n.Release(t.Context(), "p1"); !errors.Is(err, errFault) || len(n.Overlays.At("p1")) != 1 {
		t.Errorf("removed with a fault: %v, its place is %v", err, n.Overlays.At("p1"))
	}
	control.call = ""
	if err := n.Release(t.Context(), "p1"); err != nil || len(n.Overlays.At("p1")) != 0 {
		t.Errorf("removed: %v, its place is %v", err, n.Overlays.At("p1"))
	}
}

// deaf is a network controller that publishes nothing.
type deaf struct{ netctl.Controller }

func (deaf) Published(context.Context, string) ([]netctl.Port, error) { return nil, nil }

func TestAPodWhosePortsAreNotPublishedIsNotConnected(t *testing.T) {
	control := deaf{newControl(t)}
	n := Network{"0a1b", control, newKeeper(t, control)}
	want := pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Account: "a", Ports: []fleet.PortMapping{{Public: 30_001, Private: 80}}}
	if err := n.Ensure(t.Context(), "p1", want); err == nil {
		t.Error("the pod's network is made without its ports")
	}
}
