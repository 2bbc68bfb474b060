package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// wire is the network between hosts and schedulers. Between any two nodes each direction can be cut by
// itself: what is sent meanwhile waits, as TCP would retransmit it.
type wire struct {
	mu      sync.Mutex // guards the fields below; taken before a pipe's
	rng     *rand.Rand
	ports   map[string]*port
	cuts    map[way]int         // how often each way is cut
	hosts   map[string][]func() // what heals the cuts of cut
	changed chan struct{}       // closed when cuts do
	conns   map[*conn]bool      // the ends of those who dialed
}

// way is a direction between two nodes; everyone stands for all others.
type way struct{ from, to string }

const everyone = "*"

type port struct {
	addr    wireAddr
	wire    *wire
	backlog chan net.Conn
	done    chan struct{}
	once    sync.Once
}

const (
	pipeRoom   = 256 << 10 // bytes that a sender may be ahead
	latestByte = 3 * time.Millisecond
)

func newWire(seed uint64) *wire {
	return &wire{
		rng: rand.New(rand.NewPCG(seed, 1)), ports: map[string]*port{}, cuts: map[way]int{}, hosts: map[string][]func(){},
		changed: make(chan struct{}), conns: map[*conn]bool{},
	}
}

// nodeOf is the node that an address is of.
func nodeOf(addr string) string {
	node, _, _ := strings.Cut(addr, ":")
	return node
}

func (w *wire) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(latestByte)))
}

// listen opens a port that can be dialed.
func (w *wire) listen(addr string) (net.Listener, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ports[addr] != nil {
		return nil, errors.New("address in use")
	}
	p := &port{addr: wireAddr(addr), wire: w, backlog: make(chan net.Conn, 64), done: make(chan struct{})}
	w.ports[addr] = p
	return p, nil
}

// isCut reports whether nothing arrives; mu is held.
func (w *wire) isCut(from, to string) bool {
	return w.cuts[way{from, to}]+w.cuts[way{from, everyone}]+w.cuts[way{everyone, to}] > 0
}

// apart reports whether two nodes cannot talk.
func (w *wire) apart(a, b string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return a != b && (w.isCut(a, b) || w.isCut(b, a))
}

// block cuts ways until what it returns is called, which may be more than once.
func (w *wire) block(ways ...way) (heal func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.add(1, ways)
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.add(-1, ways)
	})
}

// add changes cuts; mu is held.
func (w *wire) add(n int, ways []way) {
	for _, x := range ways {
		w.cuts[x] += n
	}
	close(w.changed)
	w.changed = make(chan struct{})
	for c := range w.conns {
		near, far := nodeOf(string(c.local)), nodeOf(string(c.remote))
		c.out.setCut(w.isCut(near, far))
		c.in.setCut(w.isCut(far, near))
	}
}

// travel takes as long as a message from one node to another, and for ever while the way is cut. It
// fails when one of the channels is closed or has something before.
func (w *wire) travel(from, to string, late <-chan time.Time, done <-chan struct{}) error {
	timer := time.NewTimer(w.delay())
	defer timer.Stop()
	arrived := timer.C
	for {
		w.mu.Lock()
		cut, changed := w.isCut(from, to), w.changed
		w.mu.Unlock()
		if arrived == nil && !cut {
			return nil
		}
		select {
		case <-arrived:
			arrived = nil
		case <-changed:
		case <-late:
			return os.ErrDeadlineExceeded
		case <-done:
			return net.ErrClosed
		}
	}
}

