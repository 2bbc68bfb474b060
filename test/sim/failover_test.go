package sim

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// onceOnly is a request that is made at most once, however often it is asked for.
func onceOnly(key string) fleet.PodRequest {
	req := cpuPod(2, image("steady", 0, 0))
	req.Name = key
	req.Once = &fleet.Once{Key: key, Fingerprint: []byte(key)}
	return req
}

// The leader dies at many moments of a create; the next one finds what it left, or nothing.
func TestALeaderKilledInMidCreateMakesOnePod(t *testing.T) {
	play(t, []int{0}, three, func(s *scene) {
		unknown := 0
		for i := range 10 {
			req := onceOnly(string(rune('a' + i)))
			lead := s.lead()
			answer := make(chan error, 1)
			go func() {
				_, err := s.create(s.account(), req)
				answer <- err
			}()
			time.Sleep(time.Duration(i) * 700 * time.Microsecond)
			lead.kill(unclean(i % int(uncleanKinds)))
			if err := <-answer; err != nil {
				unknown++
			}
			var made fleet.Pod
			s.soon("the pod is made", func() bool {
				var err error
				made, err = s.create(s.account(), req)
				return err == nil
			})
			for id, p := range s.picture().pods {
				if p.Spec.Name == req.Name && id != made.ID {
					s.Errorf("%s is made twice: %s and %s", req.Name, id, made.ID)
				}
			}
			s.check(lead.start())
			s.podIs(made.ID, fleet.StatusRunning)
			s.do(made.ID, fleet.ActionTerminate)
			s.soon("it is gone", func() bool { now, _ := s.pod(made.ID); return !now.Held })
			s.alike()
		}
		if unknown == 0 {
			s.Error("no answer was lost")
		}
	})
}

func TestALeaderOfAMinorityAnswersNothing(t *testing.T) {
	play(t, []int{0, 0}, three, func(s *scene) {
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		old := s.lead()
		heal := s.isolate(old)
		time.Sleep(2 * time.Second) // its lease is over
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		if _, err := old.service.Pod(ctx, principal(s.account()), p.ID); fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Errorf("a read: %v", err)
		}
		if _, err := old.service.CreatePod(ctx, principal(s.account()), cpuPod(2, image("steady", 0, 0))); fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Errorf("a write: %v", err)
		}
		now := s.leadOf(s.others(old))
		if _, err := now.service.ActPod(ctx, principal(s.account()), p.ID, fleet.ActionStop); err != nil {
			s.Errorf("the majority: %v", err)
		}
		s.podIs(p.ID, fleet.StatusExited) // its host has found the new leader
		heal()
		s.alike()
		if n := len(s.picture().pods); n != 1 {
			s.Errorf("there are %d pods", n)
		}
	})
}

// Raft by itself would go on sending heartbeats for ever, and no other scheduler could lead.
func TestALeaderWithAHungDiskIsReplaced(t *testing.T) {
	play(t, []int{0}, three, func(s *scene) {
		told := s.make(onceOnly("before"))
		old := s.lead()
		old.disk.hang()
		began := time.Now()
		answer := make(chan error, 1)
		go func() { // so that there is something to write
			_, err := s.create(s.account(), onceOnly("meanwhile"))
			answer <- err
		}()
		now := s.leadOf(s.others(old))
		if took := time.Since(began); took > 10*time.Second {
			s.Errorf("another one leads after %s", took)
		}
		if !old.halted.Load() {
			s.Error("the scheduler did not end itself")
		}
		if err := <-answer; err != nil && fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Error(err)
		}
		s.reap()
		if rec, known := s.pod(told.ID); !known || rec.Status != fleet.StatusRunning || runsOn(s.hosts[0], told.ID) != 1 {
			s.Errorf("what was acknowledged is %+v", rec)
		}
		s.soon("the same create gives one pod", func() bool { _, err := s.create(s.account(), onceOnly("meanwhile")); return err == nil })
		if n := len(s.picture().pods); n != 2 || now.member == old.member {
			s.Errorf("there are %d pods", n)
		}
		s.check(old.start())
		s.alike()
	})
}

