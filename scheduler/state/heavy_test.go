package state

import (
	"fmt"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// heavy makes acme, prepaid, with stopped pods that keep nothing.
func heavy(t testing.TB, pods int) *world {
	w := newWorld(t).priced()
	w.prepaid(true)
	w.must(limit(fleet.LimitPods, fleet.MaxLimit), limit(fleet.LimitSpecBytes, fleet.MaxLimit))
	w.must(AddCredit{Account: "acme", Amount: 1000 * fleet.Dollar, At: at(1)})
	w.inTxn(at(2), func(tx *txn) {
		for i := range pods {
			p := podOn(fleet.PodID(fmt.Sprintf("old-%09d", i)), "host-a")
			p.Status, p.Goal, p.Incarnation, p.EndedAt, p.Steps, p.CreatedAt = fleet.StatusExited, fleet.GoalStop, 1, at(2), firstStep(at(1)), at(1)
			tx.putPod(&p)
		}
	})
	return w
}

// One batch as Raft hands it over costs an account with many stopped pods no more work than one without: it looks at none of
// them. Work is counted in rows, not in time.
func TestABatchOfAHeavyAccount(t *testing.T) {
	w := heavy(t, 4000)
	w.view(func(v *View) {
		if n := len(v.tb.charging["acme"]) + len(v.tb.endableOf.Rows["acme"]) + len(v.OpenMeters(at(1_000_000), 10)); n != 0 {
			t.Errorf("%d rows are looked at for what costs nothing", n)
		}
	})
	steps := func() []Command {
		var cmds []Command
		for k := range 256 {
			id := fleet.PodID(fmt.Sprintf("new-%05d", k))
			cmds = append(cmds, CreatePods{Pods: []NewPod{{HostEpoch: 1, Pod: podOn(id, "host-a")}}},
				ActPod{Account: "acme", Pod: id, Action: fleet.ActionStop, At: at(20)},
				ReportPods{Host: "host-a", Epoch: 1, At: at(21), Reports: []PodReport{{Pod: id, Incarnation: 1, Event: fleet.EventExited}}})
		}
		return cmds
	}
	res, err := w.s.Apply([]entry.Entry{w.entry(steps()...)})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res[0] {
		if r.Err != nil {
			t.Fatal(i, r.Err)
		}
	}
	w.check()
}
