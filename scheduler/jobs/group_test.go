package jobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/replica"
	"gantry/serverless/queue"
)

// tcp connects members of a test.
type tcp struct{ net.Listener }

func (tcp) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// peer is a member with its id and address.
type peer struct {
	Group
	id, address string
}

// member opens a member of the group in a folder, at an address of its own.
func member(t testing.TB, id, dir, at string) peer {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	return openMember(t, id, dir, l.Addr().String(), tcp{l})
}

// openMember opens a member that is known by an address.
func openMember(t testing.TB, id, dir, address string, streams replica.StreamLayer) peer {
	t.Helper()
	m := open(t, dir)
	if err := replica.Create(dir); err != nil {
		t.Fatal(err)
	}
	node, err := replica.Open(replica.Config{
		Dir: dir, ID: id, Address: address, Machine: m, Streams: streams, Log: slog.New(slog.DiscardHandler),
		Fatal:             func(err error) { t.Error(id, err) },
		SnapshotThreshold: 8, SnapshotInterval: time.Hour, TrailingLogs: 1, HeartbeatTimeout: time.Second, // of a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return peer{Group{Node: node, Jobs: m}, id, address}
}

func eventually(t testing.TB, ctx context.Context, what string, is func() bool) {
	t.Helper()
	for !is() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(what)
		}
	}
}

// TestAGroupOfThree: a member that comes late gets what is in a snapshot with the bodies, leads, starts again from its own
// files, and has everything.
func TestAGroupOfThree(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	a := member(t, "a", dirs[0], "127.0.0.1:0")
	if err := a.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the first member does not lead", func() bool { return a.Barrier(ctx) == nil })
	large := make([]byte, 3<<20)
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	add := func(g peer, id byte, input []byte) {
		t.Helper()
		c := submit(id, "")
		c.MaxBytes = 100 << 20
		var err error
		if c.Content, err = g.Content(ctx, c.Account, c.ID, input, c.MaxBytes, c.At); err != nil {
			t.Fatal(err)
		}
		if _, err := One[Job](ctx, g.Group, c); err != nil {
			t.Fatal(err)
		}
	}
	has := func(g peer, id byte, want []byte) bool {
		_, got, err := g.Jobs.Read(queue.ID{id}, 4000, input)
		return err == nil && bytes.Equal(got, want)
	}
	add(a, 1, large)
	add(a, 2, []byte("small"))
	if !has(a, 1, large) {
		t.Fatal("the large body is not what was sent")
	}
	if err := a.Snapshot(ctx); err != nil {
		t.Fatal(err)
	}
	add(a, 3, []byte("after"))

	b, c := member(t, "b", dirs[1], "127.0.0.1:0"), member(t, "c", dirs[2], "127.0.0.1:0")
	for id, g := range map[string]peer{"b": b, "c": c} {
		if err := a.Promote(ctx, replica.Member{ID: id, Address: g.address}); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range []peer{b, c} {
		eventually(t, ctx, "a member does not catch up", func() bool { return has(g, 3, []byte("after")) })
		if !has(g, 1, large) || !has(g, 2, []byte("small")) {
			t.Error("a member has other bodies")
		}
	}
	if err := a.Transfer(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "b does not lead", func() bool { return b.Barrier(ctx) == nil })
	add(b, 4, large[:1<<20])
	eventually(t, ctx, "the former leader does not follow", func() bool { return has(a, 4, large[:1<<20]) })
	if _, err := One[any](ctx, a.Group, Drop{}); err == nil {
		t.Error("a member that does not lead takes commands")
	}

	at := c.address
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.Jobs.Close()
	c = member(t, "c", dirs[2], at)
	eventually(t, ctx, "a member that starts again does not catch up", func() bool { return has(c, 4, large[:1<<20]) })
	if !has(c, 1, large) || !has(c, 3, []byte("after")) {
		t.Error("a member that starts again has other bodies")
	}
}

// TestContent is refused before anything is on the log, where it must be.
func TestContent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	a := member(t, "a", t.TempDir(), "127.0.0.1:0")
	if err := a.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "the member does not lead", func() bool { return a.Barrier(ctx) == nil })
	if _, err := a.Content(ctx, "acme", queue.ID{1}, make([]byte, MaxBody+1), 1<<40, 1); fleet.CodeOf(err) != fleet.CodeTooLarge {
		t.Errorf("a body that is too large: %v", err)
	}
	if _, err := a.Content(ctx, "acme", queue.ID{1}, make([]byte, MaxInline+1), MaxInline, 1); fleet.CodeOf(err) != fleet.CodeLimited {
		t.Errorf("a body that is more than the account may have: %v", err)
	}
	c, err := a.Content(ctx, "acme", queue.ID{1}, make([]byte, MaxInline), 1, 1)
	if err != nil || len(c.Data) != MaxInline {
		t.Errorf("a small body does not go with its command: %v", err)
	}
}

