package dns

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/netctl/sidecar"
)

// Command is gantry-net's that is the process.
const Command = "dns"

const (
	standsWithin = 250 * time.Millisecond // before it is worth a word that there is no process
	retryEvery   = 250 * time.Millisecond
)

var errClosed = errors.New("names: closed")

// ProcessConfig says which process answers, and where.
type ProcessConfig struct {
	Program  string     // path of gantry-net
	RunDir   string     // for the socket over which the process is told; made when it is not there
	Instance string     // of the agent
	Listen   netip.Addr // of the gateway; need not be an address of the host yet
	Log      *slog.Logger
}

// Process is the agent's end of the answering process. It finds the process of a former agent, starts one where there is none or its
// program was replaced, and fills it again when it died. Sockets are handed from one to the next, so that no question is lost that has
// not been read. Its methods may be used by several goroutines.
//
// What is set is kept and told to every process to come. The methods that set return when the process has it, or with ctx, and then it
// gets it later; where another one has the port at once, with unix.EADDRINUSE. Nothing is started, replaced or told before Set and SetPods have been called; until then they return at once.
type Process struct {
	client *sidecar.Client
	cancel context.CancelFunc
	done   chan struct{} // closed when keep has ended
	kick   chan struct{}

	telling sync.Mutex
	session *session // with whom there was one last; nil: it has to be told all

	mu      sync.Mutex
	want    wanted
	rev     uint64        // of want
	has     uint64        // that the process has
	err     error         // of the last attempt to tell it
	changed chan struct{} // closed when has or err changes
}

// wanted is what the process should have. What its fields refer to is not changed; nil has not been set yet.
type wanted struct {
	base     *Base
	pods     *map[netip.Addr][]uint32
	overlays map[uint32]*[]Name // sorted
}

// whole says that there is enough to answer.
func (w *wanted) whole() bool { return w.base != nil && w.pods != nil }

// NewProcess begins to keep a process. It does not wait for it.
func NewProcess(c ProcessConfig) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{
		cancel: cancel, done: make(chan struct{}), kick: make(chan struct{}, 1), changed: make(chan struct{}),
		want: wanted{overlays: map[uint32]*[]Name{}},
	}
	at := netip.AddrPortFrom(c.Listen, port)
	p.client = sidecar.New(sidecar.Config{
		Name: Command, Program: c.Program, Dir: c.RunDir, Log: c.Log, Fill: p.tell,
		Open:  func(ctx context.Context) ([]int, error) { return openSockets(ctx, at) },
		Right: func(fds []int) bool { return boundTo(fds, at) },
	})
	go p.keep(ctx)
	return p
}

// Set sets what concerns all pods.
func (p *Process) Set(ctx context.Context, b Base) error {
	b = Base{Suffixes: slices.Clone(b.Suffixes), Ranges: slices.Clone(b.Ranges), Upstreams: slices.Clone(b.Upstreams)}
	return p.update(ctx, func(w *wanted) bool {
		if o := w.base; o != nil && slices.Equal(o.Suffixes, b.Suffixes) && slices.Equal(o.Ranges, b.Ranges) && slices.Equal(o.Upstreams, b.Upstreams) {
			return false
		}
		w.base = &b
		return true
	})
}

// SetPods sets who may ask, by source address, and the overlays whose names each gets. In an overlay that has not been set a pod gets
// no answer to internal names.
func (p *Process) SetPods(ctx context.Context, pods map[netip.Addr][]uint32) error {
	next := make(map[netip.Addr][]uint32, len(pods))
	for a, vnis := range pods {
		next[a] = slices.Clone(vnis)
	}
	return p.update(ctx, func(w *wanted) bool {
		if w.pods != nil && maps.EqualFunc(*w.pods, next, slices.Equal[[]uint32]) {
			return false
		}
		w.pods = &next
		return true
	})
}

// SetOverlay sets the names of one overlay, whole. The process is told the difference.
func (p *Process) SetOverlay(ctx context.Context, o Overlay) error {
	members := sorted(o.Members)
	return p.update(ctx, func(w *wanted) bool {
		if old := w.overlays[o.VNI]; old != nil && slices.Equal(*old, members) {
			return false
		}
		w.overlays[o.VNI] = &members
		return true
	})
}

// RemoveOverlay forgets an overlay.
func (p *Process) RemoveOverlay(ctx context.Context, vni uint32) error {
	return p.update(ctx, func(w *wanted) bool {
		_, ok := w.overlays[vni]
		delete(w.overlays, vni)
		return ok
	})
}

// update changes what is wanted and waits until the process has it.
func (p *Process) update(ctx context.Context, change func(*wanted) bool) error {
	p.mu.Lock()
	if change(&p.want) {
		p.rev++
	}
	rev, whole := p.rev, p.want.whole()
	p.mu.Unlock()
	if !whole {
		return nil
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
	for {
		p.mu.Lock()
		has, err, changed := p.has, p.err, p.changed
		p.mu.Unlock()
		if has >= rev {
			return nil
		}
		if errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		select {
		case <-changed:
		case <-p.done:
			return errClosed
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Stats returns what the process counted since it began.
func (p *Process) Stats(ctx context.Context) (s Stats, err error) {
	p.mu.Lock()
	whole := p.want.whole()
	p.mu.Unlock()
	if !whole {
		return Stats{}, ipc.ErrDown
	}
	err = p.client.Call(ctx, verbStats, nil, &s)
	return s, err
}

// Close lets go of the process, which goes on.
func (p *Process) Close() {
	p.cancel()
	<-p.done
	p.client.Close()
}

// Remove ends the process, also one of a former agent, and closes p.
func (p *Process) Remove(ctx context.Context) error {
	p.cancel()
	<-p.done
	return p.client.Remove(ctx)
}

// keep tells the process what changes, until ctx ends.
func (p *Process) keep(ctx context.Context) {
	defer close(p.done)
	var again <-chan time.Time
	for {
		select {
		case <-p.kick:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		if err := p.once(ctx); err != nil {
			p.told(0, err)
			again = time.After(retryEvery)
		}
	}
}

// once tells the process that stands what it does not know yet.
func (p *Process) once(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, standsWithin)
	defer cancel()
	conn, err := p.client.Conn(soon)
	if err != nil {
		return err
	}
	return p.tell(ctx, conn)
}

// tell tells a process what it does not know yet.
func (p *Process) tell(ctx context.Context, conn *sidecar.Conn) (err error) {
	p.telling.Lock()
	defer p.telling.Unlock()
	defer func() {
		if err != nil {
			p.session = nil
		}
	}()
	if p.session == nil || p.session.conn != conn {
		next := &session{conn: conn}
		if err := conn.Call(ctx, verbOverlays, nil, &next.there); err != nil {
			return err
		}
		p.session = next
	}
	p.mu.Lock()
	want, rev := p.want, p.rev
	want.overlays = maps.Clone(want.overlays)
	p.mu.Unlock()
	if err := p.session.sync(ctx, want); err != nil {
		return err
	}
	p.told(rev, nil)
	return nil
}

// told says how far the process is.
func (p *Process) told(has uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.has, p.err = has, err
	close(p.changed)
	p.changed = make(chan struct{})
}
