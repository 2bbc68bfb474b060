package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

const (
	loadTime   = 2 * time.Minute // of users and faults
	settleTime = 8 * time.Minute // after them, until everything is as it should be; a slow pull takes 4
	idleTime   = 30 * time.Second
	maxCalls   = 10 // of users at one time
	leaderBy   = 10 * time.Second
)

// driver is the users and the faults of one run. All that it decides comes from the seed.
type driver struct {
	*world
	*checker
	repairs   []repair
	on        map[string]bool // faults that are on, by name and host
	calls     sync.WaitGroup
	operating sync.WaitGroup // what operators do
	restores  bool           // this run has a restore from a copy
	numbers   int

	tally     sync.Mutex // guards the fields below and the checker's
	open      int        // calls under way
	invoking  int        // of them, those of users of endpoints
	ganging   int        // and of clusters
	count     map[string]int
	owned     map[fleet.PodID]fleet.AccountID
	ids       []fleet.PodID
	templates []fleet.TemplateID
	volumes   map[fleet.AccountID][]fleet.VolumeID
	endpoints []endpoint // as users know them

	submissions []submitted
	gangs       []gang      // clusters, as users know them
	crediting   bool        // a credit is under way, or has no answer
	unsureKey   *fleet.Once // of checker.unsure
	outages     int         // faults of schedulers that are on
	calmSince   time.Time   // when the last of them ended
}

// repair ends a fault.
type repair struct {
	at   time.Time
	name string
	do   func()
}

// fault begins something bad and returns how long it lasts and what ends it; nil when it cannot be
// now.
type fault struct {
	name   string
	weight int
	begin  func(d *driver) (time.Duration, func())
}

func faults() []fault {
	return append(append(schedulerFaults(), operatorFaults()...), []fault{
		{"agent killed", 4, agentKilled},
		{"host rebooted", 2, hostRebooted},
		{"link cut", 3, linkCut(true, true)},
		{"link cut upwards", 2, linkCut(true, false)},
		{"link cut downwards", 2, linkCut(false, true)},
		{"runtime away", 3, runtimeAway},
		{"slow pulls", 1, slowPulls},
		{"second agent", 2, secondAgent},
		{"GPU sick", 2, gpuSick},
		{"host unfit", 1, hostUnfit},
	}...)
}

func newDriver(w *world) *driver {
	d := &driver{
		world: w, checker: newChecker(w), on: map[string]bool{}, count: map[string]int{}, owned: map[fleet.PodID]fleet.AccountID{},
		volumes: map[fleet.AccountID][]fleet.VolumeID{}, calmSince: time.Now(),
	}
	d.calm = func() time.Time { // the caller holds tally
		if d.outages > 0 {
			return time.Time{}
		}
		return d.calmSince
	}
	return d
}

// run is one run from the first pod to the last check. It stops early when something is broken.
func (d *driver) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gpus := []int{4, 4, 0}
	if d.serverless {
		gpus = append(gpus, 4) // so that workers leave pods as much room as they have in other runs
	}
	if d.world.gangs {
		gpus = append(gpus, 4, 4)
	}
	for i, gpus := range gpus {
		h, err := d.newHost(ctx, fmt.Sprintf("host-%d", i+1), gpus)
		if err != nil {
			return err
		}
		h.start()
	}
	if err := errors.Join(d.prepay(ctx), d.putSecrets()); err != nil {
		return err
	}
	d.load(loadTime / 3)
	var file []byte
	if d.restores {
		d.operates("backup", func() (err error) { file, err = d.backup(); return err })
	}
	d.load(loadTime / 3)
	if d.restores {
		d.await(&d.calls)
		d.heal()
		d.led()
		if len(d.broken()) == 0 {
			d.restoredInRun(file)
		}
	}
	d.load(loadTime / 3)
	d.await(&d.calls)
	d.heal()
	d.led()
	d.credited()
	d.calmed()
	d.settle()
	d.retire()
	d.disband()
	d.settle()
	d.quiet()
	return nil
}

