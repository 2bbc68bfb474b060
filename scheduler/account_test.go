package scheduler

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
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
		for _, size := range sizes() {
			for _, apart := range []bool{false, true} {
				records := recordsOf(usage, size, apart)
				var sum fleet.Amounts
				for i, r := range records {
					sum = sum.Plus(r.Amounts)
					if !bucketStart(size, r.Start).Equal(r.Start) || !addBuckets(size, r.Start, 1).Equal(r.End) || r.Amounts == (fleet.Amounts{}) || (r.ID != "") != apart {
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

// TestBuckets holds that buckets of a size cover time without gap or overlap.
func TestBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom(sizes()).Draw(t, "size")
		at := time.Unix(rapid.Int64Range(-2_000_000_000, 8_000_000_000).Draw(t, "second"), rapid.Int64Range(0, 999_999_999).Draw(t, "nano"))
		start, end := bucketStart(size, at), bucketEnd(size, at)
		next := addBuckets(size, start, 1)
		switch {
		case start.After(at) || !next.After(at):
			t.Fatalf("%v is not in its %s from %v", at, size, start)
		case end.Before(at) || (!end.Equal(next) && !end.Equal(start)):
			t.Fatalf("the %s of %v ends at %v", size, at, end)
		case !bucketStart(size, next).Equal(next) || !bucketStart(size, next.Add(-1)).Equal(start):
			t.Fatalf("the %s after %v begins at %v", size, start, next)
		case !addBuckets(size, next, -1).Equal(start):
			t.Fatalf("the %s before %v is not %v", size, next, start)
		case size == fleet.BucketWeek && start.Weekday() != time.Monday:
			t.Fatalf("a week begins on a %s", start.Weekday())
		}
		n := rapid.IntRange(maxBuckets-2, maxBuckets+2).Draw(t, "n")
		if got := fewBuckets(size, start, addBuckets(size, start, n)); got != (n <= maxBuckets) {
			t.Fatalf("%d buckets of a %s are few: %v", n, size, got)
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
		{"months", fleet.BillingQuery{Bucket: "month", Start: day("2026-01-31T23")}, "2026-01-01T00", "2026-04-01T00"},
		{"years", fleet.BillingQuery{Bucket: "year", End: day("2026-01-01T00")}, "2025-01-01T00", "2026-01-01T00"},
		{"another zone", fleet.BillingQuery{Start: day("2026-03-01T23").In(time.FixedZone("", 7200)), End: day("2026-03-02T00")}, "2026-03-01T00", "2026-03-02T00"},
		{"last day", fleet.BillingQuery{LastN: 1}, "2026-03-04T00", "2026-03-05T00"},
		{"last weeks", fleet.BillingQuery{LastN: 2, Bucket: "week"}, "2026-02-23T00", "2026-03-09T00"},
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
		{fleet.BillingQuery{Start: now.Add(time.Second)}, fleet.CodeConflictRule, "future"},
		{fleet.BillingQuery{Start: now, End: now.Add(-time.Second)}, fleet.CodeConflictRule, "endTime"},
		{fleet.BillingQuery{LastN: 1, Start: now}, fleet.CodeConflictRule, "lastN"},
		{fleet.BillingQuery{LastN: 1, End: now}, fleet.CodeConflictRule, "lastN"},
		{fleet.BillingQuery{LastN: -1}, fleet.CodeInvalid, "query.lastN"},
		{fleet.BillingQuery{LastN: math.MaxInt}, fleet.CodeInvalid, "query.lastN"},
		{fleet.BillingQuery{Bucket: "minute"}, fleet.CodeInvalid, "query.bucketSize"},
		{fleet.BillingQuery{Bucket: "hour", Start: now.AddDate(-2, 0, 0)}, fleet.CodeInvalid, "10000"},
		{fleet.BillingQuery{End: now.AddDate(1000, 0, 0)}, fleet.CodeConflictRule, "future"},
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

func TestAccounts(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	made, err := w.svc.CreateAccount(ctx, "new")
	if err != nil || !made.CreatedAt.Equal(w.clock()) {
		t.Fatal(made, err)
	}
	if list, err := w.svc.Accounts(ctx); err != nil || len(list) != 3 {
		t.Errorf("%d accounts, %v", len(list), err)
	}
	quotas := &fleet.Quotas{Minute: 10, Hour: 0, Day: 100}
	view, err := w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Name: ptr("renamed"), Prepaid: ptr(true), Quotas: quotas})
	if err != nil || view.Account.Name != "renamed" || !view.Account.Prepaid || *view.Account.Quotas != *quotas {
		t.Errorf("%+v %v", view, err)
	}
	view, err = w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Quotas: &fleet.Quotas{}})
	if err != nil || view.Account.Quotas != nil || view.Account.Name != "renamed" {
		t.Errorf("%+v %v", view, err)
	}
	for path, q := range map[string]fleet.Quotas{
		"$.quotas.minute": {Minute: -1},
		"$.quotas.hour":   {Minute: 10, Hour: 9},
		"$.quotas.day":    {Minute: 10, Day: 9},
	} {
		_, err := w.svc.UpdateAccount(ctx, made.ID, fleet.AccountUpdate{Quotas: &q})
		refused(t, err, fleet.CodeInvalid, path)
	}
	_, err = w.svc.UpdateAccount(ctx, "none", fleet.AccountUpdate{})
	refused(t, err, fleet.CodeNotFound, "account")
	_, err = w.svc.AccountByID(ctx, "none")
	refused(t, err, fleet.CodeNotFound, "account")
	if own, err := w.svc.Account(ctx, member(acme)); err != nil || own.Account.ID != acme {
		t.Errorf("%+v %v", own, err)
	}
	for _, amount := range []fleet.Money{0, maxCredit + 1, -maxCredit - 1, math.MinInt64} {
		_, err := w.svc.AddCredit(ctx, made.ID, amount, nil)
		refused(t, err, fleet.CodeInvalid, "$.amount")
	}
}

func TestSSHKeys(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || keys == nil || len(keys) != 0 {
		t.Errorf("%v %v", keys, err)
	}
	if err := w.svc.SetSSHKeys(ctx, member(acme), []string{"b", "a ", "b", ""}); err != nil {
		t.Fatal(err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || !slices.Equal(keys, []string{"b", "a"}) {
		t.Errorf("%v %v", keys, err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(other)); err != nil || len(keys) != 0 {
		t.Errorf("another account has %v, %v", keys, err)
	}
	if err := w.svc.SetSSHKeys(ctx, member(acme), nil); err != nil {
		t.Fatal(err)
	}
	if keys, err := w.svc.SSHKeys(ctx, member(acme)); err != nil || len(keys) != 0 {
		t.Errorf("%v %v", keys, err)
	}
}