func TestAllSchedulersLosePowerAndTwoComeBack(t *testing.T) {
	play(t, []int{2}, three, func(s *scene) {
		a, b := s.make(cpuPod(2, image("steady", 0, 0))), s.make(gpuPod(2, image("steady", 0, 0)))
		all := s.living()
		for i, p := range all {
			p.kill([]unclean{stateTorn, stateDropped, stateLost}[i])
		}
		time.Sleep(time.Minute)
		s.check(all[0].start())
		time.Sleep(30 * time.Second)
		if _, err := s.view(s.account(), a.ID); fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Errorf("one of three answers: %v", err)
		}
		s.check(all[1].start())
		s.lead()
		for _, p := range []fleet.Pod{a, b} {
			v, err := s.view(s.account(), p.ID)
			if err != nil || v.Pod.Rev != p.Rev || runsOn(s.hosts[0], p.ID) != 1 {
				s.Errorf("pod %s was %+v and is %+v (%v)", p.ID, p, v.Pod, err)
			}
			s.do(p.ID, fleet.ActionStop)
			s.podIs(p.ID, fleet.StatusExited)
		}
		s.check(all[2].start())
		s.alike()
	})
}

func TestAHostThatIsCutOffForHoursKeepsItsPods(t *testing.T) {
	play(t, []int{3, 0}, three, func(s *scene) {
		h := s.hosts[0]
		runs, ends := s.make(gpuPod(1, image("steady", 0, 0))), s.make(gpuPod(1, image("done", 600, 0)))
		stops := s.make(gpuPod(1, image("steady", 0, 0)))
		s.wire.cut(h.name, true, true)
		s.hostIs(h, fleet.HostUnreachable)
		s.do(stops.ID, fleet.ActionTerminate)
		time.Sleep(time.Hour)
		s.lead().kill(stateDropped)
		time.Sleep(5 * time.Hour)
		if runsOn(h, runs.ID) != 1 || runsOn(h, stops.ID) != 1 || runsOn(h, ends.ID) != 0 {
			s.Error("the host's pods changed")
		}
		s.wire.cut(h.name, false, false)
		s.hostIs(h, fleet.HostReady)
		s.podIs(ends.ID, fleet.StatusExited)
		s.soon("the stale order is carried out", func() bool { now, _ := s.pod(stops.ID); return !now.Held && runsOn(h, stops.ID) == 0 })
		if now, _ := s.pod(runs.ID); now.Status != fleet.StatusRunning || now.Incarnation != 1 || runsOn(h, runs.ID) != 1 {
			s.Errorf("got %+v", now)
		}
	})
}

// The copy is tried at every scheduler, also at those that do not lead.
func TestTwoAgentsOfOneIdentityAtThreeSchedulers(t *testing.T) {
	play(t, []int{1}, three, func(s *scene) {
		h := s.hosts[0]
		p := s.make(gpuPod(1, image("steady", 0, 0)))
		h.kill(true)
		c, err := h.clone("copy")
		if err != nil {
			s.Fatal(err)
		}
		h.start()
		s.hostIs(h, fleet.HostReady)
		c.start()
		defer c.kill(true)
		for range 3 {
			time.Sleep(20 * time.Second)
			lead := s.lead()
			lead.kill(stateOpen)
			s.lead()
			s.check(lead.start())
		}
		s.soon("the host is back", func() bool { return s.picture().hosts[h.id].State == fleet.HostReady })
		if running, boxes := c.census(); len(running)+len(boxes) > 0 || runsOn(h, p.ID) != 1 {
			s.Errorf("the copy has %v, the host runs %d", boxes, runsOn(h, p.ID))
		}
	})
}

// Raft's attempt to hand leadership to a member that it does not reach must not stay behind when it loses leadership itself.
func TestALeaderThatCouldNotHandLeadershipOnLeadsAgain(t *testing.T) {
	play(t, nil, three, func(s *scene) {
		first := s.lead()
		to, other := s.others(first)[0], s.others(first)[1]
		heal := s.wire.block(way{first.name, to.name}, way{to.name, first.name})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		handed := make(chan struct{})
		go func() {
			defer close(handed)
			for first.node.IsLeader() {
				_ = first.node.Transfer(ctx, to.id)
			}
		}()
		for range 25 { // it falls behind, and Raft waits longer and longer between its attempts to reach it
			time.Sleep(time.Second)
			if err := propose(ctx, first, state.PutMember{Member: first.record()}); fleet.CodeOf(err) != fleet.CodeUnavailable {
				s.check(err)
			}
		}
		apart := s.isolate(first)
		second := s.leadOf([]*process{to, other})
		<-handed
		heal()
		apart()
		s.soon("the first leads again, and takes commands", func() bool {
			if second.node.IsLeader() {
				_ = second.node.Transfer(ctx, first.id)
			}
			return first.node.IsLeader() && propose(ctx, first, state.PutMember{Member: first.record()}) == nil
		})
	})
}
