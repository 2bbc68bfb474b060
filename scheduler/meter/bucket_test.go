package meter

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

var sizes = []fleet.BucketSize{fleet.BucketHour, fleet.BucketDay, fleet.BucketWeek, fleet.BucketMonth, fleet.BucketYear}

func when(t *testing.T, text string) time.Time {
	t.Helper()
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWindow(t *testing.T) {
	const now = "2026-03-05T12:34:56Z" // a Thursday
	for _, c := range []struct {
		name           string
		size           fleet.BucketSize
		start, end     string
		last           int
		fault          error
		wantFrom, upTo string
	}{
		{name: "thirty days", wantFrom: "2026-02-03T00:00:00Z", upTo: "2026-03-06T00:00:00Z"},
		{
			name: "hours", size: "hour", start: "2026-03-05T10:59:59Z", end: "2026-03-05T12:00:00Z",
			wantFrom: "2026-03-05T10:00:00Z", upTo: "2026-03-05T12:00:00Z",
		},
		{name: "other zone", start: "2026-03-05T01:00:00+02:00", end: "2026-03-05T01:00:01+01:00", wantFrom: "2026-03-04T00:00:00Z", upTo: "2026-03-06T00:00:00Z"},
		{name: "weeks", size: "week", start: "2026-03-01T00:00:00Z", end: "2026-03-02T00:00:01Z", wantFrom: "2026-02-23T00:00:00Z", upTo: "2026-03-09T00:00:00Z"},
		{name: "a moment", size: "month", start: now, end: "2026-03-05T12:34:57Z", wantFrom: "2026-03-01T00:00:00Z", upTo: "2026-04-01T00:00:00Z"},
		{name: "last day", last: 1, wantFrom: "2026-03-05T00:00:00Z", upTo: "2026-03-06T00:00:00Z"},
		{name: "last months", size: "month", last: 4, wantFrom: "2025-12-01T00:00:00Z", upTo: "2026-04-01T00:00:00Z"},
		{name: "last weeks", size: "week", last: 2, wantFrom: "2026-02-23T00:00:00Z", upTo: "2026-03-09T00:00:00Z"},
		{name: "last years", size: "year", last: 2, wantFrom: "2025-01-01T00:00:00Z", upTo: "2027-01-01T00:00:00Z"},
		{name: "as many as may be", size: "hour", last: MaxBuckets, wantFrom: "2025-01-12T21:00:00Z", upTo: "2026-03-05T13:00:00Z"},
		{name: "unknown size", size: "minute", fault: ErrSize},
		{name: "both", last: 1, end: now, fault: ErrExclusive},
		{name: "negative", last: -1, fault: ErrLast},
		{name: "many", last: MaxBuckets + 1, fault: ErrLast},
		{name: "backwards", start: "2026-03-05T12:00:00Z", end: "2026-03-05T11:00:00Z", fault: ErrOrder},
		{name: "no time at all", size: "month", start: now, end: now, fault: ErrOrder},
		{name: "nothing", start: "2026-03-05T00:00:00Z", end: "2026-03-05T00:00:00Z", fault: ErrOrder},
		{name: "too many", size: "hour", start: "2025-01-12T20:59:59Z", end: "2026-03-05T12:00:01Z", fault: ErrTooMany},
		{name: "far too many", size: "hour", start: "0001-01-02T00:00:00Z", end: "9999-03-05T12:00:01Z", fault: ErrTooMany},
	} {
		q := fleet.BillingQuery{Bucket: c.size, Start: when(t, c.start), End: when(t, c.end), LastN: c.last}
		got, err := Window(q, when(t, now))
		if !errors.Is(err, c.fault) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.fault)
		}
		if c.fault == nil && (!got.Start.Equal(when(t, c.wantFrom)) || !got.End.Equal(when(t, c.upTo))) {
			t.Errorf("%s: got %s to %s, want %s to %s", c.name, got.Start, got.End, c.wantFrom, c.upTo)
		}
	}
}

func TestBucketsAreWithoutGaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, 8e9).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		size := rapid.SampledFrom(sizes).Draw(t, "size")
		start, end := Span{Size: size}.Bucket(at)
		if at.Before(start) || !at.Before(end) || start.Truncate(time.Hour) != start {
			t.Fatalf("%s is in %s to %s", at, start, end)
		}
		if size == fleet.BucketWeek && start.Weekday() != time.Monday {
			t.Fatalf("a week begins on %s", start.Weekday())
		}
		if !Down(size, start).Equal(start) || !Up(size, start).Equal(start) || !Down(size, end).Equal(end) || !Up(size, end.Add(-1)).Equal(end) {
			t.Fatalf("%s to %s is no bucket", start, end)
		}
		n := rapid.IntRange(-50, 50).Draw(t, "n")
		far := Add(size, start, n)
		if !Down(size, far).Equal(far) || !Add(size, far, -n).Equal(start) {
			t.Fatalf("%d on from %s is %s", n, start, far)
		}
	})
}
