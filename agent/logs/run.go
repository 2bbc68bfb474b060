package logs

import (
	"path/filepath"
	"strconv"
	"time"
)

// Span is a part of a log: the lines at From or later and before To. The zero Span is all of it.
type Span struct{ From, To time.Time }

// has reports whether a line of that time is in the span.
func (s Span) has(nano int64) bool {
	return (s.From.IsZero() || nano >= s.From.UnixNano()) && (s.To.IsZero() || nano < s.To.UnixNano())
}

// MarkRun writes that a run of the container begins: all lines of the pod until the next mark are of this run. The
// writer is that of the system series. A run may be marked again; its first mark counts.
func (w *Writer) MarkRun(incarnation uint64) error {
	return w.WriteLine(runMark, strconv.FormatUint(incarnation, 10))
}

// PreviousRun finds the run before the newest one in the log in the folder dir. Where its mark is missing, because the
// log is older than marks or has lost it to rotation, the run begins with the log. It returns false when the log holds
// nothing from before the newest run.
func PreviousRun(dir string) (span Span, found bool, err error) {
	newest, previous := "", ""
	err = backwards(dir, SystemSeries, func(r record) bool {
		text := string(r.text)
		switch {
		case r.stream != runMark:
			found = found || newest != ""
		case newest == "" || text == newest:
			newest, span.To, found = text, time.Unix(0, r.nano).UTC(), false
		case previous == "" || text == previous:
			previous, span.From, found = text, time.Unix(0, r.nano).UTC(), true
		default:
			return false
		}
		return true
	})
	if err != nil || newest == "" || found {
		return span, found && err == nil, err
	}
	err = backwards(dir, ContainerSeries, func(r record) bool {
		found = r.nano < span.To.UnixNano()
		return !found
	})
	return span, found, err
}

// backwards visits the records of a series, newest first, until visit returns false.
func backwards(dir string, name Series, visit func(record) bool) error {
	s, err := openSource(filepath.Join(dir, string(name)), 0, nil)
	if err != nil {
		return err
	}
	defer s.close()
	_, err = s.back(func(_ int, _ int64, r record) bool { return visit(r) })
	return err
}
