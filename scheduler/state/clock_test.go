package state

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gantry/fleet"
)

const leap = 10 * time.Minute

// tick tells the log the time of a leader.
func tick(at time.Time) TickClock { return TickClock{At: at, Leap: leap} }

// clockWorld is a cluster with a host whose time was told once, and a pod that costs a dollar an hour.
func clockWorld(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.settle()
	w.must(tick(at(0)), runsFrom("pod00000000001", at(0)))
	return w
}

// runsFrom creates a pod that costs a dollar an hour.
func runsFrom(id fleet.PodID, since time.Time) CreatePods {
	p := podOn(id, "host-a")
	p.CreatedAt, p.HourlyRate = since, fleet.Dollar
	p.Need = fleet.Resources{MilliCPU: 100, MemoryMB: 100, DiskGB: 20}
	return CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}}
}

func terminates(id fleet.PodID, now time.Time) ActPod {
	return ActPod{Account: "acme", Pod: id, Action: fleet.ActionTerminate, At: now}
}

// ticks tells the log the time each minute, to the end.
func (w *world) ticks(from, to time.Time) {
	w.t.Helper()
	for now := from; now.Before(to); now = now.Add(time.Minute) {
		w.must(tick(now))
	}
	w.must(tick(to))
}

// clock returns the log's time.
func (w *world) clock() (out *Clock) {
	w.t.Helper()
	w.view(func(v *View) { out = v.Clock() })
	return out
}

// spent returns for how long all pods were charged, at a dollar an hour, when a leader's clock says now.
func (w *world) spent(now time.Time) (out time.Duration) {
	w.t.Helper()
	w.view(func(v *View) {
		out = time.Duration(float64(-v.Balance("acme", now)) / float64(fleet.Dollar) * float64(time.Hour))
	})
	return out
}

func (w *world) costs(what string, now time.Time, want, give time.Duration) {
	w.t.Helper()
	if got := w.spent(now); (got - want).Abs() > give {
		w.t.Errorf("%s: %v are charged, want %v, give or take %v", what, got, want, give)
	}
}

func TestTheLogsTimeFollowsWithinTheLeapAndNeverGoesBack(t *testing.T) {
	w := clockWorld(t)
	w.must(tick(at(60)))
	if c := w.clock(); !c.At.Equal(at(60)) || c.Held() {
		t.Errorf("after a tick: %+v", c)
	}
	w.must(tick(at(-200)))
	if c := w.clock(); !c.At.Equal(at(60)) || c.Held() {
		t.Errorf("after a tick that is behind: %+v", c)
	}
	w.must(TickClock{At: at(30), Leap: leap, Confirmed: true})
	if c := w.clock(); !c.At.Equal(at(60)) || c.Held() {
		t.Errorf("members that agree put it back: %+v", c)
	}
	w.must(terminates("pod00000000001", at(30)))
	if p := w.pod("pod00000000001"); !p.TerminatedAt.Equal(at(60)) {
		t.Errorf("it ended at %v, before the log's time", p.TerminatedAt)
	}
}

// A leader that is a day ahead, then a right one: what ran meanwhile costs what it took.
func TestALeaderThatIsAheadNeitherChargesNorGivesAway(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"ahead": 24 * time.Hour, "behind": -24 * time.Hour, "years": 5 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := clockWorld(t)
			now := at(60)
			w.must(tick(now.Add(wrong)))
			for range 600 { // ten hours
				now = now.Add(time.Minute)
				w.must(tick(now.Add(wrong)))
				if now.Equal(at(3660)) {
					w.must(runsFrom("pod00000000002", now.Add(wrong)))
				}
			}
			c := w.clock()
			if !c.Held() || now.Sub(c.At) > 2*time.Minute || c.At.After(now) {
				t.Errorf("ten hours later: %+v", c)
			}
			w.costs("under the wrong leader", now.Add(wrong), 19*time.Hour, 3*time.Minute)
			w.must(tick(now), terminates("pod00000000001", now), terminates("pod00000000002", now))
			if c := w.clock(); c.Held() || !c.At.Equal(now) {
				t.Errorf("under the right leader: %+v", c)
			}
			w.costs("in the end", now, 19*time.Hour, 3*time.Minute)
		})
	}
}

