// Package bodies keeps the bodies of jobs (inputs, outputs, chunks of streams) in files of one folder. Bodies are appended
// to a file until it is full; a file goes when nothing in it is needed any more.
//
// Durability. Nothing is durable by Put: bodies also are in the log that the jobs come from, which is the truth until a
// snapshot. Mark syncs what was put before it; what a snapshot refers to stays until Checkpoint says that a newer snapshot is
// durable. After a restart the restored jobs Keep their bodies, Swept removes the rest, and the log puts anew what it has
// put since.
//
// References are of one member: another one has the same bodies at other places. Every body has a CRC-32C, so that
// damage is found when it is read. A Store may be used by several goroutines.
package bodies

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gantry/internal/atomicfile"
	"gantry/serverless/queue"
)

// ErrDamaged is matched by the error of Get when the bytes are not those that were put.
var ErrDamaged = errors.New("the body is damaged")

const (
	suffix   = ".bodies"
	headSize = 24 // the job's id, the size and the sum of what follows
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store is the folder.
type Store struct {
	dir  string
	full int64 // bytes from which on a file is not written to any more

	mu     sync.RWMutex // guards the fields below
	files  map[uint32]*file
	active *file // nil: the next Put begins one
	last   uint32
}

// file is one of the files. Its handle is open as long as it is in Store.files or somebody reads.
type file struct {
	number uint32
	f      *os.File
	size   int64
	live   int64 // bytes of bodies that are needed, with their heads
	synced bool
}

// Open opens the folder, which is made if it is not there. Files that are there can be read, and are written to no more.
func Open(dir string, full int64) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, full: full, files: map[uint32]*file{}}
	for _, name := range names {
		n, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(name), suffix), 10, 32)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s is no file of bodies", name), s.Close())
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close(), s.Close())
		}
		s.files[uint32(n)] = &file{number: uint32(n), f: f, size: info.Size(), synced: true}
		s.last = max(s.last, uint32(n))
	}
	return s, nil
}

// Close closes the files. Nothing is synced.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	for _, f := range s.files {
		all = append(all, f.f.Close())
	}
	s.files, s.active = nil, nil
	return errors.Join(all...)
}

