package table

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"gantry/scheduler/entry"
)

// Options configures a Store.
type Options struct {
	// BootID is the kernel's boot id. A file that was not closed cleanly is kept only when it was
	// written under the same one: then the kernel still has every write. Empty: never kept.
	BootID string
	// Events is how many events the ring holds; 0: 16384.
	Events int
	// Changes is how many changes are known at a time; 0: 32768.
	Changes int
	// MapSize is how many bytes of address space the file is mapped with at first; 0: 64 GiB, or 1 GiB
	// where addresses have 32 bits. A file that outgrows it makes Apply wait for those who read it.
	MapSize int
}

// defaultMapSize is more than any state; it takes neither memory nor disk.
const defaultMapSize = 1 << (30 + 6*(bits.UintSize/64))

// defaultEvents is enough for the longest pause that a watcher should survive without a new view.
const defaultEvents = 16384

// defaultChanges is enough for a client that reconnects after minutes of many changes.
const defaultChanges = 32768

// metaBucket holds what is not replicated state: the applied index.
const metaBucket = "meta"

const keyIndex = "index"

// Store keeps the tables of a Set. Views, events and Wait may be used from any number of goroutines,
// beside one caller of Apply, Snapshot and Restore.
type Store[S Set] struct {
	path    string
	opts    Options
	enc     entry.Encoding
	empty   func() S
	buckets []string // sorted
	dropped string

	// writing serializes those who write the file or swap it. It is the only lock that is held
	// across I/O; readers never take it. It is taken before mu.
	writing sync.Mutex
	db      *bbolt.DB      // swapped under mu, too, for views that read the file
	broken  error          // after a write that failed: nothing more is applied
	closing sync.WaitGroup // of files that were swapped out

	mu      sync.RWMutex
	set     S
	tables  map[string]Any // of set, by their buckets
	index   uint64
	undo    *undo // while the file is ahead of the tables
	ring    ring[Event]
	told    ring[Change]
	changed chan struct{} // closed when the index grows or the store is closed
	closed  bool
}

// Open opens the tables in the file at path, or makes an empty one. empty makes a Set without rows. A file that may have
// lost writes, or that cannot be read, is thrown away: Index is then 0 and everything has to be restored and
// applied again. It fails when another process has the file open, and when the Set is not usable.
func Open[S Set](path string, opts Options, enc entry.Encoding, empty func() S) (*Store[S], error) {
	opts.MapSize, opts.Events = cmp.Or(opts.MapSize, defaultMapSize), cmp.Or(max(opts.Events, 0), defaultEvents)
	opts.Changes = cmp.Or(max(opts.Changes, 0), defaultChanges)
	s := &Store[S]{path: path, opts: opts, enc: enc, empty: empty, changed: make(chan struct{})}
	for _, tab := range empty().Tables() {
		s.buckets = append(s.buckets, tab.name())
	}
	slices.Sort(s.buckets)
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	s.forget(s.index)
	return s, nil
}

// forget begins with no events and changes, at an index. Where the store is in use, the caller holds mu.
func (s *Store[S]) forget(index uint64) {
	s.ring, s.told = newRing[Event](s.opts.Events, index), newRing[Change](s.opts.Changes, index)
}

// like returns a store of the same kind without a file.
func (s *Store[S]) like() *Store[S] {
	return &Store[S]{opts: s.opts, enc: s.enc, empty: s.empty, buckets: s.buckets}
}

// Discarded says why Open threw the file away; it is empty when it did not.
func (s *Store[S]) Discarded() string { return s.dropped }

// open opens the file and reads it.
func (s *Store[S]) open() error {
	if err := os.Remove(s.path + restoreSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	suspect, err := readMark(s.path, s.opts.BootID)
	if err != nil {
		return err
	}
	if suspect == "" {
		if err := markOpen(s.path, s.opts.BootID); err != nil {
			return err
		}
		err := s.load(s.path)
		if err == nil || errors.Is(err, bolterrors.ErrTimeout) {
			return err
		}
		var not *unusable
		if errors.As(err, &not) { // a newer program can go on with it
			return errors.Join(err, markClean(s.path))
		}
		suspect = err.Error()
	}
	s.dropped = suspect
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := markOpen(s.path, s.opts.BootID); err != nil {
		return err
	}
	return s.load(s.path)
}

// openDB opens a state file. It is mapped larger than it is, so that a reader that takes long (a
// snapshot) does not hold up the writer when the file grows.
func openDB(path string, mapSize int) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: time.Second, NoSync: true, NoGrowSync: true,
		FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapSize,
	})
}

// load reads the file at path and makes it the store's. A damaged file gives an error, also where
// the database would panic.
func (s *Store[S]) load(path string) error {
	db, err := guarded(func() (*bbolt.DB, error) { return openDB(path, s.opts.MapSize) })
	if err != nil {
		return err
	}
	set, tables, index := s.empty(), map[string]Any{}, uint64(0)
	for _, tab := range set.Tables() {
		tables[tab.name()] = tab
	}
	_, err = guarded(func() (struct{}, error) {
		if err := db.Update(s.createBuckets); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, db.View(func(tx *bbolt.Tx) error {
			index = readIndex(tx)
			if err := s.read(tx, set, tables); err != nil {
				return err
			}
			if err := set.Usable(); err != nil {
				return &unusable{err}
			}
			return nil
		})
	})
	if err != nil {
		_, closeErr := guarded(func() (struct{}, error) { return struct{}{}, db.Close() })
		return errors.Join(err, closeErr)
	}
	s.db, s.set, s.tables, s.index = db, set, tables, index
	return nil
}

