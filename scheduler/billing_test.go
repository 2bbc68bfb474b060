package scheduler

import (
	"context"
	"math"
	"testing"
	"time"

	"gantry/fleet"
)

func TestBillingSpan(t *testing.T) {
	day := func(text string) time.Time {
		at, err := time.Parse("2006-01-02T15", text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	now := day("2026-03-04T12").Add(time.Minute) // a Wednesday
	for _, c := range []struct {
		name       string
		q          fleet.BillingQuery
		start, end string
	}{
		{"nothing said", fleet.BillingQuery{}, "2026-02-02T00", "2026-03-05T00"},
		{"hours", fleet.BillingQuery{Bucket: "hour", Start: now.Add(-time.Hour)}, "2026-03-04T11", "2026-03-04T13"},
		{"weeks", fleet.BillingQuery{Bucket: "week", Start: now, End: now.Add(1)}, "2026-03-02T00", "2026-03-09T00"},
		{"another zone", fleet.BillingQuery{Start: day("2026-03-01T23").In(time.FixedZone("", 7200)), End: day("2026-03-02T00")}, "2026-03-01T00", "2026-03-02T00"},
		{"last months", fleet.BillingQuery{LastN: 4, Bucket: "month"}, "2025-12-01T00", "2026-04-01T00"},
	} {
		got, err := billingSpan(c.q, now)
		if err != nil || !got.Start.Equal(day(c.start)) || !got.End.Equal(day(c.end)) {
			t.Errorf("%s: %v to %v, %v", c.name, got.Start, got.End, err)
		}
	}
	for _, c := range []struct {
		q    fleet.BillingQuery
		code fleet.Code
		text string
	}{
		{fleet.BillingQuery{Start: now, End: now.Add(-time.Second)}, fleet.CodeConflictRule, "startTime"},
		{fleet.BillingQuery{Start: now, End: now}, fleet.CodeConflictRule, "startTime must be before endTime"},
		{fleet.BillingQuery{LastN: 1, Start: now}, fleet.CodeConflictRule, "lastN and startTime"},
		{fleet.BillingQuery{LastN: 1, End: now}, fleet.CodeConflictRule, "lastN and endTime"},
		{fleet.BillingQuery{LastN: -1}, fleet.CodeInvalid, "query.lastN"},
		{fleet.BillingQuery{LastN: math.MaxInt}, fleet.CodeInvalid, "query.lastN"},
		{fleet.BillingQuery{Bucket: "minute"}, fleet.CodeInvalid, "query.bucketSize"},
		{fleet.BillingQuery{Bucket: "hour", Start: now.AddDate(-2, 0, 0)}, fleet.CodeInvalid, "10000"},
		{fleet.BillingQuery{Start: now, End: now.AddDate(1000, 0, 0)}, fleet.CodeInvalid, "10000"},
	} {
		_, err := billingSpan(c.q, now)
		refused(t, err, c.code, c.text)
	}
}

func TestBillingOfNothing(t *testing.T) {
	w := newWorld(t)
	got, err := w.svc.Billing(context.Background(), member(acme), fleet.BillingQuery{Kind: fleet.ChargeVolume})
	if err != nil || len(got.Records) != 0 || got.Records == nil || got.Bucket != fleet.BucketDay {
		t.Errorf("%+v %v", got, err)
	}
}

// TestBillingWaitsForTheBarrier holds that an answer is never older than what was acknowledged.
func TestBillingWaitsForTheBarrier(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // the barrier of this world fails then
	if _, err := w.svc.Billing(ctx, member(acme), fleet.BillingQuery{}); err == nil {
		t.Error("answered without the barrier")
	}
}

func sizes() []fleet.BucketSize {
	return []fleet.BucketSize{fleet.BucketHour, fleet.BucketDay, fleet.BucketWeek, fleet.BucketMonth, fleet.BucketYear}
}
