package sim

import (
	"context"
	"math"
	"path/filepath"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// mounted asks for a pod with a GPU that keeps data on its host.
func mounted() fleet.PodRequest {
	req := gpuPod(1, image("steady", 0, 0))
	req.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	return req
}

func (s *scene) update(id fleet.PodID, change fleet.PodUpdate) {
	s.Helper()
	_, err := s.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		return p.service.UpdatePod(ctx, principal(s.account()), id, change)
	})
	if err != nil {
		s.Fatal(err)
	}
}

// runs waits until an incarnation of the pod runs.
func (s *scene) runs(id fleet.PodID, incarnation uint64) {
	s.Helper()
	s.soon("the incarnation runs", func() bool {
		p, _ := s.pod(id)
		return p.Status == fleet.StatusRunning && p.Incarnation == incarnation && runsOn(s.byHost[p.Host], id) == incarnation
	})
}

func (s *scene) stop(id fleet.PodID) {
	s.Helper()
	s.do(id, fleet.ActionStop)
	s.podIs(id, fleet.StatusExited)
}

func (s *scene) seenAgain() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reread
}

// What every incarnation finds in its data is checked by world.writes.
func TestDataOutlivesEverythingButItsPod(t *testing.T) {
	play(t, []int{1}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(mounted())
		again := image("polite", 0, 1)
		for i, next := range []func(){
			func() { s.stop(p.ID); s.do(p.ID, fleet.ActionStart) },
			func() { s.do(p.ID, fleet.ActionRestart) },
			func() { s.update(p.ID, fleet.PodUpdate{Image: &again}) },
			func() { h.reboot(); time.Sleep(20 * time.Second); h.start() },
			func() {
				s.killScheduler(stateDropped)
				h.kill(true)
				s.begin()
				h.start()
				s.hostIs(h, fleet.HostReady)
				s.do(p.ID, fleet.ActionRestart)
			},
		} {
			next()
			s.runs(p.ID, uint64(i+2))
			if s.seenAgain() != i+1 {
				s.Fatalf("incarnation %d did not look at its data", i+2)
			}
		}
		s.stop(p.ID)
		time.Sleep(time.Minute)
		data := func() []fleet.PodID {
			kept, err := pod.DataOf(filepath.Join(h.dir, "persistent"))
			s.check(err)
			return kept
		}
		if kept := data(); len(kept) != 1 || kept[0] != p.ID {
			s.Errorf("of a stopped pod the host keeps %v", kept)
		}
		s.do(p.ID, fleet.ActionTerminate)
		s.soon("its data is removed", func() bool { now, _ := s.pod(p.ID); return len(data()) == 0 && !now.Held })
	})
}

func TestAPodWithDataStartsOnItsHostOrNotAtAll(t *testing.T) {
	play(t, []int{1, 1}, nil, func(s *scene) {
		p := s.make(mounted())
		s.stop(p.ID)
		h := s.byHost[p.Host]
		h.kill(false)
		s.hostIs(h, fleet.HostUnreachable)
		if _, err := s.act(s.account(), p.ID, fleet.ActionStart); fleet.CodeOf(err) != fleet.CodeNoCapacity {
			s.Errorf("its host is away: %v", err)
		}
		h.start()
		s.hostIs(h, fleet.HostReady)
		for { // others take the GPU of its host, and no more of the other's
			q := s.make(gpuPod(1, image("steady", 0, 0)))
			if q.Host == p.Host {
				break
			}
			s.do(q.ID, fleet.ActionTerminate)
		}
		if _, err := s.act(s.account(), p.ID, fleet.ActionStart); fleet.CodeOf(err) != fleet.CodeNoCapacity {
			s.Errorf("its host is full: %v", err)
		}
		if s.seenAgain() != 0 {
			s.Error("it was started")
		}
	})
}

