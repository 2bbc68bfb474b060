package dispatch

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// dial returns a further connection of a host.
func (g *guest) dial() *grpc.ClientConn {
	g.Helper()
	conf, err := agentrpc.HostClientTLS(g.certs(pki.RoleHost, string(g.id)))
	check(g, err)
	conn, err := grpc.NewClient("passthrough:///"+g.addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	check(g, err)
	g.Cleanup(func() { check(g, conn.Close()) })
	return conn
}

// under reports how many calls of a kind a host has under way.
func (y *yard) under(host fleet.HostID, k kind) int {
	y.server.callers.mu.Lock()
	defer y.server.callers.mu.Unlock()
	if n := y.server.callers.hosts[host]; n != nil {
		return n.open[k]
	}
	return 0
}

// TestWhatOneHostCanHoldIsBounded has a host begin calls over several connections, of which each may hold a large message that is never
// whole. What is too much is refused before any of it is read, other hosts are served, and it may call again once others are done.
func TestWhatOneHostCanHoldIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		kind  kind
		most  int
		begin func(context.Context, grpc.ClientConnInterface) (grpc.ClientStream, error)
	}{
		"sessions": {aSession, hostSessions, func(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ClientStream, error) {
			return agentrpc.NewLinkClient(conn).Session(ctx)
		}},
		"tunnels that nobody asked for": {aTunnel, hostTunnels, func(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ClientStream, error) {
			return agentrpc.NewLinkClient(conn).Tunnel(ctx)
		}},
		// A call with one message, as a stream, so that the message can stay away.
		"queries": {aQuery, hostQueries, func(ctx context.Context, conn grpc.ClientConnInterface) (grpc.ClientStream, error) {
			return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, agentrpc.Join_Renew_FullMethodName)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			g, other := y.join("h1"), y.join("h2")
			conns := []*grpc.ClientConn{g.dial(), g.dial(), g.dial()}
			ctx, end := context.WithCancel(y.ctx)
			defer end()
			for i := range c.most {
				_, err := c.begin(ctx, conns[i%len(conns)])
				check(y, err)
			}
			y.soon("all are under way", func() bool { return y.under("h1", c.kind) == c.most })
			refused := func(conn *grpc.ClientConn) error {
				t.Helper()
				s, err := c.begin(ctx, conn)
				check(y, err)
				return s.RecvMsg(&agentrpc.Down{})
			}
			for _, conn := range conns {
				if err := refused(conn); status.Code(err) != codes.ResourceExhausted {
					t.Errorf("one more: %v", err)
				}
			}
			if _, err := agentrpc.NewJoinClient(other.conn).Renew(y.ctx, &agentrpc.RenewRequest{}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("another host is answered %v", err)
			}
			end()
			y.soon("all are done, and nothing is kept of the host", func() bool {
				y.server.callers.mu.Lock()
				defer y.server.callers.mu.Unlock()
				return y.server.callers.hosts["h1"] == nil
			})
			again, stop := context.WithCancel(y.ctx)
			defer stop()
			_, err := c.begin(again, conns[0])
			check(y, err)
			y.soon("it may call again", func() bool { return y.under("h1", c.kind) == 1 })
		})
	}
}

// TestTunnelsThatWereAskedForAreNotCounted: a host serves as many requests at a time as its pods get.
func TestTunnelsThatWereAskedForAreNotCounted(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	const requests = 3 * hostTunnels
	var open []agentrpc.Link_TunnelClient
	for i := range requests {
		id := fleet.NewID()
		t := &tunnel{host: "h1", arrived: make(chan *conduit, 1), lost: y.ctx.Done()}
		y.server.mu.Lock()
		y.server.waiting[id] = t
		y.server.mu.Unlock()
		y.server.callers.ask("h1", 1)
		s, err := g.client.Tunnel(y.ctx)
		check(y, err)
		check(y, s.Send(&agentrpc.Frame{Id: id}))
		select {
		case c := <-t.arrived:
			y.Cleanup(func() { _ = c.Close() })
		case <-y.ctx.Done():
			y.Fatalf("tunnel %d did not come", i)
		}
		open = append(open, s)
	}
	if n := y.under("h1", aTunnel); n != 0 {
		t.Errorf("%d of %d tunnels that were asked for are counted", n, len(open))
	}
}
