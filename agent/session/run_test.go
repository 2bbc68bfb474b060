package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.done) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// scene is a cluster in memory: schedulers that do what a test says, a host's certificate, and virtual time.
type scene struct {
	testing.TB
	agentrpc.UnimplementedLinkServer
	agentrpc.UnimplementedJoinServer
	ca      *pki.CA
	store   *pki.Store // of the host
	began   time.Time
	at      *pipes
	cut     chan struct{} // closed: connections break as ones whose other end confirms nothing
	onRenew func(*agentrpc.RenewRequest) (*agentrpc.RenewResponse, error)
	onLink  func(addr string, stream agentrpc.Link_SessionServer) error
	onJoin  func(ctx context.Context, addr string, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error)

	mu    sync.Mutex
	addrs []string // that were dialled
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{TB: t, began: time.Now(), at: newPipes(), cut: make(chan struct{})}
	var err error
	s.ca, err = pki.NewCA("cluster", time.Now())
	s.must(err)
	enroll := func(role pki.Role) *pki.Store {
		store, err := pki.OpenStore(t.TempDir())
		s.must(err)
		s.must(store.Enroll(s.ca, pki.Identity{Role: role, ID: "one"}, 1000*time.Hour, time.Now()))
		return store
	}
	s.store = enroll(pki.RoleHost)
	conf, err := agentrpc.ServerTLS(enroll(pki.RoleScheduler))
	s.must(err)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)))
	agentrpc.RegisterLinkServer(srv, s)
	agentrpc.RegisterJoinServer(srv, s)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.at) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // it had not begun yet
			s.must(err)
		}
	})
	return s
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// last is the address that was dialled last.
func (s *scene) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs[len(s.addrs)-1]
}

// Session implements agentrpc.LinkServer.
func (s *scene) Session(stream agentrpc.Link_SessionServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return s.onLink(s.last(), stream)
}

// Join implements agentrpc.JoinServer.
func (s *scene) Join(ctx context.Context, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
	return s.onJoin(ctx, s.last(), in)
}

// dial is a Dialer of the schedulers.
func (s *scene) dial(ctx context.Context, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.addrs = append(s.addrs, addr)
	s.mu.Unlock()
	if strings.HasPrefix(addr, "dead") {
		return nil, errors.New("nobody is there")
	}
	near, far := net.Pipe()
	select {
	case s.at.conns <- far:
		return &breakable{near, s.cut}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// breakable is a connection that the system breaks off once cut is closed.
type breakable struct {
	net.Conn
	cut chan struct{}
}

func (b *breakable) Read(p []byte) (int, error) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-b.cut:
			_ = b.SetReadDeadline(time.Now())
		case <-stop:
		}
	}()
	n, err := b.Conn.Read(p)
	select {
	case <-b.cut:
		return n, &net.OpError{Op: "read", Err: unix.ETIMEDOUT}
	default:
		return n, err
	}
}

func (s *scene) where(named ...string) *Directory {
	s.Helper()
	d, err := OpenDirectory(s.TempDir(), named)
	s.must(err)
	return d
}

// counted counts tries and sessions.
type counted struct{ tries, begun, ended int }

func (c *counted) Attempt() { c.tries++ }
func (c *counted) Session() func() {
	c.begun++
	return func() { c.ended++ }
}

func welcome(heartbeatTimeout time.Duration) *agentrpc.Down {
	return &agentrpc.Down{Kind: &agentrpc.Down_Welcome{Welcome: &agentrpc.Welcome{HeartbeatMs: 500, SilenceMs: int32(heartbeatTimeout.Milliseconds())}}}
}

var aBeat = &agentrpc.Down{Kind: &agentrpc.Down_Beat{Beat: &agentrpc.Beat{}}}

