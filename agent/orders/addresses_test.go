package orders

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// Pods that do not run take no addresses from those that do, however many there are.
func TestStoppedPodsTakeNoAddresses(t *testing.T) {
	l, err := ledger.Open(filepath.Join(t.TempDir(), "l.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	var put []pod.Assignment
	for i := range 4100 {
		put = append(put, pod.Assignment{Pod: fleet.PodID(fmt.Sprintf("pod%06d", i)), Incarnation: 1, Goal: fleet.GoalStop, Generation: 1})
	}
	allocate := func(used map[netip.Addr]bool) (netip.Addr, error) {
		return netctl.NextAddr(netip.MustParsePrefix("10.200.0.0/20"), used)
	}
	if _, err := l.SetFull(1, put, allocate); err != nil {
		t.Fatal(err)
	}
	run := pod.Assignment{Pod: "new", Incarnation: 1, Goal: fleet.GoalRun, Generation: 2}
	again := put[7]
	again.Goal, again.Incarnation, again.Generation = fleet.GoalRun, 2, 2
	if _, err := l.Apply(1, 2, []pod.Assignment{run, again}, nil, allocate); err != nil {
		t.Fatal(err)
	}
	addresses := map[netip.Addr]fleet.PodID{}
	for _, r := range l.Records() {
		if r.Addr.IsValid() {
			addresses[r.Addr] = r.Assignment.Pod
		}
	}
	if len(addresses) != 2 {
		t.Errorf("addresses of %v", addresses)
	}
	for _, id := range []fleet.PodID{"new", again.Pod} {
		if r, _ := l.Record(id); !r.Addr.IsValid() {
			t.Errorf("%s has no address", id)
		}
	}
}

// As many pods as a host takes have an address each, and those that are just leaving besides.
func TestAHostHasAddressesForAllThatItTakes(t *testing.T) {
	used, n := map[netip.Addr]bool{}, 0
	for ; ; n++ {
		addr, err := netctl.NextAddr(netip.MustParsePrefix("10.200.0.0/20"), used)
		if err != nil {
			break
		}
		used[addr] = true
	}
	if n < fleet.MostPods+64 {
		t.Errorf("%d addresses for %d pods", n, fleet.MostPods)
	}
}
