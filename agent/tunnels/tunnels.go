// Package tunnels serves what schedulers ask for through data connections, and through the session's connection where there is none:
// connections to pods' ports, pods' logs, commands and files in their containers, and who of them reaches whom. Tunnels end with their
// connection, at the latest when what they asked of the container runtime is done. How many a pod and the host have at once is bounded here.
package tunnels

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"google.golang.org/grpc"

	"gantry/agent/containerfs"
	"gantry/agent/ledger"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	podDialTimeout = 5 * time.Second
	frameSize      = 32 << 10 // bytes
	maxExecs       = 64       // in one pod at once
	maxTransfers   = 16       // of files, in one pod at once
	hostExecs      = 512      // in all pods at once
	hostTransfers  = 64       // in all pods at once
	// startWithin is how long a command may take to start. It is less than what a scheduler waits: once
	// that has said that the command did not start, it must not.
	startWithin = 8 * time.Second
)

// Config is what Tunnels are made from.
type Config struct {
	Ledger   *ledger.Ledger
	Logs     *podlog.Logs
	Inside   Inside               // nil: this host reaches into no container
	Program  *containerfs.Program // what reads and writes files of pods; nil: this process
	Overlays *overlay.Reconciler  // nil: this host takes no part in private networks
	Public   func() []netip.Addr  // at which ports are published
	// Pinger opens what sends echoes from a pod.
	Pinger func(id fleet.PodID) (*overlay.Pinger, error)
	// Dead reports whether a backend of network volumes does not answer; nil: there are none.
	Dead func(id fleet.BackendID) bool
	Log  *slog.Logger
}

// Tunnels serves what schedulers ask for.
type Tunnels struct {
	Config
	kinds   map[reflect.Type]opener
	execs   seats
	files   seats
	pinging chan struct{} // holds one for each pod from which echoes are sent now

	startWithin time.Duration
	open        sync.WaitGroup

	mu   sync.Mutex // guards conn
	conn *grpc.ClientConn
}

