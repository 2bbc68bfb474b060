package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// MeterID names an open meter.
type MeterID struct {
	Kind fleet.ChargeKind `cbor:"1,keyasint"`
	ID   string           `cbor:"2,keyasint"`
}

// key is the meter's key in its table. No kind has a slash.
func (id MeterID) key() string { return string(id.Kind) + "/" + id.ID }

func meterIDOf(key string) MeterID {
	kind, id, _ := strings.Cut(key, "/")
	return MeterID{fleet.ChargeKind(kind), id}
}

// openMeter is what a resource costs now and since when. A pod has one from its creation to its
// termination, with rates of 0 while it is stopped and keeps nothing: so no interval can begin before
// the end of the one before, whatever the clocks say.
type openMeter struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Begin   int64           `cbor:"2,keyasint"` // Unix seconds
	Settled int64           `cbor:"3,keyasint"` // up to here it is in usage and balance; never before Begin
	Rates   fleet.Amounts   `cbor:"4,keyasint"` // per hour
	Owner   fleet.Owner     `cbor:"5,keyasint,omitzero"`
}

// resource is what the charges of a meter are recorded for: a pod's owner, where it has one.
func (m *openMeter) resource(id MeterID) MeterID {
	if m.Owner != (fleet.Owner{}) {
		return MeterID{fleet.ChargeKind(m.Owner.Kind), m.Owner.ID}
	}
	return id
}

func (m *openMeter) interval() meter.Interval { return meter.Interval{Begin: m.Begin, Rates: m.Rates} }

// running returns what the meter has run up to a time and is not settled; negative when the time is
// before what was settled.
func (m *openMeter) running(to int64) fleet.Amounts {
	return m.interval().Part(m.Settled, max(to, m.Begin))
}

// phase is how a pod is charged.
type phase int

const (
	phaseNone    phase = iota // not there, or terminated
	phaseStopped              // for what it keeps on its host
	phaseRunning              // for all that it has
)

// terms is what a pod's charge depends on but for the prices of storage: while they stay, so does its
// interval.
type terms struct {
	phase              phase
	compute            fleet.Money
	diskGB, persistent int
}

// termsOf works out how a pod, which may be nil, is charged. A stop counts from when it was accepted, the
// end of a process from when it ended: EndedAt is set in both. One whose image cannot be had is charged like a stopped one.
func termsOf(p *fleet.Pod) terms {
	if p == nil || p.Status == fleet.StatusTerminated {
		return terms{}
	}
	out := terms{phase: phaseStopped}
	if p.Spec.Persistent != nil {
		out.persistent = p.Spec.Persistent.SizeGB
	}
	unready := p.Owner.Kind == fleet.OwnerEndpoint && (p.Ready.IsZero() || !p.Frozen.IsZero())
	if p.Status.Active() && p.EndedAt.IsZero() && p.Waiting.IsZero() && !unready {
		out.phase, out.compute, out.diskGB = phaseRunning, p.HourlyRate, p.Spec.DiskGB
	}
	return out
}

// rates returns what a pod on these terms costs per hour at the prices of now.
func (t *txn) rates(p *fleet.Pod, by terms) fleet.Amounts {
	switch by.phase {
	case phaseRunning:
		return meter.Running(&p.Spec, by.compute, storagePrices(t.base.catalog.Get(t.Txn, onlyKey)))
	case phaseStopped:
		return meter.Stopped(&p.Spec, storagePrices(t.base.catalog.Get(t.Txn, onlyKey)))
	}
	return fleet.Amounts{}
}

// storagePrices returns the prices of a catalog, which may be nil; nil: storage is free.
func storagePrices(c *fleet.Catalog) *fleet.StoragePrices {
	if c == nil {
		return nil
	}
	return c.Storage
}

// meterPod keeps a pod's meter: it is called with every record of a pod that is written, and the one
// before. When the terms change, one interval ends and the next begins. It begins and ends
//
//   - at an accepted start, when it begins to be charged: Steps[created];
//   - at an accepted stop or the end of its process, when that ends: EndedAt;
//   - while its image cannot be had: Waiting, and when a host reports anything else of it;
//   - when a worker of an endpoint is ready, frozen or thawed: Ready, Frozen, the time of the command;
//   - at its termination, for good: TerminatedAt;
//   - at the time of the command, when sizes change.
//
// A restart and a reboot change nothing.
func (t *txn) meterPod(before, p *fleet.Pod) {
	was, is := termsOf(before), termsOf(p)
	id := MeterID{fleet.ChargePod, string(p.ID)}
	if was == is && (is.phase == phaseNone || t.base.meters.Get(t.Txn, id.key()) != nil) {
		return
	}
	at := t.now
	switch {
	case is.phase == phaseNone:
		at = p.TerminatedAt
	case was.phase == phaseRunning && is.phase == phaseStopped:
		at = cmp.Or(p.EndedAt, p.Waiting, p.Frozen, p.Steps[fleet.StepCreated]) // the last: a worker begins anew
	case before != nil && before.Ready.IsZero() && !p.Ready.IsZero():
		at = p.Ready
	case before != nil && before.Incarnation == p.Incarnation && (!before.Waiting.IsZero() || !before.Frozen.IsZero()): // goes on
	case was.phase != phaseRunning && is.phase == phaseRunning:
		at = p.Steps[fleet.StepCreated]
	}
	second := meter.Seconds(at)
	if m := t.base.meters.Get(t.Txn, id.key()); m != nil && at.IsZero() {
		second = m.Settled // a time that nobody told takes nothing back
	}
	t.turn(id, openMeter{Account: p.Account, Owner: p.Owner, Rates: t.rates(p, is)}, is.phase != phaseNone, second)
}

