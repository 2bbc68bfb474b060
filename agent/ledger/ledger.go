// Package ledger is the durable memory of a host: which pods its scheduler wants there, in which
// generation, and how far each has come. It is one bbolt file with fsync on: every call that returns
// without an error is on disk. The file is locked while it is open, so that two agents never share
// one. It knows nothing of containers or of the network.
//
// Every record has a checksum of its own, and the file is read through before it is written to: a damaged one is
// ErrDamaged, never a panic. What a ledger that was lost had of running containers comes back with Adopt.
package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/boltfile"
	"gantry/internal/faultpoint"
)

var (
	bucketPods = []byte("pods")
	bucketMeta = []byte("meta")

	keyGeneration = []byte("generation")
	keySubnet     = []byte("subnet")
	keyForeign    = []byte("foreign disk")
	keyLineage    = []byte("lineage")
)

// ErrGap says that a difference does not apply to the ledger's generation: the full set is needed.
var ErrGap = errors.New("the difference does not follow the ledger's generation")

// ErrOlder says that a full set is older than what the ledger holds.
var ErrOlder = errors.New("the set is older than the ledger's generation")

// ErrNotOrdered says that an incarnation may not begin: the ledger holds no order for it, or a later one, or it has ended.
var ErrNotOrdered = errors.New("the ledger holds no order to begin this incarnation")

// ErrDamaged says that the file is not what was written: cut short, overwritten or with changed bytes. Nobody can tell
// what of it is right.
var ErrDamaged = errors.New("the ledger is damaged")

// Ledger is an open ledger. It is safe for concurrent use.
type Ledger struct {
	db   *bbolt.DB
	took func(time.Duration) // of WhenWritten

	mu         sync.RWMutex // guards the copies below of what is on disk
	records    map[fleet.PodID]pod.Record
	generation uint64
	lineage    uint64
	subnet     netip.Prefix
	foreign    *int64
}

// Allocate chooses an address that is not in use.
type Allocate func(used map[netip.Addr]bool) (netip.Addr, error)

// Open opens or makes the ledger at path. It fails when another process has it open, and with ErrDamaged.
func Open(path string) (*Ledger, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l := &Ledger{db: db, records: map[fleet.PodID]pod.Record{}}
	if err := l.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("read ledger %s: %w: %w", path, ErrDamaged, err), db.Close())
	}
	return l, nil
}

// lockTimeout is how long an open waits for another process to close the file.
const lockTimeout = 2 * time.Second

// check reads the file's structure while nobody else has it open.
func check(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()                                          // which also lets the lock go
	for end := time.Now().Add(lockTimeout); ; time.Sleep(lockTimeout / 100) { // an agent that ends may have it still
		if err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("another agent has it open: %w", err)
		}
	}
	err = boltfile.Read(f, []string{string(bucketPods), string(bucketMeta)}, func(_ string, key, value []byte) error {
		if checked(key, value) == nil {
			return fmt.Errorf("the checksum of %q is wrong", key)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// sums are of CRC-32C.
var sums = crc32.MakeTable(crc32.Castagnoli)

// summed appends the checksum of a key and its value to the value.
func summed(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(value), crc32.Update(crc32.Checksum(key, sums), sums, value))
}

// checked takes a checksum off again; nil: it was wrong.
func checked(key, value []byte) []byte {
	at := len(value) - crc32.Size
	if at < 0 || !bytes.Equal(summed(key, value[:at]), value) {
		return nil
	}
	return value[:at]
}

// WhenWritten has f called with the time that each write took, with the wait for the disk. It is called
// once, before the ledger is written to; f must not block.
func (l *Ledger) WhenWritten(f func(took time.Duration)) { l.took = f }

// Close closes the file.
func (l *Ledger) Close() error { return l.db.Close() }

func (l *Ledger) load() error {
	// One odd text must not keep the agent from starting.
	mode, err := cbor.DecOptions{UTF8: cbor.UTF8DecodeInvalid}.DecMode()
	if err != nil {
		return err
	}
	return l.db.Update(func(tx *bbolt.Tx) error {
		pods, err := tx.CreateBucketIfNotExists(bucketPods)
		if err != nil {
			return err
		}
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		if err := l.loadMeta(meta); err != nil {
			return err
		}
		return pods.ForEach(func(k, v []byte) error {
			var rec pod.Record
			if err := mode.Unmarshal(checked(k, v), &rec); err != nil {
				return fmt.Errorf("pod %s: %w", k, err)
			}
			if string(rec.Assignment.Pod) != string(k) {
				return fmt.Errorf("pod %s: holds the record of another", k)
			}
			l.records[fleet.PodID(bytes.Clone(k))] = rec
			return nil
		})
	})
}

// loadMeta reads what is not of one pod.
func (l *Ledger) loadMeta(meta *bbolt.Bucket) error {
	for _, v := range []struct {
		key []byte
		to  func(uint64)
	}{
		{keyGeneration, func(n uint64) { l.generation = n }},
		{keyLineage, func(n uint64) { l.lineage = n }},
		{keyForeign, func(n uint64) { f := int64(n); l.foreign = &f }}, //nolint:gosec // as SetForeignDisk wrote it
	} {
		text := meta.Get(v.key)
		if text == nil {
			continue
		}
		data := checked(v.key, text)
		if len(data) != 8 {
			return fmt.Errorf("the %s is no number", v.key)
		}
		v.to(binary.BigEndian.Uint64(data))
	}
	text := meta.Get(keySubnet)
	if text == nil {
		return nil
	}
	var err error
	if l.subnet, err = netip.ParsePrefix(string(checked(keySubnet, text))); err != nil {
		return fmt.Errorf("subnet: %w", err)
	}
	return nil
}

// Generation returns the generation of the newest set that was written.
func (l *Ledger) Generation() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.generation
}

// Lineage returns the highest lineage of a control plane that the host ever followed.
func (l *Ledger) Lineage() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lineage
}