// stands answers with a welcome and then stands for as long as d, with a beat each second.
func stands(stream agentrpc.Link_SessionServer, d time.Duration) error {
	if err := stream.Send(welcome(2 * time.Second)); err != nil {
		return err
	}
	for range int(d / time.Second) {
		select {
		case <-time.After(time.Second):
		case <-stream.Context().Done():
			return nil
		}
		if err := stream.Send(aBeat); err != nil {
			return err
		}
	}
	return status.Error(codes.Aborted, "enough")
}

// TestWhomAHostAsksNext: who leads, as soon as one says so, but no two in a circle without a pause; the one of a session that stood;
// and connections beside each other after a network has lost packets, for a few tries.
func TestWhomAHostAsksNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		names := func(leader string) func(agentrpc.Link_SessionServer) error {
			return func(stream agentrpc.Link_SessionServer) error { return agentrpc.NotLeader(stream.Context(), leader) }
		}
		refuses := func(code codes.Code) func(agentrpc.Link_SessionServer) error {
			return func(agentrpc.Link_SessionServer) error { return status.Error(code, "no") }
		}
		silent := func(stream agentrpc.Link_SessionServer) error {
			err := stream.Send(welcome(time.Second))
			<-stream.Context().Done()
			return err
		}
		steps := []struct {
			addr  string // that is asked
			now   bool   // without a pause
			lossy int
			does  func(agentrpc.Link_SessionServer) error
			stood bool // longer than the longest pause
		}{
			{"a:1", true, 0, names("b:1"), false},
			{"b:1", true, 0, names("c:1"), false},
			{"b:1", false, 0, names("c:1"), false},
			{"c:1", true, 0, func(stream agentrpc.Link_SessionServer) error { return stands(stream, 6*time.Second) }, true},
			{"c:1", false, 0, silent, false},
			{"c:1", false, 3, refuses(codes.Unavailable), false},
			{"a:1", false, 2, refuses(codes.NotFound), false},
			{"b:1", false, 1, silent, false},
			{"b:1", false, 3, names("c:1"), false},
			{"c:1", true, 0, silent, false},
			{"c:1", false, 3, func(stream agentrpc.Link_SessionServer) error { return stands(stream, time.Second) }, false},
			{"c:1", false, 0, silent, false},
			{"c:1", false, 3, refuses(codes.Unavailable), false},
			{"a:1", false, 2, refuses(codes.Unavailable), false},
			{"b:1", false, 1, refuses(codes.Unavailable), false},
			{"a:1", false, 0, names("nowhere"), false},
			{"b:1", false, 0, nil, false},
		}
		said := &bytes.Buffer{}
		metrics := &counted{}
		ctx, end := context.WithCancel(t.Context())
		n, ended := 0, time.Now()
		var s *Sessions
		s, err := New(Config{
			Where: c.where("a:1", "b:1"), Dial: c.dial, Store: c.store, Metrics: metrics, Log: slog.New(slog.NewTextHandler(said, nil)),
			Changed: NewBell(), Hurry: NewBell(), News: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
			Hello: func() *agentrpc.Hello {
				synctest.Wait()
				if s.lossy != steps[n].lossy || time.Since(ended) == 0 != steps[n].now {
					t.Errorf("step %d: after %v, %d lossy tries are left", n, time.Since(ended), s.lossy)
				}
				if began := n > 0 && steps[n-1].stood; began && time.Since(ended) > reconnectLeast {
					t.Errorf("step %d: after a session that stood the pause is %v", n, time.Since(ended))
				}
				if s.attempts != uint64(n) || metrics.tries != n || metrics.begun != metrics.ended {
					t.Errorf("step %d: %d attempts, counted %+v", n, s.attempts, metrics)
				}
				if steps[n].does == nil {
					end()
				}
				return &agentrpc.Hello{}
			},
		})
		c.must(err)
		c.onLink = func(addr string, stream agentrpc.Link_SessionServer) error {
			step := steps[n]
			if addr != step.addr {
				t.Errorf("step %d: %s is asked, not %s", n, addr, step.addr)
			}
			defer func() { n, ended = n+1, time.Now() }()
			return step.does(stream)
		}
		s.Where.try("a:1")
		s.Run(ctx)
		text := said.String()
		for words, want := range map[string]int{"sent to another scheduler": 3, "does not know this host": 1, "no session with a scheduler": 13, "nothing was heard of the scheduler": 4, "level=ERROR": 1} {
			if got := strings.Count(text, words); got != want {
				t.Errorf("%q was said %d times, not %d", words, got, want)
			}
		}
		if metrics.begun != 6 || metrics.ended != 6 {
			t.Errorf("counted %+v", metrics)
		}
	})
}

