package kernel

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/netctl"
)

// publishing returns a config with public ports 30001 to alpha:8080 and 30002 to beta:8080.
func publishing(t *testing.T) netctl.Config {
	t.Helper()
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	cfg.Public = []netip.Addr{netip.MustParseAddr(uplinkAddr)}
	cfg.Pods[0].Ports = []netctl.Port{{Public: 30001, Private: 8080}}
	cfg.Pods[1].Ports = []netctl.Port{{Public: 30002, Private: 8080}}
	must(t, cfg.Validate())
	return cfg
}

func TestPublishedPortIsReachedAndNothingElse(t *testing.T) {
	newOutside(t)
	bridgeFilter(t, "0") // with 1, a pod's way to its neighbour would be bridged, and end at the isolated port
	ctx := context.Background()
	c, other := start(t, "0a1b"), start(t, "0a1c")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	must(t, other.Set(ctx, config(t, "0a1c", "10.88.32.0/20", "gamma")))
	alpha, beta, gamma := ns("0a1b", "alpha"), ns("0a1b", "beta"), ns("0a1c", "gamma")
	for _, pod := range []string{alpha, beta} {
		serve(t, pod, ":8080")
		serve(t, pod, ":8081")
	}
	serve(t, "", ":9090")

	reaches(t, outsideName, uplinkAddr+":30001", outsideAddr) // the source is the client's
	reaches(t, outsideName, uplinkAddr+":30002", outsideAddr)
	reaches(t, "", uplinkAddr+":30001", uplinkAddr)     // the host itself
	reaches(t, beta, uplinkAddr+":30001", "10.88.16.1") // another pod, through the public address
	reaches(t, alpha, uplinkAddr+":30001", "10.88.16.1")
	reaches(t, gamma, uplinkAddr+":30001", "10.88.16.1") // and one of another agent
	reaches(t, alpha, outsideAddr+":80", uplinkAddr)

	refused(t, outsideName, uplinkAddr+":8080") // the private number is not public
	refused(t, outsideName, uplinkAddr+":30003")
	refused(t, outsideName, "10.88.16.1:30001")
	refused(t, alpha, "10.88.16.1:30001") // the gateway is no public address
	refused(t, alpha, "10.88.16.3:8080")  // nor is the pod's own
	refused(t, alpha, uplinkAddr+":9090") // the host stays closed to pods
	refused(t, gamma, "10.88.16.2:8080")  // and pods to each other
	viaGateway(t, alpha, "10.88.16.3/32", "10.88.16.1")
	refused(t, alpha, "10.88.16.3:8080")
	viaGateway(t, outsideName, "10.88.16.0/20", uplinkAddr)
	refused(t, outsideName, "10.88.16.2:8080") // a published port by its private address
	refused(t, outsideName, "10.88.16.2:8081")

	cfg.Deny = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	must(t, c.Set(ctx, cfg))
	refused(t, alpha, outsideAddr+":80")
	reaches(t, outsideName, uplinkAddr+":30001", outsideAddr) // an answer is no visit
	cfg.Deny = nil
	must(t, c.Set(ctx, cfg))
	bridgeFilter(t, "1") // all but the neighbour's way is the same then
	reaches(t, outsideName, uplinkAddr+":30001", outsideAddr)
	reaches(t, "", uplinkAddr+":30001", uplinkAddr)
	refused(t, alpha, "10.88.16.3:8080")
	refused(t, alpha, "10.88.16.1:30001")
	threadsAtHome(t)
}

func TestPublishedPortsComeAndGoWithTheirPod(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	beta := cfg.Pods[1]
	must(t, c.Set(ctx, cfg.Without("beta")))
	refused(t, outsideName, uplinkAddr+":30002")
	for range 2 {
		must(t, c.AddPod(ctx, beta))
		wantPublished(t, c, "beta", beta.Ports)
		stop := serveUntil(t, ns("0a1b", "beta"), ":8080")
		reaches(t, outsideName, uplinkAddr+":30002", outsideAddr)
		stop()
		must(t, c.RemovePod(ctx, "beta"))
		wantPublished(t, c, "beta", nil)
		refused(t, outsideName, uplinkAddr+":30002")
		must(t, c.Repair(ctx))
		refused(t, outsideName, uplinkAddr+":30002")
	}
	wantPublished(t, c, "alpha", cfg.Pods[0].Ports)

	// Its ports change while its link stays, and a port may be taken from another pod.
	must(t, c.AddPod(ctx, beta))
	before := fingerprint(t)
	beta.Ports = []netctl.Port{{Public: 30001, Private: 8080}, {Public: 30005, Private: 22}}
	must(t, c.AddPod(ctx, beta))
	wantPublished(t, c, "beta", beta.Ports)
	wantPublished(t, c, "alpha", nil)
	if after := fingerprint(t); after != before {
		t.Errorf("links changed:\n%s\nwas\n%s", after, before)
	}
	st, err := c.Observed(ctx)
	must(t, err)
	want := cfg.With(beta)
	if diff := cmp.Diff(want, st.Config, compare); diff != "" || !st.Ready {
		t.Errorf("observed %v, ready %v", diff, st.Ready)
	}
}

