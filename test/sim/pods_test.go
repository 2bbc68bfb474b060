package sim

import (
	"testing"
	"time"

	"gantry/fleet"
)

func TestPodsRunOnWhenTheSchedulerIsRestarted(t *testing.T) {
	for name, how := range map[string]unclean{"stopped": stateClean, "killed": stateOpen, "power lost": stateDropped} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{2}, nil, func(s *scene) {
				a := s.make(cpuPod(2, image("steady", 0, 0)))
				b := s.make(gpuPod(2, image("steady", 0, 0)))
				s.killScheduler(how)
				left := s.last
				time.Sleep(time.Minute)
				s.begin()
				for _, p := range []fleet.Pod{a, b} {
					now, _ := s.pod(p.ID)
					if now.Rev != left.pods[p.ID].Rev || now.Status != fleet.StatusRunning {
						s.Errorf("pod %s: %+v, was %+v", p.ID, now, left.pods[p.ID])
					}
					if runsOn(s.hosts[0], p.ID) != 1 {
						s.Errorf("pod %s does not run", p.ID)
					}
					s.soon("its owner sees it live", func() bool {
						v, err := s.view(s.account(), p.ID)
						return err == nil && v.Live != nil && !v.Unreachable
					})
				}
				s.do(a.ID, fleet.ActionStop)
				s.podIs(a.ID, fleet.StatusExited)
			})
		})
	}
}

func TestAPodOfAHostThatIsCutOffIsUnreachableAndThenBack(t *testing.T) {
	play(t, []int{0, 0}, nil, func(s *scene) {
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		h := s.byHost[p.Host]
		s.wire.cut(h.name, true, true)
		s.hostIs(h, fleet.HostUnreachable)
		v, err := s.view(s.account(), p.ID)
		if err != nil || !v.Unreachable || v.Live != nil || v.Pod.Status != fleet.StatusRunning || v.Reason == "" {
			s.Errorf("got %+v (%v)", v, err)
		}
		s.do(p.ID, fleet.ActionStop) // is accepted, and waits for the host
		time.Sleep(10 * time.Minute)
		now, _ := s.pod(p.ID)
		if now.Status != fleet.StatusRunning || !now.Held || runsOn(h, p.ID) != 1 {
			s.Errorf("the pod is %+v while its host is not heard", now)
		}
		if _, err := s.act(s.account(), p.ID, fleet.ActionStart); fleet.CodeOf(err) != fleet.CodeNotAllowed {
			s.Errorf("start of a pod that may still run: %v", err)
		}
		s.wire.cut(h.name, false, false)
		s.hostIs(h, fleet.HostReady)
		if now = s.podIs(p.ID, fleet.StatusExited); now.Held || runsOn(h, p.ID) != 0 {
			s.Errorf("after the stop: %+v", now)
		}
	})
}

func TestAnExitedPodOfALostHostStartsElsewhere(t *testing.T) {
	play(t, []int{0, 0}, nil, func(s *scene) {
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		old := s.byHost[p.Host]
		s.do(p.ID, fleet.ActionStop)
		s.podIs(p.ID, fleet.StatusExited)
		old.kill(false)
		s.hostIs(old, fleet.HostUnreachable)
		s.do(p.ID, fleet.ActionStart)
		now := s.podIs(p.ID, fleet.StatusRunning)
		if now.Host == old.id || now.Incarnation != 2 || runsOn(s.byHost[now.Host], p.ID) != 2 {
			s.Fatalf("got %+v", now)
		}
		old.start()
		s.hostIs(old, fleet.HostReady)
		time.Sleep(time.Minute)
		if _, boxes := old.census(); len(boxes)+len(old.networks()) > 0 || runsOn(s.byHost[now.Host], p.ID) != 2 {
			s.Errorf("the old host has %v, networks %v", boxes, old.networks())
		}
	})
}

func TestATerminatedPodIsReadableForTenMinutes(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		p := s.make(cpuPod(2, image("polite", 0, 0)))
		s.do(p.ID, fleet.ActionTerminate)
		time.Sleep(keepTerminated - 5*time.Second)
		if v, err := s.view(s.account(), p.ID); err != nil || v.Pod.Status != fleet.StatusTerminated || v.Pod.Held {
			s.Errorf("got %+v (%v)", v, err)
		}
		time.Sleep(30 * time.Second)
		if _, err := s.view(s.account(), p.ID); fleet.CodeOf(err) != fleet.CodeNotFound {
			s.Errorf("after ten minutes: %v", err)
		}
	})
}

