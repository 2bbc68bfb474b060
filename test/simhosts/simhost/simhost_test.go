package simhost

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const testLimit = 2 * time.Minute

// scheduler is one that lets every host join, and says in a session what a test has it say.
type scheduler struct {
	agentrpc.UnimplementedJoinServer
	agentrpc.UnimplementedLinkServer
	ca       *pki.CA
	sessions chan session
	streams  chan jobStream
	leader   string // where to send who comes; empty: here

	mu sync.Mutex
	n  int
}

// session is one host's.
type session struct {
	hello *agentrpc.Hello
	up    chan *agentrpc.Up
	down  chan *agentrpc.Down
}

func (s *scheduler) Join(ctx context.Context, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
	if s.leader != "" {
		return nil, agentrpc.NotLeader(ctx, s.leader)
	}
	s.mu.Lock()
	s.n++
	id := "host-" + string(rune('a'+s.n))
	s.mu.Unlock()
	leaf, err := s.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: id}, time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	return &agentrpc.JoinResponse{HostId: id, Certificate: leaf.Raw, Ca: s.ca.Cert().Raw}, nil
}

func (s *scheduler) Session(stream agentrpc.Link_SessionServer) error {
	if s.leader != "" {
		return agentrpc.NotLeader(stream.Context(), s.leader)
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello().GetBrief() { // this one knows nothing
		if err := stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Whole{Whole: &agentrpc.Whole{}}}); err != nil {
			return err
		}
		if first, err = stream.Recv(); err != nil {
			return err
		}
	}
	x := session{hello: first.GetHello(), up: make(chan *agentrpc.Up, 100), down: make(chan *agentrpc.Down)}
	if err := stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Welcome{Welcome: &agentrpc.Welcome{Epoch: 1, HeartbeatMs: 20, Lineage: 3}}}); err != nil {
		return err
	}
	s.sessions <- x
	go func() {
		defer close(x.up)
		for {
			up, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case x.up <- up:
			default: // heartbeats that nobody reads
			}
		}
	}()
	for {
		select {
		case msg, ok := <-x.down:
			if !ok {
				return nil
			}
			if err := stream.Send(msg); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// serve starts a scheduler on a loopback port.
func serve(t *testing.T, ca *pki.CA, leader string) (*scheduler, string) {
	t.Helper()
	certs, err := pki.OpenStore(t.TempDir())
	if err == nil {
		err = certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: fleet.NewID()}, time.Hour, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := &scheduler{ca: ca, sessions: make(chan session, 10), streams: make(chan jobStream), leader: leader}
	g := grpc.NewServer(grpc.Creds(agentrpc.ServerCredentials()))
	agentrpc.RegisterJoinServer(g, s)
	agentrpc.RegisterLinkServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(mux.GRPC()) }()
	t.Cleanup(func() {
		g.Stop()
		if err := errors.Join(<-done, mux.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

// lab is a fleet of one host, joined and in a session.
type lab struct {
	*testing.T
	s *scheduler
	f *Fleet
}

func newLab(t *testing.T, options ...func(*Config)) *lab {
	t.Helper()
	ca, err := pki.NewCA(fleet.NewID(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, addr := serve(t, ca, "")
	_, follower := serve(t, ca, addr)
	c := Config{
		Schedulers: []string{follower}, GPUs: 2,
		Token: func(context.Context) (string, error) { return pki.NewJoinToken(ca.Digest()).Text(), nil },
	}
	for _, o := range options {
		o(&c)
	}
	l := &lab{T: t, s: s, f: New(c)}
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if err := l.f.Join(ctx); err != nil {
		t.Fatal(err)
	}
	run, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.f.Run(run) }()
	t.Cleanup(func() { end(); <-done })
	return l
}

// next waits for a session.
func (l *lab) next() session {
	l.Helper()
	select {
	case x := <-l.s.sessions:
		return x
	case <-time.After(testLimit):
		l.Fatal("no session came")
		return session{}
	}
}

// heard waits for a message that is what a test waits for.
func (l *lab) heard(x session, what string, is func(*agentrpc.Up) bool) {
	l.Helper()
	late := time.After(testLimit)
	for {
		select {
		case up, ok := <-x.up:
			if !ok {
				l.Fatalf("the session ended before %s", what)
			}
			if is(up) {
				return
			}
		case <-late:
			l.Fatalf("the host did not say %s", what)
		}
	}
}

func (l *lab) reports(x session, pod, event string, incarnation uint64) {
	l.Helper()
	l.heard(x, pod+" "+event, func(up *agentrpc.Up) bool {
		return slices.ContainsFunc(up.GetReports().GetPods(), func(r *agentrpc.PodReport) bool {
			return r.GetPodId() == pod && r.GetEvent() == event && r.GetIncarnation() == incarnation
		})
	})
}

func (l *lab) applied(x session, generation uint64) {
	l.Helper()
	l.heard(x, "that it applied", func(up *agentrpc.Up) bool { return up.GetApplied().GetGeneration() == generation })
}

func run(pod string, incarnation uint64, gpus ...string) *agentrpc.Assignment {
	return &agentrpc.Assignment{PodId: pod, Incarnation: incarnation, Goal: string(fleet.GoalRun), Gpus: gpus}
}

func fullSet(generation uint64, all ...*agentrpc.Assignment) *agentrpc.Down {
	return &agentrpc.Down{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: generation, Assignments: all}}}
}

func difference(from, to uint64, put ...*agentrpc.Assignment) *agentrpc.Down {
	return &agentrpc.Down{Kind: &agentrpc.Down_Difference{Difference: &agentrpc.Difference{From: from, To: to, Put: put}}}
}

// TestHostDoesWhatItIsTold takes one host through the life of two pods.
func TestHostDoesWhatItIsTold(t *testing.T) {
	l := newLab(t)
	x := l.next()
	if len(x.hello.GetInventory().GetGpus()) != 2 || x.hello.GetHoldsSet() {
		t.Errorf("hello %v", x.hello)
	}
	x.down <- fullSet(5, run("pod-a", 1, "gpu-0"), run("pod-b", 1, "gpu-1"))
	l.applied(x, 5)
	l.reports(x, "pod-b", "running", 1)
	x.down <- difference(7, 8, run("pod-c", 1))
	l.heard(x, "that it needs the full set", func(up *agentrpc.Up) bool { return up.GetResync() != nil })
	stop := run("pod-a", 1, "gpu-0")
	stop.Goal = string(fleet.GoalStop)
	x.down <- difference(5, 6, stop)
	l.reports(x, "pod-a", "exited", 1)
	x.down <- difference(6, 7, run("pod-a", 2, "gpu-0"))
	l.reports(x, "pod-a", "running", 2)
	gone := run("pod-a", 3)
	gone.Goal = string(fleet.GoalGone)
	x.down <- difference(7, 8, gone)
	l.reports(x, "pod-a", "gone", 3)
	if runs := l.f.Runs(); len(runs) != 1 || runs[0].Pod != "pod-b" || runs[0].GPUs[0] != "gpu-1" {
		t.Errorf("%v runs", runs)
	}
	l.heard(x, "a heartbeat", func(up *agentrpc.Up) bool { return len(up.GetHeartbeat().GetPods()) == 1 })
	if faults := l.f.Faults(); len(faults) != 0 {
		t.Errorf("faults %v", faults)
	}
}

// TestHostLooksAfterVolumes takes volumes through their life, and a pod that waits for one.
func TestHostLooksAfterVolumes(t *testing.T) {
	l := newLab(t)
	x := l.next()
	if len(x.hello.GetInventory().GetVolumes()) != 3 {
		t.Errorf("hello %v", x.hello)
	}
	order := func(generation uint64, ready bool) *agentrpc.Assignment {
		a := run("pod-a", 1)
		a.Generation, a.Volume = generation, &agentrpc.NetworkVolume{VolumeId: "vol", Ready: ready}
		return a
	}
	x.down <- fullSet(9, order(1, false))
	l.applied(x, 9)
	if runs := l.f.Runs(); len(runs) != 0 {
		t.Errorf("it did not wait for its volume: %v", runs)
	}
	store := func(volumes ...*agentrpc.StorageVolume) *agentrpc.Down {
		return &agentrpc.Down{Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{Volumes: volumes}}}}}
	}
	done := func(what string, is func(*agentrpc.StorageReport) bool) {
		t.Helper()
		l.heard(x, what, func(up *agentrpc.Up) bool { return slices.ContainsFunc(up.GetStorage().GetVolumes(), is) })
	}
	x.down <- store(&agentrpc.StorageVolume{VolumeId: "vol", SizeGb: 10, Measure: true}, &agentrpc.StorageVolume{VolumeId: "old", SizeGb: 10, Gone: true})
	done("that the volumes are as they are to be", func(r *agentrpc.StorageReport) bool {
		return r.GetVolumeId() == "vol" && r.GetProvisionedGb() == 10 && r.GetMeasured() && !r.GetGone()
	})
	x.down <- difference(9, 10, order(2, true))
	l.reports(x, "pod-a", "running", 1)
	if faults := l.f.Faults(); len(faults) != 0 {
		t.Errorf("faults %v", faults)
	}
	x.down <- store(&agentrpc.StorageVolume{VolumeId: "vol", SizeGb: 10, Gone: true})
	done("that it is gone", func(r *agentrpc.StorageReport) bool { return r.GetGone() && r.GetProvisionedGb() == 0 })
	if faults := l.f.Faults(); len(faults) != 1 {
		t.Errorf("faults %v", faults)
	}
}

// TestHostLearnsOfNetworks tells a host of an overlay, with a gap and with what it must not be told.
func TestHostLearnsOfNetworks(t *testing.T) {
	l := newLab(t)
	x := l.next()
	if at := x.hello.GetInventory().GetTunnel(); len(at.GetPublicKey()) != 44 || at.GetEndpoint() != "198.18.0.0:51820" {
		t.Errorf("hello %v", at)
	}
	networks := func(overlays ...string) *agentrpc.Down {
		return &agentrpc.Down{Kind: &agentrpc.Down_Network{Network: &agentrpc.NetworkSet{Overlays: overlays}}}
	}
	peers := func(full bool, put ...*agentrpc.HostPeer) *agentrpc.Down {
		return &agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: &agentrpc.PeerChange{Full: full, Put: put}}}
	}
	overlay := func(id string, from, to uint64, members ...*agentrpc.OverlayMember) *agentrpc.Down {
		return &agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{
			OverlayId: id, AccountId: "a", Vni: 7, Cidr: "10.64.0.0/16", From: from, To: to, Put: members,
		}}}
	}
	here := &agentrpc.OverlayMember{Addr: "10.64.0.1", PodId: "pod-a", HostId: "here"}
	there := &agentrpc.OverlayMember{Addr: "10.64.0.2", PodId: "pod-b", HostId: "there"}
	order := run("pod-a", 1)
	order.Overlays = []*agentrpc.OverlayPlace{{OverlayId: "o"}}
	for _, msg := range []*agentrpc.Down{
		networks("o"), peers(true), overlay("o", 0, 3, here), fullSet(5, order),
		overlay("o", 3, 4, there), peers(false, &agentrpc.HostPeer{HostId: "there", PublicKey: "k"}),
	} {
		x.down <- msg
	}
	x.down <- overlay("o", 9, 10)
	l.heard(x, "that it needs everything", func(up *agentrpc.Up) bool { return up.GetResync() != nil })
	l.f.Host(0).ReadNetworks(func(n *Networks) {
		if got := n.String(); got != "o: pod-a@here pod-b@there peers: there" {
			t.Errorf("it knows %s", got)
		}
	})
	if faults := l.f.Faults(); len(faults) != 0 {
		t.Errorf("faults %v", faults)
	}
	x.down <- overlay("foreign", 0, 1)
	x.down <- difference(5, 6, run("pod-a", 2)) // which takes part no more, and the overlay is still known
	l.applied(x, 6)
	if faults := l.f.Faults(); len(faults) != 2 {
		t.Errorf("faults %v", faults)
	}
}

