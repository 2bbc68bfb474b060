package replica

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// podCommand is a command of the size of a create.
func podCommand(i int64) state.CreatePods {
	return state.CreatePods{Pods: []state.NewPod{{HostEpoch: 1, Pod: fleet.Pod{
		ID: fleet.PodID(fmt.Sprintf("pod-%010d", i)), Account: "acme", Host: benchHost(i), CreatedAt: time.Unix(1_800_000_000, 0).UTC(),
		Spec: fleet.PodSpec{
			Name: "bench", Image: "registry.example/library/busybox:1.36", Args: "sleep 3600", DiskGB: 20, Cloud: fleet.CloudSecure,
			Env: map[string]string{"PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ", "MODE": "bench", "TOKEN": "0123456789abcdef0123456789abcdef"},
			CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 2, MemoryGB: 4}, Ports: []fleet.Port{{Number: 80, Protocol: "http"}},
		},
		HourlyRate: fleet.Dollar,
	}}}}
}

// benchHosts is how many hosts take the pods in turn.
const benchHosts = 512

func benchHost(i int64) fleet.HostID { return fleet.HostID(fmt.Sprintf("host-%04d", i%benchHosts)) }

// boundless lets each account have as much as there is.
func boundless() state.SetLimits {
	limits, most := map[string]*int64{}, int64(fleet.MaxLimit)
	for _, l := range fleet.AllLimits() {
		limits[l.String()] = &most
	}
	return state.SetLimits{Limits: limits}
}

// benchNode is a cluster of one with hosts that take any number of pods.
func benchNode(b *testing.B) *member {
	m := one(b, func(c *Config) { c.Streams = nil; c.SnapshotThreshold = 1 << 40 })
	hash := []byte("h")
	cmds := []state.Command{state.PutAccount{Account: fleet.Account{ID: "acme"}}, boundless()}
	for i := range int64(benchHosts) {
		id := benchHost(i)
		tok := fleet.JoinToken{ID: fleet.TokenID(id), Hash: hash, DataCenter: "d", Cloud: fleet.CloudSecure, ExpiresAt: time.Unix(9, 0)}
		cmds = append(cmds, state.PutToken{Token: tok, At: time.Unix(1, 0)},
			state.JoinHost{Token: tok.ID, Hash: hash, Host: fleet.Host{ID: id, MachineID: string(id)}, At: time.Unix(1, 0)},
			state.ConnectHost{Host: id, MachineID: string(id), BootID: "boot"})
	}
	res, err := m.Propose(within(b), cmds...)
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range res {
		if r.Err != nil {
			b.Fatal(r.Err)
		}
	}
	return m
}

// boltFSM is the floor: it puts an entry's bytes into a bbolt file that is not synced.
type boltFSM struct{ db *bbolt.DB }

func (f boltFSM) Apply(l *raft.Log) any {
	return f.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("entries"))
		if err != nil {
			return err
		}
		return b.Put(binary.BigEndian.AppendUint64(nil, l.Index), l.Data)
	})
}

func (boltFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, io.ErrUnexpectedEOF }
func (boltFSM) Restore(io.ReadCloser) error         { return io.ErrUnexpectedEOF }

// bareRaft is a hashicorp/raft of one member with raft-boltdb and boltFSM.
func bareRaft(b *testing.B) *raft.Raft {
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
	conf.LocalID, conf.LogOutput, conf.SnapshotThreshold, conf.NoLegacyTelemetry = "a", io.Discard, 1<<40, true
	_, trans := raft.NewInmemTransport("a")
	r, err := raft.NewRaft(conf, boltFSM{db}, logs, logs, snaps, trans)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Shutdown().Error(); err != nil {
			b.Error(err)
		}
		_ = logs.Close()
		_ = db.Close()
	})
	if err := r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}).Error(); err != nil {
		b.Fatal(err)
	}
	eventually(b, "it leads", func() bool { return r.State() == raft.Leader })
	return r
}

// BenchmarkPropose compares a create, proposed here, with the same bytes put through a bare Raft, with
// one caller and with more.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("gantry/callers=%d", callers), func(b *testing.B) {
			m := benchNode(b)
			var next atomic.Int64
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			parallel(b, callers, func() error {
				res, err := m.Propose(ctx, podCommand(next.Add(1)))
				if err == nil && res[0].Err != nil {
					err = res[0].Err
				}
				return err
			})
		})
		b.Run(fmt.Sprintf("bare/callers=%d", callers), func(b *testing.B) {
			r := bareRaft(b)
			data, err := state.Encode(podCommand(1))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(data)), "bytes/entry")
			parallel(b, callers, func() error { return r.Apply(data, 10*time.Second).Error() })
		})
	}
}

// parallel runs op b.N times from a number of goroutines.
func parallel(b *testing.B, callers int, op func() error) {
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan error, callers)
	for range callers {
		go func() {
			for left.Add(-1) >= 0 {
				if err := op(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkBarrier(b *testing.B) {
	m := benchNode(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Barrier(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBarrierOfThree reads with nobody else who asks meanwhile; others would share its round.
func BenchmarkBarrierOfThree(b *testing.B) {
	first := leader(b, three(b, nil))
	for b.Loop() {
		if err := first.Barrier(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