// load is the time of users and faults.
func (d *driver) load(lasts time.Duration) {
	for end := time.Now().Add(lasts); time.Now().Before(end) && len(d.broken()) == 0; {
		time.Sleep(time.Duration(50+d.rng.IntN(900)) * time.Millisecond)
		d.repair(time.Now())
		for range d.rng.IntN(4) {
			d.user()
		}
		if d.serverless && d.rng.IntN(3) > 0 {
			d.invoker()
		}
		if d.world.gangs && d.rng.IntN(4) == 0 {
			d.gangUser()
		}
		if d.rng.IntN(100) < 14 {
			d.break1()
		}
		d.looksQuietly()
	}
}

// looksQuietly checks while nothing runs.
func (d *driver) looksQuietly() {
	synctest.Wait()
	d.reap()
	d.look()
}

func (d *driver) look() {
	d.tally.Lock()
	defer d.tally.Unlock()
	d.checker.look()
}

// repair ends the faults whose time is up.
func (d *driver) repair(now time.Time) {
	due := d.repairs
	d.repairs = nil
	for _, r := range due {
		if r.at.After(now) {
			d.repairs = append(d.repairs, r)
			continue
		}
		if r.name != "" {
			d.log.Info("FAULT ends", "fault", r.name)
		}
		r.do()
	}
}

// break1 begins one fault.
func (d *driver) break1() {
	all := faults()
	sum := 0
	for _, f := range all {
		sum += f.weight
	}
	n := d.rng.IntN(sum)
	for _, f := range all {
		if n -= f.weight; n >= 0 {
			continue
		}
		lasts, end := f.begin(d)
		if end == nil {
			return
		}
		d.note(f.name)
		d.repairs = append(d.repairs, repair{time.Now().Add(lasts), f.name, end})
		return
	}
}

func (d *driver) note(what string) {
	d.tally.Lock()
	defer d.tally.Unlock()
	d.count[what]++
}

func (d *driver) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.rng.Int64N(int64(most-least)))
}

// anyHost returns a host that the fault can still happen to.
func (d *driver) anyHost(name string, usable func(*host) bool) *host {
	var fit []*host
	for _, h := range d.allHosts() {
		if usable(h) && !d.on[name+" "+h.name] {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	h := fit[d.rng.IntN(len(fit))]
	d.log.Info("FAULT begins", "fault", name, "on", h.name)
	return h
}

// during notes that a fault is on a host until the returned function is called.
func (d *driver) during(name string, h *host, end func()) func() {
	key := name + " " + h.name
	d.on[key] = true
	return func() {
		end()
		delete(d.on, key)
	}
}

func runs(h *host) bool { return h.life != nil }

func always(*host) bool { return true }

func agentKilled(d *driver) (time.Duration, func()) {
	h := d.anyHost("agent killed", runs)
	if h == nil {
		return 0, nil
	}
	h.kill(true)
	return d.between(0, 20*time.Second), h.start
}

func hostRebooted(d *driver) (time.Duration, func()) {
	h := d.anyHost("host rebooted", runs)
	if h == nil {
		return 0, nil
	}
	h.reboot()
	return d.between(time.Second, 40*time.Second), h.start
}

func linkCut(up, down bool) func(*driver) (time.Duration, func()) {
	return func(d *driver) (time.Duration, func()) {
		h := d.anyHost("link cut", always)
		if h == nil {
			return 0, nil
		}
		d.wire.cut(h.name, up, down)
		return d.between(time.Second, 25*time.Second), d.during("link cut", h, func() { d.wire.cut(h.name, false, false) })
	}
}

func runtimeAway(d *driver) (time.Duration, func()) {
	h := d.anyHost("runtime away", always)
	if h == nil {
		return 0, nil
	}
	h.setAway(true)
	return d.between(time.Second, 20*time.Second), d.during("runtime away", h, func() { h.setAway(false) })
}

func slowPulls(d *driver) (time.Duration, func()) {
	h := d.anyHost("slow pulls", always)
	if h == nil {
		return 0, nil
	}
	h.setSlow(true)
	return d.between(5*time.Second, 20*time.Second), d.during("slow pulls", h, func() { h.setSlow(false) })
}

// secondAgent runs an agent on a copy of a host's disk in another machine. Whatever it starts or
// stops is told by the machine's watcher.
func secondAgent(d *driver) (time.Duration, func()) {
	h := d.anyHost("second agent", always)
	if h == nil {
		return 0, nil
	}
	d.numbers++
	synctest.Wait() // nothing writes to the disk while it is copied
	c, err := h.clone(fmt.Sprintf("%s-copy-%d", h.name, d.numbers))
	if err != nil {
		d.broke("copy of %s: %v", h.name, err)
		return 0, nil
	}
	c.start()
	return d.between(2*time.Second, 20*time.Second), d.during("second agent", h, func() {
		c.kill(true)
		if running, boxes := c.census(); len(running)+len(boxes) > 0 {
			d.broke("I1: the second agent made containers: %v", boxes)
		}
	})
}

// heal ends every fault. Operators go on until what they began is done.
func (d *driver) heal() {
	for began := time.Now(); len(d.repairs) > 0; {
		d.repair(time.Now().Add(time.Hour))
		if time.Since(began) > 2*patience {
			d.broke("an operator's work does not end")
			return
		}
		if len(d.repairs) > 0 {
			time.Sleep(time.Second)
			d.looksQuietly()
		}
	}
	d.await(&d.operating)
}

// await waits for what users or operators have begun, and looks meanwhile.
func (d *driver) await(all *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Second):
			d.looksQuietly()
		}
	}
}

