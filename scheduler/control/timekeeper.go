package control

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Clocks tells of the clocks of the other members; see peers.Keeper.
type Clocks interface {
	// Clocks returns how far those of other voters are ahead of this member's, as far as they are known, and how
	// many voters there are, this one among them.
	Clocks() (others []time.Duration, voters int)
}

// Timekeeper ticks the log's time and says whether what is final may be done. Its methods are safe for concurrent
// use.
type Timekeeper struct {
	Store  *state.Store
	Node   Proposer
	Clocks Clocks
	Leap   time.Duration // see state.Clock
	Log    *slog.Logger
	// Now is the wall clock; nil: time.Now.
	Now func() time.Time
	// Synced reports whether the kernel's clock is synchronized. It counts where there is one voter alone.
	Synced func() bool
	// Boot identifies the boot of the kernel and says for how long it has run, sleep included.
	Boot func() (id string, up time.Duration)

	unsure int // how many looks in a row nothing final could be done; of Run alone
}

const (
	timeEvery = time.Second
	// unsureFor is after how many looks it is logged that nothing final is done: a new leader has to ask first.
	unsureFor = 5
	// perLeap is how many ticks there are within a leap, and how many times closer than a leap clocks must be to agree.
	perLeap = 10
)

// verdict is what is known of this member's clock.
type verdict struct {
	agrees  bool // with a majority of the members' clocks, or, of one alone, with what it was
	doubted bool // by a majority that is known
}

// Run ticks until ctx, which ends with leadership, does.
func (k *Timekeeper) Run(ctx context.Context) error {
	tick := time.NewTicker(timeEvery)
	defer tick.Stop()
	first := true
	k.unsure = 0
	for {
		if err := k.look(ctx, first); err == nil {
			first = false
		} else if ctx.Err() == nil {
			k.Log.Warn("tick the log's clock", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look ticks when it is time to, or when something has changed; always, when it is the first.
func (k *Timekeeper) look(ctx context.Context, first bool) error {
	now, clock, v := k.present()
	k.say(k.reason(now, clock, v))
	if !first && !k.due(now, clock, v) {
		return nil
	}
	return k.tick(ctx, state.TickClock{At: now, Confirmed: v.agrees, Doubted: v.doubted})
}

// due reports whether the log has to be told the time.
func (k *Timekeeper) due(now time.Time, c *state.Clock, v verdict) bool {
	if c == nil || c.Leap != k.Leap {
		return true
	}
	at, leaps := c.Of(now)
	switch {
	case leaps, at.Sub(c.At) >= k.Leap/perLeap, now.Sub(c.Wall) >= k.Leap/perLeap && !c.Held():
		return true
	case c.Held():
		near := now.Sub(c.At).Abs() <= c.Leap
		return near && !v.doubted || v.agrees && now.After(c.At)
	}
	return v.doubted
}

// command completes a tick with what this member says of itself.
func (k *Timekeeper) command(cmd state.TickClock) state.TickClock {
	cmd.Leap = k.Leap
	if k.Boot != nil {
		cmd.Boot, cmd.Up = k.Boot()
	}
	return cmd
}

// tick commits the time.
func (k *Timekeeper) tick(ctx context.Context, cmd state.TickClock) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := k.Node.Propose(ctx, k.command(cmd))
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	return err
}

// present returns the time, the log's clock, which is nil when there is none, and what is known of the own one.
func (k *Timekeeper) present() (now time.Time, c *state.Clock, v verdict) {
	now = k.now()
	_ = k.Store.View(func(view *state.View) error { c = view.Clock(); return nil }) // one that is closed has none
	return now, c, k.judge(now, c)
}

func (k *Timekeeper) now() time.Time {
	if k.Now != nil {
		return k.Now().Round(0)
	}
	return time.Now().Round(0)
}

// judge compares the clock with the other members'. One that is alone is right when the kernel says that its clock
// is synchronized, or when it has run on since the log was last told the time, under the same boot.
func (k *Timekeeper) judge(now time.Time, c *state.Clock) (v verdict) {
	others, voters := k.Clocks.Clocks()
	if voters <= 1 {
		steady, known := k.ranOn(now, c)
		v.agrees = steady || k.Synced != nil && k.Synced()
		v.doubted = known && !v.agrees
		return v
	}
	agree := 1
	for _, off := range others {
		if off.Abs() <= k.Leap/perLeap {
			agree++
		}
	}
	majority := voters/2 + 1
	v.agrees = agree >= majority
	v.doubted = !v.agrees && 1+len(others) >= majority
	return v
}

// ranOn reports whether the clock has gone as far as the kernel has run since the last tick that was followed, which is
// known only when that was under the same boot.
func (k *Timekeeper) ranOn(now time.Time, c *state.Clock) (steady, known bool) {
	if c == nil || c.Boot == "" || k.Boot == nil {
		return false, false
	}
	boot, up := k.Boot()
	drift := now.Sub(c.Wall) - (up - c.Up)
	return boot == c.Boot && drift.Abs() <= k.Leap/perLeap, boot == c.Boot
}

// Sure reports whether what is final may be done: the log's time is not held, and a majority of the members agrees
// with this one's clock.
func (k *Timekeeper) Sure() bool { return k.reason(k.present()) == "" }

// reason says why nothing final is done; empty: it may be.
func (k *Timekeeper) reason(now time.Time, c *state.Clock, v verdict) string {
	switch {
	case c == nil:
		return "the log has no time yet"
	case c.Held() && now.After(c.At):
		return "the leader's clock is ahead of the log's time"
	case c.Held():
		return "the leader's clock is behind the log's time"
	case v.doubted:
		return "the schedulers' clocks do not agree"
	case now.Sub(c.At).Abs() > c.Leap:
		return "the leader's clock has jumped"
	case !v.agrees:
		return "the other schedulers' clocks are not known"
	}
	return ""
}

// say logs once that nothing final is done any more, and once that it is again.
func (k *Timekeeper) say(why string) {
	if why != "" {
		if k.unsure++; k.unsure == unsureFor {
			k.Log.Error("nothing final is done until the schedulers' clocks are right: gantry raft clock show tells of them", "why", why)
		}
		return
	}
	if k.unsure >= unsureFor {
		k.Log.Info("the schedulers' clocks agree again: billing resumes")
	}
	k.unsure = 0
}

// View returns the clock's state, as this member, which must lead, sees it.
func (k *Timekeeper) View() fleet.ClockView {
	now, c, v := k.present()
	out := fleet.ClockView{Now: now, Log: now, Held: k.reason(now, c, v), Leap: k.Leap}
	if c != nil {
		out.Log, _ = c.Of(now)
		out.Since = c.HeldAt
	}
	return out
}

// Confirm returns the command that sets the log's time to this member's, which an operator saw to be at and found right.
// Errors: rule (this member's clock says something else by now).
func (k *Timekeeper) Confirm(at time.Time) (state.TickClock, error) {
	now := k.now()
	if now.Sub(at).Abs() > k.Leap/perLeap {
		return state.TickClock{}, fleet.BreaksRule("The leader's clock says %s, which is not the time that was confirmed: look at it again.",
			now.UTC().Format(time.RFC3339))
	}
	return k.command(state.TickClock{At: now, Confirmed: true, Operator: true}), nil
}
