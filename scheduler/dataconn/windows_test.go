package dataconn

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/routes"
)

const patience = time.Minute

// TestWindowsLeaveRoomForOtherHosts: one host gets half of all at most, what it gives back is free again, and a stream begins without any.
func TestWindowsLeaveRoomForOtherHosts(t *testing.T) {
	w := newWindows(1000)
	of := func(host fleet.HostID) *span {
		s := &span{windows: w, host: host}
		if err := s.ReserveMemory(5000, 255); err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b, c := of("h1"), of("h1"), of("h2")
	for _, step := range []struct {
		of   *span
		size int
		ok   bool
		sum  int
	}{
		{a, 300, true, 300}, {b, 201, false, 300}, {b, 200, true, 500}, {a, 1, false, 500}, {c, 251, false, 500}, {c, 250, true, 750}, {c, 1, false, 750},
	} {
		if err := step.of.ReserveMemory(step.size, 128); err == nil != step.ok || w.sum != step.sum {
			t.Errorf("%+v: %v, in all %d", step, err, w.sum)
		}
	}
	b.ReleaseMemory(50)
	if w.sum != 700 {
		t.Errorf("%d", w.sum)
	}
	for _, s := range []*span{a, b, c, c} {
		s.Done()
	}
	if w.sum != 0 || len(w.host) != 0 {
		t.Errorf("left: %d of %v", w.sum, w.host)
	}
}

// far is a connection to a place that is some milliseconds away: windows grow by the time that bytes take.
type far struct{ net.Conn }

func (f far) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	time.Sleep(5 * time.Millisecond)
	return n, err
}

// TestStreamsThatStandStillHoldLittle: what is read fast gets larger windows, of one host up to its share, and keeps them when its reader
// stands still. They are given back with the streams.
func TestStreamsThatStandStillHoldLittle(t *testing.T) {
	const most = 4 << 20
	table := routes.NewTable()
	table.Take(&agentrpc.RoutesPart{Anew: true, Whole: true, Index: 1, Hosts: []*agentrpc.RouteHost{{Id: "h1", State: "ready", Epoch: 3}}})
	c := New(table, nil, slog.New(slog.DiscardHandler))
	c.windows = newWindows(most)
	host := connected(t, c)
	var writers sync.WaitGroup
	defer writers.Wait()
	defer func() { _ = host.Close() }()
	writers.Go(func() {
		for {
			s, err := host.Accept()
			if err != nil {
				return
			}
			writers.Go(func() {
				if _, err := s.RecvAsk(); err == nil && s.Send(&agentrpc.Frame{}) == nil {
					_, _ = io.Copy(s, endless{})
				}
			})
		}
	})
	sum := func() int {
		c.windows.mu.Lock()
		defer c.windows.mu.Unlock()
		return c.windows.sum
	}
	var streams []fleet.Stream
	for range 6 {
		s, err := c.OpenPort(t.Context(), "h1", "p1", 80)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
		before := sum()
		for end := time.Now().Add(patience); sum() == before && sum() < most/2 && time.Now().Before(end); {
			if _, err := io.CopyN(io.Discard, s, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		for range 8 {
			if _, err := io.CopyN(io.Discard, s, 1<<20); err != nil { // one that may not grow goes on
				t.Fatal(err)
			}
		}
	}
	if n := sum(); n < most/4 || n > most/2 {
		t.Errorf("the windows of one host have grown by %d bytes of %d", n, most)
	}
	for _, s := range streams {
		_ = s.Close()
	}
	for end := time.Now().Add(patience); sum() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("streams that have ended keep %d bytes", sum())
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// connected returns the host's end of a data connection with c.
func connected(t *testing.T, c *Conns) *agentrpc.DataConn {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := pki.NewCA("cluster-1", time.Now())
	must(err)
	certs := func(role pki.Role, id string) *pki.Store {
		s, err := pki.OpenStore(t.TempDir())
		must(err)
		must(s.Enroll(ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now()))
		return s
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	mux, err := agentrpc.NewMux(ln, certs(pki.RoleGateway, "g1"), agentrpc.MuxConfig{Log: slog.New(slog.DiscardHandler), DataOnly: true})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- c.Serve(ctx, mux.Data()) }()
	t.Cleanup(func() {
		cancel()
		must(<-over)
		must(mux.Close())
	})
	host, err := agentrpc.DialData(t.Context(), certs(pki.RoleHost, "h1"), func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return far{conn}, err
	}, agentrpc.DataPeer{Addr: ln.Addr().String(), Gateway: "g1"}, &agentrpc.DataHello{Epoch: 3})
	must(err)
	return host
}
