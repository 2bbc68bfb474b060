package sim

import (
	"slices"
	"time"
)

// schedulerFaults are the faults of schedulers, their disks and the network between them.
func schedulerFaults() []fault {
	return []fault{
		{"scheduler killed", 4, schedulerKilled},
		{"schedulers killed", 1, schedulersKilled},
		{"leader cut off", 2, leaderCutOff},
		{"schedulers apart", 3, schedulersApart},
		{"one-way cut between schedulers", 2, oneWay},
		{"bridge between schedulers", 1, bridge},
		{"host cut from schedulers", 2, hostCutFrom},
		{"scheduler paused", 2, schedulerPaused},
		{"slow log", 2, slowLog},
		{"hung log", 2, hungLog},
		{"full disk", 1, fullDisk},
		{"clock jump", 3, clockJump},
	}
}

// mostOutages is how many faults of schedulers there are at a time.
const mostOutages = 2

// outage notes a fault of schedulers until the returned function is called.
func (d *driver) outage(name string, on any, end func()) func() {
	d.log.Info("FAULT begins", "fault", name, "on", on)
	d.tally.Lock()
	defer d.tally.Unlock()
	d.outages++
	return func() {
		end()
		d.tally.Lock()
		defer d.tally.Unlock()
		d.outages--
		d.calmSince = time.Now()
	}
}

// busy reports whether there are enough faults of schedulers.
func (d *driver) busy() bool {
	d.tally.Lock()
	defer d.tally.Unlock()
	return d.outages >= mostOutages
}

// anyScheduler returns one that runs, as often as not the one that leads.
func (d *driver) anyScheduler() *process {
	living := d.living()
	if len(living) == 0 || d.busy() {
		return nil
	}
	if d.rng.IntN(2) == 0 {
		return d.scheduler()
	}
	return living[d.rng.IntN(len(living))]
}