// Put appends a body of a job, and returns where it is. An empty body takes no place.
func (s *Store) Put(id queue.ID, body []byte) (queue.Body, error) {
	if len(body) == 0 {
		return queue.Body{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(id, body)
}

func (s *Store) put(id queue.ID, body []byte) (queue.Body, error) {
	if s.active == nil {
		if err := s.begin(); err != nil {
			return queue.Body{}, fmt.Errorf("keep a body: %w", err)
		}
	}
	to := s.active
	head := append(make([]byte, 0, headSize+len(body)), id[:]...)
	head = binary.BigEndian.AppendUint32(head, uint32(len(body))) //nolint:gosec // bodies have 20 MB at most
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(body, castagnoli))
	if _, err := to.f.WriteAt(append(head, body...), to.size); err != nil {
		return queue.Body{}, fmt.Errorf("keep a body: %w", err) // what was written of it is written over
	}
	at := queue.Body{At: uint64(to.number)<<32 | uint64(to.size), Size: int64(len(body))} //nolint:gosec // files are smaller than 4 GiB
	to.size += headSize + at.Size
	to.live += headSize + at.Size
	if to.size >= s.full {
		s.active = nil
	}
	return at, nil
}

// begin makes a new file the one that is written to.
func (s *Store) begin() error {
	s.last++
	f, err := os.OpenFile(s.path(s.last), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	s.active = &file{number: s.last, f: f}
	s.files[s.last] = s.active
	return nil
}

func (s *Store) path(number uint32) string {
	return filepath.Join(s.dir, fmt.Sprintf("%010d%s", number, suffix))
}

// of returns the file of a body, which may be nil.
func (s *Store) of(b queue.Body) *file { return s.files[uint32(b.At>>32)] }

// Get returns a body. Errors: ErrDamaged, also when it is not there.
func (s *Store) Get(b queue.Body) ([]byte, error) {
	if b.Size == 0 {
		return nil, nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock() // so that the file is not closed meanwhile; writers wait for a read from the page cache
	from := s.of(b)
	if from == nil {
		return nil, fmt.Errorf("%w: its file is gone", ErrDamaged)
	}
	_, body, err := from.read(int64(uint32(b.At)), b.Size)
	return body, err
}

// read reads the body at an offset. Size is what it must have; -1: what its head says.
func (f *file) read(at, size int64) (id queue.ID, body []byte, err error) {
	var head [headSize]byte
	if _, err := f.f.ReadAt(head[:], at); err != nil {
		return id, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	says := int64(binary.BigEndian.Uint32(head[16:]))
	if size >= 0 && says != size || at+headSize+says > f.size {
		return id, nil, fmt.Errorf("%w: another size", ErrDamaged)
	}
	body = make([]byte, says)
	if _, err := f.f.ReadAt(body, at+headSize); err != nil {
		return id, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(head[20:]) {
		return id, nil, fmt.Errorf("%w: wrong sum", ErrDamaged)
	}
	return queue.ID(head[:16]), body, nil
}

// Keep says that a restored job needs a body that was there when the store was opened.
func (s *Store) Keep(b queue.Body) error {
	if b.Size == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.of(b)
	if f == nil || int64(uint32(b.At))+headSize+b.Size > f.size {
		return fmt.Errorf("%w: its file is gone or too short", ErrDamaged)
	}
	f.live += headSize + b.Size
	return nil
}

// Swept removes the files that nobody kept anything of; it is called once, when all restored jobs have kept theirs.
func (s *Store) Swept() error { return s.remove(s.empty()) }

// Drop says that a body is not needed any more.
func (s *Store) Drop(b queue.Body) {
	if b.Size == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.of(b); f != nil {
		f.live -= headSize + b.Size
	}
}

// Mark is what was there when a snapshot was taken.
type Mark struct{ empty []uint32 }

// Mark syncs all that was put, so that a snapshot of this moment can refer to it. The next Put begins a new file.
func (s *Store) Mark() (Mark, error) {
	s.mu.Lock()
	s.active = nil
	var written []*file
	for _, f := range s.files {
		if !f.synced {
			written = append(written, f)
		}
	}
	s.mu.Unlock()
	for _, f := range written {
		if err := f.f.Sync(); err != nil {
			return Mark{}, fmt.Errorf("sync bodies: %w", err)
		}
		s.mu.Lock()
		f.synced = true
		s.mu.Unlock()
	}
	if err := atomicfile.SyncDir(s.dir); err != nil {
		return Mark{}, fmt.Errorf("sync bodies: %w", err)
	}
	return Mark{empty: s.empty()}, nil
}

// Checkpoint says that the snapshot of a mark is durable: what was not needed then is removed.
func (s *Store) Checkpoint(m Mark) error { return s.remove(m.empty) }

// empty returns the files in which nothing is needed, without the one that is written to.
func (s *Store) empty() (out []uint32) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for n, f := range s.files {
		if f.live == 0 && f != s.active {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Store) remove(numbers []uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	for _, n := range numbers {
		if f := s.files[n]; f != nil {
			delete(s.files, n)
			all = append(all, os.Remove(s.path(n)), f.f.Close())
		}
	}
	return errors.Join(all...)
}

// Compact puts the bodies anew that are needed of files of which less than a quarter is, in at most so many bytes. Move has
// a job refer to the new place, and reports false when nothing referred to the old one. The caller lets no other
// command change the jobs meanwhile. A file whose bodies cannot be read stays.
func (s *Store) Compact(most int64, move func(id queue.ID, from, to queue.Body) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[n]
		if f == s.active || f.live == 0 || f.live >= f.size/4 {
			continue
		}
		if most -= f.live; most < 0 {
			return nil
		}
		if err := s.empties(f, move); err != nil {
			return err
		}
	}
	return nil
}

// empties moves what is needed out of a file.
func (s *Store) empties(f *file, move func(id queue.ID, from, to queue.Body) bool) error {
	for at := int64(0); at < f.size; {
		id, body, err := f.read(at, -1)
		if err != nil {
			return err
		}
		from := queue.Body{At: uint64(f.number)<<32 | uint64(at), Size: int64(len(body))} //nolint:gosec // not negative
		to, err := s.put(id, body)
		if err != nil {
			return err
		}
		unused := to
		if move(id, from, to) {
			unused = from
		}
		s.of(unused).live -= headSize + from.Size
		at += headSize + from.Size
	}
	return nil
}
