package scheduler

import (
	"context"
	"errors"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// Billing returns what the caller's account was charged, in buckets; what runs is charged up to now.
// Errors: rule (times that do not go together), invalid (bucket size, more than 10,000 buckets).
func (s *Service) Billing(ctx context.Context, who fleet.Principal, q fleet.BillingQuery) (fleet.BillingView, error) {
	now := s.Now()
	span, err := billingSpan(q, now)
	if err != nil {
		return fleet.BillingView{}, err
	}
	if err := s.Node.Barrier(ctx); err != nil {
		return fleet.BillingView{}, err
	}
	bucket := func(hour time.Time) time.Time { start, _ := span.Bucket(hour); return start }
	sums, err := s.Store.UsageBy(who.Account, q.Kind, q.ID, span.Start, span.End, now, bucket, q.Kind != "")
	if err != nil {
		return fleet.BillingView{}, err
	}
	out := fleet.BillingView{Start: span.Start, End: span.End, Bucket: span.Size, Records: make([]fleet.BillingRecord, len(sums))}
	for i, sum := range sums {
		start, end := span.Bucket(sum.Hour)
		out.Records[i] = fleet.BillingRecord{Start: start, End: end, Kind: sum.Kind, ID: sum.ID, Amounts: sum.Amounts}
	}
	return out, nil
}

// billingSpan returns the buckets that a query asks for, or what its owner is told.
func billingSpan(q fleet.BillingQuery, now time.Time) (meter.Span, error) {
	span, err := meter.Window(q, now)
	switch {
	case errors.Is(err, meter.ErrSize):
		return span, fleet.Invalid("query.bucketSize", "value must be one of 'hour', 'day', 'week', 'month', 'year'")
	case errors.Is(err, meter.ErrExclusive) && q.Start.IsZero():
		return span, fleet.BreaksRule("lastN and endTime exclude each other")
	case errors.Is(err, meter.ErrExclusive):
		return span, fleet.BreaksRule("lastN and startTime exclude each other")
	case errors.Is(err, meter.ErrLast):
		return span, fleet.Invalid("query.lastN", "must be 1 to 10000")
	case errors.Is(err, meter.ErrOrder):
		return span, fleet.BreaksRule("startTime must be before endTime")
	case errors.Is(err, meter.ErrTooMany):
		return span, fleet.Invalid("query.bucketSize", "gives more than 10000 buckets for these times")
	}
	return span, err
}
