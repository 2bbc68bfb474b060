package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const createRequests = 6000

// boltFSM is the floor: it puts an entry's bytes into a bbolt file that is not synced.
type boltFSM struct{ db *bbolt.DB }

func (f boltFSM) Apply(l *raft.Log) any {
	return f.db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("entries"))
		if err != nil {
			return err
		}
		return bucket.Put(binary.BigEndian.AppendUint64(nil, l.Index), l.Data)
	})
}

func (boltFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, io.ErrUnexpectedEOF }
func (boltFSM) Restore(io.ReadCloser) error         { return io.ErrUnexpectedEOF }

// bareRaft is a hashicorp/raft of one member with raft-boltdb, fsync on, and boltFSM.
func bareRaft(b *testing.B) *raft.Raft {
	b.Helper()
	dir := b.TempDir()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	db, err := bbolt.Open(filepath.Join(dir, "fsm.db"), 0o600, &bbolt.Options{NoSync: true})
	must(err)
	logs, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	must(err)
	snaps, err := raft.NewFileSnapshotStore(dir, 1, io.Discard)
	must(err)
	conf := raft.DefaultConfig()
	conf.LocalID, conf.LogOutput, conf.SnapshotThreshold, conf.NoLegacyTelemetry = "a", io.Discard, 1<<40, true
	_, trans := raft.NewInmemTransport("a")
	r, err := raft.NewRaft(conf, boltFSM{db}, logs, logs, snaps, trans)
	must(err)
	b.Cleanup(func() { must(errors.Join(r.Shutdown().Error(), logs.Close(), db.Close())) })
	must(r.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}).Error())
	select {
	case <-r.LeaderCh():
	case <-time.After(apiLimit):
		b.Fatal("the bare Raft does not lead")
	}
	return r
}

// BenchmarkCreate takes turns: 200 clients that create pods through the API, and 200 callers that put
// commands of the same size through a bare Raft.
func BenchmarkCreate(b *testing.B) {
	p := newControlPlane(b)
	r := bareRaft(b)
	v, err := p.svc.CreatePod(context.Background(), p.who, fleet.PodRequest{
		Name: "bench", Image: "registry.example/library/busybox:1.36", Args: "sleep 3600", CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 2},
		Ports: []fleet.Port{{Number: 80, Protocol: "http"}}, Env: map[string]string{"MODE": "bench", "TOKEN": "0123456789abcdef0123456789abcdef"},
	})
	if err != nil {
		b.Fatal(err)
	}
	entry, err := state.Encode(state.CreatePods{Pods: []state.NewPod{{Pod: *v.Pod, HostEpoch: 1}}})
	if err != nil {
		b.Fatal(err)
	}
	rates, tails := samples{}, samples{}
	for range max(1, b.N/8) {
		took, rate := load(b, creators, createRequests, http.StatusCreated, p.post)
		rates["gantry"] = append(rates["gantry"], rate)
		tails["gantry"] = append(tails["gantry"], took.at("took", 0.99))
		took, rate = commit(b, r, entry)
		rates["bare"] = append(rates["bare"], rate)
		tails["bare"] = append(tails["bare"], took.at("took", 0.99))
	}
	b.ReportMetric(rates.median("gantry"), "creates/s")
	b.ReportMetric(rates.median("bare"), "bare/s")
	b.ReportMetric(rates.median("gantry")/rates.median("bare"), "ratio")
	b.ReportMetric(tails.median("gantry"), "gantry-p99-ms")
	b.ReportMetric(tails.median("bare"), "bare-p99-ms")
	b.ReportMetric(float64(len(entry)), "bytes/entry")
	b.ReportMetric(0, "ns/op")
}

// commit is load for the bare Raft.
func commit(b *testing.B, r *raft.Raft, entry []byte) (took samples, rate float64) {
	b.Helper()
	took = samples{}
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(createRequests)
	var group sync.WaitGroup
	began := time.Now()
	for range creators {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				at := time.Now()
				if err := r.Apply(entry, apiLimit).Error(); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				took.add("took", time.Since(at))
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return took, createRequests / time.Since(began).Seconds()
}
