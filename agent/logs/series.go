package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

const (
	windowBytes = 64 << 10
	// maxHoles is how many file names may be missing in a row while a writer
	// is rotating.
	maxHoles = 3
	maxScans = 100
)

// back calls visit with the records of f and their offsets, newest first,
// until visit returns false. It returns the offset behind the last complete
// line and whether visit may be called with older records.
func back(f *os.File, visit func(off int64, r record) bool) (end int64, more bool, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, false, err
	}
	var spans []span
	buf := make([]byte, windowBytes)
	found := false
	for hi := st.Size(); hi > 0; {
		lo := max(0, hi-int64(len(buf)))
		b := buf[:hi-lo]
		if _, err := f.ReadAt(b, lo); err != nil {
			return end, false, err
		}
		last := bytes.LastIndexByte(b, '\n')
		if last < 0 {
			hi = lo
			continue
		}
		if !found {
			end, found = lo+int64(last)+1, true
		}
		first := 0
		if lo > 0 {
			first = bytes.IndexByte(b, '\n') + 1
		}
		spans = appendSpans(spans[:0], b, first, last)
		for _, s := range slices.Backward(spans) {
			if r, err := parseRecord(b[s.from:s.to]); err == nil && !visit(lo+int64(s.from), r) {
				return end, false, nil
			}
		}
		if next := lo + int64(first); next < hi {
			hi = next
		} else {
			hi = lo
		}
	}
	return end, true, nil
}

type span struct{ from, to int }

// appendSpans adds the lines of b from first to the newline at last that are
// long enough to be records.
func appendSpans(spans []span, b []byte, first, last int) []span {
	for from := first; from <= last; {
		to := from + bytes.IndexByte(b[from:], '\n')
		if to-from > timeLen {
			spans = append(spans, span{from, to})
		}
		from = to + 1
	}
	return spans
}

// source reads one series forward, through its rotations.
type source struct {
	path  string
	rank  int // order of lines with equal time
	want  func(record) bool
	files []*os.File // oldest first; the first is being read
	off   int64
	buf   []byte
	lo    int
	hi    int
	skip  bool // the rest of a line that is too long to be a record

	last   record // read last, without text
	held   record // comes after the note about missing lines
	isHeld bool
	head   record
	ready  bool      // head is valid
	polled time.Time // when the end was seen last
}

func openSource(path string, rank int, want func(record) bool) (*source, error) {
	s := &source{path: path, rank: rank, want: want, buf: make([]byte, windowBytes)}
	files, err := s.newer(nil)
	s.files = files
	return s, err
}

func (s *source) close() {
	for _, f := range s.files {
		f.Close()
	}
	s.files = nil
}

// newer opens the files of the series that are younger than cur, or all,
// oldest first. Going from young to old it misses none: a rotation only moves
// a file towards where it has yet to look. But two rotations on the way could
// show it a file younger than one that it has seen, so it starts again when the
// newest file is another at the end.
func (s *source) newer(cur fs.FileInfo) ([]*os.File, error) {
	for try := 0; ; try++ {
		before, _ := os.Stat(s.path)
		files, err := s.scan(cur)
		after, _ := os.Stat(s.path)
		same := before == nil && after == nil || before != nil && after != nil && os.SameFile(before, after)
		if err == nil && (same || try == maxScans) {
			slices.Reverse(files)
			return files, nil
		}
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *source) scan(cur fs.FileInfo) (files []*os.File, err error) {
	var seen []fs.FileInfo
	for i, holes := 0, 0; i <= maxKeep && holes < maxHoles; i++ {
		f, err := os.Open(rotated(s.path, i))
		if errors.Is(err, fs.ErrNotExist) {
			holes++
			continue
		}
		if err != nil {
			return files, err
		}
		holes = 0
		st, err := f.Stat()
		if err != nil {
			f.Close()
			return files, err
		}
		if cur != nil && os.SameFile(cur, st) {
			f.Close()
			return files, nil
		}
		if slices.ContainsFunc(seen, func(o fs.FileInfo) bool { return os.SameFile(o, st) }) {
			f.Close()
			continue
		}
		files, seen = append(files, f), append(seen, st)
	}
	return files, nil
}

// back visits the records of the series, newest first. It returns the offset
// behind the last complete line of the newest file.
func (s *source) back(visit func(file int, off int64, r record) bool) (int64, error) {
	var end int64
	for i, f := range slices.Backward(s.files) {
		tail, more, err := back(f, func(off int64, r record) bool { return visit(i, off, r) })
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("read log: %w", err)
		}
		if i == len(s.files)-1 {
			end = tail
		}
		if !more {
			break
		}
	}
	return end, nil
}