// SetLineage writes down that the host follows a control plane of the lineage. It never falls.
func (l *Ledger) SetLineage(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= l.lineage {
		return nil
	}
	err := l.write("lineage", func(tx *bbolt.Tx) error { return putNumber(tx, keyLineage, n) })
	if err != nil {
		return fmt.Errorf("write the lineage: %w", err)
	}
	l.lineage = n
	return nil
}

// Subnet returns the range of the pods' host-local addresses; the zero prefix before SetSubnet.
func (l *Ledger) Subnet() netip.Prefix {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.subnet
}

// SetSubnet writes down the range that every address comes from.
func (l *Ledger) SetSubnet(p netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.write("subnet", func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keySubnet, summed(keySubnet, []byte(p.String())))
	})
	if err == nil {
		l.subnet = p
	}
	return err
}

// ForeignDisk returns the bytes that SetForeignDisk wrote last; false before.
func (l *Ledger) ForeignDisk() (int64, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.foreign == nil {
		return 0, false
	}
	return *l.foreign, true
}

// SetForeignDisk writes down n, how many bytes of the host's disk are not pods'. Below 0 it is 0.
func (l *Ledger) SetForeignDisk(n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(n, 0)
	err := l.write("disk", func(tx *bbolt.Tx) error {
		return putNumber(tx, keyForeign, uint64(n)) //nolint:gosec // not negative
	})
	if err != nil {
		return fmt.Errorf("write the use of the disk: %w", err)
	}
	l.foreign = &n
	return nil
}

// Record returns what the ledger holds of a pod.
func (l *Ledger) Record(id fleet.PodID) (pod.Record, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	rec, ok := l.records[id]
	return rec, ok
}

// Records returns everything, in no order.
func (l *Ledger) Records() []pod.Record {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]pod.Record, 0, len(l.records))
	for _, rec := range l.records {
		out = append(out, rec)
	}
	return out
}

// SetFull replaces the wanted set. Pods that it does not name become orphans, to be removed from the
// host. It returns what has changed. A generation below the ledger's is refused with ErrOlder.
func (l *Ledger) SetFull(generation uint64, want []pod.Assignment, allocate Allocate) ([]pod.Assignment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation < l.generation {
		return nil, ErrOlder
	}
	named := map[fleet.PodID]bool{}
	for _, a := range want {
		named[a.Pod] = true
	}
	var gone []fleet.PodID
	for id := range l.records {
		if !named[id] {
			gone = append(gone, id)
		}
	}
	return l.change(generation, want, gone, allocate)
}

// Apply applies a numbered difference. It returns what has changed, and ErrGap when the difference
// does not follow what the ledger holds.
func (l *Ledger) Apply(from, to uint64, put []pod.Assignment, gone []fleet.PodID, allocate Allocate) ([]pod.Assignment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from != l.generation || to < from {
		return nil, ErrGap
	}
	return l.change(to, put, gone, allocate)
}

