package table

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"go.etcd.io/bbolt"
)

// A snapshot is, in this order: snapshotMagic; a version byte; the index, 8 bytes; the rows,
// sorted by bucket and key, each the bucket's name, the key and the value, every one of the three
// behind its length as a uvarint; a name of length 0; the SHA-256 of all before.
// The same state gives the same bytes, whatever its file looks like inside.
const (
	snapshotMagic   = "gantry state\n"
	snapshotVersion = 1
	maxKey          = 4 << 10
	maxValue        = 16 << 20
	// restoreBatch is how many bytes of rows one transaction of a restore takes.
	restoreBatch = 8 << 20
)

// Snapshot is all of the state at an index. It holds the file's old pages until it is released.
type Snapshot struct {
	Index   uint64
	buckets []string
	tx      *bbolt.Tx
}

// Snapshot returns the state as it is now; later changes do not show in it. It returns at once,
// reading is done by WriteTo. The caller releases it.
func (s *Store[S]) Snapshot() (Snapshot, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return Snapshot{}, ErrClosed
	}
	tx, err := s.db.Begin(false)
	if err != nil {
		return Snapshot{}, fmt.Errorf("begin snapshot: %w", err)
	}
	return Snapshot{Index: readIndex(tx), buckets: s.buckets, tx: tx}, nil
}

// Release gives the snapshot's pages back. It is called once, after WriteTo returned.
func (s Snapshot) Release() error {
	if s.tx == nil {
		return nil
	}
	return s.tx.Rollback()
}

// WriteTo writes the snapshot and returns how many bytes it wrote. It may run beside Apply.
func (s Snapshot) WriteTo(w io.Writer) (int64, error) {
	sum := sha256.New()
	count := &counter{w: w}
	out := bufio.NewWriterSize(io.MultiWriter(count, sum), 64<<10)
	head := binary.BigEndian.AppendUint64(append([]byte(snapshotMagic), snapshotVersion), s.Index)
	_, err := out.Write(head)
	if err != nil {
		return count.n, err
	}
	if err := writeRows(out, s.tx, s.buckets); err != nil {
		return count.n, err
	}
	if err := errors.Join(out.WriteByte(0), out.Flush()); err != nil {
		return count.n, err
	}
	_, err = count.Write(sum.Sum(nil))
	return count.n, err
}

