package state

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

func TestUsageBy(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	w.create("pod-2", "host-b")
	volume := newVolume("v", "b-fast")
	volume.SizeGB, volume.CreatedAt = 100, at(20)
	w.must(PutBackend{Backend: localBackend("b-fast"), New: true}, CreateVolume{Volume: volume})
	w.settleAll(at(50 * 3600))
	now := at(75*3600 + 30)
	day := func(h time.Time) time.Time { return meter.Down(fleet.BucketDay, h) }
	for _, c := range []struct {
		kind fleet.ChargeKind
		id   string
	}{{}, {fleet.ChargePod, ""}, {fleet.ChargePod, "pod-2"}, {"", "v"}, {fleet.ChargeVolume, "pod-1"}} {
		for _, apart := range []bool{false, true} {
			hours, err := w.s.UsageBy("acme", c.kind, c.id, at(5*3600), at(70*3600), now, nil, true)
			if err != nil {
				t.Fatal(err)
			}
			want := []UsageHour{}
			for _, h := range hours {
				h.Hour = day(h.Hour)
				if !apart {
					h.ID = ""
				}
				i := slices.IndexFunc(want, func(o UsageHour) bool { return o.Hour.Equal(h.Hour) && o.Kind == h.Kind && o.ID == h.ID })
				if i < 0 {
					want = append(want, h)
				} else {
					want[i].Amounts = want[i].Amounts.Plus(h.Amounts)
				}
			}
			got, err := w.s.UsageBy("acme", c.kind, c.id, at(5*3600), at(70*3600), now, day, apart)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%+v, %t: got\n%v, %v\nwant\n%v", c, apart, got, err, want)
			}
			if c.id == "" && len(got) < 3 {
				t.Errorf("%+v: %d buckets", c, len(got))
			}
		}
	}
}

// What a sum takes is bounded by the answer, not by how many records it adds up.
func TestUsageByTakesLittleMemory(t *testing.T) {
	w := newWorld(t).priced()
	w.fillUsage(500, 200) // 100,000 records
	peak := uint64(0)
	n := 0
	before := heap()
	got, err := w.s.UsageBy("acme", "", "", at(0), dusk, at(0), func(h time.Time) time.Time {
		if n++; n%50 == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
		return meter.Down(fleet.BucketYear, h)
	}, false)
	if err != nil || len(got) != 1 || got[0].Amounts != (fleet.Amounts{GPU: 500 * 20_100, Disk: 200 * 125_250}) {
		t.Fatalf("got %v, %v", got, err)
	}
	if n == 0 || peak > before+1<<20 {
		t.Errorf("%d hours; the heap grew from %d to %d", n, before, peak)
	}
}

func BenchmarkUsageBy(b *testing.B) {
	w := newWorld(b).priced()
	begin := meter.Hour(meter.Seconds(at(0)))
	for h := range int64(30 * 24) {
		w.inTxn(at(0), func(t *txn) {
			for r := range 100 {
				t.addUsage(usageKey{"acme", begin + h, MeterID{fleet.ChargePod, fmt.Sprintf("pod%011d", r)}}, fleet.Amounts{GPU: fleet.Dollar})
			}
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		got, err := w.s.UsageBy("acme", "", "", at(0), at(30*86400), at(0), func(h time.Time) time.Time { return meter.Down(fleet.BucketDay, h) }, false)
		if err != nil || len(got) < 30 {
			b.Fatal(len(got), err)
		}
	}
}