// shuffled returns the names of all schedulers in any order; nil when there are fewer than least.
func (d *driver) shuffled(least int) (names []string) {
	for _, m := range d.stays() {
		names = append(names, m.name)
	}
	if len(names) < least || d.busy() {
		return nil
	}
	d.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

func schedulerKilled(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil {
		return 0, nil
	}
	return d.crash("scheduler killed", p.member)
}

func schedulersKilled(d *driver) (time.Duration, func()) {
	names := d.shuffled(2)
	if names == nil {
		return 0, nil
	}
	names = names[:2+d.rng.IntN(len(names)-1)]
	var gone []*member
	for _, m := range d.stays() {
		if slices.Contains(names, m.name) {
			gone = append(gone, m)
		}
	}
	return d.crash("schedulers killed", gone...)
}

// crash kills schedulers in the same moment; the last of them is back when the fault ends.
func (d *driver) crash(name string, gone ...*member) (time.Duration, func()) {
	var names []string
	for _, m := range gone {
		names = append(names, m.name)
		if p := d.process(m); p != nil {
			p.stopTalking()
		}
	}
	end := d.outage(name, names, func() {
		for _, m := range gone {
			d.revive(m)
		}
	})
	for _, m := range gone {
		m.kill(unclean(d.rng.IntN(int(uncleanKinds))))
	}
	return d.between(0, 15*time.Second), end
}

// revive starts a scheduler that ended.
func (d *driver) revive(m *member) {
	d.reap()
	if m.removed {
		return
	}
	if err := m.start(); err != nil {
		d.broke("scheduler %s does not start: %v", m.name, err)
	}
}

// leaderCutOff leaves the leader alone, so that it is a minority; its users still reach it, and with luck
// hosts do.
func leaderCutOff(d *driver) (time.Duration, func()) {
	names := d.shuffled(2)
	p := d.scheduler()
	if names == nil || p == nil {
		return 0, nil
	}
	var ways []way
	for _, other := range names {
		if other != p.name {
			ways = append(ways, way{p.name, other}, way{other, p.name})
		}
	}
	return d.between(time.Second, 25*time.Second), d.outage("leader cut off", p.name, d.wire.block(ways...))
}

// schedulersApart makes groups that do not hear each other: two, or one of each.
func schedulersApart(d *driver) (time.Duration, func()) {
	names := d.shuffled(2)
	if names == nil {
		return 0, nil
	}
	group := make(map[string]int, len(names))
	alone := d.rng.IntN(3) == 0
	first := 1 + d.rng.IntN(len(names)-1)
	for i, name := range names {
		switch {
		case alone:
			group[name] = i
		case i >= first:
			group[name] = 1
		}
	}
	var ways []way
	for _, a := range names {
		for _, b := range names {
			if group[a] != group[b] {
				ways = append(ways, way{a, b})
			}
		}
	}
	return d.between(time.Second, 20*time.Second), d.outage("schedulers apart", group, d.wire.block(ways...))
}

func oneWay(d *driver) (time.Duration, func()) {
	names := d.shuffled(2)
	if names == nil {
		return 0, nil
	}
	ways := []way{{names[0], names[1]}}
	if p := d.scheduler(); p != nil && d.rng.IntN(2) == 0 { // the leader speaks, or hears, and not both
		ways = nil
		out := d.rng.IntN(2) == 0
		for _, other := range names {
			switch {
			case other == p.name:
			case out:
				ways = append(ways, way{p.name, other})
			default:
				ways = append(ways, way{other, p.name})
			}
		}
	}
	return d.between(time.Second, 20*time.Second), d.outage("one-way cut between schedulers", ways, d.wire.block(ways...))
}

// bridge cuts two schedulers from each other that both reach the others.
func bridge(d *driver) (time.Duration, func()) {
	names := d.shuffled(3)
	if names == nil {
		return 0, nil
	}
	ways := []way{{names[0], names[1]}, {names[1], names[0]}}
	return d.between(time.Second, 25*time.Second), d.outage("bridge between schedulers", ways, d.wire.block(ways...))
}

// hostCutFrom cuts a host from some schedulers, in one or both directions; half the time from the leader.
func hostCutFrom(d *driver) (time.Duration, func()) {
	names := d.shuffled(2)
	h := d.anyHost("host cut from schedulers", always)
	if names == nil || h == nil {
		return 0, nil
	}
	names = names[:1+d.rng.IntN(len(names)-1)]
	if p := d.scheduler(); p != nil && d.rng.IntN(2) == 0 {
		names = []string{p.name}
	}
	var ways []way
	both := d.rng.IntN(3)
	for _, s := range names {
		if both != 1 {
			ways = append(ways, way{h.name, s})
		}
		if both != 2 {
			ways = append(ways, way{s, h.name})
		}
	}
	return d.between(time.Second, 25*time.Second), d.during("host cut from schedulers", h, d.wire.block(ways...))
}

// schedulerPaused stands for a process or virtual machine that does not run for a while: nothing that it
// says or hears comes through, also to users, and its clocks go on.
func schedulerPaused(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil {
		return 0, nil
	}
	heal := d.wire.block(way{p.name, everyone}, way{everyone, p.name})
	return d.between(time.Second, 30*time.Second), d.outage("scheduler paused", p.name, heal)
}

func slowLog(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil {
		return 0, nil
	}
	by := d.between(200*time.Millisecond, 2*time.Second)
	p.disk.setSlow(by)
	return d.between(2*time.Second, 15*time.Second), d.outage("slow log", p.name, func() { p.disk.setSlow(0) })
}

// hungLog makes a scheduler's writes hang: it has to end itself, and is started again on a disk that answers.
func hungLog(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil {
		return 0, nil
	}
	p.disk.hang()
	return d.between(8*time.Second, 20*time.Second), d.outage("hung log", p.name, func() {
		if d.process(p.member) == p && !p.halted.Load() {
			d.log.Info("the hung scheduler wrote nothing", "at", p.name)
		} else {
			d.note("scheduler ended itself")
		}
		p.kill(stateOpen)
		d.revive(p.member)
	})
}

// hangsTooLong checks that a scheduler whose disk hangs ends itself.
func (c *checker) hangsTooLong() {
	for _, p := range c.w.living() {
		if d := p.disk.hangsFor(); d > 2*hangLimit {
			c.w.broke("%s goes on though its log hangs since %s", p.name, d)
		}
	}
}

// fullDisk fills the disk of one scheduler or of all.
func fullDisk(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil {
		return 0, nil
	}
	full := []*process{p}
	if d.rng.IntN(3) == 0 {
		full = d.living()
	}
	for _, p := range full {
		p.disk.setFull(true)
	}
	return d.between(2*time.Second, 15*time.Second), d.outage("full disk", len(full), func() {
		for _, p := range full {
			p.disk.setFull(false)
		}
	})
}

// clockJump sets a scheduler's wall clock wrong, by an hour or ten years. It is for runs without checks of
// money, which say what things cost by a clock that is right.
func clockJump(d *driver) (time.Duration, func()) {
	p := d.anyScheduler()
	if p == nil || !d.clocksJump {
		return 0, nil
	}
	by := []time.Duration{time.Hour, 10 * 365 * 24 * time.Hour}[d.rng.IntN(2)]
	if d.rng.IntN(2) == 0 {
		by = -by
	}
	if by.Abs() > 24*time.Hour {
		d.forgetful.Store(true)
	}
	p.clock.Store(int64(by))
	return d.between(5*time.Second, 30*time.Second), d.outage("clock jump", by, func() { p.clock.Store(0) })
}
