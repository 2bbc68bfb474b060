package state

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/meter"
)

func TestUsageKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) usageKey {
			return usageKey{
				account: fleet.AccountID(rapid.OneOf(rapid.SampledFrom([]string{"a", "aa", "a0", "a0000"}), rapid.StringN(1, 60, 256)).Draw(t, "account")),
				hour:    rapid.Int64Range(0, meter.Hour(meter.Seconds(time.Date(12_000, 1, 1, 0, 0, 0, 0, time.UTC)))).Draw(t, "hour"),
				id:      MeterID{rapid.SampledFrom([]fleet.ChargeKind{fleet.ChargePod, fleet.ChargeVolume}).Draw(t, "kind"), rapid.String().Draw(t, "id")},
			}
		})
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if got, err := parseUsage(a.text()); err != nil || got != a {
			t.Fatalf("%+v is read as %+v: %v", a, got, err)
		}
		if a.account == b.account && a.hour < b.hour && a.text() >= b.text() {
			t.Fatal("keys are not in the order of time")
		}
		in := a.text() >= usageFrom(b.account, b.hour) && a.text() < usageOf(b.account)+afterHours
		if in != (a.account == b.account && a.hour >= b.hour) {
			t.Fatalf("%+v is among those of %+v: %t", a, b, in)
		}
	})
	for _, text := range []string{"", "00", "zzz", "001a0000", "001a0000x000pod/p", "00fa00000001pod/p"} {
		if _, err := parseUsage(text); err == nil {
			t.Errorf("%q is a key", text)
		}
	}
}

