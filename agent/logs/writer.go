package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gantry/internal/sleep"
)

// Series names the files of one writer in a pod's folder.
type Series string

// The series of a pod.
const (
	ContainerSeries Series = "container.log" // written by the logger process
	SystemSeries    Series = "system.log"    // written by the agent
)

const (
	batchBytes     = 64 << 10
	conditionEvery = time.Second
	reopenEvery    = time.Second
	lockPoll       = 5 * time.Millisecond
)

const whyRate = "the container writes faster than its log may grow"

// Writer appends records to one series. It is not safe for concurrent use.
// It opens its files by itself and again after a failure, at most once a
// second; what it could not write is counted and told in the log later.
type Writer struct {
	path   string
	opt    WriterOptions
	lock   *os.File
	file   *os.File
	size   int64
	torn   bool // the file does not end with a newline
	seq    uint64
	last   int64
	buf    []byte
	bucket bucket

	lost, lostBytes uint64 // since the last note
	lostEver        uint64
	lostWhy         string
	notedAt         time.Time
	retryAt         time.Time
	closed          bool
}

// NewWriter returns a writer for a series in the folder dir, which must exist
// by the time of the first record. It touches no file.
func NewWriter(dir string, s Series, o WriterOptions) (*Writer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Writer{
		path:   filepath.Join(dir, string(s)),
		opt:    o,
		buf:    make([]byte, 0, batchBytes),
		bucket: newBucket(o.Rate, o.Burst, time.Now()),
	}, nil
}

// Open takes the series' lock, waiting for another writer until ctx ends, and
// finds where the series ended. It need not be called: writes do the same
// without waiting.
func (w *Writer) Open(ctx context.Context) error {
	for {
		err := w.open()
		if !errors.Is(err, errLocked) {
			return err
		}
		if sleep.For(ctx, lockPoll) != nil {
			return err
		}
	}
}

// WriteLine appends text as one record per line and hands them to the kernel.
// An error means that at least one record was not written.
func (w *Writer) WriteLine(s Stream, text string) error {
	now := time.Now()
	w.bucket.fill(now)
	lost := w.lostEver
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		b := []byte(line)
		for len(b) > MaxText {
			k := runeCut(b[:MaxText])
			w.offer(now, s, true, b[:k])
			b = b[k:]
		}
		w.offer(now, s, false, b)
	}
	w.flush()
	if w.lostEver > lost {
		return fmt.Errorf("write %s: %s", w.path, w.lostWhy)
	}
	return nil
}

// Close writes what is pending and lets go of the files and the lock. Closing
// again does nothing; writes after Close are lost.
func (w *Writer) Close() error {
	if w.closed {
		return nil
	}
	w.note(time.Now(), true)
	w.flush()
	w.closed = true
	lost := w.lost
	err := w.closeFiles()
	if lost > 0 {
		return fmt.Errorf("close %s: %d lines lost: %s", w.path, lost, w.lostWhy)
	}
	return err
}

func (w *Writer) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{w.file, w.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	w.file, w.lock = nil, nil
	return errors.Join(errs...)
}

// offer appends a record unless the series grows too fast.
func (w *Writer) offer(now time.Time, s Stream, partial bool, text []byte) {
	if !w.bucket.take(int64(len(text) + maxHead)) {
		w.lose(1, len(text), whyRate)
		return
	}
	w.note(now, false)
	w.put(now, s, partial, text)
}

// note appends the sum of the lost lines, at most once a second unless last.
func (w *Writer) note(now time.Time, last bool) {
	if w.lost == 0 && w.lostBytes == 0 || !last && now.Sub(w.notedAt) < conditionEvery {
		return
	}
	text := droppedText(w.lost, w.lostBytes, w.lostWhy)
	lost, size := w.lost, w.lostBytes
	w.notedAt, w.lost, w.lostBytes = now, 0, 0
	if !w.put(now, System, false, []byte(text)) || w.flush() != nil {
		w.lost += lost - 1 // the note itself was counted as lost
		w.lostBytes = size + w.lostBytes - min(w.lostBytes, uint64(len(text)))
	}
}

func (w *Writer) lose(lines, size int, why string) {
	w.lost += uint64(lines)
	w.lostEver += uint64(lines)
	w.lostBytes += uint64(size)
	w.lostWhy = why
}

func (w *Writer) put(now time.Time, s Stream, partial bool, text []byte) bool {
	if !w.ready(now) {
		w.lose(1, len(text), w.lostWhy)
		return false
	}
	need := len(text) + maxHead + 1
	if len(w.buf)+need > cap(w.buf) {
		w.flush()
	}
	if w.size+int64(len(w.buf)+need) > w.opt.MaxBytes {
		w.flush()
		if err := w.rotate(); err != nil {
			w.fail(now, err)
			w.lose(1, len(text), w.lostWhy)
			return false
		}
	}
	w.seq++
	w.last = max(now.UnixNano(), w.last+1)
	w.buf = appendRecord(w.buf, record{nano: w.last, seq: w.seq, stream: s, partial: partial, text: text})
	return true
}