// guarded turns a panic or a fault in reading a mapped file into an error.
func guarded[T any](fn func() (T, error)) (out T, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is damaged: %v", r)
		}
	}()
	return fn()
}

func (s *Store[S]) createBuckets(tx *bbolt.Tx) error {
	for _, name := range append(slices.Clone(s.buckets), metaBucket) {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return nil
}

func readIndex(tx *bbolt.Tx) uint64 {
	if v := tx.Bucket([]byte(metaBucket)).Get([]byte(keyIndex)); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func writeIndex(tx *bbolt.Tx, index uint64) error {
	return tx.Bucket([]byte(metaBucket)).Put([]byte(keyIndex), binary.BigEndian.AppendUint64(nil, index))
}

// read fills tables from the file.
func (s *Store[S]) read(tx *bbolt.Tx, set S, tables map[string]Any) error {
	for _, name := range s.buckets {
		tab := tables[name]
		if !tab.inMemory() {
			continue
		}
		err := tx.Bucket([]byte(name)).ForEach(func(k, v []byte) error {
			row, err := tab.decode(s.enc, v)
			if err != nil {
				return fmt.Errorf("record in %s: %w", name, err)
			}
			put(set, tab, Slot{name, string(k)}, row)
			return nil
		})
		if err != nil {
			return err
		}
	}
	set.Settled()
	return nil
}

// put puts a row, or deletes it when row is nil, and has the set keep what is derived. It is the one way into the tables, for
// what was just applied and for what is read from the file.
func put(set Set, tab Any, at Slot, row any) {
	set.Derive(at, tab.row(at.Key), row)
	tab.set(at.Key, row)
}

// unusable is an error of Set.Usable.
type unusable struct{ error }

func (e *unusable) Unwrap() error { return e.error }

// View calls fn with the tables at one index; they stay as they are until fn returns. fn should be short:
// an Apply waits for it before its changes show, and views that come later wait for that Apply. fn must
// not call the store, but for Cold.
func (s *Store[S]) View(fn func(set S, index uint64) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	return fn(s.set, s.index)
}

// Close writes the file to the disk, marks it clean and closes it; views end before. Snapshots must
// have been released. It is safe to call twice.
func (s *Store[S]) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.changed)
	s.mu.Unlock()

	err := errors.Join(s.db.Sync(), s.db.Close())
	s.closing.Wait()
	if err != nil || s.broken != nil {
		return err
	}
	return markClean(s.path)
}

// Index returns the index of the latest entry that was applied; 0 when none was.
func (s *Store[S]) Index() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index
}

// Apply has the commands of a batch of entries decided, in order, and returns one result per command of
// each entry; an entry at or below Index is skipped and has none. begin is called once and returns what
// decides an entry. All changes of the batch are one transaction and become visible together. An error
// means that this replica cannot go on: the batch has not happened here, and the process must stop.
func (s *Store[S]) Apply(
	entries []entry.Entry, begin func(S, *Txn) func(entry.Entry) ([]entry.Result, error),
) ([][]entry.Result, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	if s.closed {
		return nil, ErrClosed
	}
	t, last := s.begin(), s.index
	decide := begin(s.set, t)
	out := make([][]entry.Result, len(entries))
	for i, e := range entries {
		if e.Index <= last {
			continue
		}
		var err error
		t.index, last = e.Index, e.Index
		if out[i], err = decide(e); cmp.Or(err, t.err) != nil {
			s.broken = fmt.Errorf("entry %d: %w", e.Index, cmp.Or(err, t.err))
			return nil, s.broken
		}
	}
	if last == s.index {
		return out, nil
	}
	s.shade(t, last)
	if err := s.write(t, last); err != nil {
		s.broken = fmt.Errorf("write state at index %d: %w", last, err)
		return nil, s.broken
	}
	s.publish(t, last)
	return out, nil
}

// begin begins a batch.
func (s *Store[S]) begin() *Txn {
	return &Txn{
		tables: s.tables, batch: map[Slot]any{}, latest: map[Slot]int{}, marks: map[mark]map[string]struct{}{},
		cold: coldReader{db: s.db, enc: s.enc, rows: map[string]any{}},
	}
}

// write puts the changes of a batch and the index into the file, in one transaction.
func (s *Store[S]) write(t *Txn, index uint64) error {
	slots := slices.SortedFunc(maps.Keys(t.batch), func(a, b Slot) int {
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key))
	})
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, at := range slots {
			b, row := tx.Bucket([]byte(at.Bucket)), t.batch[at]
			if row == nil {
				if err := b.Delete([]byte(at.Key)); err != nil {
					return err
				}
				continue
			}
			value, err := s.enc.Enc.Marshal(row)
			if err != nil {
				return err
			}
			if err := b.Put([]byte(at.Key), value); err != nil {
				return err
			}
		}
		return writeIndex(tx, index)
	})
}

// publish makes a batch visible.
func (s *Store[S]) publish(t *Txn, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, row := range t.batch {
		put(s.set, s.tables[at.Bucket], at, row)
	}
	s.set.Settled()
	for _, e := range t.events {
		s.ring.add(e)
	}
	for _, c := range t.changes {
		s.told.add(c)
	}
	s.undo = nil
	s.moved(index)
}

// moved sets the index and wakes who waits for it. The caller holds mu.
func (s *Store[S]) moved(index uint64) {
	s.index = index
	close(s.changed)
	s.changed = make(chan struct{})
}
