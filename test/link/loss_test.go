package link

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/scheduler/dispatch"
)

const (
	farName = "far"
	here    = "10.99.0.1"
	far     = "10.99.0.2"
)

// network is a cable to a namespace in which schedulers are.
type network struct{ testing.TB }

func newNetwork(t testing.TB) network {
	t.Helper()
	t.Cleanup(func() {
		_ = command("ip", "link", "del", "near0")
		must(t, command("ip", "netns", "del", farName))
		_ = command("nft", "delete", "table", "inet", "loss")
	})
	for _, args := range [][]string{
		{"netns", "add", farName},
		{"link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", farName},
		{"addr", "add", here + "/24", "dev", "near0"},
		{"link", "set", "near0", "up"},
		{"-n", farName, "addr", "add", far + "/24", "dev", "far0"},
		{"-n", farName, "link", "set", "lo", "up"},
		{"-n", farName, "link", "set", "far0", "up"},
	} {
		must(t, command("ip", args...))
	}
	return network{t}
}

// lose drops so many of ten packets of each direction, by chance.
func (n network) lose(ofTen int) {
	n.Helper()
	chance := "numgen random mod 10 < " + strconv.Itoa(ofTen)
	if ofTen == 10 {
		chance = ""
	}
	rules := "table inet loss\ndelete table inet loss\ntable inet loss { chain in { type filter hook input priority 0; " +
		"iifname { near0, far0 } meta l4proto tcp " + chance + " drop; }; }\n"
	if ofTen == 0 {
		rules = "table inet loss\ndelete table inet loss\n"
	}
	path := n.TempDir() + "/rules"
	must(n, os.WriteFile(path, []byte(rules), 0o600))
	must(n, command("nft", "-f", path))
	must(n, command("ip", "netns", "exec", farName, "nft", "-f", path))
}

// listen listens at the far end. What is accepted is there, too.
func (n network) listen(addr string) (net.Listener, error) {
	type result struct {
		ln  net.Listener
		err error
	}
	got := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, and its namespace with it
		ns, err := os.Open("/run/netns/" + farName)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err != nil {
			got <- result{nil, err}
			return
		}
		ln, err := net.Listen("tcp", addr)
		got <- result{ln, err}
	}()
	r := <-got
	return r.ln, r.err
}

// remote makes a control plane and hosts at the far end of a cable.
func remote(t testing.TB, hosts int) (*world, network, *scheduler, []*host) {
	t.Helper()
	n := newNetwork(t)
	w := newWorld(t)
	w.listen = n.listen
	s := w.newScheduler(far+":0", dispatch.Config{})
	s.begin()
	var all []*host
	for range hosts {
		h := w.newHost(s.addr)
		h.start(s.addr)
		all = append(all, h)
	}
	for _, h := range all {
		w.soon("the host is ready", h.is(fleet.HostReady))
	}
	return w, n, s, all
}

// flaps lets 30 % of all packets be lost for a while, and returns how often a host was taken for lost.
func flaps(w *world, n network, d time.Duration) int {
	n.lose(3)
	time.Sleep(d)
	n.lose(0)
	return w.transitions()
}

// With 30 % lost each way every packet of five seconds in a row is lost now and then: one host in 16 minutes of one
// (BenchmarkFlapping). Twice in this minute is no chance any more.
func TestALossyNetworkDoesNotFlap(t *testing.T) {
	const hosts = 4
	w, n, s, all := remote(t, hosts)
	if got := flaps(w, n, 15*time.Second); got > 1 {
		t.Errorf("hosts were unreachable %d times", got)
	}
	for _, h := range all {
		w.soon("the host is ready", h.is(fleet.HostReady))
	}
	t.Logf("%d sessions beyond the first of each host", s.sessions.Load()-hosts)
}

// unreachableAfter cuts all agents off and returns how long it took until the last host was known to be.
func unreachableAfter(w *world, n network, hosts []*host) time.Duration {
	n.lose(10)
	began := time.Now()
	for _, h := range hosts {
		w.soon("the loss is known", h.is(fleet.HostUnreachable))
	}
	return time.Since(began)
}

func TestAHostThatVanishesIsUnreachableUntilItIsBack(t *testing.T) {
	w, n, _, hosts := remote(t, 4)
	t.Logf("known after %v", unreachableAfter(w, n, hosts))
	n.lose(0)
	for _, h := range hosts {
		w.soon("the host is back", h.is(fleet.HostReady))
	}
	hosts[0].kill() // its connection is closed
	w.soon("the end of an agent is known", hosts[0].is(fleet.HostUnreachable))
}

// BenchmarkDetection measures how long it takes until a host that vanished is unreachable.
func BenchmarkDetection(b *testing.B) {
	w, n, _, hosts := remote(b, 8)
	var sum, most time.Duration
	for b.Loop() {
		took := unreachableAfter(w, n, hosts)
		sum, most = sum+took, max(most, took)
		n.lose(0)
		for _, h := range hosts {
			w.soon("the host is back", h.is(fleet.HostReady))
		}
	}
	b.ReportMetric(sum.Seconds()/float64(b.N), "s/mean")
	b.ReportMetric(most.Seconds(), "s/most")
}

// BenchmarkFlapping counts how often one of 16 hosts is taken for lost in a minute in which 30 % of all packets
// are.
func BenchmarkFlapping(b *testing.B) {
	const hosts = 16
	w, n, s, _ := remote(b, hosts)
	before := s.sessions.Load()
	for b.Loop() {
		flaps(w, n, time.Minute)
	}
	b.ReportMetric(float64(w.transitions())/float64(b.N), "lost/min")
	b.ReportMetric(float64(s.sessions.Load()-before)/float64(b.N), "sessions/min")
}
