package logs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// DefaultTail is how many lines a reader gets who asks for nothing else.
	DefaultTail = 100
	// MaxTail is the largest Tail of Options.
	MaxTail = 5000

	// settle is how long a follower of both series waits for an older line of
	// the other one.
	settle = 20 * time.Millisecond
)

// Options say which lines a reader gets. Of After, Since and Tail the first
// that is set counts.
type Options struct {
	Source Source
	After  ID        // the lines after this one; the time alone also works
	Since  time.Time // the lines of this time and later
	Tail   int       // this many lines from the end, 0 to MaxTail
	Follow bool      // then every new line, until the context ends
	Within Span      // no others; not with Follow
}

// Validate reports the first option that is out of its range.
func (o Options) Validate() error {
	switch {
	case o.Source != FromBoth && o.Source != FromContainer && o.Source != FromSystem:
		return errors.New("log source: not container or system")
	case o.Tail < 0 || o.Tail > MaxTail:
		return fmt.Errorf("log tail: not in 0..%d", MaxTail)
	case o.Follow && o.Within != Span{}:
		return errors.New("log span: has an end, which cannot be followed")
	case !o.After.Time.IsZero() && !representable(o.After.Time):
		return errors.New("log id: time out of range")
	}
	return nil
}

// Read calls fn with the lines of the pod whose logs are in the folder dir, in
// the order of their times, and returns when there are no more, or, with
// Follow, when ctx ends (with its cause) or the folder is removed (with nil).
// An error of fn ends it and is returned as it is. It holds at most 200 KiB
// plus 24 bytes for every line of the tail, whatever the size of the log.
//
// A follower gets a new line within 50 ms. Where a line of one series becomes
// visible more than 20 ms after a younger line of the other it comes late, not
// never. A follower so slow that files were removed before it read them gets a
// system line with the number of the lines that it missed.
func Read(ctx context.Context, dir string, o Options, fn func(Line) error) error {
	if err := o.Validate(); err != nil {
		return err
	}
	var w *watch
	if o.Follow {
		var err error
		if w, err = newWatch(ctx, dir); err != nil {
			return fmt.Errorf("follow log: %w", err)
		}
		defer w.close()
	} else if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	m, err := openMerge(dir, o)
	defer m.close()
	if err != nil {
		return err
	}
	for gone := false; ; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		s, wait, err := m.next(time.Now())
		switch {
		case err != nil:
			return err
		case s != nil && (wait == 0 || gone):
			l := s.head.line()
			s.ready = false
			if err := fn(l); err != nil {
				return err
			}
		case !o.Follow || gone:
			return nil
		default:
			gone = w.wait(ctx, wait)
		}
	}
}

// Tail returns the last n lines, n at most MaxTail, that the pod's container
// printed at since or later. It is complete once the container's task was
// deleted, since the runtime waits for the logger then.
func Tail(ctx context.Context, dir string, n int, since time.Time) ([]Line, error) {
	var lines []Line
	err := Read(ctx, dir, Options{Source: FromContainer, Tail: n}, func(l Line) error {
		if !l.Time.Before(since) {
			lines = append(lines, l)
		}
		return nil
	})
	return lines, err
}

// merge brings the lines of several sources into one order.
type merge struct {
	sources []*source
	follow  bool
}

func openMerge(dir string, o Options) (*merge, error) {
	m := &merge{follow: o.Follow}
	want := func(r record) bool {
		return r.stream != runMark && (o.Source == FromBoth || o.Source == sourceOf(r.stream)) && o.Within.has(r.nano)
	}
	names := []Series{ContainerSeries, SystemSeries}
	if o.Source == FromContainer {
		names = names[:1]
	}
	for rank, name := range names {
		s, err := openSource(filepath.Join(dir, string(name)), rank, want)
		if err != nil {
			return m, fmt.Errorf("read log: %w", err)
		}
		m.sources = append(m.sources, s)
	}
	switch {
	case !o.After.Time.IsZero():
		return m, m.from(func(s *source, r record) bool { return follows(s, r, o.After) })
	case !o.Since.IsZero():
		if o.Since.Year() >= 2262 {
			return m, m.tail(0)
		}
		since := int64(math.MinInt64)
		if representable(o.Since) {
			since = o.Since.UnixNano()
		}
		return m, m.from(func(_ *source, r record) bool { return r.nano >= since })
	}
	return m, m.tail(o.Tail)
}

