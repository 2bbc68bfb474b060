package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/meter"
	"gantry/scheduler/state"
)

func sizes() []fleet.BucketSize {
	return []fleet.BucketSize{fleet.BucketHour, fleet.BucketDay, fleet.BucketWeek, fleet.BucketMonth, fleet.BucketYear}
}

// TestBucketSums sums the same hours in buckets of every size: nothing is lost or counted twice.
func TestBucketSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var usage []state.UsageHour
		var want fleet.Amounts
		for range rapid.IntRange(0, 40).Draw(t, "hours") {
			h := state.UsageHour{
				Hour: begin().Truncate(time.Hour).Add(time.Duration(rapid.IntRange(-20_000, 20_000).Draw(t, "hour")) * time.Hour),
				ID:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id"),
				Amounts: fleet.Amounts{
					GPU: fleet.Money(rapid.IntRange(0, 1000).Draw(t, "gpu")), Disk: fleet.Money(rapid.IntRange(0, 1000).Draw(t, "disk")),
					Fast: fleet.Money(rapid.IntRange(0, 1000).Draw(t, "fast")),
				},
			}
			want = want.Plus(h.Amounts)
			usage = append(usage, h)
		}
		slices.SortFunc(usage, func(a, b state.UsageHour) int { return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.ID, b.ID)) })
		for _, size := range sizes() {
			for _, apart := range []bool{false, true} {
				records := recordsOf(usage, meter.Span{Size: size}, apart)
				var sum fleet.Amounts
				for i, r := range records {
					sum = sum.Plus(r.Amounts)
					if !meter.Down(size, r.Start).Equal(r.Start) || !meter.Add(size, r.Start, 1).Equal(r.End) || r.Amounts == (fleet.Amounts{}) ||
						(r.ID != "") != apart {
						t.Fatalf("%s: %+v", size, r)
					}
					if i > 0 && (r.Start.Before(records[i-1].Start) || r.Start.Equal(records[i-1].Start) && r.ID <= records[i-1].ID) {
						t.Fatalf("%s: out of order: %+v, %+v", size, records[i-1], r)
					}
				}
				if sum != want {
					t.Fatalf("%s: %+v in all, want %+v", size, sum, want)
				}
			}
		}
	})
}

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
		{"weeks", fleet.BillingQuery{Bucket: "week", Start: now, End: now}, "2026-03-02T00", "2026-03-09T00"},
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
		{fleet.BillingQuery{LastN: 1, Start: now}, fleet.CodeConflictRule, "lastN"},
		{fleet.BillingQuery{LastN: 1, End: now}, fleet.CodeConflictRule, "lastN"},
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

// BenchmarkRecordsOf sums the hours of 30 days of 100 pods by day.
func BenchmarkRecordsOf(b *testing.B) {
	var usage []state.UsageHour
	for h := range 30 * 24 {
		for p := range 100 {
			usage = append(usage, state.UsageHour{
				Hour: begin().Add(time.Duration(h) * time.Hour), Kind: fleet.ChargePod, ID: fmt.Sprintf("pod%011d", p),
				Amounts: fleet.Amounts{GPU: fleet.Dollar, Disk: 2_739_726},
			})
		}
	}
	for _, apart := range []bool{false, true} {
		b.Run(fmt.Sprintf("apart=%v", apart), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := recordsOf(usage, meter.Span{Size: fleet.BucketDay}, apart); len(got) == 0 {
					b.Fatal("no records")
				}
			}
		})
	}
}
