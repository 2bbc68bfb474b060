package state

import (
	"fmt"
	"math/big"

	"gantry/fleet"
	"gantry/scheduler/state/table"
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
		for _, p := range tables.pods.Rows {
			of(p.Account).add(p, 1)
		}
		for _, row := range tables.volumes.Rows {
			of(row.Account).add(row, 1)
		}
		for _, row := range tables.clusters.Rows {
			of(row.Account).add(row, 1)
		}
		for _, row := range tables.endpoints.Rows {
			of(row.Account).add(row, 1)
		}
		for key, m := range tables.meters.Rows {
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
		for id, y := range tables.tallies {
			if y.empty() {
				t.Errorf("the tally of %q counts nothing", id)
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
		checkIndexes(t, tables)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkIndexes compares every index with what the rows of its table say.
func checkIndexes(t tb, tb *tables) {
	t.Helper()
	for _, fault := range []string{
		indexFault("metersOf", tb.metersOf),
		indexFault("keysOf", tb.keysOf),
		indexFault("keysByHash", tb.keysByHash),
		indexFault("linesOf", tb.linesOf),
		indexFault("peopleByLogin", tb.peopleByLogin),
		indexFault("peopleBySubject", tb.peopleBySubject),
		indexFault("sessionsOf", tb.sessionsOf),
		indexFault("sessionsByHash", tb.sessionsByHash),
		indexFault("hostsByMachine", tb.hostsByMachine),
		indexFault("hostsByTunnel", tb.hostsByTunnel),
		indexFault("hostsByKey", tb.hostsByKey),
		indexFault("endableOf", tb.endableOf),
		indexFault("podsWith", tb.podsWith),
		indexFault("templatesOf", tb.templatesOf),
		indexFault("registriesOf", tb.registriesOf),
		indexFault("secretsOf", tb.secretsOf),
		indexFault("endpointsOf", tb.endpointsOf),
		indexFault("clustersOf", tb.clustersOf),
		indexFault("membersOf", tb.membersOf),
		indexFault("s3KeysOf", tb.s3KeysOf),
		indexFault("volumesOf", tb.volumesOf),
		indexFault("volumesIn", tb.volumesIn),
		indexFault("volumesOn", tb.volumesOn),
		indexFault("unfinishedOn", tb.unfinishedOn),
		indexFault("volumesByDir", tb.volumesByDir),
		indexFault("overlaysOf", tb.overlaysOf),
		indexFault("overlaysByVNI", tb.overlaysByVNI),
	} {
		if fault != "" {
			t.Error(fault)
		}
	}
}

func indexFault[X, K ~string, T any](name string, x *table.Index[X, K, T]) string {
	n := 0
	for key, row := range x.Table.Rows {
		if value := x.Value(row); value != "" {
			if n++; x.Rows[value][key] != row {
				return fmt.Sprintf("%s: %s is not at %s", name, key, value)
			}
		}
	}
	for value, rows := range x.Rows {
		if n -= len(rows); len(rows) == 0 {
			return fmt.Sprintf("%s: %s is empty", name, value)
		}
	}
	if n != 0 {
		return fmt.Sprintf("%s has %d rows too many", name, -n)
	}
	return ""
}