// BenchmarkCycles is a job's whole life on the log, with fsync, by many callers at once; beside it what one entry costs
// that changes nothing.
func BenchmarkCycles(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			ctx := b.Context()
			first := leaderOf(b, members)
			payload := bytes.Repeat([]byte("x"), 200)
			var n atomic.Uint64
			b.SetParallelism(128)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := n.Add(1)
					c := submit(0, "")
					binary.BigEndian.PutUint64(c.ID[:], i)
					c.Endpoint, c.Content.Data, c.MaxBytes = fleet.EndpointID(fmt.Sprintf("ep%d", i%64)), payload, 1<<40
					c.MaxWaiting = 1 << 30
					if _, err := One[Job](ctx, first.Group, c); err != nil {
						b.Fatal(err)
					}
					taken, err := One[[]Job](ctx, first.Group, Take{queue.Take{At: 2000, Endpoint: c.Endpoint, Worker: "w1", Max: 1}})
					if err != nil {
						b.Fatal(err)
					}
					for _, j := range taken {
						f := queue.Finish{From: queue.From{At: 3000, Job: j.ID, Worker: "w1", Attempt: 1}}
						if _, err := One[bool](ctx, first.Group, Finish{f, Content{Data: payload}}); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

// TestLargeBodiesTakeTurns, and small ones wait for none of them.
func TestLargeBodiesTakeTurns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g := member(t, "a", t.TempDir(), "127.0.0.1:0")
	if err := g.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "it does not lead", func() bool { return g.Barrier(ctx) == nil })
	keep := func(ctx context.Context, size int) error {
		_, err := g.Content(ctx, "account", queue.ID{1}, make([]byte, size), 1<<30, 1)
		return err
	}
	g.Jobs.turns <- struct{}{}
	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	defer end()
	if err := keep(short, MaxInline+1); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("while another part is being committed: %v", err)
	}
	if err := keep(ctx, MaxInline); err != nil {
		t.Errorf("a small one: %v", err)
	}
	<-g.Jobs.turns
	for range 2 { // each turn ends
		if err := keep(ctx, 3*MaxPart); err != nil {
			t.Error(err)
		}
	}
}

// leaderOf makes a group of so many members, and returns the one that leads.
func leaderOf(b *testing.B, members int) peer {
	b.Helper()
	ctx := b.Context()
	first := member(b, "m0", b.TempDir(), "127.0.0.1:0")
	if err := first.Bootstrap(ctx); err != nil {
		b.Fatal(err)
	}
	eventually(b, ctx, "the first member does not lead", func() bool { return first.Barrier(ctx) == nil })
	for i := 1; i < members; i++ {
		id := fmt.Sprintf("m%d", i)
		next := member(b, id, b.TempDir(), "127.0.0.1:0")
		if err := first.Promote(ctx, replica.Member{ID: id, Address: next.address}); err != nil {
			b.Fatal(err)
		}
	}
	return first
}

// BenchmarkLargeBodies: what 200 small writes take, of the same group and of another one on the same disk, alone and while eight callers
// have bodies of 20 MB kept, in turns and all at once. Three members each.
func BenchmarkLargeBodies(b *testing.B) {
	const callers, size = 8, MaxBody - 1<<20
	g, other := leaderOf(b, 3), leaderOf(b, 3)
	small := func(of peer) time.Duration {
		began := time.Now()
		if _, err := of.Propose(b.Context(), Drop{}); err != nil {
			b.Error(err)
		}
		return time.Since(began)
	}
	round := func(what string) {
		var own, others []time.Duration
		for range 200 {
			own, others = append(own, small(g)), append(others, small(other))
		}
		for name, took := range map[string][]time.Duration{"same-group": own, "other-group": others} {
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, name+"-p99-ms-"+what)
		}
	}
	round("alone")
	for what, turns := range map[string]int{"in-turns": partsAtOnce, "at-once": callers} {
		g.Jobs.turns = make(chan struct{}, turns)
		ctx, stop := context.WithCancel(b.Context())
		var kept atomic.Int64
		var group sync.WaitGroup
		began := time.Now()
		for n := range callers {
			group.Go(func() {
				for ctx.Err() == nil {
					c, err := g.Content(ctx, fleet.AccountID(fmt.Sprint("account", n)), queue.ID{byte(n)}, make([]byte, size), 1<<40, 1)
					if err == nil {
						_, err = g.Propose(ctx, Drop{ID: c.Parts})
					}
					if err != nil {
						if ctx.Err() == nil {
							b.Error(err)
						}
						return
					}
					kept.Add(size)
				}
			})
		}
		round(what)
		stop()
		group.Wait()
		b.ReportMetric(float64(kept.Load())/1e6/time.Since(began).Seconds(), "MB/s-"+what)
	}
	b.ReportMetric(0, "ns/op")
}