func TestATerminatedPodIsKeptUntilItIsGoneFromItsHost(t *testing.T) {
	play(t, []int{2}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(gpuPod(2, image("steady", 0, 0)))
		s.wire.cut(h.name, true, true)
		s.hostIs(h, fleet.HostUnreachable)
		s.do(p.ID, fleet.ActionTerminate)
		time.Sleep(2 * keepTerminated)
		if now, known := s.pod(p.ID); !known || !now.Held || len(now.GPUs) != 2 || runsOn(h, p.ID) != 1 {
			s.Fatalf("while its container runs: %+v", now)
		}
		s.wire.cut(h.name, false, false)
		s.hostIs(h, fleet.HostReady)
		s.soon("the record is purged", func() bool { _, known := s.pod(p.ID); return !known })
		if _, boxes := h.census(); len(boxes)+len(h.networks()) > 0 {
			s.Errorf("the host has %v, networks %v", boxes, h.networks())
		}
		s.make(gpuPod(2, image("steady", 0, 0)))
	})
}

func TestAGPUIsFreeOnlyWhenTheContainerIsGone(t *testing.T) {
	play(t, []int{1}, nil, func(s *scene) {
		p := s.make(gpuPod(1, image("stubborn", 0, 0)))
		s.do(p.ID, fleet.ActionTerminate)
		began := time.Now()
		for runsOn(s.hosts[0], p.ID) != 0 {
			if _, err := s.create(s.account(), gpuPod(1, image("steady", 0, 0))); fleet.CodeOf(err) != fleet.CodeNoCapacity {
				s.Fatalf("while the container runs: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(began); d < 10*time.Second || d > 20*time.Second {
			s.Errorf("a process that ignores SIGTERM ran for %s, want the grace period of 10 s", d)
		}
		s.soon("the GPU is free", func() bool {
			_, err := s.create(s.account(), gpuPod(1, image("steady", 0, 0)))
			return err == nil
		})
	})
}

func TestARebootStartsWhatRanAndEndsWhatWasStopping(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		a := s.make(cpuPod(2, image("steady", 0, 0)))
		b := s.make(cpuPod(2, image("stubborn", 0, 0)))
		s.do(b.ID, fleet.ActionStop)
		h.reboot()
		time.Sleep(time.Minute)
		h.start()
		s.podIs(b.ID, fleet.StatusExited)
		s.soon("the pod is started again", func() bool { return runsOn(h, a.ID) == 2 })
		if now := s.podIs(a.ID, fleet.StatusRunning); now.Incarnation != 2 {
			s.Errorf("got %+v", now)
		}
	})
}

func TestAnAgentStartsNothingBeforeItHasHeardAScheduler(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p, err := s.create(s.account(), cpuPod(2, image("slow", 0, 0)))
		if err != nil {
			s.Fatal(err)
		}
		time.Sleep(2 * time.Second) // the assignment is in the ledger, the pull has begun
		h.kill(true)
		s.killScheduler(stateOpen)
		h.start()
		time.Sleep(5 * time.Minute)
		if running, boxes := h.census(); len(running)+len(boxes) > 0 {
			s.Errorf("without a scheduler it made %v", boxes)
		}
		s.begin()
		s.podIs(p.ID, fleet.StatusRunning)
	})
}

func TestARuntimeThatIsAwayIsNotAnExit(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		before, _ := s.pod(p.ID)
		h.setAway(true)
		time.Sleep(5 * time.Minute)
		h.setAway(false)
		time.Sleep(time.Minute)
		if now, _ := s.pod(p.ID); now.Rev != before.Rev || runsOn(h, p.ID) != 1 {
			s.Errorf("the record changed: %+v", now)
		}
	})
}

func TestARestartOfTheAgentChangesNothingOfARunningPod(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		time.Sleep(10 * time.Second)
		before, _ := s.pod(p.ID)
		for range 3 {
			h.kill(true)
			time.Sleep(3 * time.Second)
			h.start()
			time.Sleep(20 * time.Second)
		}
		now, _ := s.pod(p.ID)
		if runsOn(h, p.ID) != 1 || now.Status != fleet.StatusRunning || !now.Steps[fleet.StepReceived].Equal(before.Steps[fleet.StepReceived]) ||
			!now.Steps[fleet.StepReported].Equal(before.Steps[fleet.StepReported]) {
			s.Errorf("the record was\n%+v and is\n%+v", before, now)
		}
	})
}
