// Package bodies keeps the bodies of jobs (inputs, outputs, chunks of streams) in files of one folder. Bodies are appended
// to a file until it is full; a file goes when nothing in it is needed any more.
//
// Durability. Nothing is durable by Put: bodies also are in the log that the jobs come from, which is the truth until a
// snapshot. Sync syncs what was put before its Mark; what a snapshot refers to stays until Checkpoint says that a newer one
// is durable. After a restart the restored jobs Keep their bodies, Swept removes the rest, and the log puts anew what it has
// put since.
//
// A large body comes in parts: Reserve takes its place, Write fills it in order, Seal makes it one that Get takes.
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

// unsealed is added to the size in the head of a body that is not complete.
const unsealed = 1 << 31

// errUnsealed is the error about the place of a body that was never sealed.
var errUnsealed = fmt.Errorf("%w: it was never sealed", ErrDamaged)

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
	pins   int      // while there are any, no file is removed
	gone   []uint32 // files to be removed when there are none
}

// file is one of the files. Its handle is open as long as it is in Store.files or somebody reads.
type file struct {
	number uint32
	f      *os.File
	size   int64
	live   int64 // bytes of bodies that are needed, with their heads
	synced bool
	open   int // reserved bodies that are not sealed
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
	at, err := s.place(int64(len(body)))
	if err != nil {
		return queue.Body{}, err
	}
	data := append(head(make([]byte, 0, headSize+len(body)), id, at.Size, crc32.Checksum(body, castagnoli)), body...)
	if _, err := s.active.f.WriteAt(data, s.active.size); err != nil {
		return queue.Body{}, fmt.Errorf("keep a body: %w", err) // what was written of it is written over
	}
	s.taken(at)
	return at, nil
}

// head appends what is before a body.
func head(to []byte, id queue.ID, size int64, sum uint32) []byte {
	to = binary.BigEndian.AppendUint32(append(to, id[:]...), uint32(size)) //nolint:gosec // bodies have 20 MB at most
	return binary.BigEndian.AppendUint32(to, sum)
}

// place returns where the next body of this size goes.
func (s *Store) place(size int64) (queue.Body, error) {
	if s.active == nil {
		if err := s.begin(); err != nil {
			return queue.Body{}, fmt.Errorf("keep a body: %w", err)
		}
	}
	return queue.Body{At: uint64(s.active.number)<<32 | uint64(s.active.size), Size: size}, nil //nolint:gosec // files are smaller than 4 GiB
}

// taken says that the place is a body's.
func (s *Store) taken(at queue.Body) {
	s.active.size += headSize + at.Size
	s.active.live += headSize + at.Size
	if s.active.size >= s.full {
		s.active = nil
	}
}

// Part is a body of which some bytes are there.
type Part struct {
	Job  queue.ID   `cbor:"1,keyasint"`
	Body queue.Body `cbor:"2,keyasint"` // all of it
	Have int64      `cbor:"3,keyasint"`
	Sum  uint32     `cbor:"4,keyasint"` // of what is there
}

// Reserve takes the place of a body of this size, which is not 0. It counts as needed.
func (s *Store) Reserve(id queue.ID, size int64) (Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := s.place(size)
	if err != nil {
		return Part{}, err
	}
	err = s.active.f.Truncate(s.active.size + headSize + size)
	if err == nil {
		_, err = s.active.f.WriteAt(head(nil, id, size|unsealed, 0), s.active.size)
	}
	if err != nil {
		return Part{}, fmt.Errorf("keep a body: %w", err)
	}
	s.active.open++
	s.taken(at)
	return Part{Job: id, Body: at}, nil
}

// Write adds the next bytes, which are at most those that are missing.
func (s *Store) Write(p *Part, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.of(p.Body)
	if f == nil {
		return fmt.Errorf("%w: its file is gone", ErrDamaged)
	}
	if p.Have+int64(len(data)) > p.Body.Size {
		return fmt.Errorf("%w: it is longer than was said", ErrDamaged)
	}
	if _, err := f.f.WriteAt(data, int64(uint32(p.Body.At))+headSize+p.Have); err != nil {
		return fmt.Errorf("keep a body: %w", err)
	}
	f.synced = false
	p.Have, p.Sum = p.Have+int64(len(data)), crc32.Update(p.Sum, castagnoli, data)
	return nil
}

// Seal makes a body of a part that has all of its bytes.
func (s *Store) Seal(p Part) (queue.Body, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.of(p.Body)
	if f == nil || p.Have != p.Body.Size {
		return queue.Body{}, fmt.Errorf("%w: it is not complete", ErrDamaged)
	}
	if _, err := f.f.WriteAt(head(nil, p.Job, p.Body.Size, p.Sum), int64(uint32(p.Body.At))); err != nil {
		return queue.Body{}, fmt.Errorf("keep a body: %w", err)
	}
	f.synced = false
	f.open--
	return p.Body, nil
}

