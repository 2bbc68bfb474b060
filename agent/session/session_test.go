package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// ground is what tests of sessions stand on.
type ground struct {
	testing.TB
	ctx context.Context
}

func newGround(t *testing.T) *ground {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &ground{t, ctx}
}

func (g *ground) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

// newSessions makes Sessions that say nothing.
func newSessions(t *testing.T, c Config) *Sessions {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An agent that no scheduler answers moves, however long its container runtime takes to answer within its deadline. One whose
// own work does not end is stuck.
func TestOnlyAStuckLoopIsNoMove(t *testing.T) {
	ca, err := pki.NewCA("cluster", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	where, err := OpenDirectory(t.TempDir(), []string{"192.0.2.1:8443"})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		release := make(chan struct{})
		s := newSessions(t, Config{
			Where: where, Store: store,
			Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("nobody is there") },
			Hello: func() *agentrpc.Hello {
				time.Sleep(5 * time.Second) // virtual: a container runtime that is slow
				if hangs.Load() {
					<-release
				}
				return &agentrpc.Hello{}
			},
		})
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); s.Run(ctx) }()
		for range 600 {
			time.Sleep(time.Second)
			if !s.Moves() {
				t.Fatal("without a scheduler it counts as stuck")
			}
		}
		hangs.Store(true)
		time.Sleep(workAtMost + time.Minute)
		if s.Moves() {
			t.Error("its loop hangs, and it counts as moving")
		}
		close(release)
		synctest.Wait()
		time.Sleep(time.Minute)
		if !s.Moves() {
			t.Error("it goes on, and counts as stuck")
		}
		end()
		<-over
		if !s.Moves() {
			t.Error("while it stops it counts as stuck")
		}
	})
}

// caller is a scheduler that sends what it is told to in each session, and ends it when told to.
type caller struct {
	agentrpc.UnimplementedLinkServer
	down chan *agentrpc.Down // closed: the session ends
	up   chan *agentrpc.Up
}

// Session implements agentrpc.LinkServer.
func (c *caller) Session(stream agentrpc.Link_SessionServer) error {
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				close(c.up)
				return
			}
			if m.GetHeartbeat() == nil {
				c.up <- m
			}
		}
	}()
	for m := range c.down {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// TestMessagesGoToTheRoomOfTheirKind: each kind to its own, what nobody takes to nobody; an answer is sent, and so is what a room has
// to tell. What a room does for a message is told of the session's end, which does not wait for it.
func TestMessagesGoToTheRoomOfTheirKind(t *testing.T) {
	g := newGround(t)
	store, err := pki.OpenStore(t.TempDir())
	g.must(err)
	ca, err := pki.NewCA("cluster", time.Now())
	g.must(err)
	g.must(store.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()))
	c := &caller{down: make(chan *agentrpc.Down), up: make(chan *agentrpc.Up, 10)}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	g.must(err)
	srv := grpc.NewServer()
	agentrpc.RegisterLinkServer(srv, c)
	listened := make(chan error, 1)
	go func() { listened <- srv.Serve(ln) }()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.must(err)

	var said []string // of the receiving goroutine, then of the test
	working := make(chan context.Context, 1)
	unsent := make(chan *agentrpc.Up, 3)
	news := NewBell()
	s := newSessions(t, Config{
		Store: store, Changed: NewBell(), Hurry: NewBell(), News: news, Heartbeat: func() *agentrpc.Heartbeat { return &agentrpc.Heartbeat{} },
		Rooms: []Room{
			{
				Begin: func(with *grpc.ClientConn) func() {
					if with != conn {
						t.Error("a room was told of another connection")
					}
					said = append(said, "begin a")
					return func() { said = append(said, "end a") }
				},
				Handlers: []Handler{On(func(_ context.Context, m *agentrpc.Down_Prefetch) (*agentrpc.Up, error) {
					said = append(said, "prefetch "+m.Prefetch.GetImage())
					return &agentrpc.Up{Kind: &agentrpc.Up_Applied{Applied: &agentrpc.Applied{Generation: 5}}}, nil
				})},
			},
			{
				Begin: func(*grpc.ClientConn) func() {
					said = append(said, "begin b")
					return func() { said = append(said, "end b") }
				},
				Handlers: []Handler{On(func(ctx context.Context, m *agentrpc.Down_ReportsKept) (*agentrpc.Up, error) {
					said = append(said, fmt.Sprint("kept ", m.ReportsKept.GetSequence()))
					working <- ctx
					return nil, nil
				})},
				Next: func() *agentrpc.Up {
					select {
					case m := <-unsent:
						return m
					default:
						return nil
					}
				},
			},
		},
	})
	ctx, end := context.WithCancelCause(g.ctx)
	defer end(nil)
	stream, err := agentrpc.NewLinkClient(conn).Session(ctx)
	g.must(err)
	unsent <- &agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx, end, conn, stream, &agentrpc.Welcome{HeartbeatMs: 1000}, nil) }()
	if m := <-c.up; m.GetResync() == nil {
		t.Errorf("told %v of what there was when the session began", m)
	}
	c.down <- &agentrpc.Down{Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{}}} // nobody's
	c.down <- &agentrpc.Down{Kind: &agentrpc.Down_Prefetch{Prefetch: &agentrpc.Prefetch{Image: "a"}}}
	if m := <-c.up; m.GetApplied().GetGeneration() != 5 {
		t.Errorf("answered %v", m)
	}
	unsent <- &agentrpc.Up{Kind: &agentrpc.Up_Applied{Applied: &agentrpc.Applied{Generation: 6}}}
	news.Ring()
	if m := <-c.up; m.GetApplied().GetGeneration() != 6 {
		t.Errorf("told %v", m)
	}
	c.down <- &agentrpc.Down{Kind: &agentrpc.Down_ReportsKept{ReportsKept: &agentrpc.ReportsKept{Sequence: 7}}}
	begun := <-working
	if begun.Err() != nil || s.LastHeard().IsZero() {
		t.Errorf("the session has ended: %v", begun.Err())
	}
	close(c.down)
	if err := <-served; err == nil {
		t.Error("the session ended without a reason")
	}
	if begun.Err() == nil {
		t.Error("what was begun was not told of the session's end")
	}
	if want := []string{"begin a", "begin b", "prefetch a", "kept 7", "end b", "end a"}; !slices.Equal(said, want) {
		t.Errorf("the rooms were told %q, want %q", said, want)
	}
	g.must(conn.Close())
	srv.Stop()
	g.must(<-listened)
}

