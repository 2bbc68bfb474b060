package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"gantry/internal/sleep"
)

const (
	// maxQuestion is how many bytes of a question over TCP are read: one question, and what EDNS0 adds.
	maxQuestion = 4 << 10
	tcpIdle     = 5 * time.Second // for the next question, whole, and for an answer to be taken
	acceptGap   = 50 * time.Millisecond
)

type counter = atomic.Uint64

// Server answers. Its tables can be changed at any time by several goroutines; answers never wait for that.
type Server struct {
	own netip.AddrPort
	try time.Duration // that an upstream has for an answer

	mu  sync.Mutex // one change at a time
	now atomic.Pointer[table]

	stranger budget // of all senders that are no pods
	inFlight atomic.Int32
	conns    atomic.Int32
	began    time.Time
	counts   struct {
		internal, forwarded, failed, refused, malformed, limited, busy, closed counter
	}
}

// NewServer makes a server with empty tables, which refuses everybody. Own is where it listens; as an upstream it is left out.
func NewServer(own netip.AddrPort) *Server {
	s := &Server{own: own, try: tryWithin, began: time.Now()}
	s.now.Store(&table{base: newZones(Base{}, own)})
	return s
}

func (s *Server) clock() int64 { return int64(time.Since(s.began)) + 1 }

// change puts another table in place of the present one, of which it gets a shallow copy.
func (s *Server) change(with func(t *table) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := *s.now.Load()
	if err := with(&t); err != nil {
		return err
	}
	s.now.Store(&t)
	return nil
}

// Set sets what concerns all pods.
func (s *Server) Set(b Base) {
	_ = s.change(func(t *table) error {
		t.base = newZones(b, s.own)
		return nil
	})
}

// SetPods sets who may ask, by source address, and the overlays whose names each gets. What a pod may still ask goes on to count.
func (s *Server) SetPods(pods map[netip.Addr][]uint32) {
	_ = s.change(func(t *table) error {
		next := make(map[netip.Addr]asker, len(pods))
		for addr, vnis := range pods {
			a := asker{vnis: slices.Clone(vnis), budget: t.pods[addr].budget}
			if a.budget == nil {
				a.budget = &budget{}
			}
			next[addr] = a
		}
		t.pods = next
		return nil
	})
}

// SetOverlay sets the names of an overlay, whole.
func (s *Server) SetOverlay(vni uint32, members []Name) {
	_ = s.change(func(t *table) error {
		t.put(vni, (&overlay{}).changed(members, nil))
		return nil
	})
}

// ChangeOverlay sets some names of an overlay and forgets others. It fails when there is no such overlay.
func (s *Server) ChangeOverlay(vni uint32, set []Name, gone []netip.Addr) error {
	return s.change(func(t *table) error {
		o := t.overlays[vni]
		if o == nil {
			return fmt.Errorf("there is no overlay %d", vni)
		}
		t.put(vni, o.changed(set, gone))
		return nil
	})
}

// RemoveOverlay forgets an overlay. Pods that are still in it get no answer to internal names.
func (s *Server) RemoveOverlay(vni uint32) {
	_ = s.change(func(t *table) error {
		t.put(vni, nil)
		return nil
	})
}

// Overlays returns those that there are, sorted.
func (s *Server) Overlays() []uint32 { return slices.Sorted(maps.Keys(s.now.Load().overlays)) }

// Stats returns what was counted.
func (s *Server) Stats() Stats {
	c := &s.counts
	return Stats{
		Internal: c.internal.Load(), Forwarded: c.forwarded.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(),
		Malformed: c.malformed.Load(), Limited: c.limited.Load(), Busy: c.busy.Load(), Closed: c.closed.Load(),
	}
}

