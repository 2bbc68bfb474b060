// Package scale decides how many workers an endpoint has (wire-facts.md, §5.2). It is pure: Decide is a function of what
// it is told, and says until when its answer holds, so that it is asked upon events and not on a tick.
package scale

import (
	"cmp"
	"slices"
	"time"

	"gantry/fleet"
)

// Policy is what the endpoint's owner set.
type Policy struct {
	Min, Max int
	// Idle is how long a worker without a job stays, unless it is one of Min.
	Idle time.Duration
	// Exactly one of the two is set. Delay (QUEUE_DELAY): a job waits no longer than this without one more worker
	// being started. Requests (REQUEST_COUNT): so many jobs, waiting or running, to a worker.
	Delay    time.Duration
	Requests int
	// Freeze is how long a worker that idled out stays frozen; 0: it ends at once (flashboot OFF).
	Freeze time.Duration
}

// State is what a worker does.
type State uint8

// The states. A worker that is ending, or crashed, is none any more.
const (
	Initializing State = iota // from its creation until it asks for its first job
	Idle
	Running // it has a job
	Frozen
)

// Worker is one of the endpoint's workers.
type Worker struct {
	ID      fleet.PodID
	State   State
	Since   time.Time // of State
	Created time.Time
	Stale   bool // of an earlier release than the newest, or Drained
	Drained bool // it is to leave its host, whose room no other gets
}

// Load is what there is to do. Jobs of low priority do not count.
type Load struct {
	Waiting    int
	InProgress int
	Oldest     time.Time // when the first of the waiting jobs was submitted
}

// Input is all that a decision depends on.
type Input struct {
	Now     time.Time
	Policy  Policy
	Load    Load
	Workers []Worker
	Ending  int // workers that are on their way out, and hold their share of a host still
	// Room is how many more workers the account may have.
	Room int
	// Crashes is how many workers of the newest release ended in a row before they asked for a job, and Crashed when the
	// last of them did. NoRoom is when the last was refused for lack of room on the hosts; zero: it was not.
	Crashes int
	Crashed time.Time
	NoRoom  time.Time
}

// Limit is why there are not more workers, though jobs wait.
type Limit uint8

// The limits.
const (
	None    Limit = iota
	AtMax         // the endpoint has as many as it may have
	Account       // the account has
	Crashing
	NoCapacity
)

// Plan is what is to be done now.
type Plan struct {
	Start int
	Thaw  []fleet.PodID
	// Freeze and End name workers without a job.
	Freeze, End []fleet.PodID
	Limit       Limit
	// Again is when to decide anew, if nothing happens before; zero: never.
	Again time.Time
}

// The pauses between attempts to start a worker.
const (
	FirstPause = time.Second
	LastPause  = 5 * time.Minute
	RoomPause  = 5 * time.Second
	// HaltAfter is how many crashes in a row end the attempts to replace workers of an earlier release.
	HaltAfter = 5
)

// Pause is how long no worker is started after so many crashes in a row: it doubles from FirstPause to LastPause.
func Pause(crashes int) time.Duration {
	if crashes <= 0 {
		return 0
	}
	const doublings = 16 // more than it takes to LastPause
	return min(LastPause, FirstPause<<min(crashes-1, doublings))
}

// Decide returns what to do.
func Decide(in Input) Plan {
	d := decision{Input: in}
	d.sort()
	d.grow(d.wanted())
	d.shrink()
	return d.plan
}

// decision is a Plan being made.
type decision struct {
	Input
	plan Plan

	fresh  int       // usable workers of the newest release, those that start included
	ready  bool      // one of those has asked for a job
	stale  int       // usable workers of earlier ones
	free   int       // usable workers that have no job, or will have none when they have started
	latest time.Time // when the newest of them was created
	idle   []Worker  // those that wait for a job: of earlier releases first, then longest first
	frozen []Worker  // of the newest release, shortest first
	begins int       // workers of the newest release that start
}

