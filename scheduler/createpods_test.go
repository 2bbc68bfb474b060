package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// times is a request so many times.
func times(n int, req fleet.PodRequest) []fleet.PodRequest {
	return slices.Repeat([]fleet.PodRequest{req}, n)
}

var aCluster = fleet.ClusterID("cluster0000001").Owner()

func TestASetOfPodsGoesWhereItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 4)
		w.addHost("host-b", "dc-2", h100, 4)
		w.addHost("host-c", "dc-3", h100, 8)
		create := func(set PodSet) ([]fleet.Pod, error) {
			set.Owner = aCluster
			pods, _, err := w.svc.CreatePods(context.Background(), member(acme), set)
			return pods, err
		}
		for _, c := range []struct {
			set  PodSet
			want string
		}{
			{PodSet{Requests: times(4, gpuPod(2)), OneCenter: true}, "map[host-c:4]"},
			{PodSet{Requests: times(2, gpuPod(2)), OnePerHost: true}, "map[host-a:1 host-b:1]"},
			{PodSet{Requests: times(2, gpuPod(2))}, "map[host-a:1 host-b:1]"},
		} {
			pods, err := create(c.set)
			if err != nil {
				t.Fatal(err)
			}
			on, gpus := map[fleet.HostID]int{}, map[string]bool{}
			for _, p := range pods {
				on[p.Host]++
				for _, g := range p.GPUs {
					gpus[g] = true
				}
			}
			if got := fmt.Sprint(on); got != c.want || len(gpus) != 2*len(pods) {
				t.Errorf("%d pods with %d GPUs on %s, want %s", len(pods), len(gpus), got, c.want)
			}
		}
		_, err := create(PodSet{Requests: times(1, gpuPod(2))})
		refused(t, err, fleet.CodeNoCapacity, "")
		_, err = create(PodSet{})
		refused(t, err, fleet.CodeInvalid, "$.pods")
		_, err = create(PodSet{Requests: times(state.MaxPods+1, gpuPod(1))})
		refused(t, err, fleet.CodeInvalid, "$.pods")
		w.unreserved()
	})
}

func TestASetOfPodsThatFindsNoRoomIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 4)
		w.addHost("host-b", "dc-2", h100, 4)
		for _, set := range []PodSet{
			{Requests: times(9, gpuPod(1))},
			{Requests: times(5, gpuPod(1)), OneCenter: true},
			{Requests: times(3, gpuPod(1)), OnePerHost: true},
		} {
			_, _, err := w.svc.CreatePods(context.Background(), member(acme), set)
			var e *fleet.Error
			if !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity || len(e.Excluded) == 0 {
				t.Errorf("%d pods: %v", len(set.Requests), err)
			}
		}
		w.unreserved()
		w.view(func(v *state.View) {
			if n := len(v.PodsOf(acme)); n != 0 {
				t.Errorf("%d pods are there", n)
			}
		})
	})
}

// TestASetOfPodsOnOneHost shows that pods of a set get public ports of their own, and that two sets that are placed at
// the same time do not get in each other's way.
func TestASetOfPodsOnOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 8, publicPorts(30_000, 30_009))
		req := gpuPod(1)
		req.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}}
		stale := 0
		w.through(func(ctx context.Context, cmd state.Command) ([]entry.Result, error) {
			res, err := w.Propose(ctx, cmd)
			if err == nil && res[0].Err != nil {
				stale++
			}
			return res, err
		})
		for _, made := range together(2, func(int) (fleet.PodView, error) {
			_, _, err := w.svc.CreatePods(context.Background(), member(acme), PodSet{Requests: times(4, req)})
			return fleet.PodView{}, err
		}) {
			if made.err != nil {
				t.Error(made.err)
			}
		}
		ports := map[int]bool{}
		w.view(func(v *state.View) {
			for _, p := range v.PodsOf(acme) {
				ports[p.Mappings[0].Public] = true
			}
		})
		if len(ports) != 8 || stale != 0 {
			t.Errorf("8 pods have %d public ports; %d proposals were stale", len(ports), stale)
		}
		w.unreserved()
	})
}

func TestASetOfPodsIsMadeOnce(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4)
	set := PodSet{Requests: times(4, gpuPod(1)), Owner: aCluster, Once: &fleet.Once{Key: "k", Fingerprint: []byte("f")}}
	first, replayed, err := w.svc.CreatePods(context.Background(), member(acme), set)
	if err != nil || replayed {
		t.Fatal(err, replayed)
	}
	again, replayed, err := w.svc.CreatePods(context.Background(), member(acme), set) // there is no room any more
	if err != nil || !replayed || len(again) != 4 || again[3].ID != first[3].ID {
		t.Errorf("again: %v, %v, %v", again, replayed, err)
	}
}

// TestAnOwnersPodsAreHidden shows that whoever has the account reads a pod of a cluster by its id, but neither lists nor changes it.
func TestAnOwnersPodsAreHidden(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4)
	ctx, who := context.Background(), member(acme)
	pods, _, err := w.svc.CreatePods(ctx, who, PodSet{Requests: times(1, gpuPod(1)), Owner: aCluster})
	if err != nil {
		t.Fatal(err)
	}
	id := pods[0].ID
	if list, err := w.svc.Pods(ctx, who); err != nil || len(list) != 0 {
		t.Errorf("the list has %d pods: %v", len(list), err)
	}
	if _, err = w.svc.Pod(ctx, who, id); err != nil {
		t.Errorf("it cannot be read: %v", err)
	}
	_, err = w.svc.Pod(ctx, member("other"), id)
	refused(t, err, fleet.CodeNotFound, "")
	for _, action := range fleet.Actions() {
		_, err = w.svc.ActPod(ctx, who, id, action)
		refused(t, err, fleet.CodeNotAllowed, "member of cluster")
	}
	name := "mine"
	_, err = w.svc.UpdatePod(ctx, who, id, fleet.PodUpdate{Name: &name})
	refused(t, err, fleet.CodeNotAllowed, "member of cluster")
	account, err := w.svc.Account(ctx, who)
	if err != nil || account.Used[fleet.LimitGPUs] != 1 || account.HourlyRate == 0 {
		t.Errorf("it does not count: %+v, %v", account, err)
	}
}