// TestHostComesBack breaks its connection and reboots it.
func TestHostComesBack(t *testing.T) {
	l := newLab(t)
	x := l.next()
	x.down <- fullSet(5, run("pod-a", 1, "gpu-0"))
	l.reports(x, "pod-a", "running", 1)
	h := l.f.Host(0)
	h.Cut()
	if err := l.f.Until(t.Context(), func(c Count) bool { return c.Connected == 0 }); err != nil || len(l.f.Runs()) != 1 {
		t.Fatalf("%v, %v runs", err, l.f.Runs())
	}
	h.Mend()
	x = l.next()
	if x.hello.GetGeneration() != 5 || !x.hello.GetHoldsSet() || x.hello.GetLineage() != 3 || len(x.hello.GetPods()) != 1 {
		t.Errorf("hello %v", x.hello)
	}
	l.reports(x, "pod-a", "running", 1)
	boot := x.hello.GetBootId()
	h.Reboot()
	x = l.next()
	if x.hello.GetBootId() == boot || x.hello.GetHoldsSet() || len(l.f.Runs()) != 0 {
		t.Errorf("hello %v, %v runs", x.hello, l.f.Runs())
	}
	l.reports(x, "pod-a", "reboot", 1)
}

// TestFaultsAreNoticed orders what never must be.
func TestFaultsAreNoticed(t *testing.T) {
	l := newLab(t)
	x := l.next()
	x.down <- fullSet(5, run("pod-a", 1, "gpu-0"), run("pod-b", 1, "gpu-0"))
	l.applied(x, 5)
	if faults := l.f.Faults(); len(faults) != 1 {
		t.Errorf("faults %v", faults)
	}
	c := newCensus()
	c.begin(Run{Pod: "p", Host: "a", Incarnation: 1})
	c.begin(Run{Pod: "p", Host: "b", Incarnation: 2})
	c.end(Run{Pod: "p", Host: "a", Incarnation: 1})
	if len(c.said()) != 1 || c.running() != 1 {
		t.Errorf("faults %v, %d run", c.said(), c.running())
	}
}
