package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// gate is a proposer that hands what binds a pod to a function of the test.
type gate struct {
	*world
	bind func(ctx context.Context, cmd state.Command) ([]entry.Result, error)
}

func (g *gate) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	switch cmd := cmds[0].(type) {
	case state.CreatePods:
		return g.bind(ctx, cmd)
	case state.ActPod:
		return g.bind(ctx, cmd)
	}
	return g.world.Propose(ctx, cmds...)
}

// through has the world's service propose through a function.
func (w *world) through(bind func(ctx context.Context, cmd state.Command) ([]entry.Result, error)) {
	w.svc.Node = &gate{w, bind}
}

// staleSince refuses a pick, and makes a newer view.
func (w *world) staleSince(ctx context.Context) ([]entry.Result, error) {
	_, err := w.Propose(ctx, state.PutAccount{Account: fleet.Account{ID: "new", CreatedAt: begin()}})
	return []entry.Result{{Err: fleet.Stale("taken")}}, err
}

// unreserved fails when anything is reserved.
func (w *world) unreserved() {
	w.t.Helper()
	w.svc.reservations.mu.Lock()
	defer w.svc.reservations.mu.Unlock()
	if n := len(w.svc.reservations.hosts); n != 0 {
		w.t.Errorf("reservations on %d hosts are left", n)
	}
}

// TestReservationsOfOthersAreLeftAlone holds proposals back, so that all picks are made on one view.
func TestReservationsOfOthersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 3, publicPorts(30_000, 30_099))
		w.addHost("host-b", "dc-1", h100, 3, publicPorts(30_000, 30_099))
		open := make(chan struct{})
		w.through(func(ctx context.Context, cmd state.Command) ([]entry.Result, error) {
			<-open
			return w.Propose(ctx, cmd)
		})
		req := gpuPod(1)
		req.Ports = []fleet.Port{tcp(22)}
		var all []outcome
		go func() {
			all = together(8, func(int) (fleet.PodView, error) { return w.svc.CreatePod(t.Context(), member(acme), req) })
		}()
		synctest.Wait() // six are proposed, and two wait for what becomes of those
		close(open)
		synctest.Wait()
		granted, refused := short(t, all)
		if granted != 6 || refused != 2 {
			t.Errorf("%d granted and %d refused, want 6 and 2", granted, refused)
		}
		all = slices.DeleteFunc(all, func(o outcome) bool { return o.err != nil })
		apart(t, all)
		fair := int64(64_000 / 3)
		for _, o := range all {
			if o.pod.Need.MilliCPU != fair {
				t.Errorf("%s has %d of the processors, want its share %d", o.pod.ID, o.pod.Need.MilliCPU, fair)
			}
		}
		w.unreserved()
	})
}

// TestNoRoomIsNotSaidForClaims has one GPU, and its proposal fails: who waited for it gets it.
func TestNoRoomIsNotSaidForClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 1)
		first, fail := true, make(chan struct{})
		w.through(func(ctx context.Context, cmd state.Command) ([]entry.Result, error) {
			if !first {
				return w.Propose(ctx, cmd)
			}
			first = false
			<-fail
			return nil, fleet.Unavailable("the log is gone", nil)
		})
		create := func() (fleet.PodView, error) { return w.svc.CreatePod(t.Context(), member(acme), gpuPod(1)) }
		var lost, won error
		go func() { _, lost = create() }()
		synctest.Wait()
		done := false
		go func() { _, won = create(); done = true }()
		synctest.Wait()
		if done {
			t.Fatalf("answered while it is not known whether the GPU is free: %v", won)
		}
		if _, err := w.svc.PlanPod(t.Context(), member(acme), gpuPod(1)); err != nil {
			t.Errorf("a plan without a reservation: %v", err)
		}
		close(fail)
		synctest.Wait()
		if fleet.CodeOf(lost) != fleet.CodeUnavailable || !done || won != nil {
			t.Errorf("%v; %v %v", lost, done, won)
		}
		w.unreserved()
	})
}

