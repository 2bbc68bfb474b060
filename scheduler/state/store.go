package state

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

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/place"
)

// Options configures a Store.
type Options struct {
	// BootID is the kernel's boot id. A file that was not closed cleanly is kept only when it was
	// written under the same one: then the kernel still has every write. Empty: never kept.
	BootID string
	// Events is how many events the ring holds; 0: 16384.
	Events int
	// MapSize is how many bytes of address space the file is mapped with at first; 0: 64 GiB, or 1 GiB
	// where addresses have 32 bits. A file that outgrows it makes Apply wait for those who read it.
	MapSize int
	// Level is the newest feature level that is understood; 0: Level.
	Level uint64
}

// defaultMapSize is more than any state; it takes neither memory nor disk.
const defaultMapSize = 1 << (30 + 6*(bits.UintSize/64))

// defaultEvents is enough for the longest pause that a watcher should survive without a new view.
const defaultEvents = 16384

// metaBucket holds what is not replicated state: the applied index.
const metaBucket = "meta"

const keyIndex = "index"

// Store is the state machine. Views, events and Wait may be used from any number of goroutines,
// beside one caller of Apply, Snapshot and Restore.
type Store struct {
	path    string
	boot    string
	mapSize int
	level   uint64
	codec   *codec
	dropped string

	// writing serializes those who write the file or swap it. It is the only lock that is held
	// across I/O; readers never take it. It is taken before mu.
	writing sync.Mutex
	db      *bbolt.DB      // swapped under mu, too, for views that read the file
	broken  error          // after a write that failed: nothing more is applied
	closing sync.WaitGroup // of files that were swapped out

	mu      sync.RWMutex
	tables  *tables
	index   uint64
	undo    *undo // while the file is ahead of the tables
	ring    ring
	changed chan struct{} // closed when the index grows or the store is closed
	closed  bool

	candMu     sync.Mutex
	candidates *place.Index // changed only by the first Fleet after an Apply; nil: not made yet
}

// Open opens the state in the file at path, or makes an empty one. A file that may have lost writes,
// or that cannot be read, is thrown away: Index is then 0 and everything has to be restored and
// applied again. It fails when another process has the file open, and when a newer version wrote it.
func Open(path string, opts Options) (*Store, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	s := &Store{
		path: path, boot: opts.BootID, mapSize: cmp.Or(opts.MapSize, defaultMapSize), level: cmp.Or(opts.Level, Level),
		codec: c, changed: make(chan struct{}),
	}
	if opts.Events <= 0 {
		opts.Events = defaultEvents
	}
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	s.ring = newRing(opts.Events, s.index)
	return s, nil
}

// Discarded says why Open threw the file away; it is empty when it did not.
func (s *Store) Discarded() string { return s.dropped }

// open opens the file and reads it.
func (s *Store) open() error {
	if err := os.Remove(s.path + restoreSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	suspect, err := readMark(s.path, s.boot)
	if err != nil {
		return err
	}
	if suspect == "" {
		if err := markOpen(s.path, s.boot); err != nil {
			return err
		}
		err := s.load(s.path)
		if err == nil || errors.Is(err, bolterrors.ErrTimeout) {
			return err
		}
		var newer *newerError
		if errors.As(err, &newer) { // a newer program can go on with it
			return errors.Join(err, markClean(s.path))
		}
		suspect = err.Error()
	}
	s.dropped = suspect
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := markOpen(s.path, s.boot); err != nil {
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
func (s *Store) load(path string) error {
	db, err := guarded(func() (*bbolt.DB, error) { return openDB(path, s.mapSize) })
	if err != nil {
		return err
	}
	tb := newTables()
	var index uint64
	_, err = guarded(func() (struct{}, error) {
		if err := db.Update(createBuckets); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, db.View(func(tx *bbolt.Tx) error {
			index = readIndex(tx)
			if err := readTables(tx, s.codec, tb); err != nil {
				return err
			}
			return understood(tb.levelInForce(), s.level)
		})
	})
	if err != nil {
		_, closeErr := guarded(func() (struct{}, error) { return struct{}{}, db.Close() })
		return errors.Join(err, closeErr)
	}
	s.db, s.tables, s.index, s.candidates = db, tb, index, nil
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

func createBuckets(tx *bbolt.Tx) error {
	for _, name := range append(bucketNames(), metaBucket) {
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

// readTables fills tables from the file.
func readTables(tx *bbolt.Tx, c *codec, tb *tables) error {
	for _, name := range sortedKeys(tb.byName) {
		t := tb.byName[name]
		if _, ok := t.(cold); ok {
			continue
		}
		err := tx.Bucket([]byte(name)).ForEach(func(k, v []byte) error {
			row, err := t.decode(c, v)
			if err != nil {
				return fmt.Errorf("record in %s: %w", name, err)
			}
			return tb.put(slot{name, string(k)}, row)
		})
		if err != nil {
			return err
		}
	}
	tb.settled()
	return nil
}

// Close writes the file to the disk, marks it clean and closes it; views end before. Snapshots must
// have been released. It is safe to call twice.
func (s *Store) Close() error {
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
func (s *Store) Index() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index
}

// Apply decides the commands of a batch of entries, in order, and returns one result per command of
// each entry; an entry at or below Index is skipped and has none. All changes of the batch are one
// transaction and become visible together. An error means that this replica cannot go on: the batch
// has not happened here, and the process must stop.
func (s *Store) Apply(entries []entry.Entry) ([][]entry.Result, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	if s.closed {
		return nil, errClosed
	}
	t, last := newTxn(s.tables), s.index
	t.level = s.level
	t.cold = coldReader{db: s.db, codec: s.codec, rows: map[string]*fleet.Amounts{}}
	out := make([][]entry.Result, len(entries))
	for i, e := range entries {
		if e.Index <= last {
			continue
		}
		cmds, err := s.codec.Decode(e.Data)
		if err != nil {
			s.broken = fmt.Errorf("entry %d: %w", e.Index, err)
			return nil, s.broken
		}
		out[i], last = t.run(e.Index, cmds), e.Index
		if err := cmp.Or(t.cold.err, t.halt); err != nil {
			s.broken = fmt.Errorf("entry %d: %w", e.Index, err)
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
	if err := s.publish(t, last); err != nil {
		s.broken = err
		return nil, err
	}
	return out, nil
}

// write puts the changes of a batch and the index into the file, in one transaction.
func (s *Store) write(t *txn, index uint64) error {
	slots := slices.SortedFunc(maps.Keys(t.batch), func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.key, b.key))
	})
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, at := range slots {
			b, row := tx.Bucket([]byte(at.bucket)), t.batch[at]
			if row == nil {
				if err := b.Delete([]byte(at.key)); err != nil {
					return err
				}
				continue
			}
			value, err := s.codec.Enc.Marshal(row)
			if err != nil {
				return err
			}
			if err := b.Put([]byte(at.key), value); err != nil {
				return err
			}
		}
		return writeIndex(tx, index)
	})
}

// publish makes a batch visible.
func (s *Store) publish(t *txn, index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, row := range t.batch {
		if err := s.tables.put(at, row); err != nil {
			return err
		}
	}
	s.tables.settled()
	for _, e := range t.events {
		s.ring.add(e)
	}
	s.undo = nil
	s.moved(index)
	return nil
}

// moved sets the index and wakes who waits for it. The caller holds mu.
func (s *Store) moved(index uint64) {
	s.index = index
	close(s.changed)
	s.changed = make(chan struct{})
}
