package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// afterRestore runs between on a cluster of three, then replaces its control plane by a copy of before, and runs then.
func afterRestore(s *scene, between func(), then ...func()) {
	s.Helper()
	file, err := s.backup()
	if err != nil {
		s.Fatal(err)
	}
	between()
	if err := s.restore(file); err != nil {
		s.Fatal(err)
	}
	for _, do := range then {
		do()
	}
	for _, h := range s.hosts {
		s.hostIs(h, fleet.HostReady)
	}
	time.Sleep(10 * time.Second)
	for range 2 {
		m, err := s.newMember()
		if err == nil {
			err = s.join(m)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	s.alike()
}

// What the copy does not know is removed; its data is set aside.
func TestAfterARestoreUnknownPodsAreRemoved(t *testing.T) {
	play(t, []int{1}, three, func(s *scene) {
		a := s.make(cpuPod(2, image("steady", 0, 0)))
		var b fleet.Pod
		afterRestore(s, func() { b = s.make(gpuPod(1, image("steady", 0, 0))) })
		s.soon("the unknown pod is removed", func() bool { return runsOn(s.hosts[0], b.ID) == 0 })
		if _, known := s.pod(b.ID); known || runsOn(s.hosts[0], a.ID) != 1 {
			s.Error("the wrong pod was removed")
		}
		c := s.make(gpuPod(1, image("steady", 0, 0)))
		if c.Incarnation == 1 {
			s.Error("an incarnation may be used twice")
		}
	})
}

func TestAfterARestoreWhatRunsIsAdopted(t *testing.T) {
	for name, again := range map[string]func(s *scene, id fleet.PodID){
		"as it was": func(*scene, fleet.PodID) {},
		"restarted": func(s *scene, id fleet.PodID) { s.do(id, fleet.ActionRestart); s.runs(id, 2) },
		"stopped and started": func(s *scene, id fleet.PodID) {
			s.stop(id)
			s.do(id, fleet.ActionStart)
			s.runs(id, 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{1}, three, func(s *scene) {
				h := s.hosts[0]
				p := s.make(mounted())
				var ran uint64
				afterRestore(s, func() {
					again(s, p.ID)
					ran = runsOn(h, p.ID)
				})
				now, _ := s.pod(p.ID)
				if now.Incarnation != ran || now.Status != fleet.StatusRunning || runsOn(h, p.ID) != ran || len(now.GPUs) != 1 {
					s.Fatalf("incarnation %d runs, %d ran, the state says %+v", runsOn(h, p.ID), ran, now)
				}
				s.stop(p.ID)
				s.do(p.ID, fleet.ActionStart)
				now = s.podIs(p.ID, fleet.StatusRunning)
				if now.Incarnation <= ran || s.seenAgain() == 0 {
					s.Errorf("incarnation %d follows %d", now.Incarnation, ran)
				}
			})
		})
	}
}

// What ended after the copy was made stays ended until its owner says otherwise.
func TestAfterARestoreWhatEndedIsNotRevived(t *testing.T) {
	for name, end := range map[string]fleet.Trigger{"stopped": fleet.ActionStop, "terminated": fleet.ActionTerminate} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{2}, three, func(s *scene) {
				p := s.make(gpuPod(2, image("steady", 0, 0)))
				afterRestore(s, func() {
					s.do(p.ID, end)
					s.soon("it ended", func() bool { now, _ := s.pod(p.ID); return !now.Status.Active() && !now.Held })
				})
				time.Sleep(time.Minute)
				now, _ := s.pod(p.ID)
				if now.Status != fleet.StatusExited || now.Held || now.Reason == "" || runsOn(s.hosts[0], p.ID) != 0 {
					s.Errorf("got %+v", now)
				}
				s.make(gpuPod(2, image("steady", 0, 0))) // its GPUs are free
			})
		})
	}
}

// A host that was away knows as little as the copy of a termination.
func TestAfterARestoreAPodWhoseHostWasAwayIsThereWithItsData(t *testing.T) {
	play(t, []int{1}, three, func(s *scene) {
		h := s.hosts[0]
		p := s.make(mounted())
		afterRestore(s, func() {
			h.kill(false)
			s.hostIs(h, fleet.HostUnreachable)
			s.do(p.ID, fleet.ActionTerminate)
			s.soon("it is terminated", func() bool { now, _ := s.pod(p.ID); return now.Status == fleet.StatusTerminated })
		}, h.start)
		s.runs(p.ID, p.Incarnation)
		s.do(p.ID, fleet.ActionRestart)
		s.soon("its data is seen again", func() bool { return s.seenAgain() == 1 })
	})
}

