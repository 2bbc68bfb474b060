package meter

import (
	"errors"
	"time"

	"gantry/fleet"
)

// MaxBuckets is how many buckets a query may have.
const MaxBuckets = 10_000

// defaultSpan is how far back a query goes that says nothing of it.
const defaultSpan = 30 * 24 * time.Hour

// What is wrong with a query; see Window.
var (
	ErrSize      = errors.New("the bucket size is unknown")
	ErrExclusive = errors.New("the last buckets and times exclude each other")
	ErrLast      = errors.New("the number of buckets is out of its range")
	ErrOrder     = errors.New("the end is not after the start")
	ErrTooMany   = errors.New("there are too many buckets")
)

// Span is a number of whole buckets.
type Span struct {
	Start, End time.Time // UTC
	Size       fleet.BucketSize
}

// Window returns the buckets that a query asks for at a time. Errors: ErrSize; ErrExclusive; ErrLast
// (below 0 or above MaxBuckets); ErrOrder; ErrTooMany (above MaxBuckets).
func Window(q fleet.BillingQuery, now time.Time) (Span, error) {
	s := Span{Size: q.Bucket}
	if s.Size == "" {
		s.Size = fleet.BucketDay
	}
	if !known(s.Size) {
		return Span{}, ErrSize
	}
	switch {
	case q.LastN != 0 && (!q.Start.IsZero() || !q.End.IsZero()):
		return Span{}, ErrExclusive
	case q.LastN < 0 || q.LastN > MaxBuckets:
		return Span{}, ErrLast
	case q.LastN > 0:
		s.End = Add(s.Size, Down(s.Size, now), 1)
		s.Start = Add(s.Size, s.End, -q.LastN)
		return s, nil
	}
	start, end := q.Start, q.End
	if end.IsZero() {
		end = now
	}
	if start.IsZero() {
		start = end.Add(-defaultSpan)
	}
	s.Start, s.End = Down(s.Size, start), Up(s.Size, end)
	switch {
	case !start.Before(end):
		return Span{}, ErrOrder
	case s.tooLong():
		return Span{}, ErrTooMany
	}
	return s, nil
}

func known(size fleet.BucketSize) bool {
	switch size {
	case fleet.BucketHour, fleet.BucketDay, fleet.BucketWeek, fleet.BucketMonth, fleet.BucketYear:
		return true
	}
	return false
}

func (s Span) tooLong() bool { return Add(s.Size, s.Start, MaxBuckets).Before(s.End) }

// Bucket returns the bucket that a time is in, which may begin before the span or end after it.
func (s Span) Bucket(t time.Time) (start, end time.Time) {
	start = Down(s.Size, t)
	return start, Add(s.Size, start, 1)
}

// Down returns the beginning of the bucket that a time is in. Size is one of the known ones.
func Down(size fleet.BucketSize, t time.Time) time.Time {
	t = t.UTC()
	year, month, day := t.Date()
	switch size {
	case fleet.BucketHour:
		return time.Date(year, month, day, t.Hour(), 0, 0, 0, time.UTC)
	case fleet.BucketWeek:
		sinceMonday := (int(t.Weekday()) + 6) % 7
		return time.Date(year, month, day-sinceMonday, 0, 0, 0, 0, time.UTC)
	case fleet.BucketMonth:
		return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	case fleet.BucketYear:
		return time.Date(year, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// Up returns the time itself when a bucket begins then, and else the beginning of the next one.
func Up(size fleet.BucketSize, t time.Time) time.Time {
	start := Down(size, t)
	if start.Equal(t) {
		return start
	}
	return Add(size, start, 1)
}

// Add returns the beginning of the bucket that is n after the one that begins at start, or before it.
func Add(size fleet.BucketSize, start time.Time, n int) time.Time {
	switch size {
	case fleet.BucketHour:
		return start.Add(time.Duration(n) * time.Hour)
	case fleet.BucketWeek:
		return start.AddDate(0, 0, 7*n)
	case fleet.BucketMonth:
		return start.AddDate(0, n, 0)
	case fleet.BucketYear:
		return start.AddDate(n, 0, 0)
	}
	return start.AddDate(0, 0, n)
}
