package kernel

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mostFlows is the bound of these tests.
const mostFlows = 20

// boundedHost is a host with the pods alpha and beta, which answer at published ports and outside of which servers hold
// what connects to them.
func boundedHost(t *testing.T) *Controller {
	t.Helper()
	newOutside(t)
	bridgeFilter(t, "0")
	c := start(t, "0a1b")
	cfg := publishing(t)
	cfg.Flows = mostFlows
	must(t, cfg.Validate())
	must(t, c.Set(context.Background(), cfg))
	for _, pod := range []string{"alpha", "beta"} {
		echo(t, ns("0a1b", pod), ":8080")
	}
	echo(t, outsideName, ":81")
	echoDatagrams(t, outsideName, ":82")
	return c
}

// hold opens n connections, which stay until the test ends.
func hold(t *testing.T, n int, from, addr string) (open []net.Conn) {
	t.Helper()
	for range n {
		open = append(open, dial(t, from, addr))
	}
	return open
}

// works says that somebody opens a connection and is answered on it.
func works(t *testing.T, from, network, addr string) {
	t.Helper()
	if err := try(from, network, addr, patience); err != nil {
		t.Errorf("%s to %s: %v", from, addr, err)
	}
}

// fails says that nobody answers a new connection.
func fails(t *testing.T, from, network, addr string) {
	t.Helper()
	if err := try(from, network, addr, refusal); err == nil {
		t.Errorf("%s reached %s", from, addr)
	}
}