// change writes assignments and orphans in one transaction. The caller holds the lock.
func (l *Ledger) change(to uint64, put []pod.Assignment, gone []fleet.PodID, allocate Allocate) ([]pod.Assignment, error) {
	used := map[netip.Addr]bool{}
	for _, rec := range l.records {
		used[rec.Addr] = true
	}
	next := make([]pod.Record, 0, len(put)+len(gone))
	for _, a := range put {
		rec := l.records[a.Pod]
		if a.Incarnation < rec.Assignment.Incarnation || a.Generation < rec.Assignment.Generation {
			continue // an order that was overtaken
		}
		rec.Assignment, rec.Orphan, rec.KeepLog = a, false, false
		if !rec.Addr.IsValid() && a.Goal == fleet.GoalRun {
			// A pod for which there is none is recorded without: it fails by itself, and the orders of
			// all others go on.
			if addr, err := allocate(used); err == nil {
				rec.Addr = addr
				used[addr] = true
			}
		}
		next = append(next, rec)
	}
	for _, id := range gone {
		if rec, known := l.records[id]; known {
			rec.KeepLog = rec.KeepLog || rec.Assignment.Goal == fleet.GoalStop || rec.Assignment.Goal == fleet.GoalRun && rec.HasEnded()
			rec.Assignment.Goal, rec.Orphan = fleet.GoalGone, true
			next = append(next, rec)
		}
	}
	err := l.write("orders", func(tx *bbolt.Tx) error {
		for _, rec := range next {
			if err := putRecord(tx, rec); err != nil {
				return err
			}
		}
		return putNumber(tx, keyGeneration, to)
	})
	if err != nil {
		return nil, fmt.Errorf("write assignments: %w", err)
	}
	changed := make([]pod.Assignment, 0, len(next))
	for _, rec := range next {
		l.records[rec.Assignment.Pod] = rec
		changed = append(changed, rec.Assignment)
	}
	l.generation = to
	return changed, nil
}

// Begin writes down that the process of the order's incarnation may run from now on, with what the order names. It
// returns ErrNotOrdered, and writes nothing, for an incarnation that may not run: the process must not be started then.
func (l *Ledger) Begin(order pod.Assignment, boot string) error {
	may := false
	err := l.update("begin", order.Pod, func(rec *pod.Record) bool {
		ended := rec.Ended != nil && rec.Ended.Incarnation >= order.Incarnation
		may = !ended && rec.Begun <= order.Incarnation && rec.Assignment.Incarnation <= order.Incarnation
		if may {
			rec.Begun, rec.BegunBoot = order.Incarnation, boot
			rec.Held = &pod.Holding{GPUs: order.GPUs, Mappings: order.Mappings, Overlays: order.Overlays}
		}
		return may
	})
	if err == nil && !may {
		err = fmt.Errorf("pod %s, incarnation %d: %w", order.Pod, order.Incarnation, ErrNotOrdered)
	}
	return err
}

// Adopt writes down what is known of a pod's container though the ledger does not know the pod: it was lost. What the
// ledger knows already stays.
func (l *Ledger) Adopt(rec pod.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := rec.Assignment.Pod
	if _, known := l.records[id]; known {
		return nil
	}
	if err := l.write("adopt", func(tx *bbolt.Tx) error { return putRecord(tx, rec) }); err != nil {
		return fmt.Errorf("write pod %s: %w", id, err)
	}
	l.records[id] = rec
	return nil
}

// End writes down how an incarnation ended. The first end of an incarnation stands.
func (l *Ledger) End(id fleet.PodID, ended pod.Ended) error {
	return l.update("end", id, func(rec *pod.Record) bool {
		if rec.Ended != nil && rec.Ended.Incarnation >= ended.Incarnation {
			return false
		}
		rec.Ended = &ended
		return true
	})
}

func (l *Ledger) update(what string, id fleet.PodID, f func(*pod.Record) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec, ok := l.records[id]
	if !ok || !f(&rec) {
		return nil
	}
	if err := l.write(what, func(tx *bbolt.Tx) error { return putRecord(tx, rec) }); err != nil {
		return fmt.Errorf("write pod %s: %w", id, err)
	}
	l.records[id] = rec
	return nil
}

// Forget removes the record of an orphan. One that was assigned to this host again meanwhile stays.
func (l *Ledger) Forget(id fleet.PodID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.records[id].Orphan {
		return nil
	}
	err := l.write("forget", func(tx *bbolt.Tx) error { return tx.Bucket(bucketPods).Delete([]byte(id)) })
	if err != nil {
		return fmt.Errorf("forget pod %s: %w", id, err)
	}
	delete(l.records, id)
	return nil
}

// write makes one durable change.
func (l *Ledger) write(what string, f func(*bbolt.Tx) error) error {
	faultpoint.Before("ledger", what)
	began := time.Now()
	err := l.db.Update(f)
	if l.took != nil {
		l.took(time.Since(began))
	}
	faultpoint.After("ledger", what)
	return err
}

func putRecord(tx *bbolt.Tx, rec pod.Record) error {
	// Times keep their nanoseconds, which the library's default encoding drops.
	mode, err := cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode()
	if err != nil {
		return err
	}
	data, err := mode.Marshal(rec)
	if err != nil {
		return err
	}
	key := []byte(rec.Assignment.Pod)
	return tx.Bucket(bucketPods).Put(key, summed(key, data))
}

func putNumber(tx *bbolt.Tx, key []byte, n uint64) error {
	return tx.Bucket(bucketMeta).Put(key, summed(key, binary.BigEndian.AppendUint64(nil, n)))
}