// A cluster that was switched off goes on: what ran on the hosts is charged, what starts before its time is
// confirmed is not charged for the silence.
func TestASilenceThatIsConfirmedIsCharged(t *testing.T) {
	for name, confirm := range map[string]TickClock{"members": {Confirmed: true}, "operator": {Confirmed: true, Operator: true}} {
		t.Run(name, func(t *testing.T) {
			w := clockWorld(t)
			w.ticks(at(0), at(3600))
			now := at(3600).Add(48 * time.Hour)
			w.must(runsFrom("pod00000000002", now)) // before the leader's first tick
			if !w.clock().Held() {
				t.Fatal("a create by a clock that leaps does not hold the log's time")
			}
			w.must(tick(now.Add(time.Second)), runsFrom("pod00000000003", now.Add(2*time.Second)))
			w.costs("held", now.Add(5*time.Second), time.Hour+13*time.Second, 5*time.Second)
			confirm.At, confirm.Leap = now.Add(5*time.Second), leap
			w.must(confirm)
			if c := w.clock(); c.Held() || !c.At.Equal(now.Add(5*time.Second)) {
				t.Errorf("confirmed: %+v", c)
			}
			w.costs("confirmed", now.Add(5*time.Second), 49*time.Hour+13*time.Second, 5*time.Second)
			w.ticks(now.Add(time.Minute), now.Add(time.Hour))
			w.must(terminates("pod00000000002", now.Add(time.Hour)), terminates("pod00000000003", now.Add(time.Hour)))
			w.costs("an hour later", now.Add(time.Hour), 52*time.Hour, 10*time.Second)
		})
	}
}

func TestADoubtedTimeHoldsHoweverNearItIs(t *testing.T) {
	w := clockWorld(t)
	w.must(tick(at(60)))
	ahead := 9 * time.Minute
	for s := 60; s <= 3600; s += 60 {
		w.must(TickClock{At: at(s).Add(ahead), Leap: leap, Doubted: true})
	}
	c := w.clock()
	if !c.Held() || c.At.After(at(3600)) || at(3600).Sub(c.At) > 2*time.Minute {
		t.Errorf("an hour of doubt: %+v", c)
	}
	w.costs("doubted", at(3600).Add(ahead), time.Hour, 2*time.Minute)
	w.must(tick(at(3660)))
	if c := w.clock(); c.Held() || !c.At.Equal(at(3660)) {
		t.Errorf("no doubt: %+v", c)
	}
}

// Only an operator puts the log's time back, and that charges and refunds nothing.
func TestAnOperatorPutsTheLogsTimeBack(t *testing.T) {
	w := clockWorld(t)
	w.ticks(at(0), at(3600))
	ahead := at(3600).Add(24 * time.Hour)
	w.must(TickClock{At: ahead, Leap: leap, Confirmed: true, Operator: true}, runsFrom("pod00000000002", ahead))
	w.costs("by mistake", ahead, 25*time.Hour, time.Second)
	w.must(tick(at(3660)))
	if c := w.clock(); !c.Held() {
		t.Errorf("a day back: %+v", c)
	}
	w.must(TickClock{At: at(3720), Leap: leap, Confirmed: true})
	if c := w.clock(); !c.Held() || c.At.Before(ahead) {
		t.Errorf("members that agree put it back: %+v", c)
	}
	w.must(TickClock{At: at(3720), Leap: leap, Confirmed: true, Operator: true})
	if c := w.clock(); c.Held() || !c.At.Equal(at(3720)) {
		t.Errorf("an operator put it back: %+v", c)
	}
	w.costs("put back", at(3720), 25*time.Hour+2*time.Minute, 10*time.Second)
	w.ticks(at(3720), at(7200))
	w.costs("an hour later", at(7200), 25*time.Hour+2*time.Hour, 2*time.Minute)
}