// meterVolume keeps a network volume's meter. Before is nil when it is created, after when it begins to be
// deleted; at is when it was.
func (t *txn) meterVolume(before, after *fleet.Volume, at time.Time) {
	switch {
	case before == nil && after == nil:
	case after == nil:
		t.turn(MeterID{fleet.ChargeVolume, string(before.ID)}, openMeter{}, false, meter.Seconds(at))
	default:
		id := MeterID{fleet.ChargeVolume, string(after.ID)}
		same := before != nil && before.SizeGB == after.SizeGB && before.Type == after.Type
		if same && t.base.meters.Get(t.Txn, id.key()) != nil {
			return
		}
		rates := meter.Volume(after, storagePrices(t.base.catalog.Get(t.Txn, onlyKey)))
		t.turn(id, openMeter{Account: after.Account, Rates: rates}, true, meter.Seconds(at))
	}
}

// turn ends a meter's interval, if there is one, at a second and, when open, begins the next one there, on the terms of next.
// An interval that is said to end before it began ends when it began: it costs nothing, and that is
// as much as any time can take back; nor goes it back further than the command has room to write.
func (t *txn) turn(id MeterID, next openMeter, open bool, at int64) {
	if m := t.base.meters.Get(t.Txn, id.key()); m != nil {
		at = max(at, m.Begin, m.Settled-max(0, t.room-1)*meter.HourSeconds)
		t.charge(id, m, at)
	}
	if !open {
		t.base.meters.Drop(t.Txn, id.key())
		return
	}
	next.Begin, next.Settled = at, at
	t.base.meters.Put(t.Txn, id.key(), &next)
}

// charge moves what a meter has run up to a second into usage and balance, or back from there when the
// second is before what was settled: then no more than is still there, as what was purged stays charged.
// The meter's own row is the caller's to write. What is ahead of the command's room goes with the first hour.
func (t *txn) charge(id MeterID, m *openMeter, to int64) {
	var total fleet.Money
	for hour, amounts := range m.interval().HoursWithin(m.Settled, to, max(0, t.room)+1) {
		key := usageKey{m.Account, hour, m.resource(id)}
		t.room--
		if to < m.Settled {
			amounts = t.refundable(key, amounts)
		}
		if amounts != (fleet.Amounts{}) {
			t.addUsage(key, amounts)
			total += amounts.Total()
		}
	}
	if total != 0 {
		t.addBalance(m.Account, -total)
	}
}

// refundable bounds what is taken back, which is 0 or negative, by what an hour's record has.
func (t *txn) refundable(key usageKey, amounts fleet.Amounts) fleet.Amounts {
	row := t.base.usage.Get(t.Txn, key.text())
	if row == nil {
		return fleet.Amounts{}
	}
	return fleet.Amounts{
		GPU: max(amounts.GPU, -row.GPU), CPU: max(amounts.CPU, -row.CPU), Disk: max(amounts.Disk, -row.Disk),
		Standard: max(amounts.Standard, -row.Standard), Fast: max(amounts.Fast, -row.Fast),
	}
}

// maxSettle is about how many hourly records one command writes.
const maxSettle = 16 << 10

// A settle point only moves on here, so that a proposer whose clock is behind costs no work; see turn for
// the one way back. What would be too much for one entry is left to the next.
func (c SettleMeters) apply(t *txn) (any, error) {
	if clock := t.base.clock.Get(t.Txn, onlyKey); clock.Held() || clock != nil && c.At.After(clock.At.Add(clock.Leap)) {
		return nil, errHeld()
	}
	at := meter.Seconds(c.At)
	for _, id := range c.Meters {
		m := t.base.meters.Get(t.Txn, id.key())
		if t.room <= 0 {
			break
		}
		if m == nil || at <= m.Settled {
			continue
		}
		next := *m
		next.Settled = min(at, m.Settled+t.room*meter.HourSeconds)
		t.charge(id, m, next.Settled)
		t.base.meters.Put(t.Txn, id.key(), &next)
	}
	return nil, nil
}

// OpenMeters returns up to limit meters that cost something and are not settled up to before, in order, those first that are
// behind most. It looks at those alone.
func (v *View) OpenMeters(before time.Time, limit int) []MeterID {
	to := meter.Seconds(before)
	var out []MeterID
	for _, hour := range slices.Sorted(maps.Keys(v.tb.due)) {
		if hour > meter.Hour(to) || len(out) >= limit {
			break
		}
		var due []string
		for key, m := range v.tb.due[hour] {
			if m.Settled < to {
				due = append(due, key)
			}
		}
		slices.Sort(due)
		for _, key := range due[:min(len(due), limit-len(out))] {
			out = append(out, meterIDOf(key))
		}
	}
	return out
}