// TestAConnectionThatConfirmsNothingIsALossyNetwork, as one that is silent is.
func TestAConnectionThatConfirmsNothingIsALossyNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		ctx, end := context.WithCancel(t.Context())
		n := 0
		var s *Sessions
		s = newSessions(t, Config{
			Where: c.where("a:1"), Dial: c.dial, Store: c.store,
			Changed: NewBell(), Hurry: NewBell(), News: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
			Hello: func() *agentrpc.Hello {
				if n++; n == 2 {
					if s.lossy != lossyTries {
						t.Errorf("%d lossy tries", s.lossy)
					}
					end()
				}
				return &agentrpc.Hello{}
			},
		})
		c.onLink = func(_ string, stream agentrpc.Link_SessionServer) error {
			c.must(stream.Send(welcome(time.Minute)))
			time.Sleep(time.Second)
			close(c.cut)
			<-stream.Context().Done()
			return nil
		}
		s.Run(ctx)
	})
}

// TestHowLongAWelcomeIsWaitedFor: not long of a scheduler that says nothing, a minute of one that says that it is at work.
func TestHowLongAWelcomeIsWaitedFor(t *testing.T) {
	for name, x := range map[string]struct {
		lossy int
		every time.Duration // between beats; 0: none
		beats int
		want  time.Duration
		ok    bool
		hangs bool // the first connection
		err   string
	}{
		"nothing":                     {want: helloTimeout},
		"nothing, of a lossy network": {lossy: 1, want: lossyTimeout},
		"a beat now and then":         {every: helloTimeout - time.Millisecond, beats: 10, want: 10 * (helloTimeout - time.Millisecond), ok: true},
		"beats that come too late":    {every: helloTimeout + time.Millisecond, beats: 10, want: helloTimeout},
		"beats for ever":              {every: time.Second, beats: 1000, want: greetMost},
		"at once, though it is lossy": {lossy: 1, ok: true},
		"by the second connection":    {lossy: 1, hangs: true, want: besideAfter, ok: true},
		"not by a second one":         {hangs: true, want: connectTimeout, err: "context deadline exceeded"},
		"beats, and it is lossy":      {lossy: 1, every: lossyTimeout - time.Millisecond, beats: 3, want: 3 * (lossyTimeout - time.Millisecond), ok: true},
		"late beats, and it is lossy": {lossy: 1, every: lossyTimeout + time.Millisecond, beats: 3, want: lossyTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			c.onLink = func(_ string, stream agentrpc.Link_SessionServer) error {
				if !x.ok && x.every == 0 {
					<-stream.Context().Done()
				}
				for range x.beats {
					select {
					case <-time.After(x.every):
					case <-stream.Context().Done():
						return nil
					}
					_ = stream.Send(aBeat)
				}
				_ = stream.Send(welcome(time.Minute))
				return status.Error(codes.Aborted, "enough")
			}
			var dialled atomic.Int32
			dial := func(ctx context.Context, addr string) (net.Conn, error) {
				if dialled.Add(1) == 1 && x.hangs {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return c.dial(ctx, addr)
			}
			s := newSessions(t, Config{
				Where: c.where("a:1"), Dial: dial, Store: c.store, Hello: func() *agentrpc.Hello { return &agentrpc.Hello{} },
				Changed: NewBell(), Hurry: NewBell(), News: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
			})
			s.lossy = x.lossy
			began := time.Now()
			_, err := s.once(t.Context(), "a:1")
			if took := time.Since(began); took != x.want || status.Code(err) == codes.Aborted != x.ok || !x.ok && !strings.Contains(err.Error(), cmp.Or(x.err, "did not answer in time")) {
				t.Errorf("%s: %v after %v", name, err, took)
			}
			s.closing.Wait()
		})
	}
}

