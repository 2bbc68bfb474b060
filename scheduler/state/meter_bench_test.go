package state

import (
	"fmt"
	"math"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/meter"
)

// metered makes n pods of acme.
func metered(b *testing.B, n int) *world {
	w := benchWorld(b)
	w.price(storage())
	var cmds []Command
	for i := range n {
		p := podOn(fleet.PodID(fmt.Sprintf("pod%011d", i)), fleet.HostID(fmt.Sprintf("host-%06d", i%998)))
		p.Need = fleet.Resources{}
		cmds = append(cmds, CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}})
	}
	if _, err := w.s.Apply([]entry.Entry{w.entry(cmds...)}); err != nil {
		b.Fatal(err)
	}
	return w
}

// BenchmarkSettle settles 512 meters for an hour, as one entry.
func BenchmarkSettle(b *testing.B) {
	w := metered(b, 512)
	cmd := SettleMeters{}
	w.view(func(v *View) { cmd.Meters = v.OpenMeters(at(1000), math.MaxInt) })
	if len(cmd.Meters) != 512 {
		b.Fatal(len(cmd.Meters))
	}
	b.ReportAllocs()
	for n := 1; b.Loop(); n++ {
		cmd.At = at(n * 3600).Truncate(time.Hour)
		w.must(cmd)
	}
}

// BenchmarkBalance is the balance of an account with 1,000 pods.
func BenchmarkBalance(b *testing.B) {
	w := metered(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		w.view(func(v *View) {
			if v.Balance("acme", at(5000)) >= 0 {
				b.Fail()
			}
		})
	}
}

// BenchmarkLook is what the accountant asks at each look, with 100,000 prepaid accounts, none of which needs anything. Commands
// wait meanwhile.
func BenchmarkLook(b *testing.B) {
	w := metered(b, 1000)
	var cmds []Command
	for i := range 100_000 {
		id := fleet.AccountID(fmt.Sprintf("acc%011d", i))
		cmds = append(cmds, PutAccount{fleet.Account{ID: id, CreatedAt: at(0), Prepaid: true}}, AddCredit{Account: id, Amount: fleet.Dollar, At: at(0)})
	}
	if _, err := w.s.Apply([]entry.Entry{w.entry(cmds...)}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.view(func(v *View) {
			if n := len(v.Exhausted(at(5000), math.MaxInt)) + len(v.Crossed(at(5000), math.MaxInt)); n != 0 {
				b.Fatal(n)
			}
		})
	}
}

// BenchmarkUsage reads the hours of 30 days of 100 pods, of one account among others.
func BenchmarkUsage(b *testing.B) {
	w := newWorld(b).priced()
	begin := meter.Hour(meter.Seconds(at(0)))
	for h := range int64(30 * 24) {
		w.inTxn(at(0), func(t *txn) {
			for _, account := range []fleet.AccountID{"acme", "other"} {
				for r := range 100 {
					k := usageKey{account, begin + h, MeterID{fleet.ChargePod, fmt.Sprintf("pod%011d", r)}}
					t.addUsage(k, fleet.Amounts{GPU: fleet.Dollar + fleet.Money(h), Disk: 2_739_726})
				}
			}
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		got, err := w.s.UsageBy("acme", fleet.ChargePod, "", at(0), at(30*86400), at(0), nil, true)
		if err != nil || len(got) != 72_000 {
			b.Fatal(len(got), err)
		}
	}
}