// seek makes the record at off of the given file the next one.
func (s *source) seek(file int, off int64) {
	for _, f := range s.files[:file] {
		f.Close()
	}
	s.files = s.files[file:]
	s.off, s.lo, s.hi = off, 0, 0
}

// fill makes the next wanted record the head. Without one, ready stays false.
func (s *source) fill(now time.Time) error {
	if s.ready {
		return nil
	}
	if s.isHeld {
		s.head, s.isHeld, s.ready = s.held, false, true
		return nil
	}
	for {
		b, ok, err := s.line()
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		if !ok {
			s.polled = now
			return nil
		}
		r, err := parseRecord(b)
		if err != nil {
			continue
		}
		missing := uint64(0)
		if s.last.seq > 0 && r.seq > s.last.seq+1 {
			missing = r.seq - s.last.seq - 1
		}
		gap := record{nano: s.last.nano, seq: s.last.seq, stream: System}
		s.last = record{nano: r.nano, seq: r.seq}
		s.head, s.ready = r, s.want(r)
		if missing > 0 && s.want(gap) {
			gap.text = fmt.Appendf(nil, "%d lines are missing here", missing)
			s.held, s.isHeld = r, s.ready
			s.head, s.ready = gap, true
		}
		if s.ready {
			return nil
		}
	}
}

// line returns the next complete line; it is valid until the next call.
func (s *source) line() ([]byte, bool, error) {
	for {
		if n := bytes.IndexByte(s.buf[s.lo:s.hi], '\n'); n >= 0 {
			b := s.buf[s.lo : s.lo+n]
			s.lo += n + 1
			if s.skip {
				s.skip = false
				continue
			}
			return b, true, nil
		}
		s.hi = copy(s.buf, s.buf[s.lo:s.hi])
		s.lo = 0
		if s.hi > maxRecord {
			s.skip, s.hi = true, 0
		}
		if len(s.files) > 0 {
			n, err := s.files[0].ReadAt(s.buf[s.hi:], s.off)
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, false, err
			}
			s.hi, s.off = s.hi+n, s.off+int64(n)
			if n > 0 {
				continue
			}
		}
		if more, err := s.advance(); err != nil || !more {
			return nil, false, err
		}
	}
}

// advance is called at the end of the current file. It goes on to the next
// file, or looks for one; it returns false when there is none. A file that has
// just been found to be rotated is read once more before it is left, since the
// writer may have written to it up to then.
func (s *source) advance() (bool, error) {
	if len(s.files) > 1 {
		s.files[0].Close()
		s.files = s.files[1:]
		s.off, s.lo, s.hi, s.skip = 0, 0, 0, false
		return true, nil
	}
	var cur fs.FileInfo
	if len(s.files) == 1 {
		var err error
		if cur, err = s.files[0].Stat(); err != nil {
			return false, err
		}
		if st, err := os.Stat(s.path); err == nil && os.SameFile(st, cur) {
			return false, nil
		}
	}
	files, err := s.newer(cur)
	if err != nil || len(files) == 0 {
		return false, err
	}
	s.files = append(s.files, files...)
	return true, nil
}