func TestNothingFinalIsDoneWhileTheLogsTimeIsHeld(t *testing.T) {
	finals := func(now time.Time) []Command {
		return []Command{
			SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod00000000001"}}, At: now},
			ExhaustAccounts{Accounts: []fleet.AccountID{"acme"}, At: now},
			PurgeUsage{Before: now.Add(-time.Hour), Limit: 1, At: now},
			PurgeOnce{Before: now.Add(-time.Hour), Limit: 1, At: now},
			PurgePods{Before: now.Add(-time.Hour), At: now},
			PurgeHosts{Before: now.Add(-time.Hour), At: now},
			AdvanceRotation{At: now},
		}
	}
	w := clockWorld(t)
	w.must(tick(at(60)))
	ahead := at(60).Add(time.Hour)
	for _, cmd := range finals(ahead) { // the clock has leaped, and no tick has told so
		w.refused(fleet.CodeNotAllowed, cmd)
	}
	w.must(tick(ahead))
	for _, now := range []time.Time{ahead, at(61)} {
		for _, cmd := range finals(now) {
			w.refused(fleet.CodeNotAllowed, cmd)
		}
	}
	w.must(tick(at(61)))
	for _, cmd := range finals(time.Time{})[1:] { // no time at all
		w.refused(fleet.CodeNotAllowed, cmd)
	}
	for _, cmd := range finals(at(61))[:6] {
		w.must(cmd)
	}
	w.must(SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod00000000001"}}, At: at(-3600)}) // the hour that has ended
	w.refused(fleet.CodeInvalid, PurgeUsage{Before: at(3600), Limit: 1, At: at(61)})
}

// Tokens that ended are forgotten only when it is certain that they did.
func TestJoinTokensAreNotForgottenWhileTheLogsTimeIsHeld(t *testing.T) {
	w := clockWorld(t)
	first, second, third := token("t1"), token("t2"), token("t3")
	first.ExpiresAt = at(3600)
	far := at(0).AddDate(1, 0, 0)
	second.ExpiresAt, third.ExpiresAt = far.Add(time.Hour), at(7200)
	w.must(PutToken{Token: first, At: at(0)}, PutToken{Token: second, At: far})
	if n := w.tokens(); n != 2 {
		t.Errorf("a clock that is a year ahead left %d tokens, want 2", n)
	}
	w.ticks(at(60), at(3660))
	w.must(PutToken{Token: third, At: at(3661)})
	if n := w.tokens(); n != 2 {
		t.Errorf("an hour later there are %d tokens, want 2", n)
	}
}

func (w *world) tokens() (n int) {
	w.t.Helper()
	w.view(func(v *View) { n = len(v.tb.tokens.Rows) })
	return n
}

// Whatever leaders' clocks say, a pod is charged for as long as it ran, but for a bound at its beginning and its end.
func TestChargesFollowTrueTimeUnderAnyClocks(t *testing.T) {
	for seed := range uint64(12) {
		c := clocks{world: clockWorld(t), rng: rand.New(rand.NewPCG(seed, 15)), now: at(0), since: at(0), pod: "pod00000000001", pods: 1}
		for range 60 {
			c.step()
			if late := c.now.Sub(c.clock().At); late < -leap {
				t.Fatalf("seed %d: the log's time is %v ahead of the true one", seed, -late)
			}
		}
		c.off = 0
		c.tells()
		if c.pod != "" {
			c.true += c.now.Sub(c.since)
		}
		c.costs(fmt.Sprintf("seed %d, %d pods", seed, c.pods), c.now, c.true, time.Duration(c.pods)*(leap+2*time.Minute))
	}
}

// clocks is a world under leaders whose clocks are off, and what is true.
type clocks struct {
	*world
	rng        *rand.Rand
	now, since time.Time     // true time, and when the pod began
	off        time.Duration // of the leader's clock
	pod        fleet.PodID   // that runs; empty: none
	pods       int
	true       time.Duration // for how long pods ran
}

// tells ticks the log; the other members' clocks are right.
func (c *clocks) tells() {
	wrong := c.off.Abs() > time.Minute
	c.must(TickClock{At: c.now.Add(c.off), Leap: leap, Doubted: wrong, Confirmed: !wrong})
}

func (c *clocks) step() {
	switch c.rng.IntN(6) {
	case 0: // another leader, or a jump, and a moment before it is noticed
		offs := []int{0, 0, 30, -30, 300, -300, 590, 900, -900, 86400, -86400, 1e8}
		c.off = time.Duration(offs[c.rng.IntN(len(offs))]) * time.Second
	case 1: // the schedulers are off, hosts are not; the first to come back has a right clock
		c.off = 0
		c.tells()
		c.now = c.now.Add(time.Duration(c.rng.IntN(5000)) * time.Minute)
		c.starts()
		c.tells()
	case 2:
		c.starts()
	case 3:
		if c.pod != "" {
			c.must(terminates(c.pod, c.now.Add(c.off)))
			c.true += c.now.Sub(c.since)
			c.pod = ""
		}
	default:
		for range 1 + c.rng.IntN(40) {
			c.now = c.now.Add(time.Minute)
			c.tells()
		}
	}
}

func (c *clocks) starts() {
	if c.pod == "" {
		c.pods++
		c.pod, c.since = fleet.PodID(fmt.Sprintf("pod%011d", c.pods)), c.now
		c.must(runsFrom(c.pod, c.now.Add(c.off)))
	}
}
