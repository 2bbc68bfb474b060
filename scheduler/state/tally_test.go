package state

import (
	"maps"
	"math/big"

	"gantry/fleet"
)

// checkSums counts everything that tallies hold anew, row by row; world.check calls it, so every property test does.
func checkSums(t tb, s *Store) {
	t.Helper()
	err := s.View(func(v *View) error {
		tables := v.tb
		want := map[fleet.AccountID]*tally{}
		of := func(id fleet.AccountID) *tally {
			if want[id] == nil {
				want[id] = &tally{settled: new(big.Int)}
			}
			return want[id]
		}
		charging := 0
		for _, p := range tables.pods.rows {
			of(p.Account).add(p, 1)
		}
		for _, row := range tables.volumes.rows {
			of(row.Account).add(row, 1)
		}
		for key, m := range tables.meters.rows {
			of(m.Account).add(m, 1)
			if m.Rates != (fleet.Amounts{}) {
				charging++
				if tables.charging[m.Account][key] != m || tables.due[m.Settled/3600][key] != m {
					t.Errorf("meter %s is not among those that cost something", key)
				}
			}
		}
		for id, y := range tables.tallies {
			w := of(id)
			settled := new(big.Int)
			if y.settled != nil {
				settled = y.settled
			}
			if y.use != w.use || y.rate != w.rate || settled.Cmp(w.settled) != 0 {
				t.Errorf("%s has %v, %d, %v; counted anew: %v, %d, %v", id, y.use, y.rate, settled, w.use, w.rate, w.settled)
			}
		}
		for id, w := range want {
			if tables.tallies[id] == nil && !w.empty() {
				t.Errorf("%s has no tally", id)
			}
		}
		due := charging
		for _, meters := range tables.charging {
			charging -= len(meters)
		}
		for _, meters := range tables.due {
			due -= len(meters)
		}
		if charging != 0 || due != 0 {
			t.Errorf("too many or too few: %d that cost, %d that are due", -charging, -due)
		}
		for _, tab := range tables.byName {
			if x, ok := tab.(interface{ checkIndexes(t tb) }); ok {
				x.checkIndexes(t)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkIndexes compares the indexes of a table with what its rows say.
func (tab *table[K, T]) checkIndexes(t tb) {
	t.Helper()
	for _, x := range tab.indexes {
		x.(interface{ check(tb) }).check(t)
	}
}

func (x *index[X, K, T]) check(t tb) {
	t.Helper()
	want := map[X]map[K]*T{}
	for key, row := range x.tab.rows {
		if value := x.of(row); value != "" {
			enter(want, value, key, row)
		}
	}
	if x.rows != nil && !maps.EqualFunc(want, x.rows, maps.Equal) {
		t.Errorf("%s: %v, and should be %v", x.name, x.rows, want)
	}
}