// TestWaitForClaimsEnds ends the wait for a proposal that is not answered.
func TestWaitForClaimsEnds(t *testing.T) {
	for name, patience := range map[string]time.Duration{"with the request": time.Second, "by itself": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.addHost("host-a", "dc-1", h100, 1)
				w.through(func(ctx context.Context, _ state.Command) ([]entry.Result, error) {
					<-ctx.Done()
					return nil, fleet.Unavailable("late", ctx.Err())
				})
				go func() { _, _ = w.svc.CreatePod(t.Context(), member(acme), gpuPod(1)) }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				_, err := w.svc.CreatePod(ctx, member(acme), gpuPod(1))
				refused(t, err, fleet.CodeUnavailable, "")
				if took := time.Since(began); took != min(patience, decideTimeout) {
					t.Errorf("waited %s", took)
				}
				time.Sleep(proposeTimeout)
				synctest.Wait()
				w.unreserved()
			})
		})
	}
}

// TestRefusedPickIsNotMadeAgain refuses picks without telling why in a newer view: each must be another, and
// what is left when there is none is to wait for a newer view.
func TestRefusedPickIsNotMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 2)
		w.addHost("host-b", "dc-1", h100, 2)
		tried := map[string]int{}
		w.through(func(ctx context.Context, cmd state.Command) ([]entry.Result, error) {
			gpu := cmd.(state.CreatePods).Pods[0].Pod.GPUs[0]
			if tried[gpu]++; tried[gpu] > 1 {
				return w.Propose(ctx, cmd)
			}
			return []entry.Result{{Err: fleet.Stale("taken")}}, nil
		})
		go func() {
			time.Sleep(time.Second)
			w.must(state.PutAccount{Account: fleet.Account{ID: "new", CreatedAt: begin()}}) // a newer view
		}()
		began := time.Now()
		view, err := w.svc.CreatePod(t.Context(), member(acme), gpuPod(1))
		if err != nil || len(tried) != 4 || tried[view.Pod.GPUs[0]] != 2 {
			t.Errorf("tried %v: %v", tried, err)
		}
		if took := time.Since(began); took < time.Second || took > time.Second+2*longestPause {
			t.Errorf("took %s", took)
		}
		w.unreserved()
	})
}

// TestStaleForEver ends a decision that never holds.
func TestStaleForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.addHost("host-a", "dc-1", h100, 8)
		pod := w.create(gpuPod(1))
		w.report(pod.ID, fleet.EventExited)
		tries := 0
		w.through(func(ctx context.Context, _ state.Command) ([]entry.Result, error) {
			tries++
			return w.staleSince(ctx)
		})
		for name, ask := range map[string]func() error{
			"create": func() error { _, err := w.svc.CreatePod(t.Context(), member(acme), gpuPod(1)); return err },
			"start": func() error {
				_, err := w.svc.ActPod(t.Context(), member(acme), pod.ID, fleet.ActionStart)
				return err
			},
		} {
			tries = 0
			began := time.Now()
			err := ask()
			refused(t, err, fleet.CodeUnavailable, "too quickly")
			if took := time.Since(began); took != decideTimeout || tries < 20 || tries > 200 {
				t.Errorf("%s: %d tries in %s", name, tries, took)
			}
			w.unreserved()
		}
	})
}

// TestClaimedPortsAreLeftAlone changes pods of one host, all on one view, so that each gets one port more.
func TestClaimedPortsAreLeftAlone(t *testing.T) {
	const pods = 8
	c := newCluster(t)
	c.addHosts(1, pods, publicPorts(30_000, 30_000+2*pods-1))
	req := gpuPod(1)
	req.Ports = []fleet.Port{tcp(22)}
	made := c.createTogether(pods, req)
	apart(t, made)
	ports := []fleet.Port{tcp(22), tcp(80)}
	after := together(pods, func(i int) (fleet.PodView, error) {
		return c.svc.UpdatePod(t.Context(), member(acme), made[i].pod.ID, fleet.PodUpdate{Ports: &ports})
	})
	apart(t, after)
	ports = append(ports, tcp(443))
	_, err := c.svc.UpdatePod(t.Context(), member(acme), made[0].pod.ID, fleet.PodUpdate{Ports: &ports})
	refused(t, err, fleet.CodeNoCapacity, "public ports")
}

