package state

import (
	"fmt"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// ended makes a report that pod-1 has ended, at a time by its host's clock.
func ended(came, when time.Time) ReportPods {
	return ReportPods{Host: "host-a", Epoch: 1, At: came, Reports: []PodReport{{Pod: "pod-1", Incarnation: 1, Event: fleet.EventExited, At: when}}}
}

func TestWhenAProcessEnded(t *testing.T) {
	const day = 86400
	created, came := at(10), at(10*day)
	for name, c := range map[string]struct {
		when, want time.Time
	}{
		"just now":                     {when: came.Add(-time.Second), want: came.Add(-time.Second)},
		"while the host was cut off":   {when: came.Add(-9 * time.Hour), want: came.Add(-9 * time.Hour)},
		"nobody knows":                 {want: came},
		"later than it came":           {when: came.Add(time.Hour), want: came},
		"by a clock without a battery": {when: time.Unix(60, 0), want: came.Add(-24 * time.Hour)},
		"absurdly":                     {when: dusk, want: came},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).priced()
			w.create("pod-1", "host-a", 0)
			for d := 1; d <= 10; d++ {
				w.settleAll(at(d * day))
			}
			cmd := ended(came, c.when)
			w.must(cmd)
			if got := w.pod("pod-1").EndedAt; !got.Equal(c.want) {
				t.Errorf("ended at %s, want %s", got, c.want)
			}
			rate := w.rate(podOn("pod-1", "host-a", 0).Spec)
			want := -fleet.Money(int64(rate) * (c.want.Unix() - created.Unix()) / 3600)
			if got := w.balance("acme", came); got < want-1 || got > want+2 { // each component is rounded for itself
				t.Errorf("balance is %d, want %d", got, want)
			}
			w.check()
		})
	}
}

// A reboot keeps the interval, but what the incarnation before has cost cannot come back.
func TestAnIncarnationDoesNotEndBeforeItBegan(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	reboot := ended(at(3*3600), time.Unix(30, 0))
	reboot.Reports[0].Event = fleet.EventReboot
	w.must(reboot)
	cmd := ended(at(4*3600), time.Unix(60, 0))
	cmd.Reports[0].Incarnation = 2
	w.must(cmd)
	if p := w.pod("pod-1"); !p.EndedAt.Equal(at(3 * 3600)) {
		t.Errorf("ended at %s", p.EndedAt)
	}
	if got := w.balance("acme", at(4*3600)); got > -2*fleet.Dollar {
		t.Errorf("balance is %d", got)
	}
}

// Two hundred pods of many days, all of which end before they began, write no more than one command may.
func TestARefundIsBounded(t *testing.T) {
	const pods, days = 200, 13
	w := newWorld(t).priced()
	cmd := ReportPods{Host: "host-a", Epoch: 1, At: at(days * 86400)}
	w.inTxn(at(0), func(tx *txn) {
		for i := range pods {
			id := fleet.PodID(fmt.Sprintf("pod%011d", i))
			tx.putPod(&fleet.Pod{
				ID: id, Account: "acme", Status: fleet.StatusRunning, Goal: fleet.GoalRun, Host: "host-a", HourlyRate: fleet.Dollar,
				Incarnation: 1, Held: true, Steps: firstStep(at(0)), CreatedAt: at(0), Spec: fleet.PodSpec{CPU: &fleet.CPURequest{}},
			})
			cmd.Reports = append(cmd.Reports, PodReport{Pod: id, Incarnation: 1, Event: fleet.EventExited, At: time.Unix(60, 0)})
		}
	})
	for d := 1; d <= days; d += 3 {
		w.settleAll(at(d * 86400))
	}
	rows := func() int { return len(w.usage("acme", "", "", at(days*86400))) }
	before, balance := rows(), w.balance("acme", at(days*86400))
	w.must(cmd)
	if gone := before - rows(); gone <= 0 || gone > maxSettle {
		t.Errorf("%d records were taken back", gone)
	}
	if got := w.balance("acme", at(days*86400)) - balance; got > pods*25*fleet.Dollar || got < pods*23*fleet.Dollar {
		t.Errorf("%d came back", got)
	}
	w.check()
}

// Clocks of proposers may be wrong either way: what turns a meter is bounded and balanced all the same.
func TestATurnHasRoom(t *testing.T) {
	id := MeterID{fleet.ChargePod, "pod-1"}
	far := at(30_000 * 3600) // beyond what one command writes
	for name, turn := range map[string]struct {
		settled, to time.Time
	}{
		"forward": {at(10), far}, "back": {at(maxSettle * 3600), at(10)}, "back without room": {at(maxSettle * 3600), at(10)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).priced()
			w.create("pod-1", "host-a", 0)
			w.inTxn(far, func(tx *txn) {
				m := *tx.base.meters.Get(tx.Txn, id.key())
				tx.charge(id, &m, turn.settled.Unix())
				m.Settled = turn.settled.Unix()
				tx.base.meters.Put(tx.Txn, id.key(), &m)
				usage := map[string]fleet.Money{}
				written, kept := 0, tx.Kept
				tx.Kept = func(at table.Slot, old, row any) {
					kept(at, old, row)
					written++
					if amounts, ok := row.(*fleet.Amounts); ok && at.Bucket == tx.base.usage.Bucket {
						usage[at.Key] = amounts.Total()
					} else {
						delete(usage, at.Key)
					}
				}
				tx.Keep()
				tx.Discard()
				tx.room = maxSettle
				if name == "back without room" {
					tx.room = 0
				}
				written = 0
				tx.turn(id, openMeter{}, false, turn.to.Unix())
				tx.Keep()
				tx.Discard()
				if written > maxSettle+4 {
					t.Errorf("%d rows are written", written)
				}
				var used fleet.Money
				for _, amounts := range usage {
					used += amounts
				}
				if left := tx.balanceAt("acme", far); left != -used {
					t.Errorf("balance is %d, usage %d", left, used)
				}
			})
		})
	}
}