// TestConnectionsBesideEachOther: one more each moment, to a bound, until one stands; the others are closed.
func TestConnectionsBesideEachOther(t *testing.T) {
	for name, x := range map[string]struct {
		stands int32         // which of them; 0: none
		fails  bool          // those that do not stand are refused, at once
		want   time.Duration // until one is taken
		begun  int32
	}{
		"the first":     {stands: 1, begun: 1},
		"the third":     {stands: 3, want: 2 * besideAfter, begun: 3},
		"none in time":  {want: connectTimeout, begun: besideMost},
		"none, at once": {fails: true, begun: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			var begun, closed atomic.Int32
			conn, err := connectLossy(t.Context(), "a:1", c.store, func(ctx context.Context, addr string) (net.Conn, error) {
				n := begun.Add(1)
				switch {
				case n == x.stands:
					return c.dial(ctx, addr)
				case x.fails:
					return nil, io.EOF
				}
				<-ctx.Done()
				closed.Add(1)
				return nil, ctx.Err()
			})
			c.must(err)
			if took := time.Since(c.began); took != x.want || begun.Load() != x.begun {
				t.Errorf("%s: %d were begun in %v", name, begun.Load(), took)
			}
			time.Sleep(time.Minute)
			if left := begun.Load() - closed.Load(); x.stands > 0 && (begun.Load() != x.begun || left != 1) || x.stands == 0 && !x.fails && left != 1 {
				t.Errorf("%s: %d are left of %d", name, left, begun.Load())
			}
			c.must(conn.Close())
		})
	}
}

// TestASessionLastsWhileItIsHeard: however long nothing is to be done, and while what was heard is worked on; and a loop that hangs is told from one
// that waits.
func TestASessionLastsWhileItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		work := make(chan time.Duration, 1)
		s := newSessions(t, Config{
			Where: c.where("a:1"), Dial: c.dial, Store: c.store, Hello: func() *agentrpc.Hello { return &agentrpc.Hello{} },
			Changed: NewBell(), Hurry: NewBell(), News: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
			Rooms: []Room{{Handlers: []Handler{On(func(context.Context, *agentrpc.Down_Prefetch) (*agentrpc.Up, error) {
				time.Sleep(<-work)
				return nil, nil
			})}}},
		})
		if !s.LastHeard().IsZero() {
			t.Error("a scheduler was heard before there was one")
		}
		prefetch := &agentrpc.Down{Kind: &agentrpc.Down_Prefetch{Prefetch: &agentrpc.Prefetch{}}}
		c.onLink = func(_ string, stream agentrpc.Link_SessionServer) error {
			c.must(stream.Send(welcome(time.Second)))
			for range 100 {
				time.Sleep(time.Second - time.Millisecond)
				c.must(stream.Send(aBeat))
			}
			synctest.Wait()
			if heard := time.Since(s.LastHeard()); heard != 0 || !s.Moves() {
				t.Errorf("heard %v ago, and it moves: %v", heard, s.Moves())
			}
			work <- 2 * workAtMost
			c.must(stream.Send(prefetch))
			time.Sleep(2*workAtMost - time.Second)
			if s.Moves() {
				t.Error("a loop that hangs moves")
			}
			time.Sleep(time.Second + 900*time.Millisecond)
			if err := stream.Context().Err(); err != nil || !s.Moves() {
				t.Errorf("after the work: %v, and it moves: %v", err, s.Moves())
			}
			<-stream.Context().Done()
			return nil
		}
		stood, err := s.once(t.Context(), "a:1")
		want := 100*(time.Second-time.Millisecond) + 2*workAtMost + time.Second + time.Second/8
		if !errors.Is(err, errSilence) || stood != want {
			t.Errorf("after %v: %v", stood, err)
		}
		s.closing.Wait()
	})
}