func (d *decision) sort() {
	slices.SortStableFunc(d.Workers, func(a, b Worker) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	earlier := 0 // idle ones of earlier releases
	for _, w := range d.Workers {
		switch {
		case w.State == Frozen && w.Stale:
			d.plan.End = append(d.plan.End, w.ID)
			continue
		case w.State == Frozen:
			d.frozen = append([]Worker{w}, d.frozen...)
			continue
		case w.Stale:
			d.stale++
		default:
			d.fresh++
			d.ready = d.ready || w.State != Initializing
		}
		if w.Created.After(d.latest) {
			d.latest = w.Created
		}
		switch w.State {
		case Initializing:
			d.free++
			if !w.Stale {
				d.begins++
			}
		case Idle:
			d.free++
			at := len(d.idle)
			if w.Stale {
				at = earlier
				earlier++
			}
			d.idle = slices.Insert(d.idle, at, w)
		}
	}
}

// wanted is how many workers there should be.
func (d *decision) wanted() int {
	have := d.fresh + d.stale
	if d.Policy.Requests > 0 {
		jobs := d.Load.Waiting + d.Load.InProgress
		return d.clamp((jobs + d.Policy.Requests - 1) / d.Policy.Requests)
	}
	uncovered := d.Load.Waiting - d.free
	if uncovered <= 0 {
		return d.clamp(have)
	}
	if have >= d.Policy.Max {
		d.plan.Limit = AtMax
		return d.clamp(have)
	}
	if have == 0 {
		return d.clamp(1)
	}
	// One step each Delay, and each as large as all before, so that a burst is met in a few of them.
	step := d.Load.Oldest.Add(d.Policy.Delay)
	if next := d.latest.Add(d.Policy.Delay); next.After(step) {
		step = next
	}
	if step.After(d.Now) {
		d.again(step)
		return d.clamp(have)
	}
	return d.clamp(have + min(uncovered, have))
}

func (d *decision) clamp(n int) int {
	if n > d.Policy.Max && n > d.fresh+d.stale {
		d.plan.Limit = AtMax
	}
	return max(d.Policy.Min, min(n, d.Policy.Max))
}

// grow thaws and starts workers. Those of an earlier release are replaced from one to the next, first by one that has
// to show that it works, then by twice as many each time, with one more than Max at most.
func (d *decision) grow(wanted int) {
	have := d.fresh + d.stale
	missing := wanted - have
	if d.begins == 0 && (d.need() > 0 || d.Load.Waiting > 0) {
		enough := d.need() // one more would idle out at once, and be replaced again
		if d.Load.Waiting > 0 {
			enough = wanted
		}
		missing = max(missing, min(d.stale, max(1, d.fresh), d.Policy.Max+1-have, enough-d.fresh))
	}
	for ; missing > 0 && d.Room > 0 && len(d.frozen) > 0; missing-- {
		d.Room--
		d.plan.Thaw = append(d.plan.Thaw, d.frozen[0].ID)
		d.frozen = d.frozen[1:]
		d.fresh++
		d.ready = true
	}
	if missing <= 0 {
		return
	}
	if d.stale > 0 && d.Crashes >= HaltAfter {
		d.plan.Limit = Crashing
		return
	}
	if until := d.Crashed.Add(Pause(d.Crashes)); until.After(d.Now) {
		d.plan.Limit = Crashing
		d.again(until)
		return
	}
	if !d.NoRoom.IsZero() {
		// The first of a release may have the room of an idle worker that it is to replace.
		if d.fresh == 0 && len(d.idle) > 0 && !d.idle[0].Drained && d.Ending == 0 {
			d.end(0)
		}
		if until := d.NoRoom.Add(RoomPause); until.After(d.Now) {
			d.plan.Limit = NoCapacity
			d.again(until)
			return
		}
	}
	if d.Crashes > 0 {
		missing = max(0, min(missing, 1-d.begins)) // one at a time, until one works
	}
	if missing > d.Room {
		missing, d.plan.Limit = max(0, d.Room), Account
		d.again(d.Now.Add(RoomPause))
	}
	d.plan.Start = missing
	d.fresh += missing
	d.begins += missing
}

// shrink ends or freezes workers that nobody needs. With the frozen ones there are Max at most.
func (d *decision) shrink() {
	for i := 0; i < len(d.idle); {
		if d.leaves(d.idle[i]) {
			d.end(i)
		} else {
			i++
		}
	}
	for i, w := range d.frozen {
		if over := w.Since.Add(d.Policy.Freeze); over.After(d.Now) && d.fresh+d.stale+i < d.Policy.Max {
			d.again(over)
		} else {
			d.plan.End = append(d.plan.End, w.ID)
		}
	}
}

// leaves reports whether an idle worker is to go.
func (d *decision) leaves(w Worker) bool {
	usable := d.fresh + d.stale - d.begins
	switch {
	case usable > d.Policy.Max+1, usable > d.Policy.Max && (w.Stale || d.stale == 0):
		return true
	case d.Load.Waiting > 0:
		return w.Stale && d.ready && usable > d.Policy.Min
	case w.Stale && usable > d.need() && (d.ready || d.need() == 0 && d.Crashes == 0):
		return true
	case usable <= d.need(), !w.Stale && d.stale > 0 && d.fresh <= d.need(), w.Stale && d.stale == 1: // the last that is known to work stays
		return false
	}
	over := w.Since.Add(d.Policy.Idle)
	if over.After(d.Now) {
		d.again(over)
		return false
	}
	return true
}

// need is below how many workers none idles out.
func (d *decision) need() int {
	if d.Policy.Requests == 0 {
		return d.Policy.Min
	}
	return max(d.Policy.Min, (d.Load.InProgress+d.Policy.Requests-1)/d.Policy.Requests)
}

// end lets an idle worker go: one that idled out may be frozen.
func (d *decision) end(i int) {
	w := d.idle[i]
	d.idle = slices.Delete(d.idle, i, i+1)
	to := &d.plan.End
	if w.Stale {
		d.stale--
	} else if d.fresh--; d.Policy.Freeze > 0 {
		to = &d.plan.Freeze
	}
	*to = append(*to, w.ID)
}

func (d *decision) again(at time.Time) {
	if d.plan.Again.IsZero() || at.Before(d.plan.Again) {
		d.plan.Again = at
	}
}
