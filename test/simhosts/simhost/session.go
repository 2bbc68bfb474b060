package simhost

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

const (
	helloTimeout = 10 * time.Second
	least        = 50 * time.Millisecond // between two tries to connect
	most         = 5 * time.Second       // between two tries of one scheduler
	maxMessage   = 8 << 20               // as a real agent's
	maxReports   = 64                    // of one message
)

var (
	errCut      = errors.New("the host is cut off")
	errRebooted = errors.New("the host was rebooted")
	errSwapped  = errors.New("the host has other hardware")
	errOld      = errors.New("the scheduler follows an older lineage than this host did")
)

// run keeps a session until ctx ends. Its pauses are those of a real agent: they grow until all schedulers are asked
// once in a time, and a session that outlived the longest begins them anew.
func (h *Host) run(ctx context.Context) {
	delay, hint, followed := least, "", false
	for n := rand.N(len(h.fleet.Schedulers)); ctx.Err() == nil; n++ {
		if !h.waitMended(ctx) {
			return
		}
		known := h.known()
		longest := most / time.Duration(len(known))
		addr := hint
		if addr == "" {
			addr = known[n%len(known)]
		}
		var stood time.Duration
		var err error
		stood, hint, err = h.once(ctx, addr)
		if ctx.Err() != nil {
			return
		}
		if stood > longest {
			delay = least
		}
		h.fleet.Log.Debug("session ended", "host", h.name, "at", addr, "err", err)
		if followed = hint != "" && hint != addr && !followed; followed {
			continue
		}
		hint = ""
		if sleep.For(ctx, delay/2+rand.N(delay/2)) != nil {
			return
		}
		delay = min(2*delay, longest)
	}
}

func (h *Host) known() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.schedulers
}

// waitMended waits while the host is cut off; false: ctx has ended.
func (h *Host) waitMended(ctx context.Context) bool {
	for {
		h.mu.Lock()
		cut := h.cut || h.mute
		h.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-h.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// once holds sessions on one connection until it breaks, and tells how long the last one stood; hint is where the scheduler has sent the
// host, if it did.
func (h *Host) once(ctx context.Context, addr string) (stood time.Duration, hint string, err error) {
	h.mu.Lock()
	conf := h.tls
	h.mu.Unlock()
	conn, err := h.dial(addr, conf)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = conn.Close() }()
	place := agentrpc.Place_PLACE_ANYWHERE
	for {
		if stood, hint, err = h.session(ctx, conn, place); stood < time.Second || hint != addr {
			return stood, hint, err
		}
		place = agentrpc.Place_PLACE_CONNECTED
	}
}

// session holds one session.
func (h *Host) session(ctx context.Context, conn *grpc.ClientConn, place agentrpc.Place) (stood time.Duration, hint string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.mu.Lock()
	conf, cut, mute := h.tls, h.cut, h.mute
	h.end = cancel
	h.mu.Unlock()
	if cut || mute {
		return 0, "", errCut
	}
	stream, welcome, err := h.greet(ctx, cancel, agentrpc.NewLinkClient(conn), place)
	if err != nil {
		if stream != nil {
			hint = agentrpc.LeaderHint(stream.Trailer())
		}
		return 0, hint, err
	}
	if err := h.welcomed(welcome); err != nil {
		return 0, "", err
	}
	began := time.Now()
	h.fleet.sessions.Add(1)
	h.fleet.connected.Add(1)
	defer h.fleet.connected.Add(-1)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.sendAll(ctx, stream, welcome) })
	if h.fleet.Answer != nil {
		leader := conn
		if a := welcome.GetLeader(); a != "" {
			if leader, err = h.dial(a, conf); err != nil {
				return 0, "", err
			}
			defer func() { _ = leader.Close() }()
		}
		group.Go(func() error { h.work(ctx, agentrpc.NewLinkClient(leader)); return nil })
	}
	group.Go(func() error {
		err := h.receiveAll(stream, welcome, cancel)
		cancel(err)
		return err
	})
	err = group.Wait()
	return time.Since(began), agentrpc.LeaderHint(stream.Trailer()), err
}

