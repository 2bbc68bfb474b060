package scheduler

import (
	"time"

	"gantry/fleet"
)

// maxBuckets bounds the answer to one billing query.
const maxBuckets = 10_000

func validBucket(size fleet.BucketSize) bool {
	switch size {
	case fleet.BucketHour, fleet.BucketDay, fleet.BucketWeek, fleet.BucketMonth, fleet.BucketYear:
		return true
	}
	return false
}

// bucketStart returns the beginning of the bucket that holds t: a whole hour, day, Monday, month or year
// of UTC.
func bucketStart(size fleet.BucketSize, t time.Time) time.Time {
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

// addBuckets returns the beginning of the n-th bucket after the one that begins at start; n may be
// negative.
func addBuckets(size fleet.BucketSize, start time.Time, n int) time.Time {
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

// bucketEnd returns t where a bucket begins at t, else the end of the bucket that holds t.
func bucketEnd(size fleet.BucketSize, t time.Time) time.Time {
	start := bucketStart(size, t)
	if start.Equal(t) {
		return start
	}
	return addBuckets(size, start, 1)
}

// fewBuckets reports whether there are at most maxBuckets between two beginnings of buckets.
func fewBuckets(size fleet.BucketSize, start, end time.Time) bool {
	return !addBuckets(size, start, maxBuckets).Before(end)
}