// fillUsage writes n hours of as many resources.
func (w *world) fillUsage(resources, hours int) {
	w.t.Helper()
	begin := meter.Hour(meter.Seconds(at(0)))
	for h := range hours {
		w.inTxn(at(0), func(t *txn) {
			for r := range resources {
				k := usageKey{"acme", begin + int64(h), MeterID{fleet.ChargePod, fmt.Sprintf("pod%011d", r)}}
				t.addUsage(k, fleet.Amounts{GPU: fleet.Money(h + 1), Disk: fleet.Money(r + 1)})
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// 100,000 records are in the file, in snapshots and in the hash, and not in memory.
func TestUsageIsNotHeldInMemory(t *testing.T) {
	w := newWorld(t).priced()
	before := heap()
	w.fillUsage(1000, 100)
	// Decoded, they would take 15 MB and more.
	if grown := int64(heap()) - int64(before); grown > 3<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	want := w.usage("acme", "", "", at(0))
	if len(want) != 100_000 || sum(want) != (fleet.Amounts{GPU: 1000 * 5050, Disk: 100 * 500_500}) {
		t.Fatalf("%d records, %+v", len(want), sum(want))
	}
	into := newWorld(t)
	before = heap()
	if err := into.s.Restore(bytes.NewReader(w.snapshot())); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.hash(), into.hash()) || !bytes.Equal(w.snapshot(), into.snapshot()) {
		t.Error("equal states have different hashes or snapshots")
	}
	if !slices.Equal(want, into.usage("acme", "", "", at(0))) {
		t.Error("a restored store tells another usage")
	}
	s := openAt(t, into.copyTo(t), "boot-1")
	got, err := s.UsageBy("acme", fleet.ChargePod, "pod00000000007", at(0), at(47*3600), at(0), nil, true) // up to within the 48th hour
	if err != nil || len(got) != 48 || got[47].Amounts != (fleet.Amounts{GPU: 48, Disk: 8}) {
		t.Errorf("a file that was opened again tells %d hours: %v", len(got), err)
	}
	want, got = nil, nil
	if grown := int64(heap()) - int64(before); grown > 3<<20 {
		t.Errorf("loading takes %d bytes", grown)
	}
	runtime.KeepAlive(s)
	one := w.hash()
	w.must(PurgeUsage{Before: at(3600), Limit: 1})
	if bytes.Equal(one, w.hash()) {
		t.Error("the hash does not know usage")
	}
}

func TestPurgeUsage(t *testing.T) {
	w := newWorld(t).priced()
	w.fillUsage(3, 5)
	w.inTxn(at(0), func(t *txn) {
		t.addUsage(usageKey{"zeta", meter.Hour(meter.Seconds(at(0))), MeterID{fleet.ChargeVolume, "v"}}, fleet.Amounts{Fast: 1})
	})
	edge := at(2 * 3600).Truncate(time.Hour)
	for _, c := range []struct {
		before      time.Time
		limit, want int
	}{
		{edge, 0, 0}, {edge, -1, 0}, {at(0), 100, 0}, {edge.Add(-1), 2, 2}, {edge.Add(-1), 100, 2}, {edge, 1, 1}, {edge, 100, 2}, {edge, 100, 0},
	} {
		if got := w.must(PurgeUsage{Before: c.before, Limit: c.limit}); got != c.want {
			t.Errorf("%+v: %v were purged", c, got)
		}
	}
	if left := w.usage("acme", "", "", at(0)); len(left) != 9 || !left[0].Hour.Equal(edge) {
		t.Errorf("%d are left, from %s", len(left), left[0].Hour)
	}
	// Two in one batch, of what is in the file.
	res, err := w.s.Apply([]entry.Entry{w.entry(PurgeUsage{Before: edge.Add(time.Hour), Limit: 2}, PurgeUsage{Before: edge.Add(time.Hour), Limit: 2})})
	if err != nil || res[0][0].Value != 2 || res[0][1].Value != 1 {
		t.Errorf("in one batch: %v, %v", res, err)
	}
	if left := w.usage("zeta", "", "", at(0)); len(left) != 0 {
		t.Errorf("left of the other account: %v", left)
	}
}

// One batch may charge, take back and purge the same hours.
func TestPurgeSeesItsBatch(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	week := at(7 * 86400)
	res, err := w.s.Apply([]entry.Entry{
		w.entry(SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod-1"}}, At: week}, PurgeUsage{Before: at(86400), Limit: 5}),
		w.entry(PurgeUsage{Before: at(86400), Limit: 100}, PurgeUsage{Before: at(86400), Limit: 100}),
	})
	if err != nil || res[0][1].Value != 5 || res[1][0].Value != 19 || res[1][1].Value != 0 {
		t.Fatalf("got %v, %v", res, err)
	}
	// All but the last two hours are purged, and the pod ended ten hours ago: what was purged stays charged.
	w.must(PurgeUsage{Before: week.Add(-2 * time.Hour), Limit: 1000})
	before, left := w.balance("acme", week), sum(w.usage("acme", "", "", week)).Total()
	w.must(ReportPods{Host: "host-a", Epoch: 1, At: week, Reports: []PodReport{{Pod: "pod-1", Incarnation: 1, Event: fleet.EventExited, At: week.Add(-10 * time.Hour)}}})
	if got := w.balance("acme", week); got != before+left || left < 2*fleet.Dollar || len(w.usage("acme", "", "", week)) != 0 {
		t.Errorf("balance is %d, was %d; %d should come back; left are %v", got, before, left, w.usage("acme", "", "", week))
	}
}

// rate is what a pod costs per hour whose compute costs a dollar.
func (w *world) rate(spec fleet.PodSpec) (out fleet.Money) {
	w.t.Helper()
	w.view(func(v *View) { out = v.PodRate(spec, fleet.Dollar) })
	return out
}

// While the log goes on and the file is swapped, a view never counts twice and never misses.
func TestUsageBesideApplyAndRestore(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	w.create("pod-2", "host-b")
	const credit = 100 * fleet.Dollar
	w.must(AddCredit{Account: "acme", Amount: credit, At: at(0)})
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	for i := range 2 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				now := at((n * 977 % 900) * 3600 * (i + 1))
				err := w.s.View(func(v *View) error {
					hours, err := v.Usage("acme", "", "", dawn, dusk, now)
					if got := v.Balance("acme", now) + sum(hours).Total(); err == nil && got != credit {
						return fmt.Errorf("at %s: balance and usage make %d", now, got)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := w.s.UsageBy("acme", "", "", dawn, now, now, nil, true); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	snap := w.snapshot()
	for n := range 300 {
		w.settleAll(at(n * 3600))
		if n%10 == 0 {
			w.resize("pod-1", 5+n, 0, at(n*3600-5000))
		}
		if n%100 == 99 {
			if err := w.s.Restore(bytes.NewReader(snap)); err != nil {
				t.Fatal(err)
			}
			w.index = w.s.Index()
		}
	}
	close(stop)
	wg.Wait()
}

func TestSettlingIsBounded(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	w.create("pod-2", "host-a", 1)
	far := at(10 * maxSettle / 9 * 3600) // of a clock that jumped
	cmd := SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod-1"}, {fleet.ChargePod, "pod-2"}}, At: far}
	for n := range 3 {
		w.view(func(v *View) {
			if open := v.OpenMeters(far, math.MaxInt); len(open) != 2-n*2/3 {
				t.Errorf("%d: open are %v", n, open)
			}
		})
		want := w.balance("acme", far)
		w.must(cmd)
		if got := w.balance("acme", far); got != want {
			t.Errorf("%d: settling changed the balance from %d to %d", n, want, got)
		}
	}
	w.view(func(v *View) {
		if open := v.OpenMeters(far, math.MaxInt); len(open) != 0 {
			t.Errorf("open are %v", open)
		}
		if open := v.OpenMeters(far.Add(time.Second), math.MaxInt); len(open) != 2 || open[0] != (MeterID{fleet.ChargePod, "pod-1"}) {
			t.Errorf("open are %v", open)
		}
	})
}

func TestUsageEnds(t *testing.T) {
	w := newWorld(t).priced()
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.s.UsageBy("acme", "", "", dawn, dusk, dusk, nil, true); err == nil {
		t.Error("a closed store tells usage")
	}
}
