package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"gantry/agent/inside"
	"gantry/agent/ledger"
	"gantry/agent/logs"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/fleet"
	"gantry/internal/link"
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

// tunnels serves what a scheduler asks for through the session: connections to pods' ports, pods'
// logs, and commands and files in their containers. They end with their session, at the latest when
// what they have asked of the container runtime is done.
type tunnels struct {
	ledger *ledger.Ledger
	logs   *podlog.Logs
	inside Inside // nil: this host reaches into no container
	execs  seats
	files  seats
	log    *slog.Logger

	overlays *overlay.Keeper
	public   func() []netip.Addr // at which ports are published
	// pinger opens what sends echoes from a pod.
	pinger  func(id fleet.PodID) (*overlay.Pinger, error)
	pinging chan struct{} // holds one for each pod from which echoes are sent now

	program *inside.Program // what reads and writes files of pods; nil: this process

	// dead reports whether a backend of network volumes does not answer; nil: there are none.
	dead        func(id fleet.BackendID) bool
	startWithin time.Duration
	open        sync.WaitGroup
}

func newTunnels(l *ledger.Ledger, logs *podlog.Logs, in Inside, log *slog.Logger) *tunnels {
	return &tunnels{
		ledger: l, logs: logs, inside: in, log: log, startWithin: startWithin, pinging: make(chan struct{}, pingingPods),
		execs: seats{most: maxExecs, host: hostExecs, what: "commands"},
		files: seats{most: maxTransfers, host: hostTransfers, what: "transfers of files"},
	}
}

// start serves a tunnel that was asked for in a session, whose end ends ctx.
func (t *tunnels) start(ctx context.Context, conn *grpc.ClientConn, ask *link.OpenTunnel) {
	t.open.Go(func() { t.serve(ctx, conn, ask) })
}

// wait reports whether all tunnels have ended within a time. It may be called when none is started
// any more.
func (t *tunnels) wait(within time.Duration) bool {
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
	// Exec starts a process in the pod's container; see inside.Process.
	Exec(ctx context.Context, id fleet.PodID, incarnation uint64, spec inside.ExecSpec) (inside.Process, error)
	// Root opens the root folder of the pod's container.
	Root(ctx context.Context, id fleet.PodID, incarnation uint64) (*inside.Root, error)
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
func (t *tunnels) serve(ctx context.Context, conn *grpc.ClientConn, ask *link.OpenTunnel) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := link.NewLinkClient(conn).Tunnel(ctx)
	if err != nil {
		t.log.Debug("open tunnel", "err", err)
		return
	}
	switch {
	case ask.GetPort() != nil:
		err = t.port(ctx, stream, ask)
	case ask.GetLogs() != nil:
		err = t.podLog(ctx, stream, ask)
	case ask.GetExec() != nil:
		err = t.exec(ctx, stream, ask)
	case ask.GetFiles() != nil:
		err = t.transfer(ctx, stream, ask)
	case ask.GetNetwork() != nil:
		err = t.network(ctx, stream, ask)
	default:
		err = stream.Send(&link.Frame{Id: ask.GetId(), Error: "this host does not know that kind of tunnel"})
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
		t.log.Debug("tunnel ended", "err", err)
	}
	_ = stream.CloseSend()
	for err == nil { // until the scheduler has closed its side, so that nothing sent is lost
		_, err = stream.Recv()
	}
}

// address returns where a pod can be reached, if it is this host's to reach.
func (t *tunnels) address(id fleet.PodID) (netip.Addr, bool) {
	rec, ok := t.ledger.Record(id)
	return rec.Addr, ok && rec.Assignment.Goal == fleet.GoalRun && rec.Begun == rec.Assignment.Incarnation
}

// wanted returns the incarnation of a pod that is to run here and has been started.
func (t *tunnels) wanted(id fleet.PodID) (uint64, error) {
	rec, ok := t.ledger.Record(id)
	a := rec.Assignment
	switch {
	case !ok || rec.Orphan:
		return 0, &fleet.Error{Code: fleet.CodeNotFound, Msg: "the pod is not on this host"}
	case t.inside == nil:
		return 0, fleet.Unavailable("this host reaches into no container", nil)
	case a.Goal != fleet.GoalRun || rec.Begun != a.Incarnation, rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation:
		return 0, fleet.NotAllowed("the pod does not run")
	}
	return a.Incarnation, nil
}

// reachable refuses a pod whose network volume does not answer: whoever looks for files there would wait for it, and
// what waits in the kernel cannot be ended. What had begun before stays below the bounds of seats.
func (t *tunnels) reachable(id fleet.PodID) error {
	rec, _ := t.ledger.Record(id)
	if v := rec.Assignment.Volume; v != nil && t.dead != nil && t.dead(v.Backend.ID) {
		return fleet.Unavailable("the storage of the pod's network volume does not answer", nil)
	}
	return nil
}

