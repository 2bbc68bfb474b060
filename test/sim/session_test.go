package sim

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

func TestASecondLiveSessionOfAHostIsRefused(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		epoch := s.picture().hosts[s.hosts[0].id].Epoch
		c, ctx, end := s.dial(s.hosts[0])
		defer end()
		stream := s.session(ctx, c, s.hello(s.hosts[0]))
		if _, err := stream.Recv(); status.Code(err) != codes.AlreadyExists {
			s.Errorf("got %v, want AlreadyExists", err)
		}
		if now := s.picture().hosts[s.hosts[0].id].Epoch; now != epoch || runsOn(s.hosts[0], p.ID) != 1 {
			s.Errorf("the first session is at epoch %d, was at %d", now, epoch)
		}
	})
}

func TestACopyOfAHostsDiskGetsNoSessionAndStartsNothing(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		h.kill(true) // so that its disk can be copied, and the copy is alone for a while
		c, err := h.clone("copy")
		if err != nil {
			s.Fatal(err)
		}
		epoch := s.picture().hosts[h.id].Epoch
		c.start()
		defer c.kill(true)
		s.hostIs(h, fleet.HostUnreachable)
		h.start()
		s.hostIs(h, fleet.HostReady)
		time.Sleep(time.Minute)
		now := s.picture().hosts[h.id]
		if now.Epoch != epoch+1 {
			s.Errorf("the host had %d sessions, want its own one", now.Epoch-epoch)
		}
		if running, boxes := c.census(); len(running)+len(boxes) > 0 || runsOn(h, p.ID) != 1 {
			s.Errorf("the copy has %v, the host runs %d", boxes, runsOn(h, p.ID))
		}
	})
}

func TestAReportOfAnOlderSessionIsRefused(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		old := s.picture().hosts[h.id].Epoch
		h.kill(true)
		h.start()
		s.soon("a new session", func() bool { return s.picture().hosts[h.id].Epoch > old })
		err := s.propose(state.ReportPods{Host: h.id, Epoch: old, At: time.Now(), Reports: []state.PodReport{
			{Pod: p.ID, Incarnation: 1, Event: fleet.EventExited, At: time.Now()},
		}})
		if fleet.CodeOf(err) != fleet.CodeStale {
			s.Errorf("got %v, want stale", err)
		}
		if now, _ := s.pod(p.ID); now.Status != fleet.StatusRunning || !now.Held {
			s.Errorf("the pod is %s", now.Status)
		}
	})
}

func TestTheSchedulerSendsTheFullSetWhenAHostAsksForItAndThenDifferences(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		h.kill(true)
		s.hostIs(h, fleet.HostUnreachable)
		c, ctx, end := s.dial(h)
		defer end()
		stream := s.session(ctx, c, s.hello(h))
		var generation uint64
		for _, step := range []string{"first", "again"} {
			var full *agentrpc.FullSet
			for full == nil {
				msg, err := stream.Recv()
				if err != nil {
					s.Fatal(err)
				}
				full = msg.GetFull()
			}
			generation = full.GetGeneration()
			if len(full.GetAssignments()) != 1 || full.GetAssignments()[0].GetPodId() != string(p.ID) {
				s.Errorf("%s: got %v", step, full)
			}
			if step == "again" {
				break
			}
			if err := stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}); err != nil {
				s.Fatal(err)
			}
		}
		q, err := s.create(s.account(), cpuPod(2, image("steady", 0, 0)))
		if err != nil {
			s.Fatal(err)
		}
		msg, err := stream.Recv()
		d := msg.GetDifference()
		if err != nil || d.GetFrom() != generation || d.GetTo() != generation+1 || len(d.GetPut()) != 1 || d.GetPut()[0].GetPodId() != string(q.ID) {
			s.Errorf("after generation %d came %v (%v)", generation, msg, err)
		}
	})
}

func TestALogThatBreaksOffIsUnavailable(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		h.kill(true)
		c, ctx, end := s.dial(h)
		defer end()
		stream := s.session(ctx, c, s.hello(h))
		s.soon("the session stands", func() bool { return s.scheduler().dispatch.Reachable(h.id) })
		read := make(chan error, 1)
		go func() {
			read <- s.scheduler().service.PodLogs(ctx, principal(s.account()), p.ID, fleet.LogQuery{Tail: 10}, func(fleet.LogLine) error { return nil })
		}()
		var ask *agentrpc.OpenTunnel
		for ask == nil {
			msg, err := stream.Recv()
			if err != nil {
				s.Fatal(err)
			}
			ask = msg.GetOpenTunnel()
		}
		tunnel, err := c.Tunnel(ctx)
		if err != nil {
			s.Fatal(err)
		}
		for _, f := range []*agentrpc.Frame{{Id: ask.GetId()}, {Data: []byte("{\"id\":")}} {
			if err := tunnel.Send(f); err != nil {
				s.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		s.wire.kill(h.name+"-raw", true)
		if err := <-read; fleet.CodeOf(err) != fleet.CodeUnavailable {
			s.Errorf("got %v, want unavailable", err)
		}
	})
}

