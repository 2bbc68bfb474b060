package state

import (
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// Clock is the log's time: everything is charged and recorded by it. Leaders tick it forward by their clocks. A
// leader's time that is further than Leap from it is a leap, which holds it: it goes on from where it was, at the
// pace of that leader's clock, and nothing final is done until a tick tells a time within Leap, or is confirmed.
// A cluster has none before its first tick; then every time is taken as it is.
type Clock struct {
	At     time.Time     `cbor:"1,keyasint"`           // the log's time at the last tick
	Leap   time.Duration `cbor:"2,keyasint"`           // the most that it follows a leader's clock by at once
	Offset time.Duration `cbor:"3,keyasint,omitempty"` // of the leader's clock to the log's time while it is held
	HeldAt time.Time     `cbor:"4,keyasint,omitzero"`  // the log's time when it was held; zero: it is not
	// Wall, Boot and Up are those of the last tick that was followed; see TickClock.
	Wall time.Time     `cbor:"5,keyasint"`
	Boot string        `cbor:"6,keyasint,omitempty"`
	Up   time.Duration `cbor:"7,keyasint,omitempty"`
}

// TickClock tells the log the leader's time. It is followed when it is within Leap of the log's time and not Doubted,
// or further ahead and Confirmed; otherwise the log's time is held. Charges that ran before the hold run on through a leap
// that is confirmed; those that began within it do not. Value: Clock. Errors: invalid.
type TickClock struct {
	At   time.Time     `cbor:"1,keyasint"`
	Leap time.Duration `cbor:"2,keyasint"`
	// Confirmed says that the members' clocks agree, or an operator, that At is the time.
	Confirmed bool `cbor:"3,keyasint,omitempty"`
	// Operator says that an operator confirms. Only then may the log's time go back.
	Operator bool `cbor:"4,keyasint,omitempty"`
	// Doubted says that At may not be the time: the log's time is held, however near it is.
	Doubted bool `cbor:"5,keyasint,omitempty"`
	// Boot identifies the boot of the leader's kernel, and Up is for how long that had run.
	Boot string        `cbor:"6,keyasint,omitempty"`
	Up   time.Duration `cbor:"7,keyasint,omitempty"`
}

// Held reports whether nothing final may be done.
func (c *Clock) Held() bool { return c != nil && !c.HeldAt.IsZero() }

// near reports whether a time is within Leap of the log's.
func (c *Clock) near(at time.Time) bool { return at.Sub(c.At).Abs() <= c.Leap }

// Of returns the log's time at a leader's. It never is before that of the last tick, and more than Leap after it
// only in that leaps is true: then it is that of the last tick.
func (c *Clock) Of(raw time.Time) (at time.Time, leaps bool) {
	if c == nil || raw.IsZero() {
		return raw, false
	}
	if shifted := raw.Add(-c.Offset); c.near(shifted) {
		return latest(c.At, shifted), false
	}
	if c.near(raw) {
		return latest(c.At, raw), false
	}
	return c.At, true
}

// Clock returns the log's time; nil before the first tick. It must not be changed.
func (v *View) Clock() *Clock { return v.tb.clock.Rows[onlyKey] }

// seconds returns the second of the log's time at a leader's.
func (v *View) seconds(raw time.Time) int64 {
	at, _ := v.Clock().Of(raw)
	return meter.Seconds(at)
}

// errHeld is the error of what is final while the log's time is held, or would be.
func errHeld() error {
	return fleet.NotAllowed("nothing final is done: the scheduler's clock and the log's time are too far apart")
}

// final refuses what cannot be undone while it is not certain what time it is. At is the time of the command.
func (t *txn) final(at time.Time) error {
	if c := t.base.clock.Get(t.Txn, onlyKey); c != nil && (c.Held() || !c.near(at)) {
		return errHeld()
	}
	return nil
}

// forgetting is final for what forgets things that are older than before.
func (t *txn) forgetting(at, before time.Time) error {
	if t.base.clock.Get(t.Txn, onlyKey) != nil && before.After(at) {
		return fleet.Invalid("$.before", "must not be after the time of the command")
	}
	return t.final(at)
}

// logTime returns the log's time at a leader's. A leap holds it, which is written if the command at hand is
// accepted.
func (t *txn) logTime(raw time.Time) time.Time {
	c := t.base.clock.Get(t.Txn, onlyKey)
	at, leaps := c.Of(raw)
	if !leaps {
		return at
	}
	held := t.hold(c, raw)
	t.base.clock.Put(t.Txn, onlyKey, held)
	return held.HeldAt
}

// hold returns the clock as it goes on at the pace of a leader's clock that leaps: from after everything that is
// charged has begun.
func (t *txn) hold(c *Clock, raw time.Time) *Clock {
	from := c.At
	t.base.meters.Count(t.Txn, func(m *openMeter) bool {
		from = latest(from, time.Unix(min(m.Begin+1, meter.Seconds(c.At.Add(c.Leap))), 0).UTC())
		return false
	})
	held := *c
	held.At, held.Offset = from, raw.Sub(from)
	if !c.Held() {
		held.HeldAt = from
	}
	return &held
}

func (c TickClock) apply(t *txn) (any, error) {
	if c.At.IsZero() || c.Leap <= 0 || c.Operator && !c.Confirmed || c.Doubted && c.Confirmed {
		return nil, fleet.Invalid("$.at", "must be set, with a leap above 0, and confirmed or doubted")
	}
	next := &Clock{At: c.At, Leap: c.Leap, Wall: c.At, Boot: c.Boot, Up: c.Up}
	if old := t.base.clock.Get(t.Txn, onlyKey); old != nil {
		now := *old
		now.Leap = c.Leap
		next = c.follow(t, &now, next)
	}
	t.base.clock.Put(t.Txn, onlyKey, next)
	return *next, nil
}

// follow returns next, the clock as the tick tells it, or, where that must not be, the old one held.
func (c TickClock) follow(t *txn, old, next *Clock) *Clock {
	if old.near(c.At) && !c.Operator && !c.Doubted {
		next.At = latest(old.At, c.At)
		return next
	}
	now, leaps := old.Of(c.At)
	if leaps || c.Doubted && !old.Held() {
		old = t.hold(old, c.At)
		now = old.At
	}
	if c.Operator || c.Confirmed && c.At.After(old.At) {
		t.shiftMeters(old, meter.Seconds(c.At)-meter.Seconds(now))
		return next
	}
	held := *old
	held.At = now
	return &held
}

// shiftMeters keeps what meters have run up when the log's time is set by so many seconds: forward those that began
// while it was held, since the others ran on, and back all.
func (t *txn) shiftMeters(held *Clock, by int64) {
	since := meter.Seconds(held.HeldAt)
	keys := t.base.meters.Keys(t.Txn, 0, func(m *openMeter) bool { return by < 0 || held.Held() && m.Begin >= since })
	for _, key := range keys {
		m := *t.base.meters.Get(t.Txn, key)
		m.Begin, m.Settled = m.Begin+by, m.Settled+by
		t.base.meters.Put(t.Txn, key, &m)
	}
}

// timed returns a command with the log's time in the place of the leader's, for what is charged and recorded, and
// that time; zero for those that have none. Join tokens live by leaders' clocks, which also say when they end.
func (t *txn) timed(cmd Command) (Command, time.Time) {
	switch c := cmd.(type) {
	case CreatePods:
		if len(c.Pods) == 0 {
			return c, time.Time{}
		}
		at := t.logTime(c.Pods[0].Pod.CreatedAt)
		c.Pods = createdAt(c.Pods, at)
		return c, at
	case CreateCluster:
		at := t.logTime(c.Cluster.CreatedAt)
		c.Cluster.CreatedAt, c.Pods = at, createdAt(c.Pods, at)
		return c, at
	case Delete[fleet.Cluster]:
		c.At = t.logTime(c.At)
		return c, c.At
	case RestartCluster:
		c.At = t.logTime(c.At)
		return c, c.At
	case StopCluster:
		c.At = t.logTime(c.At)
		return c, c.At
	case CreateVolume:
		c.Volume.CreatedAt = t.logTime(c.Volume.CreatedAt)
		return c, c.Volume.CreatedAt
	case ReportPods:
		at := t.logTime(c.At)
		c.shift(at.Sub(c.At))
		c.At = at
		return c, at
	case ActPod:
		c.At = t.logTime(c.At)
		return c, c.At
	case UpdatePod:
		c.At = t.logTime(c.At)
		return c, c.At
	case MovePod:
		c.At = t.logTime(c.At)
		return c, c.At
	case EvictPod:
		c.At = t.logTime(c.At)
		return c, c.At
	case FreezeWorker:
		c.At = t.logTime(c.At)
		return c, c.At
	case UpdateVolume:
		c.At = t.logTime(c.At)
		return c, c.At
	case DeleteVolume:
		c.At = t.logTime(c.At)
		return c, c.At
	case ReportVolumes:
		c.At = t.logTime(c.At)
		return c, c.At
	}
	return t.timedHost(cmd)
}

// timedHost is timed for commands of hosts and of accounts.
func (t *txn) timedHost(cmd Command) (Command, time.Time) {
	switch c := cmd.(type) {
	case ConnectHost:
		c.At = t.logTime(c.At)
		return c, c.At
	case UpdateInventory:
		c.At = t.logTime(c.At)
		return c, c.At
	case FenceHost:
		c.At = t.logTime(c.At)
		return c, c.At
	case SetHostState:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case RemoveHost:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case CordonGPU:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case AlarmHost:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case AddCredit:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case SuspendAccount:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case NoteBackup:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case DrainGateway:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case ReadyWorkers:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case RecordAudit:
		c.Line.At = t.logTime(c.Line.At)
		return c, time.Time{}
	case PutModel:
		c.Model.CreatedAt = t.logTime(c.Model.CreatedAt)
		return c, time.Time{}
	case HoldCredit:
		c.Hold.At = t.logTime(c.Hold.At)
		return c, time.Time{}
	case SettleHolds:
		c.At = t.logTime(c.At)
		return c, time.Time{}
	case NoteBalances:
		c.At = t.logTime(c.At)
		return c, c.At
	case ExhaustAccounts:
		return c, c.At // refused where the two differ
	case EndPods:
		return c, c.At // likewise
	}
	return cmd, time.Time{}
}

// createdAt returns pods that are created at one time.
func createdAt(pods []NewPod, at time.Time) []NewPod {
	pods = slices.Clone(pods)
	for i := range pods {
		pods[i].Pod.CreatedAt = at
	}
	return pods
}

// shift moves all times that a report has from the leader's clock to the log's time.
func (c ReportPods) shift(by time.Duration) {
	for i := range c.Reports {
		r := &c.Reports[i]
		if !r.At.IsZero() {
			r.At = r.At.Add(by)
		}
		for step, at := range r.Steps {
			r.Steps[step] = at.Add(by)
		}
	}
}