// TestAnErrorOfARoomEndsTheSession, and one that refuses a scheduler has it not followed.
func TestAnErrorOfARoomEndsTheSession(t *testing.T) {
	where, err := OpenDirectory(t.TempDir(), []string{"a:1"})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	s := newSessions(t, Config{Where: where, Rooms: []Room{
		{},
		{
			Welcome:  func(*agentrpc.Welcome) error { return refused },
			Handlers: []Handler{On(func(context.Context, *agentrpc.Down_Full) (*agentrpc.Up, error) { return nil, refused })},
		},
	}})
	if err := s.receive(t.Context(), &agentrpc.Down{Kind: &agentrpc.Down_Full{}}, nil); !errors.Is(err, refused) {
		t.Errorf("a message: %v", err)
	}
	if err := s.follow(&agentrpc.Welcome{Schedulers: []string{"b:1"}}); !errors.Is(err, refused) {
		t.Errorf("a welcome: %v", err)
	}
	if known := where.Known(); !slices.Equal(known, []string{"a:1"}) {
		t.Errorf("of a scheduler that is refused it learnt %q", known)
	}
	if err := s.receive(t.Context(), &agentrpc.Down{Kind: &agentrpc.Down_Beat{Beat: &agentrpc.Beat{Schedulers: []string{"c:1"}}}}, nil); err != nil {
		t.Error(err)
	}
	if known := where.Known(); !slices.Contains(known, "c:1") {
		t.Errorf("after a heartbeat it knows %q", known)
	}
}

func TestOneKindHasOneRoom(t *testing.T) {
	take := On(func(context.Context, *agentrpc.Down_Full) (*agentrpc.Up, error) { return nil, nil })
	if _, err := New(Config{Rooms: []Room{{Handlers: []Handler{take}}, {Handlers: []Handler{take}}}}); err == nil || !strings.Contains(err.Error(), "Down_Full") {
		t.Errorf("two rooms for one kind: %v", err)
	}
	if _, err := New(Config{Rooms: []Room{{Handlers: []Handler{On(func(context.Context, *agentrpc.Down_Beat) (*agentrpc.Up, error) { return nil, nil })}}}}); err == nil {
		t.Error("a room took the session's own")
	}
}