func try(from, network, addr string, wait time.Duration) error {
	var conn net.Conn
	err := within(from, func() (err error) {
		conn, err = net.DialTimeout(network, addr, wait)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return talk(conn, wait)
}

// echoDatagrams answers datagrams until the test ends.
func echoDatagrams(t *testing.T, ns, addr string) {
	t.Helper()
	var conn net.PacketConn
	must(t, within(ns, func() (err error) {
		conn, err = net.ListenPacket("udp4", addr)
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
}

// TestConnectionsThatAPodOpensAreBounded has a pod hold as many as it may: the next is dropped until one ends. What others
// open, its neighbour and those who call it, is not held back.
func TestConnectionsThatAPodOpensAreBounded(t *testing.T) {
	c := boundedHost(t)
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	open := hold(t, mostFlows, alpha, outsideAddr+":81")
	fails(t, alpha, "tcp4", outsideAddr+":81")
	fails(t, alpha, "tcp4", uplinkAddr+":30002") // to a neighbour by its published port is as much of a connection
	if crowdedOut(t, c) == 0 {
		t.Error("nothing was counted as dropped")
	}
	works(t, beta, "tcp4", outsideAddr+":81")
	works(t, beta, "udp4", outsideAddr+":82")
	works(t, outsideName, "tcp4", uplinkAddr+":30001")
	works(t, outsideName, "tcp4", uplinkAddr+":30002")
	for _, conn := range open {
		must(t, talk(conn, patience)) // what it has goes on
	}
	must(t, open[0].Close())
	eventually(t, "an ended connection leaves no room", func() bool { return try(alpha, "tcp4", outsideAddr+":81", refusal) == nil })
}

// TestConnectionsToAPodAreBounded has a client, another pod and the host itself hold as many as there may be to a pod.
func TestConnectionsToAPodAreBounded(t *testing.T) {
	c := boundedHost(t)
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	hold(t, mostFlows-10, outsideName, uplinkAddr+":30001")
	hold(t, 5, beta, uplinkAddr+":30001")
	open := hold(t, 5, "", "10.88.16.2:8080")
	for _, from := range []string{outsideName, beta, ""} {
		fails(t, from, "tcp4", uplinkAddr+":30001")
	}
	fails(t, "", "tcp4", "10.88.16.2:8080")
	if crowdedOut(t, c) == 0 {
		t.Error("nothing was counted as dropped")
	}
	works(t, outsideName, "tcp4", uplinkAddr+":30002")
	works(t, "", "tcp4", "10.88.16.3:8080")
	works(t, alpha, "tcp4", outsideAddr+":81")
	works(t, beta, "tcp4", outsideAddr+":81")
	must(t, open[0].Close())
	eventually(t, "an ended connection leaves no room", func() bool { return try(outsideName, "tcp4", uplinkAddr+":30001", refusal) == nil })
}

// TestDatagramsOfAPodAreBounded has a pod send to more ports than it may have flows. One flow is one, however much it sends.
func TestDatagramsOfAPodAreBounded(t *testing.T) {
	c := boundedHost(t)
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	must(t, within(alpha, func() error {
		one, err := net.Dial("udp4", outsideAddr+":9")
		must(t, err)
		defer func() { _ = one.Close() }()
		for range 10 * mostFlows {
			_, _ = one.Write([]byte("x")) // nobody listens, and says so now and then
		}
		return nil
	}))
	if n := crowdedOut(t, c); n != 0 {
		t.Errorf("%d datagrams of one flow were dropped", n)
	}
	flood(t, alpha, 10*mostFlows)
	if n := crowdedOut(t, c); n < 8*mostFlows || n >= 10*mostFlows {
		t.Errorf("%d of %d new flows were dropped, beyond %d", n, 10*mostFlows, mostFlows)
	}
	// What is beyond is dropped before it is counted, all but one a second: the kernel would remember each.
	chain := nft(t, "list", "chain", "inet", "gantry_0a1b", "flows_forward")
	found := regexp.MustCompile(`add @opened .* counter packets (\d+) `).FindStringSubmatch(chain)
	if found == nil {
		t.Fatalf("no rule counts:\n%s", chain)
	}
	if n, err := strconv.Atoi(found[1]); err != nil || n == 0 || n > mostFlows {
		t.Errorf("%d packets of a flood were counted, %v", n, err)
	}
	fails(t, alpha, "udp4", outsideAddr+":82")
	works(t, beta, "udp4", outsideAddr+":82")
	works(t, beta, "tcp4", outsideAddr+":81")
}

// TestConnectionsThatEndAreBounded has a pod open and end one connection after the other. The kernel keeps an ended one for
// minutes and does not count it any more: what bounds these is how fast they may begin.
func TestConnectionsThatEndAreBounded(t *testing.T) {
	c := boundedHost(t)
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	const tries = 15 * mostFlows
	must(t, within(alpha, func() error {
		for range tries {
			if conn, err := net.DialTimeout("tcp4", outsideAddr+":80", refusal/10); err == nil {
				_, _ = io.ReadAll(conn) // the other side ends first
				must(t, conn.Close())
			}
		}
		return nil
	}))
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	must(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < mostFlows || n > tries/2 {
		t.Errorf("%d connections are tracked after %d that ended, %v", n, tries, err)
	}
	if crowdedOut(t, c) == 0 {
		t.Error("nothing was counted as dropped")
	}
	works(t, beta, "tcp4", outsideAddr+":81")
	works(t, outsideName, "tcp4", uplinkAddr+":30001")
	eventually(t, "nothing begins any more", func() bool { return try(alpha, "tcp4", outsideAddr+":81", refusal) == nil })
}

// flood sends one datagram each to n ports outside.
func flood(t testing.TB, from string, n int) {
	t.Helper()
	must(t, within(from, func() error {
		conn, err := net.ListenPacket("udp4", ":0")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for i := range n {
			to := &net.UDPAddr{IP: net.ParseIP(outsideAddr), Port: 10_000 + i}
			if _, err := conn.WriteTo([]byte("x"), to); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestTheBoundOfConnectionsIsKept: it is in what is observed, is repaired, and changes nothing when it is as it was.
func TestTheBoundOfConnectionsIsKept(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	cfg.Flows = mostFlows
	must(t, c.Set(ctx, cfg))
	st, err := c.Observed(ctx)
	must(t, err)
	if st.Config.Flows != mostFlows || !st.Ready {
		t.Errorf("observed a bound of %d, ready %v", st.Config.Flows, st.Ready)
	}
	rules := nft(t, "-a", "list", "ruleset")
	must(t, c.Set(ctx, cfg))
	if got := nft(t, "-a", "list", "ruleset"); got != rules {
		t.Error("rules were written anew")
	}
	nft(t, "flush", "chain", "inet", "gantry_0a1b", "flows_forward")
	must(t, c.Repair(ctx))
	if got := nft(t, "list", "chain", "inet", "gantry_0a1b", "flows_forward"); got == "" {
		t.Error("no rule counts")
	}
	cfg.Flows++
	must(t, c.Set(ctx, cfg))
	if st, err = c.Observed(ctx); err != nil || st.Config.Flows != mostFlows+1 {
		t.Errorf("observed a bound of %d, %v", st.Config.Flows, err)
	}
}

// crowdedOut is how many packets were dropped for the bound of their pod.
func crowdedOut(t *testing.T, c *Controller) uint64 {
	t.Helper()
	list, err := c.Drops(context.Background())
	must(t, err)
	for _, d := range list {
		if d.Why == crowded {
			return d.Packets
		}
	}
	return 0
}

// BenchmarkNewConnection measures the first packet of a connection out of a pod, without a bound and with one, while the
// pod has few and while it has nearly all that it may have.
func BenchmarkNewConnection(b *testing.B) {
	for _, v := range []struct {
		name        string
		bound, held int
	}{{"unbounded", 0, 0}, {"bounded", 1_000_000, 0}, {"unbounded-32000-held", 0, 32_000}, {"bounded-32000-held", 1_000_000, 32_000}} {
		b.Run(v.name, func(b *testing.B) {
			newOutside(b)
			c := start(b, "0a1b")
			cfg := config(b, "0a1b", "10.88.16.0/20", "alpha")
			cfg.Flows = v.bound
			must(b, c.Set(context.Background(), cfg))
			longDatagrams(b)
			flood(b, ns("0a1b", "alpha"), v.held)
			must(b, within(ns("0a1b", "alpha"), func() error {
				to := &net.UDPAddr{IP: net.ParseIP(outsideAddr), Port: 9}
				for port := 0; b.Loop(); port++ {
					conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(20_000+port%40_000))))
					must(b, err)
					_, err = conn.WriteTo([]byte("x"), to)
					must(b, err)
					must(b, conn.Close())
				}
				return nil
			}))
		})
	}
}

// longDatagrams has flows of datagrams be tracked for longer than a benchmark takes.
func longDatagrams(t testing.TB) {
	t.Helper()
	const file = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	before, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(strconv.Itoa(600)), 0o644))
	t.Cleanup(func() { must(t, os.WriteFile(file, before, 0o644)) })
}
