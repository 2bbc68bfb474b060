// Package backup is the file in which a copy of a cluster's state is kept elsewhere: what it is of, the state,
// and a sum over all of it; encrypted with age where that is wanted. It passes the state through and never
// holds it. The seal key, without which the secrets in the state cannot be opened, is not in the file.
package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// A file is, in this order: magic; the length of the header, 4 bytes; the header in JSON; the state in pieces,
// each behind its length of 4 bytes; a length of 0; the SHA-256 of all before.
const (
	magic     = "gantry snapshot\n"
	version   = 1
	maxHeader = 64 << 10
	maxPiece  = 1 << 20
)

// Errors of reading.
var (
	// ErrFormat says that a file is not a snapshot.
	ErrFormat = errors.New("this is not a snapshot of a Gantry cluster")
	// ErrDamaged says that a file is not what was written.
	ErrDamaged = errors.New("the snapshot is damaged or not whole")
)

// Header tells what a snapshot is of.
type Header struct {
	Version   int       `json:"version"` // of the format
	ClusterID string    `json:"clusterId"`
	Lineage   uint64    `json:"lineage"`
	Level     uint64    `json:"level"` // feature level that was in force
	Index     uint64    `json:"index"`
	SavedAt   time.Time `json:"savedAt"`
	Program   string    `json:"program"` // version of the scheduler
}

// Write writes a snapshot of the state. Header.Version is set by it.
func Write(w io.Writer, h Header, state io.WriterTo) error {
	h.Version = version
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	head := binary.BigEndian.AppendUint32([]byte(magic), uint32(len(text))) //nolint:gosec // a few hundred bytes
	if _, err := out.Write(append(head, text...)); err != nil {
		return err
	}
	if _, err := state.WriteTo(pieces{out}); err != nil {
		return err
	}
	if _, err := out.Write(make([]byte, 4)); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// pieces writes what it is given as pieces.
type pieces struct{ w io.Writer }

func (p pieces) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		piece := b[:min(len(b), maxPiece)]
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(piece))) //nolint:gosec // at most maxPiece
		if _, err := p.w.Write(length[:]); err != nil {
			return n, err
		}
		if _, err := p.w.Write(piece); err != nil {
			return n, err
		}
		n, b = n+len(piece), b[len(piece):]
	}
	return n, nil
}

// Reader reads the state out of a snapshot. Its end is io.EOF only when the sum over the whole file was right:
// nothing may be done with what was read before.
type Reader struct {
	Header    Header
	Encrypted bool

	in   *bufio.Reader
	sum  hash.Hash
	left uint32 // of the present piece
	err  error
}

// Open reads the header of a snapshot, which it decrypts with keys where it is encrypted.
func Open(r io.Reader, keys Keys) (*Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	plain, encrypted, err := decrypt(in, keys)
	if err != nil {
		return nil, err
	}
	out := &Reader{Encrypted: encrypted, in: plain, sum: sha256.New()}
	if err := out.head(); err != nil {
		return nil, err
	}
	return out, nil
}

func (r *Reader) head() error {
	var head [len(magic) + 4]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil || string(head[:len(magic)]) != magic {
		return errors.Join(ErrFormat, notEnd(err))
	}
	r.sum.Write(head[:])
	size := binary.BigEndian.Uint32(head[len(magic):])
	if size > maxHeader {
		return ErrDamaged
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r.in, text); err != nil {
		return errors.Join(ErrDamaged, notEnd(err))
	}
	r.sum.Write(text)
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r.Header); err != nil {
		return ErrDamaged
	}
	if r.Header.Version != version {
		return fmt.Errorf("the snapshot is of format %d, this program reads format %d", r.Header.Version, version)
	}
	return nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	for r.err == nil && r.left == 0 {
		r.err = r.next()
	}
	if r.err != nil {
		return 0, r.err
	}
	if len(p) > int(r.left) {
		p = p[:r.left]
	}
	n, err := r.in.Read(p)
	r.sum.Write(p[:n])
	r.left -= uint32(n) //nolint:gosec // n is at most left
	if err != nil {
		r.err = errors.Join(ErrDamaged, notEnd(err))
	}
	return n, r.err
}

// next begins the next piece; after the last one it checks the sum.
func (r *Reader) next() error {
	var length [4]byte
	if _, err := io.ReadFull(r.in, length[:]); err != nil {
		return errors.Join(ErrDamaged, notEnd(err))
	}
	r.sum.Write(length[:])
	r.left = binary.BigEndian.Uint32(length[:])
	switch {
	case r.left > maxPiece:
		return ErrDamaged
	case r.left > 0:
		return nil
	}
	var want [sha256.Size]byte
	if _, err := io.ReadFull(r.in, want[:]); err != nil {
		return errors.Join(ErrDamaged, notEnd(err))
	}
	if subtle.ConstantTimeCompare(want[:], r.sum.Sum(nil)) != 1 {
		return ErrDamaged
	}
	if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.Join(ErrDamaged, err)
	}
	return io.EOF
}

// notEnd returns an error unless it says that a file ends early, which ErrDamaged says already.
func notEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// Info tells what Inspect found.
type Info struct {
	Header
	Encrypted bool
	Bytes     int64 // of the state
}

// Inspect reads a snapshot to its end and checks all of it.
func Inspect(r io.Reader, keys Keys) (Info, error) {
	in, err := Open(r, keys)
	if err != nil {
		return Info{}, err
	}
	n, err := io.Copy(io.Discard, in)
	return Info{Header: in.Header, Encrypted: in.Encrypted, Bytes: n}, err
}