func TestSetBringsPublishedPortsBack(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	rules := nft(t, "-a", "list", "ruleset")
	must(t, c.Repair(ctx))
	if got := nft(t, "-a", "list", "ruleset"); got != rules {
		t.Errorf("rules changed: %s", cmp.Diff(rules, got))
	}
	nft(t, "delete", "element", "inet", "gantry_0a1b", portMap, "{ 30001 }")
	nft(t, "add", "element", "inet", "gantry_0a1b", openSet, "{ 10.88.16.3 . 22 }")
	wantPublished(t, c, "alpha", nil)
	must(t, c.Repair(ctx))
	for _, p := range cfg.Pods {
		wantPublished(t, c, p.ID, p.Ports)
	}
	have, err := c.rules.ports()
	must(t, err)
	if !have.equal(portsOf(cfg.Pods...)) {
		t.Errorf("in the kernel: %v", have)
	}
	nft(t, "flush", "ruleset")
	gamma := newPod("0a1b", "gamma", netip.MustParseAddr("10.88.16.9"))
	gamma.Ports = []netctl.Port{{Public: 30009, Private: 22}}
	must(t, c.AddPod(ctx, gamma))
	for _, p := range cfg.With(gamma).Pods {
		wantPublished(t, c, p.ID, p.Ports)
	}
}

// TestConnectionsOutliveWhatDoesNotConcernThem keeps one connection through changes of other pods, of
// the rules and of the agent, and loses it with its port.
func TestConnectionsOutliveWhatDoesNotConcernThem(t *testing.T) {
	newOutside(t)
	bridgeFilter(t, "0")
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := publishing(t)
	must(t, c.Set(ctx, cfg))
	echo(t, ns("0a1b", "alpha"), ":8080")
	outside, inside := dial(t, outsideName, uplinkAddr+":30001"), dial(t, ns("0a1b", "beta"), uplinkAddr+":30001")
	all := func(when string) {
		t.Helper()
		for name, conn := range map[string]net.Conn{"outside": outside, "another pod": inside} {
			if err := talk(conn, patience); err != nil {
				t.Errorf("%s: the connection from %s: %v", when, name, err)
			}
		}
	}
	all("at first")
	gamma := newPod("0a1b", "gamma", netip.MustParseAddr("10.88.16.9"))
	gamma.Ports = []netctl.Port{{Public: 30009, Private: 22}}
	must(t, c.AddPod(ctx, gamma))
	all("another pod came")
	must(t, c.RemovePod(ctx, "gamma"))
	all("another pod went")
	cfg.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	must(t, c.Set(ctx, cfg))
	all("rules written anew")

	next, err := New("0a1b", slog.New(slog.DiscardHandler)) // c was killed
	must(t, err)
	defer next.Close()
	must(t, next.Set(ctx, cfg))
	all("another agent process")

	cfg.Pods[0].Ports = nil
	must(t, next.Set(ctx, cfg))
	if err := talk(outside, refusal); err == nil {
		t.Error("a connection goes on through a port that is published no more")
	}
	refused(t, outsideName, uplinkAddr+":30001")
}

func wantPublished(t *testing.T, c *Controller, id string, want []netctl.Port) {
	t.Helper()
	got, err := c.Published(context.Background(), id)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports of %s (-want +got):\n%s", id, diff)
	}
}

// echo answers every connection with what it sends, until the test ends.
func echo(t *testing.T, ns, addr string) {
	t.Helper()
	var l net.Listener
	must(t, within(ns, func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	}))
	ended := make(chan struct{})
	var open []net.Conn
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open = append(open, c)
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		for _, c := range open {
			_ = c.Close()
		}
	})
}

func dial(t *testing.T, ns, addr string) net.Conn {
	t.Helper()
	var conn net.Conn
	must(t, within(ns, func() (err error) {
		conn, err = net.DialTimeout("tcp4", addr, patience)
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// talk says a line on a connection to echo and waits for it to come back.
func talk(conn net.Conn, wait time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("no answer")
	}
	if err == nil && line != "hello\n" {
		return errors.New("another answer")
	}
	return err
}
