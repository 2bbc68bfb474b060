package scheduler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
	"gantry/scheduler/state"
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
	usage, err := s.Store.Usage(who.Account, q.Kind, q.ID, span.Start, span.End, now)
	if err != nil {
		return fleet.BillingView{}, err
	}
	return fleet.BillingView{
		Start: span.Start, End: span.End, Bucket: span.Size, Records: recordsOf(usage, span, q.Kind != ""),
	}, nil
}

// billingSpan returns the buckets that a query asks for, or what its owner is told.
func billingSpan(q fleet.BillingQuery, now time.Time) (meter.Span, error) {
	span, err := meter.Window(q, now)
	switch {
	case errors.Is(err, meter.ErrSize):
		return span, fleet.Invalid("query.bucketSize", "value must be one of 'hour', 'day', 'week', 'month', 'year'")
	case errors.Is(err, meter.ErrExclusive):
		return span, fleet.BreaksRule("lastN excludes startTime and endTime")
	case errors.Is(err, meter.ErrLast):
		return span, fleet.Invalid("query.lastN", "must be 1 to 10000")
	case errors.Is(err, meter.ErrOrder):
		return span, fleet.BreaksRule("startTime must be before endTime")
	case errors.Is(err, meter.ErrTooMany):
		return span, fleet.Invalid("query.bucketSize", "gives more than 10000 buckets for these times")
	}
	return span, err
}

// recordsOf sums hours, which come in the order of time, by bucket and, where each is told apart, by
// resource. What is free has no record.
func recordsOf(usage []state.UsageHour, span meter.Span, apart bool) []fleet.BillingRecord {
	out := []fleet.BillingRecord{}
	sums := map[string]fleet.Amounts{} // of one bucket, by resource, or all under the empty id
	for len(usage) > 0 {
		start, end := span.Bucket(usage[0].Hour)
		n := 0
		for n < len(usage) && usage[n].Hour.Before(end) {
			id := ""
			if apart {
				id = usage[n].ID
			}
			sums[id] = sums[id].Plus(usage[n].Amounts)
			n++
		}
		usage = usage[n:]
		first := len(out)
		for id, sum := range sums {
			if sum != (fleet.Amounts{}) {
				out = append(out, fleet.BillingRecord{Start: start, End: end, ID: id, Amounts: sum})
			}
		}
		clear(sums)
		slices.SortFunc(out[first:], func(a, b fleet.BillingRecord) int { return cmp.Compare(a.ID, b.ID) })
	}
	return out
}