// writeRows writes every row of every bucket, in order.
func writeRows(w *bufio.Writer, tx *bbolt.Tx, buckets []string) error {
	for _, name := range buckets {
		err := tx.Bucket([]byte(name)).ForEach(func(k, v []byte) error {
			return writeRow(w, []byte(name), k, v)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeRow writes the parts of a row, each behind its length.
func writeRow(w *bufio.Writer, parts ...[]byte) error {
	for _, part := range parts {
		var length [binary.MaxVarintLen64]byte
		if _, err := w.Write(length[:binary.PutUvarint(length[:], uint64(len(part)))]); err != nil {
			return err
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// counter counts the bytes that pass.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// SnapshotIndex reads the index of the snapshot that r begins with. It checks nothing else.
func SnapshotIndex(r io.Reader) (uint64, error) {
	in := &summed{r: bufio.NewReader(r), sum: sha256.New()}
	return in.head()
}

// Restore replaces all of the state by a snapshot's. It reads to the end and checks everything
// before it replaces anything: after an error the state is what it was. Watchers have to take a new
// view. Snapshots of the state before stay readable.
func (s *Store[S]) Restore(r io.Reader) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return ErrClosed
	}
	tmp := s.path + restoreSuffix
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	next := s.like()
	if err := s.fill(tmp, r); err != nil {
		return errors.Join(fmt.Errorf("restore state: %w", err), os.Remove(tmp))
	}
	if err := next.load(tmp); err != nil {
		return errors.Join(fmt.Errorf("restore state: %w", err), os.Remove(tmp))
	}
	// From here on an error leaves the store without a file: it must not go on.
	if err := os.Rename(tmp, s.path); err != nil {
		s.broken = fmt.Errorf("restore state: %w", err)
		return errors.Join(s.broken, next.db.Close())
	}
	// The file of before has no name any more, and what becomes of it does not matter. Closing it waits for its
	// readers, for which nothing else has to wait.
	old := s.swap(next)
	s.closing.Go(func() { _ = old.Close() })
	return nil
}

// swap makes another store's state this one's and returns the file that was, for the caller to close.
func (s *Store[S]) swap(next *Store[S]) *bbolt.DB {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.db
	s.db, s.set, s.tables, s.undo, s.broken = next.db, next.set, next.tables, nil, nil
	s.forget(next.index)
	s.moved(next.index)
	return old
}

// fill writes the rows of a snapshot into a new state file.
func (s *Store[S]) fill(path string, r io.Reader) (err error) {
	db, err := openDB(path, s.opts.MapSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Update(s.createBuckets); err != nil {
		return err
	}
	in := &summed{r: bufio.NewReaderSize(r, 64<<10), sum: sha256.New()}
	index, err := in.head()
	if err != nil {
		return err
	}
	for more := true; more; {
		err := db.Update(func(tx *bbolt.Tx) error {
			more, err = in.rows(tx)
			return errors.Join(err, writeIndex(tx, index))
		})
		if err != nil {
			return err
		}
	}
	return in.tail()
}

// summed reads a snapshot and sums what it reads.
type summed struct {
	r   *bufio.Reader
	sum hash.Hash
	one [1]byte
}

var errNoSnapshot = errors.New("this is not a snapshot, or it is damaged")

// head reads the part before the rows.
func (in *summed) head() (index uint64, err error) {
	head, err := in.take(len(snapshotMagic) + 1 + 8)
	if err != nil {
		return 0, err
	}
	rest := head[len(snapshotMagic):]
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return 0, errNoSnapshot
	}
	if rest[0] != snapshotVersion {
		return 0, fmt.Errorf("the snapshot is of version %d, this program reads version %d", rest[0], snapshotVersion)
	}
	return binary.BigEndian.Uint64(rest[1:]), nil
}

// rows puts rows until a transaction has enough; more is false after the last row.
func (in *summed) rows(tx *bbolt.Tx) (more bool, err error) {
	for size := 0; size < restoreBatch; {
		name, err := in.part(maxKey)
		if err != nil || len(name) == 0 {
			return false, err
		}
		key, err := in.part(maxKey)
		if err != nil {
			return false, err
		}
		value, err := in.part(maxValue)
		if err != nil {
			return false, err
		}
		bucket := tx.Bucket(name)
		if bucket == nil || string(name) == metaBucket {
			return false, errors.New("the snapshot has a bucket that this program does not know")
		}
		if err := bucket.Put(key, value); err != nil {
			return false, errors.Join(errNoSnapshot, err)
		}
		size += len(key) + len(value)
	}
	return true, nil
}

// tail checks the sum and that nothing follows it.
func (in *summed) tail() error {
	want := in.sum.Sum(nil)
	got, err := in.take(len(want))
	if err != nil {
		return err
	}
	if string(got) != string(want) {
		return errNoSnapshot
	}
	if _, err := in.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(errNoSnapshot, err)
	}
	return nil
}

// part reads bytes behind their length, at most limit.
func (in *summed) part(limit uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, truncated(err)
	}
	if n > limit {
		return nil, errNoSnapshot
	}
	return in.take(int(n))
}

// take reads n bytes.
func (in *summed) take(n int) ([]byte, error) {
	out := make([]byte, n)
	if _, err := io.ReadFull(in.r, out); err != nil {
		return nil, truncated(err)
	}
	in.sum.Write(out)
	return out, nil
}

// ReadByte reads one byte, for binary.ReadUvarint.
func (in *summed) ReadByte() (byte, error) {
	b, err := in.r.ReadByte()
	if err == nil {
		in.one[0] = b
		in.sum.Write(in.one[:])
	}
	return b, err
}

// truncated tells a snapshot that ends early from one that cannot be read.
func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNoSnapshot
	}
	return err
}

// Hash returns a hash over every row of every bucket, and nothing else: replicas that applied the
// same entries have the same, and a refused command does not change it.
func (s *Store[S]) Hash() ([]byte, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	sum := sha256.New()
	err := s.db.View(func(tx *bbolt.Tx) error {
		w := bufio.NewWriterSize(sum, 64<<10)
		if err := writeRows(w, tx, s.buckets); err != nil {
			return err
		}
		return w.Flush()
	})
	if err != nil {
		return nil, fmt.Errorf("hash state: %w", err)
	}
	return sum.Sum(nil), nil
}