// TestHeartbeatsAreRepeatedWhileNobodyAnswers: a few times in an interval, and at once when that is asked for.
func TestHeartbeatsAreRepeatedWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(t, Config{Hurry: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} }})
		if err := s.heartbeats(t.Context(), 0, nil); err == nil {
			t.Error("no interval is one")
		}
		ctx, end := context.WithCancelCause(t.Context())
		up := make(chan *agentrpc.Up)
		over := make(chan error, 1)
		began := time.Now()
		go func() { over <- s.heartbeats(ctx, 2*time.Second, up) }()
		var at []time.Duration
		next := func() { <-up; at = append(at, time.Since(began)) }
		for range 5 { // nobody answers
			next()
		}
		s.lastHeard.Store(time.Now().Add(time.Nanosecond).UnixNano())
		next()
		s.lastHeard.Store(time.Now().Add(time.Nanosecond).UnixNano())
		time.Sleep(100 * time.Millisecond)
		s.Hurry.Ring()
		next()
		next() // nobody answers
		end(io.EOF)
		if err := <-over; !errors.Is(err, io.EOF) {
			t.Errorf("it ended by %v", err)
		}
		ms := time.Millisecond
		if want := []time.Duration{0, 200 * ms, 400 * ms, 600 * ms, 2000 * ms, 4000 * ms, 4100 * ms, 4300 * ms}; !slices.Equal(at, want) {
			t.Errorf("they come at %v", at)
		}
	})
}

// TestAnInventoryIsToldWhenItIsAnother than the scheduler has.
func TestAnInventoryIsToldWhenItIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agents := 1
		now := func() *agentrpc.Inventory {
			return &agentrpc.Inventory{Total: &agentrpc.Resources{DiskGb: int64(agents)}}
		}
		s := newSessions(t, Config{Changed: NewBell(), Inventory: now})
		up, over := make(chan *agentrpc.Up, 3), make(chan error, 1)
		ctx, end := context.WithCancelCause(t.Context())
		told := now()
		go func() { over <- s.tellInventory(ctx, told, up) }()
		for _, n := range []int{1, 2, 2, 3} {
			agents = n
			s.Changed.Ring()
			synctest.Wait()
		}
		if len(up) != 2 || (<-up).GetInventory().GetTotal().GetDiskGb() != 2 || (<-up).GetInventory().GetTotal().GetDiskGb() != 3 {
			t.Error("what is another is not told once")
		}
		end(io.EOF)
		if err := <-over; !errors.Is(err, io.EOF) {
			t.Errorf("it ended by %v", err)
		}
	})
}

// TestASessionTellsOfAnotherInventory, and ends with its scheduler's part of it.
func TestASessionTellsOfAnotherInventory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		var gb atomic.Int64
		changed := NewBell()
		s := newSessions(t, Config{
			Where: c.where("a:1"), Dial: c.dial, Store: c.store, Hello: func() *agentrpc.Hello { return &agentrpc.Hello{} },
			Inventory: func() *agentrpc.Inventory { return &agentrpc.Inventory{Total: &agentrpc.Resources{DiskGb: gb.Load()}} },
			Changed:   changed, Hurry: NewBell(), News: NewBell(), Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
		})
		c.onLink = func(_ string, stream agentrpc.Link_SessionServer) error {
			c.must(stream.Send(welcome(time.Minute)))
			gb.Store(7)
			changed.Ring()
			for {
				up, err := stream.Recv()
				c.must(err)
				if is := up.GetInventory(); is != nil && is.GetTotal().GetDiskGb() == 7 {
					return status.Error(codes.Aborted, "enough was heard")
				}
			}
		}
		if stood, err := s.once(t.Context(), "a:1"); status.Code(err) != codes.Aborted || stood >= time.Minute {
			t.Errorf("after %v: %v", stood, err)
		}
		s.closing.Wait()
	})
}