func (m *merge) close() {
	for _, s := range m.sources {
		s.close()
	}
}

// follows says whether r comes after the line named by id in the order of
// readers: time, then rank. Two records of one series never have one time.
func follows(s *source, r record, id ID) bool {
	t := id.Time.UnixNano()
	return r.nano > t || r.nano == t && s.rank > 0 && id.Seq != 0 && id.Seq != r.seq
}

// from places every source before its first record of those, at its end, for
// which keep is true.
func (m *merge) from(keep func(*source, record) bool) error {
	for _, s := range m.sources {
		file, at, found := len(s.files)-1, int64(0), false
		end, err := s.back(func(i int, off int64, r record) bool {
			if !keep(s, r) {
				return false
			}
			file, at, found = i, off, true
			return true
		})
		if err != nil {
			return err
		}
		if !found {
			at = end
		}
		s.seek(max(file, 0), at)
	}
	return nil
}

// tail places the sources so that n lines are left.
func (m *merge) tail(n int) error {
	type mark struct {
		nano, off int64
		file      int
	}
	marks := make([][]mark, len(m.sources))
	ends := make([]int64, len(m.sources))
	for i, s := range m.sources {
		var err error
		ends[i], err = s.back(func(file int, off int64, r record) bool {
			if n > 0 && s.want(r) {
				marks[i] = append(marks[i], mark{r.nano, off, file})
			}
			return len(marks[i]) < n
		})
		if err != nil {
			return err
		}
	}
	taken := make([]int, len(m.sources))
	for range n {
		best := -1
		for i := range m.sources {
			if taken[i] < len(marks[i]) && (best < 0 || marks[i][taken[i]].nano >= marks[best][taken[best]].nano) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		taken[best]++
	}
	for i, s := range m.sources {
		if taken[i] > 0 {
			oldest := marks[i][taken[i]-1]
			s.seek(oldest.file, oldest.off)
		} else {
			s.seek(max(len(s.files)-1, 0), ends[i])
		}
	}
	return nil
}

// next returns the source whose head is to be emitted, nil when there is none.
// A wait above zero says that an older line may still come within it.
func (m *merge) next(now time.Time) (*source, time.Duration, error) {
	for _, s := range m.sources {
		if !s.ready && s.polled.IsZero() || s.isHeld {
			if err := s.fill(now); err != nil {
				return nil, 0, err
			}
		}
	}
	best := m.oldest()
	if best == nil && m.follow {
		for _, s := range m.sources {
			if err := s.fill(now); err != nil {
				return nil, 0, err
			}
		}
		best = m.oldest()
	}
	if best == nil || !m.follow {
		return best, 0, nil
	}
	var wait time.Duration
	for _, s := range m.sources {
		if s.ready || settled(s, best, now) {
			continue
		}
		if err := s.fill(now); err != nil {
			return nil, 0, err
		}
		if !s.ready && !settled(s, best, now) {
			wait = max(wait, time.Unix(0, best.head.nano).Add(settle).Sub(now))
		}
	}
	best = m.oldest()
	return best, wait, nil
}

// settled says that s, being at its end, will hardly get a record older than
// best's head. A head from the future (the clock was set back) waits for none;
// one that is younger than now by less was written after now was read.
func settled(s, best *source, now time.Time) bool {
	head := time.Unix(0, best.head.nano)
	return head.After(now.Add(time.Second)) || !s.polled.Before(head.Add(settle))
}

func (m *merge) oldest() *source {
	ready := slices.DeleteFunc(slices.Clone(m.sources), func(s *source) bool { return !s.ready })
	if len(ready) == 0 {
		return nil
	}
	return slices.MinFunc(ready, func(a, b *source) int {
		if a.head.nano < b.head.nano || a.head.nano == b.head.nano && a.rank < b.rank {
			return -1
		}
		return 1
	})
}
