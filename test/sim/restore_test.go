package sim

import (
	"context"
	"os"
	"testing"
	"time"

	"gantry/agent"
	"gantry/agent/pod"
	"gantry/fleet"
)

// restored brings the control plane back to a copy of its files that is older than what hosts know.
func restored(s *scene, between func()) {
	s.killScheduler(stateClean)
	old := s.schedDir + "-copy"
	s.check(copyFolder(old, s.schedDir))
	s.begin()
	time.Sleep(10 * time.Second)
	between()
	s.killScheduler(stateClean)
	s.check(os.RemoveAll(s.schedDir))
	s.check(os.Rename(old, s.schedDir))
	s.forget()
	s.begin()
	time.Sleep(30 * time.Second)
}

func TestAfterARestoreOfTheControlPlaneNewerPodsAreRemoved(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		a := s.make(cpuPod(2, image("steady", 0, 0)))
		var b fleet.Pod
		restored(s, func() { b = s.make(cpuPod(2, image("steady", 0, 0))) })
		s.soon("the unknown pod is removed", func() bool {
			_, boxes := s.hosts[0].census()
			return len(boxes) == 1
		})
		if _, known := s.pod(b.ID); known || runsOn(s.hosts[0], a.ID) != 1 {
			s.Error("the wrong pod was removed")
		}
		c := s.make(cpuPod(2, image("steady", 0, 0)))
		s.do(c.ID, fleet.ActionTerminate)
		s.soon("the pod is gone", func() bool { return runsOn(s.hosts[0], c.ID) == 0 })
	})
}

func TestAfterARestoreOfTheControlPlaneNewerIncarnationsAreAdopted(t *testing.T) {
	for name, again := range map[string]func(s *scene, id fleet.PodID){
		"restarted": func(s *scene, id fleet.PodID) { s.do(id, fleet.ActionRestart) },
		"stopped and started": func(s *scene, id fleet.PodID) {
			s.do(id, fleet.ActionStop)
			s.podIs(id, fleet.StatusExited)
			s.do(id, fleet.ActionStart)
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{0}, nil, func(s *scene) {
				h := s.hosts[0]
				p := s.make(cpuPod(2, image("steady", 0, 0)))
				restored(s, func() {
					again(s, p.ID)
					s.soon("the second incarnation runs", func() bool { return runsOn(h, p.ID) == 2 })
					time.Sleep(5 * time.Second)
				})
				now, _ := s.pod(p.ID)
				if now.Incarnation != 2 || now.Status != fleet.StatusRunning || runsOn(h, p.ID) != 2 {
					s.Errorf("incarnation %d runs, the state says %+v", runsOn(h, p.ID), now)
				}
				s.do(p.ID, fleet.ActionStop)
				s.podIs(p.ID, fleet.StatusExited)
				s.do(p.ID, fleet.ActionStart)
				s.soon("the third incarnation runs", func() bool { return runsOn(h, p.ID) == 3 })
			})
		})
	}
}

func TestAfterARestoreOfTheControlPlaneAStopOfBeforeIsAdopted(t *testing.T) {
	play(t, []int{2}, nil, func(s *scene) {
		p := s.make(gpuPod(2, image("steady", 0, 0)))
		restored(s, func() {
			s.do(p.ID, fleet.ActionStop)
			s.podIs(p.ID, fleet.StatusExited)
		})
		s.podIs(p.ID, fleet.StatusExited)
		s.soon("the GPUs are free", func() bool {
			_, err := s.create(s.account(), gpuPod(2, image("steady", 0, 0)))
			return err == nil
		})
	})
}

func TestAContainerThatNobodyKnowsIsRemovedAlsoWhenTheRuntimeWasAway(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		h.kill(true)
		stranger := fleet.PodID(fleet.NewID())
		h.mu.Lock()
		h.boxes[stranger] = &box{spec: pod.ContainerSpec{Pod: stranger, Incarnation: 1}, Container: pod.Container{Exists: true, Incarnation: 1}}
		h.mu.Unlock()
		h.setAway(true)
		h.start()
		s.hostIs(h, fleet.HostReady)
		time.Sleep(10 * time.Second)
		h.setAway(false)
		s.soon("the container is removed", func() bool { _, boxes := h.census(); return len(boxes) == 0 })
	})
}

func TestTwoAgentsNeverShareADataFolder(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		second := &client{m: h.machine}
		if err := agent.Run(ctx, h.config(second)); err == nil || ctx.Err() != nil {
			s.Errorf("the second agent ran: %v", err)
		}
		if runsOn(h, p.ID) != 1 {
			s.Error("the pod does not run on")
		}
	})
}
