package plane

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler"
	"gantry/scheduler/state"
)

var _ scheduler.Clock = clock{}

// clockLeap is the most that a Plane's clock may be from the log's time.
const clockLeap = 10 * time.Minute

// clock is the time as a Plane tells it.
type clock struct{ p *Plane }

// Tick tells the log the plane's time, as its leader does.
func (p *Plane) Tick() error {
	return p.members.propose(state.TickClock{At: p.Now(), Leap: clockLeap})
}

// View implements scheduler.Clock.
func (c clock) View() fleet.ClockView {
	out := fleet.ClockView{Now: c.p.Now(), Log: c.p.Now(), Leap: clockLeap}
	_ = c.p.store.View(func(v *state.View) error { // it is open
		if row := v.Clock(); row.Held() {
			out.Log, _ = row.Of(out.Now)
			out.Since, out.Held = row.HeldAt, "the leader's clock is ahead of the log's time"
		}
		return nil
	})
	return out
}

// Confirm implements scheduler.Clock.
func (c clock) Confirm(at time.Time) (state.TickClock, error) {
	if c.p.Now().Sub(at).Abs() > time.Minute {
		return state.TickClock{}, fleet.BreaksRule("The leader's clock says another time by now.")
	}
	return state.TickClock{At: c.p.Now(), Leap: clockLeap, Confirmed: true, Operator: true}, nil
}
