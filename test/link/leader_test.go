package link

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/state"
)

const loopback = "127.0.0.1:0"

// closedPort returns an address at which nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", loopback)
	must(t, err)
	must(t, ln.Close())
	return ln.Addr().String()
}

// hungPort returns an address at which connections are accepted and nothing is ever said.
func hungPort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", loopback)
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String() // the kernel accepts
}

func TestAgentsFindTheLeader(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.newScheduler(loopback, dispatch.Config{}), w.newScheduler(loopback, dispatch.Config{}), w.newScheduler(loopback, dispatch.Config{})
	b.begin()
	// The host knows two that do not lead, one that is dead and one that hangs.
	known := []string{closedPort(t), hungPort(t), a.addr}
	h := w.newHost(known...)
	h.start(known...)
	w.soon("the host is ready", h.is(fleet.HostReady))
	for _, next := range []*scheduler{c, a, b} {
		epoch := h.record().Epoch
		w.mu.Lock()
		old := w.leader
		w.mu.Unlock()
		old.resign()
		next.begin()
		w.soon("the host follows", func() bool { return next.dispatch.Reachable(h.id) && h.record().Epoch > epoch })
	}
	if w.transitions() != 0 {
		t.Error("a change of leader made the host unreachable")
	}
}

// TestTwoSchedulersThatNameEachOtherAreNotAskedInACircle has hints that lead nowhere.
func TestTwoSchedulersThatNameEachOtherAreNotAskedInACircle(t *testing.T) {
	w := newWorld(t)
	w.relayed = false
	var asked atomic.Int64
	var a, b *scheduler
	a = w.newScheduler(loopback, dispatch.Config{Leader: func() string { asked.Add(1); return b.addr }})
	b = w.newScheduler(loopback, dispatch.Config{Leader: func() string { asked.Add(1); return a.addr }})
	c := w.newScheduler(loopback, dispatch.Config{})
	c.begin()
	h := w.newHost(c.addr)
	c.resign()
	h.start(a.addr)
	w.soon("they are asked", func() bool { return asked.Load() > 4 })
	before := asked.Load()
	time.Sleep(time.Second)
	if n := asked.Load() - before; n > 30 {
		t.Errorf("they were asked %d times within a second", n)
	}
	c.begin()
	w.soon("the one that leads is found", func() bool { return c.dispatch.Reachable(h.id) })
}

// TestAgentsRememberTheMembers replaces all schedulers that the operator named.
func TestAgentsRememberTheMembers(t *testing.T) {
	w := newWorld(t)
	a := w.newScheduler(loopback, dispatch.Config{})
	a.begin()
	h := w.newHost(a.addr)
	if got, err := os.ReadFile(filepath.Join(h.dir, "schedulers")); err != nil || string(got) != a.addr+"\n" {
		t.Errorf("after the join: %q, %v", got, err)
	}
	h.start(a.addr)
	w.soon("the host is ready", h.is(fleet.HostReady))
	b := w.newScheduler(loopback, dispatch.Config{}) // a beat tells of it
	w.soon("the new member is known", func() bool {
		got, _ := os.ReadFile(filepath.Join(h.dir, "schedulers"))
		return slices.Contains(strings.Fields(string(got)), b.addr)
	})
	h.kill()
	a.resign()
	w.mu.Lock()
	w.all = []*scheduler{b}
	w.mu.Unlock()
	b.begin()
	h.start(closedPort(t))
	w.soon("the host is there", func() bool { return b.dispatch.Reachable(h.id) })
	h.kill()
	h.start() // nothing was named at all
	w.soon("the host is there again", func() bool { return b.dispatch.Reachable(h.id) })
}

func TestJoinFailsAtOnceWhenNobodyIsThere(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	_, err := session.JoinCluster(w.ctx, session.JoinConfig{
		Dir: t.TempDir(), Schedulers: []string{closedPort(t), closedPort(t)}, Name: "host", Token: w.token(), Dial: session.DialTCP,
	})
	if err == nil || time.Since(began) > time.Minute {
		t.Errorf("joined with nobody, or waited for nothing: %v", err)
	}
	a := w.newScheduler(loopback, dispatch.Config{})
	a.begin()
	join := func(token string) error {
		_, err := session.JoinCluster(w.ctx, session.JoinConfig{Dir: t.TempDir(), Schedulers: []string{a.addr}, Name: "host", Token: token, Dial: session.DialTCP})
		return err
	}
	other, err := pki.NewCA("cluster1", time.Now())
	must(t, err)
	if join(w.tokenOf(other)) == nil {
		t.Error("joined a scheduler of another cluster")
	}
	token := w.token()
	if err := join(token); err != nil {
		t.Error(err)
	}
	if err := join(token); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("a used token: %v", err)
	}
}

// TestTheSetIsSentOncePerRun has sessions end while the agent lives on.
func TestTheSetIsSentOncePerRun(t *testing.T) {
	w := newWorld(t)
	a, b := w.newScheduler(loopback, dispatch.Config{}), w.newScheduler(loopback, dispatch.Config{})
	a.begin()
	h := w.newHost(a.addr)
	logs := &logged{}
	h.conf = func(c *agent.Config) { c.Log = logs.logger() }
	h.start(a.addr)
	kept := func(n int) func() bool { return func() bool { return logs.count("set_kept=true") == n } }
	w.soon("the first session has the set", func() bool { return logs.count("set_kept=false") == 1 })
	w.soon("the host is ready", h.is(fleet.HostReady))
	a.resign()
	b.begin()
	w.soon("the set is kept under another leader", kept(1))
	b.resign()
	a.begin()
	w.soon("the set is kept under the first one", kept(2))
	h.kill()
	h.start(a.addr)
	w.soon("another run has the set sent", func() bool { return logs.count("set_kept=false") == 2 })
}

// TestAHostThatFollowedARestoredControlPlaneRefusesTheOldOne gives an agent two of them.
func TestAHostThatFollowedARestoredControlPlaneRefusesTheOldOne(t *testing.T) {
	w := newWorld(t)
	a := w.newScheduler(loopback, dispatch.Config{})
	a.begin()
	h := w.newHost(a.addr)
	logs := &logged{}
	h.conf = func(c *agent.Config) { c.Log = logs.logger() }
	h.start(a.addr)
	w.soon("the host is ready", h.is(fleet.HostReady))
	before := h.record().Generation
	old := w.frozen()
	h.kill()
	a.resign()
	w.restore(a)
	a.begin()
	h.start(a.addr)
	w.soon("the host is ready again", func() bool {
		return a.dispatch.Reachable(h.id) && h.record().Lineage > 0 && logs.count("the control plane was restored from a copy") > 0
	})
	h.kill()
	if after := h.record(); after.Generation < before {
		t.Errorf("the generation fell from %d to %d", before, after.Generation)
	}
	x := old.newScheduler(loopback, dispatch.Config{})
	x.begin()
	h.start(x.addr)
	w.soon("the host is back at the restored one, which it remembers", func() bool { return a.dispatch.Reachable(h.id) && logs.count("restored later") > 0 })
	if x.dispatch.Reachable(h.id) {
		t.Error("the host follows the old one, too")
	}
}

// restore makes the state another lineage, as a restore from a copy does.
func (w *world) restore(s *scheduler) {
	now := time.Now()
	w.propose(state.RestoreCluster{
		ID: "cluster2", Lineage: uint64(now.Unix()), Member: fleet.Member{ID: fleet.MemberID(fleet.NewID()), Name: "m", Address: s.addr, JoinedAt: now, Level: state.Level},
		SnapshotAt: now, At: now,
	})
}