// TestAHostJoins with the first scheduler that leads: those that say that none leads are asked again, those that cannot be reached are
// given up, and an answer that is final is final.
func TestAHostJoins(t *testing.T) {
	for name, x := range map[string]struct {
		named []string
		says  func(ctx context.Context, n int, addr string) error // to the n-th question
		asked []string
		tells []string // the schedulers that there are
		err   string
		least time.Duration // that it takes
	}{
		"the first": {named: []string{"a:1"}, asked: []string{"a:1"}, tells: []string{"z:1"}},
		"one after an election": {named: []string{"a:1"}, says: func(ctx context.Context, n int, _ string) error {
			if n < 9 {
				return agentrpc.NotLeader(ctx, "")
			}
			return nil
		}, asked: slices.Repeat([]string{"a:1"}, 10), least: 8 * time.Second},
		"the one that leads": {named: []string{"a:1"}, says: func(ctx context.Context, _ int, addr string) error {
			if addr != "c:1" {
				return agentrpc.NotLeader(ctx, "c:1")
			}
			return nil
		}, asked: []string{"a:1", "c:1"}},
		"two that name each other": {named: []string{"a:1"}, says: func(ctx context.Context, n int, addr string) error {
			if n == 4 {
				return nil
			}
			return agentrpc.NotLeader(ctx, map[string]string{"a:1": "b:1", "b:1": "a:1"}[addr])
		}, asked: []string{"a:1", "b:1", "a:1", "b:1", "a:1"}, least: 50 * time.Millisecond},
		"none leads":           {named: []string{"a:1"}, says: func(ctx context.Context, _ int, _ string) error { return agentrpc.NotLeader(ctx, "") }, err: "does not lead", least: joinTimeout},
		"a token that is used": {named: []string{"a:1"}, says: func(context.Context, int, string) error { return status.Error(codes.Unauthenticated, "used") }, asked: []string{"a:1"}, err: "used"},
		"it answers late": {named: []string{"a:1"}, says: func(ctx context.Context, n int, _ string) error {
			if n == 0 {
				<-ctx.Done()
				return ctx.Err() // an answer at this very moment might be in time
			}
			return nil
		}, asked: []string{"a:1", "a:1"}, least: joinAttempt},
		"nobody is there":      {named: []string{"dead1:1", "dead2:1"}, asked: []string{"dead2:1", "dead1:1"}, err: "dead1:1"},
		"some are not there":   {named: []string{"dead1:1", "a:1"}, asked: []string{"a:1"}},
		"none is there before": {named: []string{"a:1", "dead1:1"}, asked: []string{"dead1:1", "a:1"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newScene(t)
			var questions atomic.Int32
			c.onJoin = func(ctx context.Context, addr string, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
				n := int(questions.Add(1)) - 1
				if x.says != nil {
					if err := x.says(ctx, n, addr); err != nil {
						return nil, err
					}
				}
				if in.GetMachineId() != "m" || in.GetHardware() != "board" {
					t.Errorf("%s: of the machine is said %v", name, in)
				}
				leaf, err := c.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "h"}, time.Hour, time.Now())
				if err != nil {
					return nil, err
				}
				return &agentrpc.JoinResponse{HostId: "h", Certificate: leaf.Raw, Cas: [][]byte{c.ca.Cert().Raw}, Schedulers: x.tells}, nil
			}
			conf := JoinConfig{Dir: t.TempDir(), Schedulers: x.named, Name: "n", Token: pki.NewJoinToken(c.ca.Digest()).Text(), MachineID: "m", Hardware: "board", Dial: c.dial}
			id, err := JoinCluster(t.Context(), conf)
			took := time.Since(c.began)
			if (err == nil) != (x.err == "") || err == nil && id != "h" || err != nil && !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: host %q, %v", name, id, err)
			}
			if x.asked != nil && !slices.Equal(c.addrs, x.asked) || took < x.least/2 || took > max(2*x.least, time.Second) {
				t.Errorf("%s: %q were asked in %v", name, c.addrs, took)
			}
			if err != nil {
				return
			}
			if known := KnownSchedulers(conf.Dir, nil); !slices.Equal(known, x.named) && x.tells == nil || x.tells != nil && !slices.Equal(known, x.tells) {
				t.Errorf("%s: it knows %q", name, known)
			}
			if _, err := JoinCluster(t.Context(), conf); err == nil || !strings.Contains(err.Error(), "joined already, as h") {
				t.Errorf("%s: a second time: %v", name, err)
			}
		})
	}
}