// Read returns the bytes that a part had when it was as it is given. Errors: ErrDamaged.
func (s *Store) Read(p Part) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := s.of(p.Body)
	if f == nil {
		return nil, fmt.Errorf("%w: its file is gone", ErrDamaged)
	}
	data := make([]byte, p.Have)
	if _, err := f.f.ReadAt(data, int64(uint32(p.Body.At))+headSize); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if crc32.Checksum(data, castagnoli) != p.Sum {
		return nil, fmt.Errorf("%w: wrong sum", ErrDamaged)
	}
	return data, nil
}

// Resume says that a restored part goes on. Its file is opened for writing.
func (s *Store) Resume(p Part) error {
	if err := s.Keep(p.Body); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.of(p.Body)
	to, err := os.OpenFile(s.path(f.number), os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	old := f.f
	f.f = to
	f.open++
	return old.Close()
}

// Abandon drops a part.
func (s *Store) Abandon(p Part) {
	s.mu.Lock()
	if f := s.of(p.Body); f != nil {
		f.open--
	}
	s.mu.Unlock()
	s.Drop(p.Body)
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

// next returns the size of the body at an offset, and whether it was never sealed.
func (f *file) next(at int64) (size int64, open bool, err error) {
	var head [headSize]byte
	if _, err := f.f.ReadAt(head[:], at); err != nil {
		return 0, false, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	says := int64(binary.BigEndian.Uint32(head[16:]))
	size = says &^ unsealed
	if at+headSize+size > f.size {
		return 0, false, fmt.Errorf("%w: another size", ErrDamaged)
	}
	return size, says&unsealed != 0, nil
}

// read reads the body at an offset, of this size, with its head in one call.
func (f *file) read(at, size int64) (id queue.ID, body []byte, err error) {
	if at+headSize+size > f.size {
		return id, nil, fmt.Errorf("%w: another size", ErrDamaged)
	}
	all := make([]byte, headSize+size)
	if _, err := f.f.ReadAt(all, at); err != nil {
		return id, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	head, body := all[:headSize], all[headSize:]
	switch says := int64(binary.BigEndian.Uint32(head[16:])); {
	case says&^unsealed != size:
		return id, nil, fmt.Errorf("%w: another size", ErrDamaged)
	case says&unsealed != 0:
		return id, nil, errUnsealed
	case crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(head[20:]):
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
func (s *Store) Swept() error {
	s.mu.RLock()
	empty := s.empty()
	s.mu.RUnlock()
	return s.remove(empty)
}

// Reset says that nothing is needed of what is there.
func (s *Store) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = nil
	for _, f := range s.files {
		f.live, f.open = 0, 0
	}
}

// Live returns how many bytes the bodies take that are needed, with what is before each.
func (s *Store) Live() (total int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range s.files {
		total += f.live
	}
	return total
}

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
type Mark struct {
	empty   []uint32
	written []*file
}

// Mark returns what is there now. The next Put begins a new file.
func (s *Store) Mark() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = nil
	m := Mark{empty: s.empty()}
	for _, f := range s.files {
		if !f.synced {
			f.synced = true // as far as the mark goes: what is written from now on makes it false again
			m.written = append(m.written, f)
		}
	}
	return m
}

// Sync returns when all that the mark has is on disk, so that a snapshot can refer to it.
func (s *Store) Sync(m Mark) error {
	for _, f := range m.written {
		if err := f.f.Sync(); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, f := range m.written {
				f.synced = false
			}
			return fmt.Errorf("sync bodies: %w", err)
		}
	}
	if err := atomicfile.SyncDir(s.dir); err != nil {
		return fmt.Errorf("sync bodies: %w", err)
	}
	return nil
}

// Checkpoint says that the snapshot of a mark is durable: what was not needed then is removed.
func (s *Store) Checkpoint(m Mark) error { return s.remove(m.empty) }

// empty returns the files in which nothing is needed, without the one that is written to. The caller holds mu.
func (s *Store) empty() (out []uint32) {
	for n, f := range s.files {
		if f.live == 0 && f != s.active {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// remove removes files, or, while something is pinned, remembers to.
func (s *Store) remove(numbers []uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins > 0 {
		s.gone = append(s.gone, numbers...)
		return nil
	}
	var all []error
	for _, n := range numbers {
		if f := s.files[n]; f != nil {
			delete(s.files, n)
			all = append(all, os.Remove(s.path(n)), f.f.Close())
		}
	}
	return errors.Join(all...)
}

// Pin keeps every body that is there readable, also one that is dropped, until release is called.
func (s *Store) Pin() (release func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins++
	return sync.OnceValue(func() error {
		s.mu.Lock()
		var gone []uint32
		if s.pins--; s.pins == 0 {
			gone, s.gone = s.gone, nil
		}
		s.mu.Unlock()
		return s.remove(gone)
	})
}

// Compact puts the bodies anew that are needed of files of which less than a quarter is, in at most so many bytes. Move has
// a job refer to the new place, and reports false when nothing referred to the old one. The caller lets no other
// command change the jobs meanwhile. A file whose bodies cannot be read stays.
func (s *Store) Compact(most int64, move func(id queue.ID, from, to queue.Body) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[n]
		if f == s.active || f.open > 0 || f.live == 0 || f.live >= f.size/4 {
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
		size, open, err := f.next(at)
		if err != nil {
			return err
		}
		if open {
			at += headSize + size
			continue
		}
		id, body, err := f.read(at, size)
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