// greet says hello and waits for the welcome, for not more than a time. Few hosts do so at once.
func (h *Host) greet(
	ctx context.Context, cancel context.CancelCauseFunc, c agentrpc.LinkClient, place agentrpc.Place,
) (agentrpc.Link_SessionClient, *agentrpc.Welcome, error) {
	select {
	case h.fleet.gate <- struct{}{}:
		defer func() { <-h.fleet.gate }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	late := time.AfterFunc(helloTimeout, func() { cancel(errors.New("the scheduler did not answer in time")) })
	defer late.Stop()
	stream, err := c.Session(ctx)
	if err != nil {
		return nil, nil, err
	}
	hello := h.hello()
	hello.Place = place
	welcome, err := agentrpc.Greet(ctx, stream, hello, func() { late.Reset(helloTimeout) })
	return stream, welcome, err
}

// welcomed begins a session: everything is reported anew.
func (h *Host) welcomed(w *agentrpc.Welcome) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.GetLineage() < h.lineage {
		return errOld
	}
	h.lineage = w.GetLineage()
	h.heardOf(w.GetSchedulers())
	h.replies = nil
	for _, p := range h.pods {
		p.sequence = 0
	}
	h.poke()
	return nil
}

// heardOf keeps where the schedulers are. The caller holds mu.
func (h *Host) heardOf(schedulers []string) {
	if len(schedulers) > 0 {
		h.schedulers = schedulers
	}
}

// hello tells what the host has and holds.
func (h *Host) hello() *agentrpc.Hello {
	h.mu.Lock()
	defer h.mu.Unlock()
	total := h.fleet.totalOf(len(h.gpus))
	h.attempt++
	out := &agentrpc.Hello{
		Run: h.runID, Attempt: h.attempt,
		MachineId: h.machine, BootId: fmt.Sprintf("boot-%s-%d", h.machine, h.boot), Generation: h.generation,
		Hardware: h.machine, Lineage: h.lineage, HoldsSet: h.holdsSet,
		Inventory: &agentrpc.Inventory{
			Total: &agentrpc.Resources{MilliCpu: total.MilliCPU, MemoryMb: total.MemoryMB, DiskGb: total.DiskGB},
			Cuda:  "12.8", Driver: "570.00", Kernel: "6.1.0", Runtime: "none", AgentVersion: "simulated",
			Volumes: []string{"cephfs", "local", "nfs"}, Tunnel: h.tunnel(),
		},
	}
	for _, g := range h.gpus {
		out.Inventory.Gpus = append(out.Inventory.Gpus, &agentrpc.GPU{
			Uuid: g.UUID, Type: g.Type, MemoryMb: g.MemoryMB, Numa: int32(g.NUMA), Island: int32(g.Island), Simulated: true, Sick: g.Sick, //nolint:gosec // small
		})
	}
	agentrpc.Seal(out.Inventory)
	for id, p := range h.pods {
		out.Pods = append(out.Pods, &agentrpc.LedgerPod{
			PodId: string(id), Incarnation: p.order.GetIncarnation(), Goal: p.order.GetGoal(), Ended: !p.running,
			Gpus: p.order.GetGpus(), Need: p.order.GetLimits(), Ports: published(p.order.GetPorts()),
		})
	}
	return out
}

func published(ports []*agentrpc.Port) []*agentrpc.Port {
	var out []*agentrpc.Port
	for _, p := range ports {
		if p.GetPublic() != 0 {
			out = append(out, p)
		}
	}
	return out
}