// scripted is a scheduler that skips a generation.
type scripted struct {
	agentrpc.UnimplementedLinkServer
	asked chan uint64 // generation that the host applied after it asked for the full set
}

// Session implements agentrpc.LinkServer.
func (x *scripted) Session(stream agentrpc.Link_SessionServer) error {
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	g := hello.GetHello().GetGeneration()
	for _, msg := range []*agentrpc.Down{
		{Kind: &agentrpc.Down_Welcome{Welcome: &agentrpc.Welcome{Epoch: 100, HeartbeatMs: 2000}}},
		{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: g}}},
		{Kind: &agentrpc.Down_Difference{Difference: &agentrpc.Difference{From: g + 1, To: g + 2}}},
	} {
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	asked := false
	for {
		up, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case up.GetResync() != nil && !asked:
			asked = true
			if err := stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: g + 2}}}); err != nil {
				return err
			}
		case up.GetApplied() != nil && asked:
			x.asked <- up.GetApplied().GetGeneration() - g
			return nil
		}
	}
}

func TestAHostAsksForTheFullSetWhenADifferenceIsMissing(t *testing.T) {
	play(t, []int{0}, nil, func(s *scene) {
		s.killScheduler(stateClean)
		certs, err := pki.OpenStore(filepath.Join(s.schedDir, "pki"))
		if err != nil {
			s.Fatal(err)
		}
		ln, err := s.wire.listen(linkAddr)
		if err != nil {
			s.Fatal(err)
		}
		mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: s.log})
		if err != nil {
			s.Fatal(err)
		}
		server := grpc.NewServer(grpc.Creds(agentrpc.ServerCredentials()))
		x := &scripted{asked: make(chan uint64, 10)}
		agentrpc.RegisterLinkServer(server, x)
		served := make(chan error, 1)
		go func() { served <- server.Serve(mux.GRPC()) }()
		select {
		case ahead := <-x.asked:
			if ahead != 2 {
				s.Errorf("the host applied generation +%d, want +2", ahead)
			}
		case <-time.After(time.Minute):
			s.Error("the host did not ask")
		}
		s.hosts[0].kill(true)
		server.Stop()
		if err := <-served; err != nil {
			s.Error(err)
		}
		s.check(mux.Close())
	})
}

func TestAReportIsSentAgainUntilItIsRecorded(t *testing.T) {
	for name, hide := range map[string]func(s *scene) func(){
		"no scheduler": func(s *scene) func() {
			s.killScheduler(stateOpen)
			return s.begin
		},
		"link cut": func(s *scene) func() {
			s.wire.cut("host-1", true, true)
			return func() { s.wire.cut("host-1", false, false) }
		},
		"reports lost": func(s *scene) func() {
			s.wire.cut("host-1", true, false)
			return func() { s.wire.cut("host-1", false, false) }
		},
		"acknowledgements lost": func(s *scene) func() {
			s.wire.cut("host-1", false, true)
			return func() { s.wire.cut("host-1", false, false) }
		},
		"agent dies after the exit": func(s *scene) func() {
			s.wire.cut("host-1", true, true)
			return func() {
				s.hosts[0].kill(true)
				s.wire.cut("host-1", false, false)
				s.hosts[0].start()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []int{0}, nil, func(s *scene) {
				p := s.make(cpuPod(2, image("fail", 15, 0)))
				show := hide(s)
				s.soon("the process has ended", func() bool { return runsOn(s.hosts[0], p.ID) == 0 })
				time.Sleep(30 * time.Second)
				show()
				p = s.podIs(p.ID, fleet.StatusError)
				if p.ExitCode == nil || *p.ExitCode != 3 || p.Held || p.Reason == "" {
					s.Errorf("got %+v", p)
				}
			})
		})
	}
}

func TestAHostRenewsItsCertificateBeforeItEnds(t *testing.T) {
	play(t, []int{0}, func(w *world) { w.certLife = 10 * time.Minute }, func(s *scene) {
		h := s.hosts[0]
		p := s.make(cpuPod(2, image("steady", 0, 0)))
		time.Sleep(40 * time.Minute)
		epoch := s.picture().hosts[h.id].Epoch
		if epoch != 1 {
			s.Errorf("the session broke: epoch %d", epoch)
		}
		h.kill(true)
		h.start()
		s.soon("a new session", func() bool { return s.picture().hosts[h.id].Epoch == 2 })
		if runsOn(h, p.ID) != 1 {
			s.Error("the pod does not run on")
		}
	})
}
