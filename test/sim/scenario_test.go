package sim

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// scene is a small cluster for one scenario.
type scene struct {
	*testing.T
	*world
	hosts []*host
}

// play runs a scenario on a cluster whose hosts have so many GPUs and are ready.
func play(t *testing.T, gpus []int, change func(*world), scenario func(s *scene)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, change)
		defer func() {
			w.close()
			for _, f := range w.broken() {
				t.Error(f)
			}
			if t.Failed() {
				t.Log(w.lines.tail(80))
			}
		}()
		s := &scene{T: t, world: w}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i, n := range gpus {
			h, err := w.newHost(ctx, fmt.Sprintf("host-%d", i+1), n)
			if err != nil {
				t.Fatal(err)
			}
			s.hosts = append(s.hosts, h)
			h.start()
			s.hostIs(h, fleet.HostReady)
		}
		scenario(s)
	})
}

// three makes a cluster of three schedulers.
func three(w *world) { w.size = 3 }

// lead waits until a scheduler leads for sure.
func (s *scene) lead() *process {
	s.Helper()
	return s.leadOf(s.living())
}

// leadOf waits until one of the processes leads for sure.
func (s *scene) leadOf(among []*process) *process {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := awaitLeader(ctx, among)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// others are the schedulers that run, but for one.
func (s *scene) others(not *process) (out []*process) {
	for _, p := range s.living() {
		if p != not {
			out = append(out, p)
		}
	}
	return out
}

// isolate cuts a scheduler from the others; users and hosts still reach it.
func (s *scene) isolate(p *process) (heal func()) {
	var ways []way
	for _, m := range s.stays() {
		if m != p.member {
			ways = append(ways, way{p.name, m.name}, way{m.name, p.name})
		}
	}
	return s.wire.block(ways...)
}

// alike waits until all schedulers run with the same state.
func (s *scene) alike() {
	s.Helper()
	s.soon("all schedulers have the same state", func() bool {
		c := newChecker(s.world)
		c.alike()
		return len(c.united()) == 0
	})
}

func (s *scene) account() fleet.AccountID { return s.accounts[0] }

// soon fails the scenario unless ok holds within a minute.
func (s *scene) soon(what string, ok func() bool) {
	s.Helper()
	if err := until(time.Minute, ok); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *scene) hostIs(h *host, want fleet.HostState) {
	s.Helper()
	s.soon(h.name+" is "+string(want), func() bool { return s.picture().hosts[h.id].State == want })
}

func (s *scene) podIs(id fleet.PodID, want fleet.PodStatus) fleet.Pod {
	s.Helper()
	s.soon("pod is "+string(want), func() bool { p, _ := s.pod(id); return p.Status == want })
	p, _ := s.pod(id)
	return p
}

// make creates a pod and waits until it runs.
func (s *scene) make(req fleet.PodRequest) fleet.Pod {
	s.Helper()
	p, err := s.create(s.account(), req)
	if err != nil {
		s.Fatal(err)
	}
	return s.podIs(p.ID, fleet.StatusRunning)
}

func (s *scene) do(id fleet.PodID, action fleet.Trigger) {
	s.Helper()
	if _, err := s.act(s.account(), id, action); err != nil {
		s.Fatalf("%s: %v", action, err)
	}
}

// runsOn says which incarnation of the pod runs on the host; 0 when none does.
func runsOn(h *host, id fleet.PodID) uint64 {
	running, _ := h.census()
	return running[id]
}

func (s *scene) begin() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.startScheduler(ctx); err != nil {
		s.Fatal(err)
	}
}

// dial connects with a host's certificate, beside its agent. The context ends with the connection.
func (s *scene) dial(h *host) (agentrpc.LinkClient, context.Context, func()) {
	s.Helper()
	store, err := pki.OpenStore(filepath.Join(h.dir, "pki"))
	if err != nil {
		s.Fatal(err)
	}
	conf, err := agentrpc.HostClientTLS(store)
	if err != nil {
		s.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+linkAddr,
		grpc.WithContextDialer(s.wire.dialer(h.name+"-raw")), grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	return agentrpc.NewLinkClient(conn), ctx, func() {
		cancel()
		_ = conn.Close()
	}
}

// session opens a session with a hello over dial's connection.
func (s *scene) session(ctx context.Context, c agentrpc.LinkClient, hello *agentrpc.Hello) agentrpc.Link_SessionClient {
	s.Helper()
	stream, err := c.Session(ctx)
	if err != nil {
		s.Fatal(err)
	}
	if err := stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: hello}}); err != nil {
		s.Fatal(err)
	}
	return stream
}

// hello is what the host's agent would say.
func (s *scene) hello(h *host) *agentrpc.Hello {
	rec := s.picture().hosts[h.id]
	return &agentrpc.Hello{MachineId: rec.MachineID, BootId: rec.BootID, Generation: rec.Generation, Inventory: &agentrpc.Inventory{
		Total: &agentrpc.Resources{MilliCpu: h.offer.MilliCPU, MemoryMb: h.offer.MemoryMB, DiskGb: h.offer.DiskGB},
	}}
}

func (s *scene) propose(cmd state.Command) error {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := s.scheduler().node.Propose(ctx, cmd)
	if err != nil {
		s.Fatal(err)
	}
	return res[0].Err
}
