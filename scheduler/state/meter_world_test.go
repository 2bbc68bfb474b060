package state

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state/table"
)

// storage are prices of which no hour is a whole number.
func storage() *fleet.StoragePrices {
	return &fleet.StoragePrices{
		ContainerDisk: fleet.Dollar / 10, PersistentRunning: fleet.Dollar/10 + 1, PersistentStopped: fleet.Dollar / 5,
		VolumeFirst: 70_000_000, VolumeBeyond: 50_000_000, FastFirst: 140_000_000, FastBeyond: 100_000_000,
	}
}

// priced settles a world in which storage has prices.
func (w *world) priced() *world {
	w.t.Helper()
	w.settle()
	w.price(storage())
	return w
}

func (w *world) price(prices *fleet.StoragePrices) {
	w.t.Helper()
	cat := catalog()
	cat.Storage = prices
	w.must(PutCatalog{cat})
}

// prepaid makes acme a prepaid account, or none.
func (w *world) prepaid(prepaid bool) {
	w.t.Helper()
	w.must(PutAccount{fleet.Account{ID: "acme", Name: "x", CreatedAt: at(0), Prepaid: prepaid}})
}

// inTxn applies what no command does yet, as an entry of its own.
func (w *world) inTxn(now time.Time, fn func(t *txn)) {
	w.t.Helper()
	w.index++
	_, err := w.s.Store.Apply([]entry.Entry{{Index: w.index}}, func(tb *tables, batch *table.Txn) func(entry.Entry) ([]entry.Result, error) {
		return func(entry.Entry) ([]entry.Result, error) {
			t := newTxn(tb, batch)
			t.now = now
			fn(t)
			t.Keep()
			return nil, nil
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// resize changes the disks of a pod in place.
func (w *world) resize(id fleet.PodID, diskGB, persistent int, now time.Time) {
	w.t.Helper()
	w.inTxn(now, func(t *txn) {
		pod := *t.base.pods.Get(t.Txn, id)
		pod.Spec.DiskGB = diskGB
		if persistent > 0 {
			pod.Spec.Persistent = &fleet.PersistentMount{SizeGB: persistent, Path: "/data"}
		}
		t.putPod(&pod)
	})
}

var (
	dawn = time.Unix(0, 0)
	dusk = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

// usage returns all that an account was charged up to now, by hour.
func (w *world) usage(account fleet.AccountID, kind fleet.ChargeKind, id string, now time.Time) []UsageHour {
	w.t.Helper()
	var out []UsageHour
	w.view(func(v *View) {
		var err error
		if out, err = v.Usage(account, kind, id, dawn, dusk, now); err != nil {
			w.t.Fatal(err)
		}
	})
	return out
}

func sum(hours []UsageHour) (out fleet.Amounts) {
	for _, h := range hours {
		out = out.Plus(h.Amounts)
	}
	return out
}

func (w *world) balance(account fleet.AccountID, now time.Time) (out fleet.Money) {
	w.t.Helper()
	w.view(func(v *View) { out = v.Balance(account, now) })
	return out
}

// meters returns the open meters by key.
func (w *world) meters() map[string]openMeter {
	w.t.Helper()
	out := map[string]openMeter{}
	w.view(func(v *View) {
		for key, m := range v.tb.meters.Rows {
			out[key] = *m
		}
	})
	return out
}

// settleAll settles every meter.
func (w *world) settleAll(now time.Time) {
	w.t.Helper()
	c := SettleMeters{At: now}
	for key := range w.meters() {
		c.Meters = append(c.Meters, meterIDOf(key))
	}
	w.must(c)
}