// dialer returns the function with which a node dials.
func (w *wire) dialer(node string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		for {
			w.mu.Lock()
			if !w.isCut(node, nodeOf(addr)) && !w.isCut(nodeOf(addr), node) {
				c, err := w.connect(node, addr)
				w.mu.Unlock()
				return c, err
			}
			changed := w.changed
			w.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// connect makes a connection; mu is held.
func (w *wire) connect(node, addr string) (net.Conn, error) {
	p := w.ports[addr]
	if p == nil {
		return nil, &net.OpError{Op: "dial", Net: "wire", Addr: wireAddr(addr), Err: syscall.ECONNREFUSED}
	}
	up, down := newPipe(w), newPipe(w)
	near := &conn{in: down, out: up, local: wireAddr(node), remote: p.addr, dialed: true, wire: w}
	far := &conn{in: up, out: down, local: p.addr, remote: wireAddr(node)}
	near.peer = far
	select {
	case p.backlog <- far:
	default:
		return nil, &net.OpError{Op: "dial", Net: "wire", Addr: p.addr, Err: syscall.ECONNREFUSED}
	}
	w.conns[near] = true
	return near, nil
}

// cut cuts or heals the two directions between a node and all others.
func (w *wire) cut(node string, up, down bool) {
	var ways []way
	if up {
		ways = append(ways, way{node, everyone})
	}
	if down {
		ways = append(ways, way{everyone, node})
	}
	heal := w.block(ways...)
	w.mu.Lock()
	before := w.hosts[node]
	w.hosts[node] = []func(){heal}
	w.mu.Unlock()
	for _, f := range before {
		f()
	}
}

// kill ends all connections of a node's process. The other ends are told, unless the machine lost its
// power.
func (w *wire) kill(node string, tell bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		switch node {
		case nodeOf(string(c.local)):
			c.die(tell)
		case nodeOf(string(c.remote)):
			c.peer.die(tell)
			continue
		default:
			continue
		}
		delete(w.conns, c)
	}
}

// Accept implements net.Listener.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.backlog:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *port) Close() error {
	p.once.Do(func() {
		p.wire.mu.Lock()
		delete(p.wire.ports, string(p.addr))
		p.wire.mu.Unlock()
		close(p.done)
		for {
			select {
			case c := <-p.backlog:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr { return p.addr }

type wireAddr string

func (wireAddr) Network() string  { return "wire" }
func (a wireAddr) String() string { return string(a) }

// conn is one end of a connection.
type conn struct {
	in, out       *pipe
	local, remote wireAddr
	peer          *conn // of the end that dialed
	dialed        bool
	wire          *wire
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }
func (c *conn) LocalAddr() net.Addr         { return c.local }
func (c *conn) RemoteAddr() net.Addr        { return c.remote }

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.dialed {
		c.wire.mu.Lock()
		delete(c.wire.conns, c)
		c.wire.mu.Unlock()
	}
	c.in.shutReader(syscall.EPIPE)
	c.out.shutWriter(io.EOF)
	return nil
}

// die is what becomes of a process's connections when it is killed.
func (c *conn) die(tell bool) {
	if tell {
		c.in.shutReader(syscall.ECONNRESET)
		c.out.shutWriter(syscall.ECONNRESET)
		return
	}
	c.in.shutReader(nil)
	c.out.shutWriter(nil)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.change(func() { c.in.readBy = t })
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.change(func() { c.out.writeBy = t })
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	wire *wire

	mu              sync.Mutex // guards the fields below
	changed         chan struct{}
	queue           []segment
	size            int
	cut             bool
	readShut        bool  // the reading end is closed
	writeShut       bool  // the writing end is closed
	ended           error // what the reader finds after the queue
	refused         error // what the writer is told
	readBy, writeBy time.Time
}

type segment struct {
	at   time.Time // of arrival
	data []byte
}

func newPipe(w *wire) *pipe { return &pipe{wire: w, changed: make(chan struct{})} }

func (p *pipe) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.wakeAll()
}

// wakeAll wakes who waits; mu is held.
func (p *pipe) wakeAll() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) setCut(cut bool) { p.change(func() { p.cut = cut }) }

func (p *pipe) shutReader(told error) {
	p.change(func() {
		p.readShut = true
		if p.refused == nil {
			p.refused = told
		}
	})
}

func (p *pipe) shutWriter(told error) {
	p.change(func() {
		p.writeShut = true
		if p.ended == nil {
			p.ended = told
		}
		if errors.Is(told, syscall.ECONNRESET) {
			p.queue, p.size = nil, 0
		}
	})
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		n, changed, until, err := p.tryRead(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		await(changed, until)
	}
}

func (p *pipe) tryRead(b []byte) (n int, changed chan struct{}, until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	until = p.readBy
	switch {
	case p.readShut:
		return 0, nil, until, net.ErrClosed
	case !p.readBy.IsZero() && !now.Before(p.readBy):
		return 0, nil, until, os.ErrDeadlineExceeded
	case p.cut:
		return 0, p.changed, until, nil
	case len(p.queue) > 0 && !p.queue[0].at.After(now):
		n = copy(b, p.queue[0].data)
		p.size -= n
		if p.queue[0].data = p.queue[0].data[n:]; len(p.queue[0].data) == 0 {
			p.queue = p.queue[1:]
		}
		p.wakeAll()
		return n, nil, until, nil
	case len(p.queue) > 0:
		if until.IsZero() || p.queue[0].at.Before(until) {
			until = p.queue[0].at
		}
	case p.ended != nil:
		return 0, nil, until, p.ended
	}
	return 0, p.changed, until, nil
}

func (p *pipe) write(b []byte) (int, error) {
	at := time.Now().Add(p.wire.delay())
	done := 0
	for {
		n, changed, until, err := p.tryWrite(b[done:], at)
		done += n
		if err != nil || done == len(b) {
			return done, err
		}
		if n == 0 {
			await(changed, until)
		}
	}
}

func (p *pipe) tryWrite(b []byte, at time.Time) (n int, changed chan struct{}, until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.writeShut:
		return 0, nil, until, net.ErrClosed
	case p.refused != nil && !p.cut:
		return 0, nil, until, p.refused
	case !p.writeBy.IsZero() && !time.Now().Before(p.writeBy):
		return 0, nil, until, os.ErrDeadlineExceeded
	}
	if n = min(len(b), pipeRoom-p.size); n <= 0 {
		return 0, p.changed, p.writeBy, nil
	}
	if len(p.queue) > 0 && p.queue[len(p.queue)-1].at.After(at) {
		at = p.queue[len(p.queue)-1].at
	}
	p.queue = append(p.queue, segment{at, append([]byte(nil), b[:n]...)})
	p.size += n
	p.wakeAll()
	return n, nil, until, nil
}

// await waits for a change, or until a time that is not zero.
func await(changed chan struct{}, until time.Time) {
	if until.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}