// Serve answers on both sockets until ctx ends; then it closes them, and finishes what is under way.
func (s *Server) Serve(ctx context.Context, udp *net.UDPConn, tcp *net.TCPListener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var reading, working sync.WaitGroup
	work := context.WithoutCancel(ctx)
	for range max(2, runtime.GOMAXPROCS(0)) {
		reading.Go(func() { cancel(s.readUDP(work, udp, &working)) })
	}
	reading.Go(func() { cancel(s.accept(ctx, tcp, &working)) })
	<-ctx.Done()
	err := context.Cause(ctx)
	_ = tcp.Close()
	_ = udp.SetReadDeadline(time.Now()) // answers still go out through it
	reading.Wait()
	working.Wait()
	_ = udp.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// readUDP answers packets. What has to be asked of others is a goroutine of working.
func (s *Server) readUDP(ctx context.Context, udp *net.UDPConn, working *sync.WaitGroup) error {
	in, out := make([]byte, dns.MaxMsgSize), make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := udp.ReadFromUDPAddrPort(in)
		if err != nil {
			return fmt.Errorf("read questions: %w", err)
		}
		addr := from.Addr().Unmap()
		t := s.now.Load()
		a, ok := s.admit(t, addr)
		if !ok {
			continue
		}
		v := s.judge(t, a, in[:n])
		v.count.Add(1)
		send := func(m *dns.Msg, buf []byte) {
			if packet, err := pack(m, v.question, false, buf); err == nil {
				_, _ = udp.WriteToUDPAddrPort(packet, from)
			}
		}
		switch {
		case v.answer != nil:
			send(v.answer, out)
		case v.question != nil:
			s.forward(ctx, t, a, v.question, working, func(m *dns.Msg) { send(m, nil) })
		}
	}
}

// admit finds who asks, and takes one of the questions that it may ask.
func (s *Server) admit(t *table, from netip.Addr) (asker, bool) {
	a := t.pods[from]
	limit := a.budget
	if limit == nil {
		limit = &s.stranger
	}
	if !limit.take(s.clock()) {
		s.counts.limited.Add(1)
		return a, false
	}
	return a, true
}

// forward asks the upstreams and hands the answer over, in a goroutine of working; at once when too much is under way.
func (s *Server) forward(ctx context.Context, t *table, a asker, q *dns.Msg, working *sync.WaitGroup, send func(*dns.Msg)) {
	leave, ok := enterBoth(&a.budget.inFlight, podInFlight, &s.inFlight, allInFlight)
	if !ok {
		s.counts.busy.Add(1)
		send(replyTo(q, dns.RcodeServerFailure))
		return
	}
	working.Go(func() {
		defer leave()
		answer, err := t.base.upstream.ask(ctx, upstreamQuestion(q), s.try, s.clock)
		if err != nil {
			s.counts.failed.Add(1)
		}
		send(replyWith(q, answer))
	})
}

// accept takes connections until ctx ends.
func (s *Server) accept(ctx context.Context, tcp *net.TCPListener, working *sync.WaitGroup) error {
	for {
		conn, err := tcp.AcceptTCP()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if conn != nil {
				_ = conn.Close()
			}
			return ctx.Err()
		}
		if err != nil { // such as too many open files
			_ = sleep.For(ctx, acceptGap)
			continue
		}
		from, _ := netip.AddrFromSlice(conn.RemoteAddr().(*net.TCPAddr).IP)
		leave, ok := s.seat(from.Unmap())
		if !ok {
			s.counts.closed.Add(1)
			_ = conn.Close()
			continue
		}
		working.Go(func() {
			defer leave()
			defer func() { _ = conn.Close() }()
			stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
			defer stop()
			s.serveTCP(ctx, conn, from.Unmap())
		})
	}
}

// seat takes a place for a connection, unless there is none left.
func (s *Server) seat(from netip.Addr) (leave func(), ok bool) {
	limit := s.now.Load().pods[from].budget
	if limit == nil {
		limit = &s.stranger
	}
	return enterBoth(&limit.conns, podConns, &s.conns, allConns)
}

// serveTCP answers the questions of a connection, one after the other.
func (s *Server) serveTCP(ctx context.Context, conn *net.TCPConn, from netip.Addr) {
	for {
		_ = conn.SetDeadline(time.Now().Add(tcpIdle))
		if ctx.Err() != nil {
			return
		}
		packet, err := readFramedUpTo(conn, maxQuestion)
		if err != nil {
			return
		}
		t := s.now.Load()
		a, ok := s.admit(t, from)
		if !ok {
			return
		}
		v := s.judge(t, a, packet)
		v.count.Add(1)
		if v.question == nil {
			return
		}
		m := v.answer
		if m == nil {
			var one sync.WaitGroup
			s.forward(context.WithoutCancel(ctx), t, a, v.question, &one, func(answer *dns.Msg) { m = answer })
			one.Wait()
		}
		out, err := pack(m, v.question, true, nil)
		if err != nil {
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(tcpIdle))
		if writeFramed(conn, out) != nil {
			return
		}
	}
}
