package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// defaultSpan is what a billing query looks back that does not say from when.
const defaultSpan = 30 * 24 * time.Hour

// Billing returns what the caller's account was charged, in buckets; what runs is charged up to now.
// Errors: rule (times that do not go together), invalid (bucket size, more than 10,000 buckets).
func (s *Service) Billing(ctx context.Context, who fleet.Principal, q fleet.BillingQuery) (fleet.BillingView, error) {
	now := s.Now()
	out, err := billingSpan(q, now)
	if err != nil {
		return fleet.BillingView{}, err
	}
	var usage []state.UsageHour
	err = s.read(ctx, func(v *state.View) error {
		var err error
		usage, err = v.Usage(who.Account, q.Kind, q.ID, out.Start, out.End, now)
		return err
	})
	if err != nil {
		return fleet.BillingView{}, err
	}
	out.Records = recordsOf(usage, out.Bucket, q.Kind != "")
	return out, nil
}

// billingSpan snaps a query's times outward to buckets.
func billingSpan(q fleet.BillingQuery, now time.Time) (fleet.BillingView, error) {
	out := fleet.BillingView{Bucket: cmp.Or(q.Bucket, fleet.BucketDay)}
	if !validBucket(out.Bucket) {
		return out, fleet.Invalid("query.bucketSize", "value must be one of 'hour', 'day', 'week', 'month', 'year'")
	}
	if q.LastN < 0 || q.LastN > maxBuckets {
		return out, fleet.Invalid("query.lastN", "must be 1 to 10000")
	}
	if q.LastN > 0 {
		if !q.Start.IsZero() || !q.End.IsZero() {
			return out, fleet.BreaksRule("lastN excludes startTime and endTime")
		}
		present := bucketStart(out.Bucket, now)
		out.Start, out.End = addBuckets(out.Bucket, present, 1-q.LastN), addBuckets(out.Bucket, present, 1)
		return out, nil
	}
	start, end := q.Start, q.End
	if end.IsZero() {
		end = now
	}
	if start.IsZero() {
		start = end.Add(-defaultSpan)
	}
	switch {
	case start.After(now):
		return out, fleet.BreaksRule("startTime must not be in the future")
	case end.Before(start):
		return out, fleet.BreaksRule("endTime must not be before startTime")
	}
	out.Start, out.End = bucketStart(out.Bucket, start), bucketEnd(out.Bucket, end)
	if !fewBuckets(out.Bucket, out.Start, out.End) {
		return out, fleet.Invalid("query.bucketSize", "gives more than 10000 buckets for these times")
	}
	return out, nil
}

// recordsOf sums hours by bucket and, where each is told apart, by resource. What is free has no record.
func recordsOf(usage []state.UsageHour, size fleet.BucketSize, apart bool) []fleet.BillingRecord {
	type key struct {
		start time.Time
		id    string
	}
	sums := map[key]fleet.Amounts{}
	for _, u := range usage {
		k := key{start: bucketStart(size, u.Hour)}
		if apart {
			k.id = u.ID
		}
		sums[k] = sums[k].Plus(u.Amounts)
	}
	out := []fleet.BillingRecord{}
	for k, sum := range sums {
		if sum != (fleet.Amounts{}) {
			out = append(out, fleet.BillingRecord{Start: k.start, End: addBuckets(size, k.start, 1), ID: k.id, Amounts: sum})
		}
	}
	slices.SortFunc(out, func(a, b fleet.BillingRecord) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID))
	})
	return out
}