// opener serves one kind of tunnel until either side ends it.
type opener func(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error

// New makes Tunnels.
func New(c Config) *Tunnels {
	t := &Tunnels{
		Config: c, startWithin: startWithin, pinging: make(chan struct{}, pingingPods),
		execs: seats{most: maxExecs, host: hostExecs, what: "commands"},
		files: seats{most: maxTransfers, host: hostTransfers, what: "transfers of files"},
	}
	t.kinds = map[reflect.Type]opener{
		reflect.TypeFor[*agentrpc.OpenTunnel_Port]():    t.port,
		reflect.TypeFor[*agentrpc.OpenTunnel_Logs]():    t.podLog,
		reflect.TypeFor[*agentrpc.OpenTunnel_Exec]():    t.exec,
		reflect.TypeFor[*agentrpc.OpenTunnel_Files]():   t.transfer,
		reflect.TypeFor[*agentrpc.OpenTunnel_Network](): t.network,
	}
	return t
}

// Begin has tunnels opened on the connection of a session that begins. They end with the context of what asked for them.
func (t *Tunnels) Begin(conn *grpc.ClientConn) (ended func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn = conn
	return func() {}
}

// Take serves a tunnel that a session asks for, whose end ends ctx.
func (t *Tunnels) Take(ctx context.Context, m *agentrpc.Down_OpenTunnel) (*agentrpc.Up, error) {
	t.mu.Lock()
	conn := t.conn
	t.mu.Unlock()
	t.open.Go(func() { t.serve(ctx, conn, m.OpenTunnel) })
	return nil, nil
}

// Wait reports whether all tunnels have ended within a time. It may be called when none is started
// any more.
func (t *Tunnels) Wait(within time.Duration) bool {
	ended := make(chan struct{})
	go func() { // ends with the last tunnel
		defer close(ended)
		t.open.Wait()
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// Inside is the container runtime as tunnels need it. Every call names the incarnation that is
// meant: another one is refused with fleet.CodeNotAllowed, and so is one that does not run.
type Inside interface {
	// Exec starts a process in the pod's container; see containerfs.Process.
	Exec(ctx context.Context, id fleet.PodID, incarnation uint64, spec containerfs.ExecSpec) (containerfs.Process, error)
	// Root opens the root folder of the pod's container.
	Root(ctx context.Context, id fleet.PodID, incarnation uint64) (*containerfs.Root, error)
	// SweepExecs ends processes that nobody looks after any more.
	SweepExecs(ctx context.Context) error
}

// seats bounds how many of a kind of tunnel a pod and the host have at once.
type seats struct {
	most int // in one pod
	host int // in all pods
	what string

	mu    sync.Mutex // guards the fields below
	taken map[fleet.PodID]int
	total int
}

// take takes a seat, which is given back with leave. The error says for the pod's owner that there is none:
// not_allowed where the pod has enough, unavailable where the host has.
func (s *seats) take(id fleet.PodID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken[id] >= s.most:
		return fleet.NotAllowed("%d %s run in the pod already", s.most, s.what)
	case s.total >= s.host:
		return fleet.Unavailable(fmt.Sprintf("%d %s run on the pod's host already; try again later", s.host, s.what), nil)
	}
	if s.taken == nil {
		s.taken = map[fleet.PodID]int{}
	}
	s.taken[id]++
	s.total++
	return nil
}

func (s *seats) leave(id fleet.PodID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.taken[id]--; s.taken[id] == 0 {
		delete(s.taken, id)
	}
}

// serve opens the tunnel and carries it until either side ends it.
func (t *Tunnels) serve(ctx context.Context, conn *grpc.ClientConn, ask *agentrpc.OpenTunnel) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := agentrpc.NewLinkClient(conn).Tunnel(ctx)
	if err != nil {
		t.Log.Debug("open tunnel", "err", err)
		return
	}
	t.carry(ctx, stream, ask)
}

// Serve serves what a scheduler asks for on streams of a data connection, until that ends.
func (t *Tunnels) Serve(ctx context.Context, conn *agentrpc.DataConn) {
	for {
		stream, err := conn.Accept()
		if err != nil {
			return
		}
		t.open.Go(func() { t.answer(ctx, stream) })
	}
}

// askTimeout is how long a scheduler may take to say what it wants of a stream that it has opened.
const askTimeout = 10 * time.Second

func (t *Tunnels) answer(ctx context.Context, stream *agentrpc.DataStream) {
	defer func() { _ = stream.Reset() }() // nothing happens when both ends have closed it
	defer context.AfterFunc(ctx, func() { _ = stream.Reset() })()
	_ = stream.SetReadDeadline(time.Now().Add(askTimeout))
	ask, err := stream.RecvAsk()
	if err != nil {
		t.Log.Debug("a stream of a data connection says nothing", "err", err)
		return
	}
	_ = stream.SetReadDeadline(time.Time{})
	t.carry(ctx, stream, ask)
}

// carry carries a tunnel until either side ends it.
func (t *Tunnels) carry(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) {
	var err error
	if open, known := t.kinds[reflect.TypeOf(ask.GetTarget())]; known {
		err = open(ctx, stream, ask)
	} else {
		err = stream.Send(&agentrpc.Frame{Id: ask.GetId(), Error: "this host does not know that kind of tunnel"})
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
		t.Log.Debug("tunnel ended", "err", err)
	}
	_ = stream.CloseSend()
	for err == nil { // until the scheduler has closed its side, so that nothing sent is lost
		_, err = stream.Recv()
	}
}

// address returns where a pod can be reached, if it is this host's to reach.
func (t *Tunnels) address(id fleet.PodID) (netip.Addr, bool) {
	rec, ok := t.Ledger.Record(id)
	return rec.Addr, ok && rec.Assignment.Goal == fleet.GoalRun && rec.Begun == rec.Assignment.Incarnation
}

// wanted returns the incarnation of a pod that is to run here and has been started.
func (t *Tunnels) wanted(id fleet.PodID) (uint64, error) {
	rec, ok := t.Ledger.Record(id)
	a := rec.Assignment
	switch {
	case !ok || rec.Orphan:
		return 0, &fleet.Error{Code: fleet.CodeNotFound, Msg: "the pod is not on this host"}
	case t.Inside == nil:
		return 0, fleet.Unavailable("this host reaches into no container", nil)
	case a.Goal != fleet.GoalRun || rec.Begun != a.Incarnation, rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation:
		return 0, fleet.NotAllowed("the pod does not run")
	}
	return a.Incarnation, nil
}

// reachable refuses a pod whose network volume does not answer: whoever looks for files there would wait for it, and
// what waits in the kernel cannot be ended. What had begun before stays below the bounds of seats.
func (t *Tunnels) reachable(id fleet.PodID) error {
	rec, _ := t.Ledger.Record(id)
	if v := rec.Assignment.Volume; v != nil && t.Dead != nil && t.Dead(v.Backend.ID) {
		return fleet.Unavailable("the storage of the pod's network volume does not answer", nil)
	}
	return nil
}

// refusal returns the first frame of a tunnel that is refused, with words for the pod's owner only
// where the error has such.
func (t *Tunnels) refusal(ask *agentrpc.OpenTunnel, err error) *agentrpc.Frame {
	f := t.lastFrame(err)
	f.Id, f.End = ask.GetId(), false
	return f
}

// lastFrame returns the frame that ends a tunnel, well or with an error.
func (t *Tunnels) lastFrame(err error) *agentrpc.Frame {
	var known *fleet.Error
	var faulty *pod.Error
	switch {
	case err == nil:
		return &agentrpc.Frame{End: true}
	case errors.As(err, &known):
		return &agentrpc.Frame{End: true, Error: known.Msg, Code: string(known.Code)}
	case errors.As(err, &faulty):
		t.Log.Warn("reach into a pod", "err", err)
		return &agentrpc.Frame{End: true, Error: faulty.Sentence, Code: string(fleet.CodeUnavailable)}
	}
	t.Log.Warn("reach into a pod", "err", err)
	return &agentrpc.Frame{End: true, Error: "the pod's host could not do it", Code: string(fleet.CodeUnavailable)}
}