// sendAll is the only goroutine that sends.
func (h *Host) sendAll(ctx context.Context, stream agentrpc.Link_SessionClient, w *agentrpc.Welcome) error {
	every := time.Duration(w.GetHeartbeatMs()) * time.Millisecond
	if every <= 0 {
		return errors.New("the scheduler named no heartbeat interval")
	}
	// Hosts that connected together do not beat together.
	first := time.NewTimer(rand.N(every))
	defer first.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	due := first.C
	for {
		for _, up := range h.unsent() {
			if err := stream.Send(up); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		select {
		case <-h.wake:
		case <-due:
			tick.Reset(every)
			due = tick.C
			if h.muted() {
				continue
			}
			if err := stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{Heartbeat: h.heartbeat()}}); err != nil {
				return fmt.Errorf("send a heartbeat: %w", err)
			}
			h.fleet.heartbeats.Add(1)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unsent returns what was not sent in this session.
func (h *Host) unsent() []*agentrpc.Up {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mute {
		return nil
	}
	out := h.replies
	h.replies = nil
	r := &agentrpc.Reports{SentNs: time.Now().UnixNano()}
	for _, p := range h.pods {
		if p.event == "" || p.sequence != 0 {
			continue
		}
		if len(r.GetPods()) == maxReports {
			h.poke()
			break
		}
		p.sequence = h.sequence + 1
		report := &agentrpc.PodReport{PodId: string(p.id), Incarnation: p.incarnation(), Event: p.event, AtNs: p.at.UnixNano()}
		if p.event == string(fleet.EventExited) {
			report.HasExitCode = true
		}
		r.Pods = append(r.Pods, report)
	}
	if len(r.GetPods()) == 0 {
		return out
	}
	h.sequence++
	r.Sequence = h.sequence
	return append(out, &agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: r}})
}

// heartbeat tells of what runs, all of it idle.
func (h *Host) heartbeat() *agentrpc.Heartbeat {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &agentrpc.Heartbeat{}
	for id, p := range h.pods {
		if p.running {
			out.Pods = append(out.Pods, &agentrpc.PodLive{PodId: string(id), CpuPercent: 1, MemoryPercent: 1})
		}
	}
	return out
}

// receiveAll handles what the scheduler says until it is silent for too long.
func (h *Host) receiveAll(stream agentrpc.Link_SessionClient, w *agentrpc.Welcome, cancel context.CancelCauseFunc) error {
	silence := time.Duration(w.GetSilenceMs()) * time.Millisecond
	if silence <= 0 {
		return h.receive(stream, func() {})
	}
	// This process may have stood still, with word from the scheduler waiting to be read: an alarm gives the
	// reader a chance first.
	var heard atomic.Int64
	watch := time.AfterFunc(silence, func() {
		before := heard.Load()
		time.AfterFunc(silence/4, func() {
			if heard.Load() == before {
				cancel(errors.New("the scheduler was silent for too long"))
			}
		})
	})
	defer watch.Stop()
	return h.receive(stream, func() { heard.Add(1); watch.Reset(silence) })
}

func (h *Host) receive(stream agentrpc.Link_SessionClient, heard func()) error {
	var parts agentrpc.Parts
	for {
		msg, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		heard()
		if msg, err = parts.Add(msg); err != nil {
			return err
		}
		switch {
		case msg.GetFull() != nil:
			h.full(msg.GetFull())
		case msg.GetDifference() != nil:
			h.difference(msg.GetDifference())
		case msg.GetReportsKept() != nil:
			h.kept(msg.GetReportsKept().GetSequence())
		case msg.GetStorage() != nil:
			h.store(msg.GetStorage())
		case msg.GetBeat() != nil:
			h.mu.Lock()
			h.heardOf(msg.GetBeat().GetSchedulers())
			h.mu.Unlock()
		default:
			h.takeNetwork(msg)
		}
	}
}

// kept drops reports that the cluster has recorded and that end a pod's life here.
func (h *Host) kept(sequence uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pods {
		if p.sequence != 0 && p.sequence <= sequence && p.event == eventGone {
			p.event = ""
		}
	}
}
