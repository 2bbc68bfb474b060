package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// starter moves pods to a second host, while that has room.
type starter struct {
	*cluster
	mu    sync.Mutex
	full  bool
	tries int // of moves
}

func (s *starter) MovePod(_ context.Context, id fleet.PodID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.full {
		return &fleet.Error{Code: fleet.CodeNoCapacity, Msg: "no room"}
	}
	s.must(state.MovePod{Pod: id, Rev: s.pod(id).Rev, At: time.Now(), To: &state.Binding{Host: "host2", HostEpoch: 1, Need: &fleet.Resources{}}})
	return nil
}

func (c *cluster) pod(id fleet.PodID) (p fleet.Pod) {
	c.t.Helper()
	if err := c.store.View(func(v *state.View) error { p, _ = v.Pod(id); return nil }); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// allow lets the pods of the account be moved.
func (c *cluster) allow() {
	c.t.Helper()
	for _, p := range c.podsOn("host") {
		p.Spec.Movable = true
		c.must(state.UpdatePod{Account: "acme", Pod: p.ID, Rev: p.Rev, Spec: p.Spec, At: time.Now()})
	}
}

func (s *starter) StartMoved(_ context.Context, id fleet.PodID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.must(state.ActPod{Account: "acme", Pod: id, Action: fleet.ActionStart, At: time.Now(), Bind: &state.Binding{Host: "host2", HostEpoch: 1}})
	return nil
}

func (s *starter) set(full bool) (tries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
	return s.tries
}

// drain runs a drainer on a cluster with a second host.
func drain(t *testing.T, c *cluster) (*starter, func()) {
	t.Helper()
	now := time.Now()
	c.must(
		state.PutToken{Token: fleet.JoinToken{ID: "t2", Hash: []byte("h"), DataCenter: "dc", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}, At: now},
		state.JoinHost{Token: "t2", Hash: []byte("h"), Host: fleet.Host{ID: "host2", MachineID: "m2"}, At: now},
		state.ConnectHost{Host: "host2", MachineID: "m2", BootID: "boot", At: now},
	)
	s := &starter{cluster: c}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&Drainer{Store: c.store, Node: c, Pods: s, Every: 5 * time.Second, Log: slog.New(slog.DiscardHandler)}).Run(ctx)
	}()
	return s, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (c *cluster) podsOn(host fleet.HostID) (out []fleet.Pod) {
	c.t.Helper()
	err := c.store.View(func(v *state.View) error {
		out = slices.DeleteFunc(v.PodsOf("acme"), func(p fleet.Pod) bool { return p.Host != host })
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// stopping returns the pods of a host that are being stopped there.
func (c *cluster) stopping(host fleet.HostID) []fleet.Pod {
	return slices.DeleteFunc(c.podsOn(host), func(p fleet.Pod) bool { return !p.Stopping() })
}

// end lets a host report that what it was told to stop has ended.
func (c *cluster) end(host fleet.HostID) {
	c.t.Helper()
	cmd := state.ReportPods{Host: host, Epoch: 1, At: time.Now()}
	for _, p := range c.stopping(host) {
		cmd.Reports = append(cmd.Reports, state.PodReport{Pod: p.ID, Incarnation: p.Incarnation, Event: fleet.EventExited})
	}
	c.must(cmd)
}

func TestDrainerEmptiesAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 10
		c := newCluster(t, pods)
		c.allow()
		_, stop := drain(t, c)
		synctest.Wait()
		if len(c.stopping("host")) > 0 {
			t.Fatal("pods are moved from a host that is not drained")
		}
		c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, At: time.Now()})
		for moved := 0; moved < pods; {
			synctest.Wait()
			n := len(c.stopping("host"))
			if n != min(maxMoves, pods-moved) {
				t.Fatalf("%d pods are on the move, %d were moved", n, moved)
			}
			c.end("host")
			moved += n
		}
		synctest.Wait()
		if left, there := c.podsOn("host"), c.podsOn("host2"); len(left) > 0 || len(there) != pods {
			t.Errorf("%d pods are left, %d were moved", len(left), len(there))
		}
		stop()
	})
}

func TestDrainerStopsNothingWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 6)
		c.allow()
		s, stop := drain(t, c)
		s.set(true)
		c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, At: time.Now()})
		synctest.Wait()
		if n := s.set(true); n != maxMoves || len(c.stopping("host")) > 0 {
			t.Errorf("%d moves were tried, %d pods are stopped without a place for them", n, len(c.stopping("host")))
		}
		c.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "other"}}) // what has nothing to do with it
		synctest.Wait()
		if n := s.set(true); n != 6 {
			t.Errorf("%d moves were tried: those that failed wait, the others do not wait for them", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(c.stopping("host")) > 0 || len(c.podsOn("host")) != 6 {
			t.Error("a pod was stopped without a place for it")
		}
		s.set(false)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := len(c.stopping("host")); n != maxMoves {
			t.Errorf("%d pods are moved", n)
		}
		stop()
	})
}