// TestWhichAnswersToAJoinAreRefused: of who is not of the token's cluster, and what is no certificate.
func TestWhichAnswersToAJoinAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		other, err := pki.NewCA("other", time.Now())
		c.must(err)
		for what, x := range map[string]struct {
			token  string
			change func(*agentrpc.JoinResponse)
		}{
			"another cluster's token": {pki.NewJoinToken(other.Digest()).Text(), func(*agentrpc.JoinResponse) {}},
			"no token":                {"x", func(*agentrpc.JoinResponse) {}},
			"no certificate":          {pki.NewJoinToken(c.ca.Digest()).Text(), func(r *agentrpc.JoinResponse) { r.Certificate = []byte("x") }},
			"no CAs":                  {pki.NewJoinToken(c.ca.Digest()).Text(), func(r *agentrpc.JoinResponse) { r.Cas = [][]byte{[]byte("x")} }},
			"another cluster's CAs":   {pki.NewJoinToken(c.ca.Digest()).Text(), func(r *agentrpc.JoinResponse) { r.Cas = [][]byte{other.Cert().Raw} }},
		} {
			c.onJoin = func(_ context.Context, _ string, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
				if in.GetMachineId() == "" {
					t.Error("of the machine nothing is said")
				}
				leaf, err := c.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "h"}, time.Hour, time.Now())
				c.must(err)
				out := &agentrpc.JoinResponse{HostId: "h", Certificate: leaf.Raw, Cas: [][]byte{c.ca.Cert().Raw}, Schedulers: []string{"b:1"}}
				x.change(out)
				return out, nil
			}
			dir := t.TempDir()
			if id, err := Join(t.Context(), dir, "a:1", "n", x.token, c.dial); err == nil {
				t.Errorf("%s: it joined as %s", what, id)
			}
			store, err := OpenStore(dir)
			c.must(err)
			if id, err := store.Identity(); err == nil {
				t.Errorf("%s: it has a certificate as %s", what, id.ID)
			}
		}
	})
}

// TestADirectorysBounds: the longest address is one, and a session of just the longest pause begins none anew.
func TestADirectorysBounds(t *testing.T) {
	for n, want := range map[int]bool{maxAddress: true, maxAddress + 1: false} {
		if a := strings.Repeat("a", n-2) + ":1"; isAddress(a) != want {
			t.Errorf("an address of %d bytes: %v", len(a), !want)
		}
	}
	p := pacing{delay: time.Second}
	if p.stood(reconnectMost/2, 2); p.delay != time.Second {
		t.Error("a session of just the longest pause begins the pauses anew")
	}
	if p.stood(reconnectMost/2+1, 2); p.delay != 0 {
		t.Error("a longer one does not")
	}
	d, err := OpenDirectory(t.TempDir(), []string{"a:1"})
	if err = errors.Join(err, d.learn([]string{"b:1"}), os.Remove(d.path), d.learn([]string{"b:1"}), d.learn(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is known already is written again: %v", err)
	}
	many := make([]string, maxSchedulers+1)
	for i := range many {
		many[i] = fmt.Sprintf("s%d:1", i)
	}
	if got := addresses([]string{"a:1", "a:1"}); len(got) != 1 {
		t.Errorf("one that is there twice is kept as %q", got)
	}
	if got := addresses(many); len(got) != maxSchedulers {
		t.Errorf("%d addresses are kept", len(got))
	}
}