// led checks that a scheduler leads soon after the last fault: I10.
func (d *driver) led() {
	d.supervise()
	ctx, cancel := context.WithTimeout(context.Background(), leaderBy)
	defer cancel()
	began := time.Now()
	if _, err := awaitLeader(ctx, d.living()); err != nil {
		d.broke("I10: %s after the last fault: %v", leaderBy, err)
	}
	d.log.Info("a scheduler leads", "after", time.Since(began))
}

// supervise starts schedulers that ended themselves, in a handover, as their supervisors do. All faults are over.
func (d *driver) supervise() {
	for _, m := range d.members {
		if d.process(m) == nil {
			d.revive(m)
		}
	}
}

// settle waits until everything is as it should be: I10.
func (d *driver) settle() {
	began := time.Now()
	var wrong []string
	for end := began.Add(settleTime); len(d.broken()) == 0; time.Sleep(time.Second) {
		d.supervise()
		synctest.Wait()
		d.look()
		if wrong = d.settled(); len(wrong) == 0 {
			d.log.Info("settled", "after", time.Since(began))
			return
		}
		if time.Now().After(end) {
			d.broke("I10: not settled %s after the last fault:\n%s", settleTime, strings.Join(wrong, "\n"))
		}
	}
}

// quiet checks that pods go on without the scheduler (I12), and that the log tells the same story
// again (I7).
func (d *driver) quiet() {
	if len(d.broken()) > 0 {
		return
	}
	before := d.processesNow()
	d.picture()
	for _, m := range d.members {
		m.kill(stateClean)
	}
	var kept *member
	for _, m := range d.stays() {
		if kept == nil || d.index(m) > d.index(kept) {
			kept = m
		}
	}
	end, story, err := replay(d.world, raftDir(kept.dir), d.last.index)
	d.check(err)
	if story.commands > 0 {
		d.count["replayed"] = story.commands
		d.count["inventory changed"] = story.updates
		d.count["interrupted"], d.count["returned"] = story.interruptions, story.returns
		d.count["workers yielded"] = story.workforce.yielded
		if !d.clocksJump {
			d.count["intervals charged"] = story.charges.check(d.world, end)
		}
		if end.text() != d.last.text() {
			d.broke("I7: the log replayed gives another state:\n%s\n%s", d.last.text(), end.text())
		}
	}
	time.Sleep(idleTime)
	for id, incarnation := range before {
		if now, running := d.processesNow()[id]; behaviorOf(d.last.pods[id].Spec.Image).after == 0 && (!running || now != incarnation) {
			d.broke("I12: pod %s ended while no scheduler ran", id)
		}
	}
}

func (d *driver) processesNow() map[fleet.PodID]uint64 {
	out := map[fleet.PodID]uint64{}
	for _, h := range d.allHosts() {
		running, _ := h.census()
		for id, incarnation := range running {
			out[id] = incarnation
		}
	}
	return out
}