// refusal returns the first frame of a tunnel that is refused, with words for the pod's owner only
// where the error has such.
func (t *tunnels) refusal(ask *link.OpenTunnel, err error) *link.Frame {
	f := t.lastFrame(err)
	f.Id, f.End = ask.GetId(), false
	return f
}

// lastFrame returns the frame that ends a tunnel, well or with an error.
func (t *tunnels) lastFrame(err error) *link.Frame {
	var known *fleet.Error
	var faulty *pod.Error
	switch {
	case err == nil:
		return &link.Frame{End: true}
	case errors.As(err, &known):
		return &link.Frame{End: true, Error: known.Msg, Code: string(known.Code)}
	case errors.As(err, &faulty):
		t.log.Warn("reach into a pod", "err", err)
		return &link.Frame{End: true, Error: faulty.Sentence, Code: string(fleet.CodeUnavailable)}
	}
	t.log.Warn("reach into a pod", "err", err)
	return &link.Frame{End: true, Error: "the pod's host could not do it", Code: string(fleet.CodeUnavailable)}
}

func (t *tunnels) port(ctx context.Context, stream link.Link_TunnelClient, ask *link.OpenTunnel) error {
	target := ask.GetPort()
	addr, ok := t.address(fleet.PodID(target.GetPodId()))
	if !ok {
		return stream.Send(&link.Frame{Id: ask.GetId(), Error: "the pod does not run here"})
	}
	d := net.Dialer{Timeout: podDialTimeout}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(int(target.GetPort()))))
	if err != nil {
		return stream.Send(&link.Frame{Id: ask.GetId(), Error: "nothing accepts connections on that port of the pod"})
	}
	defer func() { _ = c.Close() }()
	if err := stream.Send(&link.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return errors.New("a connection to a pod is not TCP")
	}
	down := make(chan error, 1)
	go func() { down <- fromStream(stream, tcp) }()
	upErr := toStream(tcp, stream)
	if upErr != nil {
		_ = c.Close()
	}
	downErr := <-down
	return errors.Join(upErr, downErr)
}

// toStream copies what the pod writes into the tunnel.
func toStream(c io.Reader, stream link.Link_TunnelClient) error {
	buf := make([]byte, frameSize)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if sendErr := stream.Send(&link.Frame{Data: buf[:n]}); sendErr != nil {
				return sendErr
			}
		}
		if err != nil { // a reset ends the pod's side as a close does
			return stream.Send(&link.Frame{End: true})
		}
	}
}

// fromStream copies what comes through the tunnel to the pod.
func fromStream(stream link.Link_TunnelClient, c *net.TCPConn) error {
	for {
		f, err := stream.Recv()
		if err != nil {
			_ = c.Close() // the scheduler let go of the tunnel
			return err
		}
		if len(f.GetData()) > 0 {
			if _, err := c.Write(f.GetData()); err != nil {
				return err
			}
		}
		if f.GetEnd() {
			_ = c.CloseWrite()
		}
	}
}

func (t *tunnels) podLog(ctx context.Context, stream link.Link_TunnelClient, ask *link.OpenTunnel) error {
	target := ask.GetLogs()
	id := fleet.PodID(target.GetPodId())
	if _, ok := t.ledger.Record(id); !ok && !t.logs.Has(id) {
		return stream.Send(t.refusal(ask, fleet.NotAllowed("the pod's host has no log of it: it has not heard of the pod yet, or removed the log of a stopped pod to make room")))
	}
	within, err := t.logs.Span(id, target.GetPrevious())
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	if err := stream.Send(&link.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	// The scheduler sends nothing: receiving ends when it lets go of the tunnel.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		_, _ = stream.Recv()
	}()
	q := fleet.LogQuery{
		Source: target.GetSource(), Tail: min(int(target.GetTail()), logs.MaxTail), After: target.GetAfter(),
		Follow: target.GetFollow() && !target.GetPrevious(),
	}
	if target.GetSinceNs() != 0 {
		q.Since = time.Unix(0, target.GetSinceNs())
	}
	err = t.logs.Read(ctx, id, q, within, func(line fleet.LogLine) error {
		data, err := json.Marshal(line)
		if err != nil {
			return err
		}
		return stream.Send(&link.Frame{Data: append(data, '\n')})
	})
	last := &link.Frame{End: true}
	if err != nil && ctx.Err() == nil {
		last.Error = "the log could not be read"
		t.log.Warn("read a pod's log", "pod", target.GetPodId(), "err", err)
	}
	sendErr := stream.Send(last)
	_ = stream.CloseSend()
	<-done
	return errors.Join(err, sendErr)
}