// While its host cannot end the incarnation that has it, a port that a change gives up goes to another pod.
func TestAPortThatIsGivenUpLeadsToItsNextPodAlone(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		withPorts := func(n int) fleet.PodRequest {
			req := cpuPod(2, image("steady", 0, 0))
			for i := range n {
				req.Ports = append(req.Ports, fleet.Port{Number: 5000 + i, Protocol: "tcp"})
			}
			return req
		}
		s.make(withPorts(publicPorts - 1))
		a := s.make(withPorts(1))
		h.setAway(true)
		s.update(a.ID, fleet.PodUpdate{Ports: &[]fleet.Port{}})
		b, err := s.create(s.account(), withPorts(1))
		if err != nil || b.Mappings[0].Public != a.Mappings[0].Public {
			s.Fatalf("%+v had the last port, now it is that of %+v (%v)", a.Mappings, b.Mappings, err)
		}
		if runsOn(h, a.ID) != 1 {
			s.Error("the incarnation before does not run")
		}
		h.setAway(false)
		s.runs(b.ID, 1)
		s.runs(a.ID, 2)
		h.mu.Lock()
		network := netctl.NewFake(h.kernel, h.instance)
		h.mu.Unlock()
		for id, want := range map[fleet.PodID]int{a.ID: 0, b.ID: 1} {
			if have, err := network.Published(context.Background(), string(id)); err != nil || len(have) != want {
				s.Errorf("to pod %s lead %v (%v)", id, have, err)
			}
		}
	})
}

func TestAnAnswerThatIsLostIsTheSameWhenAskedForAgain(t *testing.T) {
	for name, how := range map[string]unclean{"stopped": stateClean, "killed": stateOpen, "power lost": stateDropped} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{1}, nil, func(s *scene) {
				req := gpuPod(1, image("steady", 0, 0)) // the only GPU
				req.Once = &fleet.Once{Key: "key", Fingerprint: []byte("request")}
				first, err := s.create(s.account(), req)
				if err != nil {
					s.Fatal(err)
				}
				s.killScheduler(how)
				if _, err := s.create(s.account(), req); fleet.CodeOf(err) != fleet.CodeUnavailable {
					s.Errorf("without a scheduler: %v", err)
				}
				s.begin()
				for range 2 {
					again, err := s.create(s.account(), req)
					if err != nil || again.ID != first.ID {
						s.Errorf("made %s and then %s (%v)", first.ID, again.ID, err)
					}
				}
				other := req
				other.Once = &fleet.Once{Key: "key", Fingerprint: []byte("another request")}
				if _, err := s.create(s.account(), other); fleet.CodeOf(err) != fleet.CodeInvalid {
					s.Errorf("another request under the key: %v", err)
				}
				if _, err := s.create(s.accounts[1], req); fleet.CodeOf(err) != fleet.CodeNoCapacity {
					s.Errorf("another account's key: %v", err)
				}
				if n := len(s.picture().pods); n != 1 {
					s.Errorf("there are %d pods", n)
				}
			})
		})
	}
}

// A create is under way while the scheduler dies, at many moments of it.
func TestACreateThatACrashInterruptsIsDoneOnce(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		unknown := 0
		for i := range 12 {
			req := cpuPod(2, image("steady", 0, 0))
			req.Name = string(rune('a' + i))
			req.Once = &fleet.Once{Key: req.Name, Fingerprint: []byte(req.Name)}
			answer := make(chan error, 1)
			go func() {
				_, err := s.create(s.account(), req)
				answer <- err
			}()
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			s.killScheduler(stateOpen)
			if err := <-answer; err != nil {
				unknown++
			}
			s.begin()
			s.hostIs(s.hosts[0], fleet.HostReady)
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
			s.do(made.ID, fleet.ActionTerminate)
			s.soon("it is gone", func() bool { now, _ := s.pod(made.ID); return !now.Held })
		}
		if unknown == 0 {
			s.Error("no answer was lost")
		}
	})
}

