package replica

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"gantry/scheduler/state"
)

// brittleLog is a log that fails once its member is killed.
type brittleLog struct {
	Log
	dead *atomic.Bool
}

func (l brittleLog) StoreLogs(logs []*raft.Log) error {
	if l.dead.Load() {
		return errors.New("killed")
	}
	return l.Log.StoreLogs(logs)
}

// contender is a member of either kind of cluster in BenchmarkFailover.
type contender struct {
	leads   func() bool
	write   func(context.Context, int) error
	kill    func() // as a loss of power does: no word to anybody
	restart func()
}

// failoverRate is how many writes a second are paced while leaders are killed.
const failoverRate = 500

// pacedWriters writes to whoever leads until ctx ends and tells each write that was acknowledged.
func pacedWriters(ctx context.Context, members []*contender, acked func(int)) *sync.WaitGroup {
	const callers = 50
	var wg sync.WaitGroup
	var next atomic.Int64
	for range callers {
		wg.Go(func() {
			tick := time.NewTicker(callers * time.Second / failoverRate)
			defer tick.Stop()
			for ctx.Err() == nil {
				i := int(next.Add(1))
				for _, m := range members {
					if m.leads() {
						bounded, cancel := context.WithTimeout(ctx, time.Second)
						if m.write(bounded, i) == nil {
							acked(i)
						}
						cancel()
						break
					}
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return &wg
}

// failOver kills the leader b.N times and reports how long no write was acknowledged.
func failOver(b *testing.B, members []*contender) (acked map[int]bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	acked = map[int]bool{}
	var mu sync.Mutex
	var last atomic.Int64
	wg := pacedWriters(ctx, members, func(i int) {
		mu.Lock()
		defer mu.Unlock()
		acked[i] = true
		last.Store(time.Now().UnixNano())
	})
	var gaps []time.Duration
	settled := func() {
		begun := time.Now().UnixNano()
		eventually(b, "writes are acknowledged", func() bool { return last.Load() > begun+int64(300*time.Millisecond) })
	}
	b.ResetTimer()
	for range b.N {
		settled()
		var old *contender
		eventually(b, "one leads", func() bool {
			at := slices.IndexFunc(members, func(m *contender) bool { return m.leads() })
			if at >= 0 {
				old = members[at]
			}
			return at >= 0
		})
		old.kill()
		killed := time.Now()
		eventually(b, "writes are acknowledged again", func() bool { return last.Load() > killed.Add(time.Millisecond*5).UnixNano() })
		gaps = append(gaps, time.Unix(0, last.Load()).Sub(killed))
		old.restart()
	}
	settled()
	b.StopTimer()
	cancel()
	wg.Wait()
	slices.Sort(gaps)
	b.ReportMetric(float64(gaps[len(gaps)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(gaps[min(len(gaps)-1, len(gaps)*99/100)].Milliseconds()), "p99-ms")
	b.ReportMetric(float64(len(acked)), "writes")
	b.ReportMetric(0, "ns/op")
	return acked
}

// BenchmarkFailover kills the leader of three members, over TCP and with synced logs, under 500 writes a
// second; bare is hashicorp/raft alone with the same timeouts. Run it with -benchtime 20x.
func BenchmarkFailover(b *testing.B) {
	b.Run("gantry", func(b *testing.B) {
		var all []*failing
		var members []*contender
		for _, id := range []string{"a", "b", "c"} {
			f := newFailing(b, id)
			all, members = append(all, f), append(members, f.contender())
		}
		var list []Member
		for _, f := range all {
			list = append(list, f.now.Load().self())
		}
		if err := all[0].now.Load().Bootstrap(within(b), list...); err != nil {
			b.Fatal(err)
		}
		acked := failOver(b, members)
		lost := 0
		have := map[string]bool{}
		eventually(b, "a leader shows all", func() bool {
			return slices.ContainsFunc(all, func(f *failing) bool {
				m := f.now.Load()
				if !m.IsLeader() || m.Barrier(within(b)) != nil {
					return false
				}
				return m.store.View(func(v *state.View) error {
					for _, a := range v.Accounts() {
						have[string(a.ID)] = true
					}
					return nil
				}) == nil
			})
		})
		for i := range acked {
			if !have[string(account(i).Account.ID)] {
				lost++
			}
		}
		b.ReportMetric(float64(lost), "lost")
		if lost > 0 {
			b.Fatalf("%d acknowledged writes are gone", lost)
		}
	})
	b.Run("bare", func(b *testing.B) {
		failOver(b, bareThree(b))
	})
}

// failing is a member that can be killed and started again on its data.
type failing struct {
	b    *testing.B
	id   string
	dir  string
	addr string
	dead *atomic.Bool
	cut  *switchable
	now  atomic.Pointer[member]
}

func newFailing(b *testing.B, id string) *failing {
	f := &failing{b: b, id: id, dir: b.TempDir(), addr: "127.0.0.1:0"}
	f.start()
	f.addr = f.now.Load().cfg.Address
	return f
}

func (f *failing) start() {
	dead := &atomic.Bool{}
	f.dead = dead
	f.now.Store(start(f.b, f.dir, f.id, f.addr, func(c *Config) {
		f.cut = &switchable{loopback: c.Streams.(loopback)}
		c.Streams = f.cut
		c.RequestTimeout = 2 * time.Second
		c.WrapLog = func(l Log) Log { return brittleLog{l, dead} }
	}))
}

func (f *failing) contender() *contender {
	return &contender{
		leads: func() bool { return !f.cut.cut.Load() && f.now.Load().IsLeader() },
		write: func(ctx context.Context, i int) error {
			res, err := f.now.Load().Propose(ctx, account(i))
			if err != nil {
				return err
			}
			return res[0].Err
		},
		kill: func() { f.dead.Store(true); f.cut.disconnect() },
		restart: func() {
			f.now.Load().stop(f.b)
			f.start()
		},
	}
}

// bareThree is a cluster of hashicorp/raft alone.
func bareThree(b *testing.B) []*contender {
	var out []*contender
	var servers []raft.Server
	var rafts []*raft.Raft
	for _, id := range []string{"a", "b", "c"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		cut := &switchable{loopback: loopback{l}}
		r := bareMember(b, id, l.Addr().String(), cut)
		rafts = append(rafts, r)
		servers = append(servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(l.Addr().String())})
		out = append(out, &contender{
			leads: func() bool { return !cut.cut.Load() && r.State() == raft.Leader },
			write: func(_ context.Context, i int) error {
				data, err := state.Encode(account(i))
				if err != nil {
					return err
				}
				return r.Apply(data, time.Second).Error()
			},
			kill:    cut.disconnect,
			restart: func() { cut.cut.Store(false) },
		})
	}
	if err := rafts[0].BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil {
		b.Fatal(err)
	}
	return out
}

func bareMember(b *testing.B, id, addr string, cut *switchable) *raft.Raft {
	dir := b.TempDir()
	db, err := bbolt.Open(filepath.Join(dir, "fsm.db"), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		b.Fatal(err)
	}
	logs, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		b.Fatal(err)
	}
	snaps, err := raft.NewFileSnapshotStore(dir, 1, io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	conf := raft.DefaultConfig()
	conf.LocalID, conf.LogOutput, conf.SnapshotThreshold, conf.NoLegacyTelemetry = raft.ServerID(id), io.Discard, 1<<40, true
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
	layer := &streams{StreamLayer: cut, known: address(addr), open: map[*stream]struct{}{}}
	trans := raft.NewNetworkTransport(layer, 3, 2*time.Second, io.Discard)
	r, err := raft.NewRaft(conf, boltFSM{db}, logs, logs, snaps, trans)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		down := r.Shutdown()
		_ = layer.Close()
		if err := down.Error(); err != nil {
			b.Error(err)
		}
		_ = logs.Close()
		_ = db.Close()
	})
	return r
}