// ready opens the files when they are not open.
func (w *Writer) ready(now time.Time) bool {
	if w.file != nil {
		return true
	}
	if w.closed || now.Before(w.retryAt) {
		return false
	}
	if err := w.open(); err != nil {
		w.fail(now, err)
		return false
	}
	return true
}

func (w *Writer) fail(now time.Time, err error) {
	w.retryAt = now.Add(reopenEvery)
	w.lostWhy = reason(err)
}

// reason leaves the path of this host out of what the pod's owner reads.
func reason(err error) string {
	if no := syscall.Errno(0); errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

// flush hands the batch to the kernel. Records that it does not take are lost.
func (w *Writer) flush() error {
	if len(w.buf) == 0 || w.file == nil {
		return nil
	}
	if w.torn {
		if _, err := w.file.Write([]byte{'\n'}); err != nil {
			return w.drop(w.buf, err)
		}
		w.size++
		w.torn = false
	}
	n, err := w.file.Write(w.buf)
	w.size += int64(n)
	if err != nil {
		w.torn = n > 0 && w.buf[n-1] != '\n'
		return w.drop(w.buf[n:], err)
	}
	w.buf = w.buf[:0]
	return nil
}

func (w *Writer) drop(rest []byte, err error) error {
	w.lose(bytes.Count(rest, []byte{'\n'}), len(rest), reason(err))
	w.buf = w.buf[:0]
	return err
}

var errLocked = errors.New("another process writes this log")

func (w *Writer) open() error {
	if w.file != nil {
		return nil
	}
	if w.lock == nil {
		l, err := os.OpenFile(w.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(l.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			l.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return errLocked
			}
			return fmt.Errorf("lock %s: %w", w.path, err)
		}
		w.lock = l
	}
	w.recover()
	for i := w.opt.Keep; i <= maxKeep; i++ {
		if os.Remove(rotated(w.path, i)) != nil {
			break
		}
	}
	return w.openFile()
}

// recover finds the last record of the series; files that cannot be read
// count as empty.
func (w *Writer) recover() {
	for i := range w.opt.Keep {
		f, err := os.Open(rotated(w.path, i))
		if err != nil {
			continue
		}
		found := false
		see := func(_ int64, r record) bool {
			w.seq, w.last, found = max(w.seq, r.seq), max(w.last, r.nano), true
			return false
		}
		end, _, err := back(f, see)
		if err == nil {
			// A record torn by a kill may be whole enough to be read once a
			// newline closes it.
			torn := make([]byte, maxRecord)
			n, _ := f.ReadAt(torn, end)
			if r, err := parseRecord(torn[:n]); err == nil {
				see(end, r)
			}
		}
		f.Close()
		if found {
			return
		}
	}
}

func (w *Writer) openFile() error {
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	w.file, w.size = f, st.Size()
	end := []byte{'\n'}
	if w.size > 0 {
		if _, err := f.ReadAt(end, w.size-1); err != nil {
			f.Close()
			w.file = nil
			return err
		}
	}
	w.torn = end[0] != '\n'
	return nil
}

// rotate moves every file of the series one number up and starts a new one.
func (w *Writer) rotate() error {
	f := w.file
	w.file = nil
	if err := f.Close(); err != nil {
		return err
	}
	for i := w.opt.Keep - 1; i > 0; i-- {
		if err := os.Rename(rotated(w.path, i-1), rotated(w.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return w.openFile()
}

func rotated(path string, i int) string {
	if i == 0 {
		return path
	}
	return path + "." + strconv.Itoa(i)
}

// bucket bounds a rate of bytes. Once empty it stays shut until a tenth of a
// second's worth is there again, so that lines are lost in runs, not one by one.
type bucket struct {
	rate, burst int64
	level       int64
	at          time.Time
	shut        bool
}

func newBucket(rate, burst int64, now time.Time) bucket {
	return bucket{rate: rate, burst: burst, level: burst, at: now}
}

func (b *bucket) fill(now time.Time) {
	d := now.Sub(b.at)
	if d <= 0 {
		return
	}
	b.at = now
	if d > time.Hour {
		d = time.Hour
	}
	b.level = min(b.burst, b.level+int64(d.Seconds()*float64(b.rate)))
	if b.level >= min(b.rate/10+int64(maxRecord), b.burst) {
		b.shut = false
	}
}

func (b *bucket) take(n int64) bool {
	if b.shut || b.level < n {
		b.shut = true
		return false
	}
	b.level -= n
	return true
}
