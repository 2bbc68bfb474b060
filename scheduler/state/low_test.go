package state

import (
	"math"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// TestLowBalanceIsToldOncePerCrossing lets a balance run down: its owner is told once when it becomes low, and once when it no
// longer is, however often the leader looks, and whichever leader does.
func TestLowBalanceIsToldOncePerCrossing(t *testing.T) {
	w := newWorld(t).priced()
	w.prepaid(true)
	pod := podOn("pod-1", "host-a")
	hour := w.rate(pod.Spec)
	w.must(AddCredit{Account: "acme", Amount: 30 * hour, At: at(0)}, CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	from := w.s.EndOfChanges()
	crossed := func(now time.Time, want bool) {
		t.Helper()
		w.view(func(v *View) {
			if got := v.Crossed(now, 9); slices.Contains(got, "acme") != want || len(v.Crossed(now, 0)) != 0 {
				t.Errorf("at %v crossed are %v", now, got)
			}
		})
	}
	note := func(now time.Time, want int) {
		t.Helper()
		crossed(now, want == 1)
		if got := w.must(NoteBalances{Accounts: []fleet.AccountID{"acme", "other", "none"}, At: now}); got != want {
			t.Errorf("at %v %v were told", now, got)
		}
		crossed(now, false)
	}
	begin := w.pod("pod-1").CreatedAt
	last := begin.Add(6 * time.Hour) // it lasts for 24 hours then
	note(last, 0)
	note(last.Add(time.Second), 1)
	note(last.Add(time.Hour), 0)
	w.must(AddCredit{Account: "acme", Amount: 30 * hour, At: last.Add(time.Hour)})
	note(last.Add(time.Hour), 1)
	w.must(UpdateAccount{Account: "acme", LowBalance: ptr(50 * hour)})
	note(last.Add(2*time.Hour), 0)
	note(last.Add(4*time.Hour), 0) // 50 are left
	note(last.Add(5*time.Hour), 1)
	w.view(func(v *View) {
		if got := v.LowSince("acme"); !got.Equal(last.Add(5 * time.Hour)) {
			t.Errorf("low since %v", got)
		}
	})
	w.must(UpdateAccount{Account: "acme", LowBalance: ptr(fleet.Money(0))})
	note(last.Add(5*time.Hour), 1)
	w.must(UpdateAccount{Account: "acme", LowBalance: ptr(fleet.Money(-1))})
	note(last.Add(90*time.Hour), 1)
	w.prepaid(false)
	note(last.Add(90*time.Hour), 1)
	var told []string
	w.s.Changes(from, math.MaxInt, func(_ fleet.EventPlace, e *fleet.Event) bool {
		if e.Kind == fleet.EventLowBalance {
			told = append(told, e.Object+" "+string(e.Type)+" "+e.Status+" "+e.Reason)
		}
		return true
	})
	const day, fixed, over = "acme created low the balance lasts for less than a day at the present rate", "acme created low the balance is below $", "acme deleted  "
	if len(told) != 6 || told[0] != day || told[1] != over || told[2][:len(fixed)] != fixed || told[3] != over || told[4] != day || told[5] != over {
		t.Errorf("told were %q", told)
	}
	w.check()
}