// What its owner did not allow runs on, and what runs at the deadline is moved or else stopped.
func TestDrainerKeepsToItsDeadline(t *testing.T) {
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3)
			c.allow()
			c.must(state.CreatePods{Pods: []state.NewPod{{HostEpoch: 1, Pod: fleet.Pod{
				ID: "stays", Account: "acme", Host: "host", CreatedAt: time.Now(), Spec: fleet.PodSpec{CPU: &fleet.CPURequest{VCPU: 1}},
			}}}})
			s, stop := drain(t, c)
			s.set(full)
			c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, At: time.Now(), Deadline: time.Now().Add(time.Hour)})
			time.Sleep(time.Hour - time.Second)
			synctest.Wait()
			c.end("host")
			synctest.Wait()
			if p := c.pod("stays"); p.Stopping() {
				t.Fatalf("stopped before the deadline: %+v", p)
			}
			if full && len(c.stopping("host")) > 0 {
				t.Fatal("stopped before the deadline, without room")
			}
			time.Sleep(8 * time.Second)
			synctest.Wait()
			if p := c.pod("stays"); !p.Stopping() || p.Moving {
				t.Errorf("after the deadline it is %+v", p)
			}
			want := 1
			if full {
				want = 4
			}
			if n := len(c.stopping("host")); n != want || full == (len(c.podsOn("host2")) == 3) {
				t.Errorf("full %t: %d pods are stopped, %d were moved", full, n, len(c.podsOn("host2")))
			}
			stop()
		})
	}
}

func TestDrainerKeepsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		c.allow()
		_, stop := drain(t, c)
		c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, KeepRunning: true, At: time.Now()})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.stopping("host")); n > 0 {
			t.Errorf("%d pods are stopped", n)
		}
		// A host that cannot be reached stops nothing; what was begun would take its pods from their owners.
		c.must(state.SetHostState{Host: "host", Epoch: 1, State: fleet.HostUnreachable, At: time.Now()})
		c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, At: time.Now()})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(c.stopping("host")); n > 0 {
			t.Errorf("%d pods of an unreachable host are stopped", n)
		}
		stop()
	})
}

func TestDrainerGoesOnAfterAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.allow()
		_, stop := drain(t, c)
		c.fail(errors.New("no leader"))
		c.must(state.SetHostEligibility{Host: "host", Eligibility: fleet.EligibilityDraining, At: time.Now()})
		synctest.Wait()
		c.fail(nil)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if n := len(c.stopping("host")); n != 1 {
			t.Errorf("%d pods are on the move", n)
		}
		stop()
	})
}

func TestPurgerForgetsHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0)
		c.must(state.RemoveHost{Host: "host", At: time.Now()})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- (&Purger{Store: c.store, Node: c, Keep: time.Minute, Every: time.Hour, Log: slog.New(slog.DiscardHandler)}).Run(ctx)
		}()
		for _, step := range []struct {
			pass time.Duration
			want int
		}{{keepHosts - time.Hour, 0}, {3 * time.Hour, 1}} {
			time.Sleep(step.pass)
			synctest.Wait()
			if n := len(count[state.PurgeHosts](c)); n != step.want {
				t.Errorf("%d purges", n)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A leader whose clock was wrong wrote that a pod was terminated an hour ago: the next one keeps it all the same.
func TestPurgerKeepsWhatItHasNotSeenForLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		pod := c.podsOn("host")[0]
		c.must(
			state.ActPod{Account: "acme", Pod: pod.ID, Action: fleet.ActionTerminate, At: time.Now().Add(-time.Hour)},
			state.ReportPods{Host: "host", Epoch: 1, At: time.Now(), Reports: []state.PodReport{{Pod: pod.ID, Incarnation: pod.Incarnation, Event: state.ReportGone}}},
		)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- (&Purger{Store: c.store, Node: c, Keep: 10 * time.Minute, Every: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}).Run(ctx)
		}()
		for _, step := range []struct {
			pass time.Duration
			want int
		}{{9 * time.Minute, 1}, {2 * time.Minute, 0}} {
			time.Sleep(step.pass)
			synctest.Wait()
			if n := len(c.podsOn("host")); n != step.want {
				t.Errorf("%d pods", n)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