// A host that is cut off starts what it was told of, though its pod was stopped meanwhile, and ends it when it is back.
func TestAfterARestoreAHostThatWasAwayStartsWhatItWasTold(t *testing.T) {
	play(t, []int{1}, three, func(s *scene) {
		h := s.hosts[0]
		var p fleet.Pod
		afterRestore(s, func() {
			var err error
			if p, err = s.create(s.account(), cpuPod(2, image("slow", 0, 0))); err != nil {
				s.Fatal(err)
			}
			h.setSlow(true)
			time.Sleep(time.Second) // it pulls
			s.away(h)
			s.do(p.ID, fleet.ActionStop)
		}, func() {
			h.setSlow(false)
			if err := until(10*time.Minute, func() bool { return runsOn(h, p.ID) == 1 }); err != nil {
				s.Fatalf("the process %v", err)
			}
			s.wire.cut(h.name, false, false)
		})
		s.soon("the unknown pod is removed", func() bool { return runsOn(h, p.ID) == 0 })
	})
}

func TestAfterARestoreWhatWasStartedIsAdoptedThoughTheCopySaysExited(t *testing.T) {
	play(t, []int{2}, three, func(s *scene) {
		p := s.make(gpuPod(2, image("steady", 0, 0)))
		s.stop(p.ID)
		afterRestore(s, func() {
			s.do(p.ID, fleet.ActionStart)
			s.runs(p.ID, 2)
		})
		now := s.podIs(p.ID, fleet.StatusRunning)
		if now.Incarnation != 2 || !now.Held || len(now.GPUs) != 2 || runsOn(s.hosts[0], p.ID) != 2 {
			s.Errorf("got %+v", now)
		}
	})
}

func TestAfterARestoreWhatTheCopyHasTerminatedIsOver(t *testing.T) {
	play(t, []int{2}, three, func(s *scene) {
		h := s.hosts[0]
		p := s.make(gpuPod(2, image("steady", 0, 0)))
		s.wire.cut(h.name, true, true)
		s.hostIs(h, fleet.HostUnreachable)
		s.do(p.ID, fleet.ActionTerminate)
		file, err := s.backup()
		if err != nil {
			s.Fatal(err)
		}
		if err := s.restore(file); err != nil {
			s.Fatal(err)
		}
		if _, err := s.create(s.account(), gpuPod(1, image("steady", 0, 0))); fleet.CodeOf(err) != fleet.CodeNoCapacity {
			s.Errorf("before its host was compared: %v", err)
		}
		s.wire.cut(h.name, false, false)
		s.soon("it is gone", func() bool { now, _ := s.pod(p.ID); return !now.Held && runsOn(h, p.ID) == 0 })
		s.make(gpuPod(2, image("steady", 0, 0)))
	})
}

// Its host, which was away when it was terminated, may have a log of it that only an order removes.
func TestAfterARestoreNoLogIsLeftOfATerminatedPod(t *testing.T) {
	for name, ends := range map[string]func(s *scene, p fleet.Pod){
		"that had been stopped": func(s *scene, p fleet.Pod) {
			s.stop(p.ID)
			time.Sleep(10 * time.Second) // until its host knows nothing more of it
			s.away(s.hosts[0])
		},
		"that ended meanwhile": func(s *scene, _ fleet.Pod) {
			s.away(s.hosts[0])
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{1}, three, func(s *scene) {
				h := s.hosts[0]
				p := s.make(cpuPod(2, image("done", 30, 0)))
				ends(s, p)
				s.do(p.ID, fleet.ActionTerminate)
				if !slices.Contains(h.folders("logs"), p.ID) {
					s.Fatal("the host keeps no log")
				}
				afterRestore(s, func() {}, func() { s.wire.cut(h.name, false, false) })
				s.soon("the log is gone", func() bool { now, _ := s.pod(p.ID); return !now.Held && len(h.folders("logs")) == 0 })
			})
		})
	}
}

// away cuts a host off until the cluster knows.
func (s *scene) away(h *host) {
	s.Helper()
	s.wire.cut(h.name, true, true)
	s.hostIs(h, fleet.HostUnreachable)
}

