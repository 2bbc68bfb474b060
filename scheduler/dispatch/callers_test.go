package dispatch

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

// under reports how many calls of a kind the host h1 has under way.
func (y *yard) under(k kind) int {
	y.server.callers.mu.Lock()
	defer y.server.callers.mu.Unlock()
	if n := y.server.callers.hosts["h1"]; n != nil {
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
			y.soon("all are under way", func() bool { return y.under(c.kind) == c.most })
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
			y.soon("it may call again", func() bool { return y.under(c.kind) == 1 })
		})
	}
}

// TestOneHostCostsLittleMemory has a host begin as many calls of each kind as it can, over several connections, and send all but the end
// of the largest message in each.
func TestOneHostCostsLittleMemory(t *testing.T) {
	const most = 32 << 20
	y := newYard(t)
	g := y.join("h1")
	before := heap()
	var calls, sent sync.WaitGroup
	var bodies []*io.PipeReader
	refused := make(chan string, 3*2*hostQueries)
	begun := 0
	for k, method := range []string{
		aSession: agentrpc.Link_Session_FullMethodName, aQuery: agentrpc.Join_Renew_FullMethodName, aTunnel: agentrpc.Link_Tunnel_FullMethodName,
	} {
		begin := func(tr http.RoundTripper) {
			pr, pw := io.Pipe()
			bodies = append(bodies, pr)
			begun++
			calls.Go(func() { refused <- y.announce(tr, method, pr) })
			sent.Go(func() { pour(pw, maxMessage) })
		}
		tr := g.transport()
		room := [kinds]int{aSession: hostSessions, aQuery: hostQueries, aTunnel: hostTunnels}[k]
		for range room {
			begin(tr)
		}
		y.soon("all are under way", func() bool { return y.under(kind(k)) >= room })
		for range hostQueries {
			begin(tr)
		}
		for range hostQueries {
			if code := <-refused; code != "8" { // ResourceExhausted
				t.Errorf("%s: one too many is answered %q", method, code)
			}
		}
	}
	sent.Wait()
	grown := int64(heap()) - int64(before) //nolint:gosec // far below the largest
	if grown < most/2 || grown > most {
		t.Errorf("%d calls of one host hold %d KiB", begun, grown>>10)
	}
	for _, b := range bodies {
		check(y, b.Close())
	}
	calls.Wait()
}

// TestTheLargestHelloFits: that of a host with all pods, public ports, GPUs and images that there can be, and as many pods more that ended.
func TestTheLargestHelloFits(t *testing.T) {
	inventory := &agentrpc.Inventory{}
	for range maxGPUs {
		inventory.Gpus = append(inventory.Gpus, &agentrpc.GPU{Uuid: "GPU-00000000-0000-0000-0000-000000000000", Type: "NVIDIA H100 80GB HBM3", MemoryMb: 80_000, Pci: "0000:00:00.0"})
	}
	for range imageBytes / 256 {
		inventory.Images = append(inventory.Images, string(make([]byte, 256)))
	}
	hello := &agentrpc.Hello{Inventory: inventory}
	for i := range 2 * fleet.MostPods {
		pod := &agentrpc.LedgerPod{PodId: fleet.NewID(), Incarnation: 1 << 40, Goal: "gone", Ended: true}
		if i < fleet.MostPods {
			pod.Goal, pod.Ended = "run", false
			pod.Need = &agentrpc.Resources{MilliCpu: 64_000, MemoryMb: 256_000, DiskGb: 2000}
			for p := range 1 << 16 / fleet.MostPods {
				pod.Ports = append(pod.Ports, &agentrpc.Port{Number: int32(60_000 + p), Public: 60_000, Protocol: "tcp"}) //nolint:gosec // a port
			}
		}
		hello.Pods = append(hello.Pods, pod)
	}
	if size := proto.Size(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: hello}}); size > maxMessage {
		t.Errorf("the largest hello has %d bytes, a message %d at most", size, maxMessage)
	} else {
		t.Logf("the largest hello has %d of %d bytes", size, maxMessage)
	}
}

// transport returns a further connection of a host as HTTP/2, on which a message can stay unfinished.
func (g *guest) transport() *http.Transport {
	g.Helper()
	conf, err := agentrpc.HostClientTLS(g.certs(pki.RoleHost, string(g.id)))
	check(g, err)
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	g.Cleanup(tr.CloseIdleConnections)
	return tr
}

// TestTunnelsThatWereAskedForAreNotCounted: a host serves as many requests at a time as its pods get.
func TestTunnelsThatWereAskedForAreNotCounted(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	const requests = 3 * hostTunnels
	var open []agentrpc.Link_TunnelClient
	for i := range requests {
		id := fleet.NewID()
		t := &tunnel{host: "h1", arrived: make(chan *arrival, 1), lost: y.ctx.Done()}
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
	if n := y.under(aTunnel); n != 0 {
		t.Errorf("%d of %d tunnels that were asked for are counted", n, len(open))
	}
}