// TestReservationsAreCountedOnce draws reservations that are made, given up and become pods, in any order, and compares
// what is left with the hosts' free resources less those reservations that are not pods yet.
func TestReservationsAreCountedOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := openWorld(r, t.TempDir())
		defer w.close()
		for i := range 3 {
			w.addHost(fleet.HostID(fmt.Sprintf("host-%d", i)), "dc-1", h100, 4)
		}
		open := map[fleet.PodID]*reserver{}
		pods := map[fleet.PodID]fleet.Pod{}
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			ids := sortedIDs(open)
			step := rapid.IntRange(0, 3).Draw(r, "step")
			switch {
			case step < 2 || len(ids) == 0:
				mine := &reserver{of: &w.svc.reservations}
				set := PodSet{Requests: []fleet.PodRequest{gpuPod(rapid.IntRange(1, 2).Draw(r, "GPUs"))}}
				if cmd, err := w.svc.plan(context.Background(), member(acme), set, mine); err == nil {
					pod := cmd.Pods[0].Pod
					open[pod.ID], pods[pod.ID] = mine, pod
				}
			case step == 2:
				id := rapid.SampledFrom(ids).Draw(r, "given up")
				open[id].release()
				delete(open, id)
			default:
				w.must(state.CreatePods{Pods: []state.NewPod{{Pod: pods[rapid.SampledFrom(ids).Draw(r, "made")], HostEpoch: 1}}})
				w.view(func(v *state.View) { // what is answered is released later
					for id := range pods {
						if _, ok := v.Pod(id); ok {
							delete(pods, id)
						}
					}
				})
				for _, id := range ids {
					if _, ok := pods[id]; !ok {
						defer open[id].release()
						delete(open, id)
					}
				}
			}
			w.view(func(v *state.View) { leftIs(r, w, v, open, pods) })
		}
	})
}

func sortedIDs(open map[fleet.PodID]*reserver) []fleet.PodID {
	var out []fleet.PodID
	for id := range open {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// leftIs compares what is left with a count from scratch.
func leftIs(r *rapid.T, w *world, v *state.View, open map[fleet.PodID]*reserver, pods map[fleet.PodID]fleet.Pod) {
	w.svc.reservations.mu.Lock()
	defer w.svc.reservations.mu.Unlock()
	hosts, less := w.svc.reservations.look(v)
	hosts.All(func(c *place.Candidate) {
		want := place.Candidate{Host: c.Host, FreeGPUs: slices.Clone(c.FreeGPUs), Free: c.Free, Pods: c.Pods}
		for id := range open {
			p := pods[id]
			if p.Host != c.Host.ID {
				continue
			}
			want.FreeGPUs = slices.DeleteFunc(want.FreeGPUs, func(g fleet.GPU) bool { return slices.Contains(p.GPUs, g.UUID) })
			want.Free.MilliCPU -= p.Need.MilliCPU
			want.Free.MemoryMB -= p.Need.MemoryMB
			want.Free.DiskGB -= p.Need.DiskGB
			want.Pods++
		}
		got := hosts.Get(c.Host.ID, less)
		if got.Host != want.Host || got.Free != want.Free || got.Pods != want.Pods || !cmp.Equal(got.FreeGPUs, want.FreeGPUs) {
			r.Fatalf("%s: %+v, want %+v", c.Host.ID, got, want)
		}
	})
}

// TestReservationsEndWithTheirRequest makes requests of every outcome at once.
func TestReservationsEndWithTheirRequest(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	var mu sync.Mutex
	n := 0
	broken := errors.New("broken")
	w.through(func(ctx context.Context, cmd state.Command) ([]entry.Result, error) {
		mu.Lock()
		n++
		turn := n
		mu.Unlock()
		switch turn % 4 {
		case 0:
			return nil, broken
		case 1:
			return w.staleSince(ctx)
		case 2:
			return []entry.Result{{Value: "not a pod"}}, nil
		}
		return w.Propose(ctx, cmd)
	})
	for _, o := range together(40, func(i int) (fleet.PodView, error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if i%5 == 0 {
			cancel()
		}
		return w.svc.CreatePod(ctx, member(acme), gpuPod(1))
	}) {
		if code := fleet.CodeOf(o.err); code == fleet.CodeUnavailable {
			t.Errorf("%v", o.err)
		}
	}
	w.unreserved()
}
