package scheduler

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// leads has the world's clock tell the log its time each minute for so long.
func (w *world) leads(d time.Duration) {
	w.t.Helper()
	for ; d >= 0; d -= time.Minute {
		w.must(state.TickClock{At: w.clock(), Leap: 10 * time.Minute})
		w.pass(time.Minute)
	}
}

// A pod that is started under a leader whose clock is wrong is charged for as long as it runs under the next one, whose
// clock is right.
func TestAPodIsChargedWhateverTheClockOfItsFirstLeader(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addHost("host-a", "EU-RO-1", h100, 8, total(64, 512, 100000))
			w.leads(time.Minute)
			w.pass(off)
			v, err := w.svc.CreatePod(context.Background(), member(acme), gpuPod(1)) // before the log heard of its time
			if err != nil {
				t.Fatal(err)
			}
			w.report(v.Pod.ID, fleet.EventRunning)
			w.leads(time.Minute)
			w.pass(-off)
			w.leads(10 * time.Hour)
			spent := func() (charged, rate fleet.Money) {
				w.view(func(sv *state.View) { charged, rate = -sv.Balance(acme, w.clock()), sv.HourlyRate(acme) })
				return charged, rate
			}
			charged, rate := spent()
			if hours := float64(charged) / float64(rate); hours < 9.9 || hours > 10.2 {
				t.Errorf("it ran for 10 hours and is charged for %.2f", hours)
			}
			if _, err := w.svc.ActPod(context.Background(), member(acme), v.Pod.ID, fleet.ActionStop); err != nil {
				t.Fatal(err)
			}
			w.report(v.Pod.ID, fleet.EventExited)
			if after, _ := spent(); after != charged {
				t.Errorf("it is charged %v before its stop and %v after", charged, after)
			}
		})
	}
}