// It has what the cluster had when it left, and it believes that it belongs to it.
func TestARemovedSchedulerCannotDisturb(t *testing.T) {
	play(t, []int{0}, three, func(s *scene) {
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		lead := s.lead()
		old := s.others(lead)[0].member
		if err := s.remove(old); err != nil {
			s.Fatal(err)
		}
		m, err := s.newMember()
		if err != nil {
			s.Fatal(err)
		}
		if err := s.join(m); err != nil {
			s.Fatal(err)
		}
		lead = s.lead()
		for range 3 {
			time.Sleep(20 * time.Second)
			old.kill(stateOpen)
			s.check(old.start())
		}
		time.Sleep(time.Minute)
		if now := s.lead(); now != lead {
			s.Errorf("%s leads, %s did", now.name, lead.name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		if _, err := s.process(old).service.Pod(ctx, principal(s.account()), p.ID); fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Errorf("the removed scheduler answers: %v", err)
		}
		s.do(p.ID, fleet.ActionStop)
		s.podIs(p.ID, fleet.StatusExited)
		old.kill(stateClean)
		s.alike()
	})
}

func TestADrainMovesWhatMayMove(t *testing.T) {
	play(t, []int{4}, three, func(s *scene) {
		h := s.hosts[0]
		yes := true
		may := func(req fleet.PodRequest) fleet.PodRequest { req.Movable = &yes; return req }
		movable, kept, locked := s.make(may(gpuPod(1, image("polite", 0, 0)))), s.make(may(mounted())), s.make(may(gpuPod(1, image("steady", 0, 0))))
		stays := s.make(gpuPod(1, image("steady", 0, 0)))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		other, err := s.newHost(ctx, "host-2", 1)
		if err != nil {
			s.Fatal(err)
		}
		other.start()
		s.hostIs(other, fleet.HostReady)
		s.update(locked.ID, fleet.PodUpdate{Locked: &yes})
		d := newDriver(s.world)
		if err := d.drains(h, fleet.DrainRequest{}); err != nil {
			s.Fatal(err)
		}
		s.soon("it was moved", func() bool {
			now, _ := s.pod(movable.ID)
			return now.Status == fleet.StatusRunning && now.Host == other.id && runsOn(other, now.ID) == now.Incarnation
		})
		time.Sleep(time.Minute)
		for _, p := range []fleet.Pod{kept, locked, stays} {
			if now, _ := s.pod(p.ID); now.Status != fleet.StatusRunning || now.Host != h.id || now.Incarnation != 1 || runsOn(h, p.ID) != 1 {
				s.Errorf("pod %s: %+v", p.ID, now)
			}
		}
		s.stop(kept.ID)
		if _, err := s.act(s.account(), kept.ID, fleet.ActionStart); fleet.CodeOf(err) != fleet.CodeNoCapacity {
			s.Errorf("a start on a host that is drained: %v", err)
		}
		if err := d.eligibility(h, fleet.EligibilityOpen); err != nil {
			s.Fatal(err)
		}
		s.do(kept.ID, fleet.ActionStart)
		s.runs(kept.ID, 2)
	})
}

func TestAFenceFreesWhatADeadHostHeld(t *testing.T) {
	play(t, []int{2, 1}, three, func(s *scene) {
		h := s.hosts[0]
		p := s.make(gpuPod(2, image("steady", 0, 0)))
		fence := func() error {
			return s.insists(time.Minute, func(ctx context.Context, x *process) error {
				_, err := x.service.FenceHost(ctx, h.id)
				return err
			})
		}
		if err := fence(); fleet.CodeOf(err) != fleet.CodeNotAllowed {
			s.Errorf("fence of a host that is connected: %v", err)
		}
		h.reboot()
		s.hostIs(h, fleet.HostUnreachable)
		if err := fence(); err != nil {
			s.Fatal(err)
		}
		now := s.podIs(p.ID, fleet.StatusError)
		if now.Held || len(now.GPUs) > 0 || now.Reason == "" {
			s.Errorf("got %+v", now)
		}
		time.Sleep(time.Minute)
		h.start()
		if err := newDriver(s.world).eligibility(h, fleet.EligibilityOpen); err != nil {
			s.Fatal(err)
		}
		s.hostIs(h, fleet.HostReady)
		if _, boxes := h.census(); len(boxes)+len(h.networks()) > 0 {
			s.Errorf("the host was opened with %v on it", boxes)
		}
		s.do(p.ID, fleet.ActionStart)
		if now = s.podIs(p.ID, fleet.StatusRunning); now.Incarnation != 2 {
			s.Errorf("got %+v", now)
		}
	})
}