// credit gives the scene's account a balance, which is prepaid from then on.
func (s *scene) credit(want fleet.Money) {
	s.Helper()
	yes, service := true, s.scheduler().service
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	view, err := service.UpdateAccount(ctx, s.account(), fleet.AccountUpdate{Prepaid: &yes})
	if err != nil {
		s.Fatal(err)
	}
	if _, _, err := service.AddCredit(ctx, s.account(), want-view.Balance, nil); err != nil {
		s.Fatal(err)
	}
}

func TestAPrepaidAccountThatRunsDry(t *testing.T) {
	for name, away := range map[string]time.Duration{"scheduler there": 0, "scheduler away meanwhile": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{2}, nil, func(s *scene) {
				s.credit(20 * fleet.Dollar)
				kept, plain := s.make(mounted()), s.make(gpuPod(1, image("steady", 0, 0)))
				lock := true
				s.update(kept.ID, fleet.PodUpdate{Locked: &lock}) // saves it from its owner, not from its debts
				s.credit(fleet.Dollar / 10)                       // a minute
				if away > 0 {
					s.killScheduler(stateOpen)
					time.Sleep(away)
					if runsOn(s.hosts[0], kept.ID)+runsOn(s.hosts[0], plain.ID) != 2 {
						s.Error("pods ended without the scheduler")
					}
					s.begin()
				} else {
					time.Sleep(time.Minute)
				}
				gone, stopped := s.podIs(plain.ID, fleet.StatusTerminated), s.podIs(kept.ID, fleet.StatusExited)
				if stopped.Reason == "" || !stopped.EndedAt.Equal(gone.EndedAt) {
					s.Errorf("got %+v and %+v", stopped, gone)
				}
				s.soon("nothing runs", func() bool { _, boxes := s.hosts[0].census(); return len(boxes) == 0 })
				before := s.picture().books.pods[plain.ID]
				time.Sleep(time.Hour)
				if after := s.picture().books.pods[plain.ID]; after != before {
					s.Errorf("the terminated pod was charged %d, then %d", before, after)
				}
				for _, try := range []func() error{
					func() error { _, err := s.act(s.account(), kept.ID, fleet.ActionStart); return err },
					func() error { _, err := s.create(s.account(), cpuPod(2, image("steady", 0, 0))); return err },
				} {
					if err := try(); fleet.CodeOf(err) != fleet.CodeNoCredit {
						s.Errorf("without credit: %v", err)
					}
				}
				s.credit(20 * fleet.Dollar)
				s.do(kept.ID, fleet.ActionStart)
				s.runs(kept.ID, 2)
				if s.seenAgain() != 1 {
					s.Error("its data is not there")
				}
			})
		})
	}
}

// The scheduler dies around full hours, when meters are settled, and loses its state file.
func TestChargesAreTheSameAcrossCrashes(t *testing.T) {
	play(t, []int{2}, nil, func(s *scene) {
		p := s.make(mounted())
		begun := p.Steps[fleet.StepCreated]
		rate := chargeOf(&p, simPrices()).rate
		for i, how := range []unclean{stateOpen, stateDropped, stateClean} {
			late := time.Duration(i*4) * time.Second
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour - 4*time.Second + late)))
			s.killScheduler(how)
			time.Sleep(10 * time.Second)
			s.begin()
			time.Sleep(time.Duration(i) * time.Second)
			s.hosts[0].kill(true)
			s.hosts[0].start()
			s.hostIs(s.hosts[0], fleet.HostReady)
		}
		s.do(p.ID, fleet.ActionStop)
		p = s.podIs(p.ID, fleet.StatusExited)
		ran := p.EndedAt.Sub(begun)
		time.Sleep(time.Hour)
		books := s.picture().books
		kept := books.at.Sub(p.EndedAt)
		want := float64(rate)*ran.Hours() + float64(chargeOf(&p, simPrices()).rate)*kept.Hours()
		got := books.pods[p.ID]
		if math.Abs(float64(got)-want) > float64(rate)/3600 || ran < 2*time.Hour {
			s.Errorf("charged %d for %s, want %.0f", got, ran, want)
		}
	})
}
