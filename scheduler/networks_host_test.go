package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// HostNetwork tells who was asked.
func (e *edge) HostNetwork(_ context.Context, host fleet.HostID) (fleet.HostNetwork, error) {
	e.note("network", host, "")
	return fleet.HostNetwork{Tunnel: "none"}, nil
}

// Probe takes one millisecond, but for host-b, which is away, and host-c, which fails.
func (e *edge) Probe(_ context.Context, host fleet.HostID, probes []fleet.Probe) ([]fleet.Probe, error) {
	e.note("probe", host, "")
	switch host {
	case "host-b":
		return nil, fleet.Unavailable("the host cannot be reached", nil)
	case "host-c":
		return nil, errors.New("secret of the network")
	}
	for i := range probes {
		probes[i].Millis = 1
	}
	return probes, nil
}

func ring(n int) (out []located) {
	for i := range n {
		out = append(out, located{pod: fleet.PodID(fmt.Sprintf("p%04d", i)), host: fleet.HostID(fmt.Sprintf("h%d", i%7)), addr: fmt.Sprintf("10.64.0.%d", i)})
	}
	return out
}

func TestProbesAreSpreadAndBounded(t *testing.T) {
	for _, tc := range []struct {
		rings []int
		want  int // probes
		most  int // of one pod
	}{
		{nil, 0, 0},
		{[]int{0, 1}, 0, 0},
		{[]int{2}, 2, 1},
		{[]int{64}, 64 * 63, 63},
		{[]int{65}, 65 * 63, 63},
		{[]int{1000}, 4000, 4},
		{[]int{10_000}, 4096, 1},
		{[]int{3, 1000}, 6 + 4000, 2 + 4},
		{[]int{1000, 3}, 2000 + 6, 2 + 2},
	} {
		var rings [][]located
		for _, n := range tc.rings {
			rings = append(rings, ring(n))
		}
		probes, at := planProbes(rings)
		if len(probes) != tc.want || len(at) != tc.want {
			t.Errorf("%v: %d probes, want %d", tc.rings, len(probes), tc.want)
		}
		asked, seen, twice := map[fleet.PodID]int{}, map[fleet.PodID]bool{}, map[fleet.Probe]int{}
		for i, p := range probes {
			var from int
			_, err := fmt.Sscanf(string(p.From), "p%d", &from)
			if err != nil || p.From == p.To || at[i] != fleet.HostID(fmt.Sprintf("h%d", from%7)) || !strings.HasPrefix(p.Addr, "10.64.0.") {
				t.Fatalf("%v: %+v at %s", tc.rings, p, at[i])
			}
			asked[p.From]++
			seen[p.To] = true
			twice[p]++
		}
		for _, n := range asked {
			if n > tc.most {
				t.Errorf("%v: a pod makes %d probes", tc.rings, n)
			}
		}
		if len(tc.rings) == 1 && tc.rings[0] <= 1000 && len(twice) != tc.want {
			t.Errorf("%v: %d of %d probes are different", tc.rings, len(twice), tc.want)
		}
		if n := len(tc.rings); n == 1 && tc.rings[0] > 1 && tc.rings[0] <= 1000 && len(seen) < tc.rings[0] {
			t.Errorf("%v: only %d pods are looked for", tc.rings, len(seen))
		}
	}
}

func TestCheckingANetworkAsksTheHostsOfItsRunningPods(t *testing.T) {
	w := newWorld(t)
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "one", GlobalNetwork: true}})
	for _, id := range []fleet.HostID{"host-a", "host-b", "host-c"} {
		w.addHost(id, "dc-1", h100, 2)
	}
	var pods []fleet.Pod
	for range 5 {
		req := gpuPod(1)
		req.GlobalNetworking = true
		pods = append(pods, w.create(req))
	}
	for _, p := range pods[:4] {
		w.report(p.ID, fleet.EventRunning)
	}
	got, err := w.svc.CheckNetwork(t.Context(), "acme")
	if err != nil || len(got) != 4*3 {
		t.Fatalf("of 5 pods 4 run: %d probes, %v", len(got), err)
	}
	for _, p := range got {
		problem := map[fleet.HostID]string{"host-b": "the host cannot be reached", "host-c": "its host could not be asked"}[w.pod(p.From).Host]
		if p.From == p.To || p.To == pods[4].ID || p.Problem != problem || p.Problem == "" && p.Millis != 1 {
			t.Errorf("from %s: %+v", w.pod(p.From).Host, p)
		}
	}
	if got, err = w.svc.CheckNetwork(t.Context(), "other"); err != nil || len(got) != 0 {
		t.Errorf("an account without networks: %v, %v", got, err)
	}
	if _, err = w.svc.CheckNetwork(t.Context(), "nobody"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("an unknown account: %v", err)
	}
	if n, err := w.svc.HostNetwork(t.Context(), "host-a"); err != nil || n.Tunnel != "none" {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := w.svc.HostNetwork(t.Context(), "host-x"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("an unknown host: %v", err)
	}
}

// away is many hosts that never answer.
type away struct{ Hosts }

func (away) Probe(ctx context.Context, _ fleet.HostID, _ []fleet.Probe) ([]fleet.Probe, error) {
	<-ctx.Done()
	return nil, fleet.Unavailable("the host did not answer in time", ctx.Err())
}

// TestACheckEndsInTime has more hosts away than are asked at once.
func TestACheckEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		members := ring(40)
		for i := range members {
			members[i].host = fleet.HostID(members[i].pod)
		}
		probes, at := planProbes([][]located{members, members, members})
		for i := range at {
			at[i] = fleet.HostID(fmt.Sprint(at[i], i%5))
		}
		s := &Service{Config: Config{Dispatch: away{}}}
		s.probeInTime(t.Context(), probes, at)
		if took := time.Since(began); took > 15*time.Second || len(probes) < 4000 || slices.ContainsFunc(probes, func(p fleet.Probe) bool { return p.Problem == "" }) {
			t.Errorf("%d probes took %s", len(probes), took)
		}
	})
}
