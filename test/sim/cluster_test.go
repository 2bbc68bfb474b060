package sim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// runs makes p, or with nil nothing, the process of a member.
func (w *world) runs(m *member, p *process) {
	if p == nil {
		w.learn(w.process(m))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p == nil {
		delete(w.lives, m)
		return
	}
	w.lives[m] = p
}

func (w *world) process(m *member) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lives[m]
}

// living returns the schedulers that run, in the order of their names.
func (w *world) living() (out []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if p := w.lives[m]; p != nil && !p.dying.Load() {
			out = append(out, p)
		}
	}
	return out
}

// stays returns the members that were not removed.
func (w *world) stays() (out []*member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if !m.removed {
			out = append(out, m)
		}
	}
	return out
}

// scheduler returns the one that leads, or else one that runs; nil when none does.
func (w *world) scheduler() *process {
	living := w.living()
	for _, p := range living {
		if p.node.IsLeader() {
			return p
		}
	}
	if len(living) > 0 {
		return living[0]
	}
	return nil
}

// learn takes over what a scheduler has applied, if nobody has applied more: that is the state.
func (w *world) learn(p *process) {
	w.mu.Lock()
	known := w.last.index
	w.mu.Unlock()
	if p.store.Index() <= known {
		return
	}
	now, err := take(p.store)
	w.check(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.index > w.last.index {
		w.last = now
	}
}

// picture returns the state: that of the scheduler that has applied most. It never goes back.
func (w *world) picture() picture {
	for _, p := range w.living() {
		w.learn(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// forget makes what a scheduler is seen with next the state, though it is older.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = picture{}
}

// pod returns a pod's record.
func (w *world) pod(id fleet.PodID) (fleet.Pod, bool) {
	var best *process
	for _, p := range w.living() {
		if best == nil || p.store.Index() > best.store.Index() {
			best = p
		}
	}
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	if best != nil && best.store.Index() > last.index {
		if rec, known, err := find(best.store, id); err == nil {
			return rec, known
		}
	}
	rec, ok := last.pods[id]
	return rec, ok
}

// index is how much a member that is down had applied.
func (w *world) index(m *member) uint64 {
	s, err := state.Open(filepath.Join(raftDir(m.dir), replica.StateFile), state.Options{BootID: "boot"})
	if err != nil {
		w.check(err)
		return 0
	}
	index := s.Index()
	w.check(s.Close())
	return index
}

// addresses are those under which agents look for schedulers.
func (w *world) addresses() (out []string) {
	for _, m := range w.stays() {
		out = append(out, m.addr)
	}
	return out
}

// startScheduler starts the first scheduler on its files and waits until one leads.
func (w *world) startScheduler(ctx context.Context) error {
	if err := w.members[0].start(); err != nil { //nolint:contextcheck // its port outlives the call
		return err
	}
	_, err := awaitLeader(ctx, w.living())
	return err
}

// killScheduler kills the first scheduler.
func (w *world) killScheduler(how unclean) { w.members[0].kill(how) }

// clear up behind schedulers that ended by themselves.
func (w *world) reap() {
	w.mu.Lock()
	var gone []*member
	for _, m := range w.members {
		if p := w.lives[m]; p != nil && p.halted.Load() {
			gone = append(gone, m)
		}
	}
	w.mu.Unlock()
	for _, m := range gone {
		m.kill(stateOpen)
	}
}

var (
	errDown    = fleet.Unavailable("no scheduler runs", nil)
	errNoWord  = fleet.Unavailable("the answer did not come", nil)
	forwarding = 5 * time.Second // for how long a scheduler looks for one that leads
)

// entry returns the scheduler that a user's call goes to.
func (w *world) entry() *process {
	living := w.living()
	if len(living) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return living[w.users.IntN(len(living))]
}

// ask calls any scheduler as a user does. One that does not lead hands the call on to the one that
// does. A user of a scheduler that died meanwhile got no answer.
func (w *world) ask(call func(context.Context, *process) (fleet.PodView, error)) (fleet.Pod, error) {
	p := w.entry()
	if p == nil {
		return fleet.Pod{}, errDown
	}
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	for end := time.Now().Add(forwarding); ; {
		to := p.leader()
		if to != nil {
			view, err := call(ctx, to)
			switch {
			case to.dying.Load() || p.dying.Load() || w.wire.apart(p.name, to.name):
				return fleet.Pod{}, errNoWord
			case !errors.Is(err, replica.ErrNotLeader) || errors.Is(err, replica.ErrUnknown):
				if view.Pod == nil { // the call is of something else, or failed
					return fleet.Pod{}, err
				}
				return *view.Pod, err
			}
		}
		if p.dying.Load() || time.Now().After(end) || sleep.For(ctx, 100*time.Millisecond) != nil {
			return fleet.Pod{}, errDown
		}
	}
}

// leader returns the scheduler that p takes for the leader, if p reaches it.
func (p *process) leader() *process {
	lead, ok := p.node.Leader()
	if !ok {
		return nil
	}
	for _, other := range p.world.living() {
		if other.id == lead.ID && !p.world.wire.apart(p.name, other.name) {
			return other
		}
	}
	return nil
}

// alike compares what schedulers have at one index: I7.
func (c *checker) alike() {
	for _, p := range c.w.living() {
		index := p.store.Index()
		if c.hashed[p] == index {
			continue
		}
		hash, err := p.store.Hash()
		if err != nil || p.store.Index() != index {
			continue
		}
		c.hashed[p] = index
		if other, known := c.hashes[index]; known && other != string(hash) {
			c.w.broke("I7: %s has another state at index %d than others had", p.name, index)
		}
		c.hashes[index] = string(hash)
	}
}

// united tells what is wrong with the schedulers after the last fault: one leads, and all have the same.
func (c *checker) united() (wrong []string) {
	living := c.w.living()
	var leads []string
	indexes := map[string]uint64{}
	for _, p := range living {
		if p.node.IsLeader() {
			leads = append(leads, p.name)
		}
		indexes[p.name] = p.store.Index()
	}
	if len(living) != len(c.w.stays()) || len(leads) != 1 {
		wrong = append(wrong, fmt.Sprintf("%d of %d schedulers run, %v lead", len(living), len(c.w.stays()), leads))
	}
	for _, p := range living {
		if indexes[p.name] != c.w.picture().index {
			wrong = append(wrong, fmt.Sprintf("the schedulers are at %v", indexes))
			break
		}
	}
	slices.Sort(wrong)
	return wrong
}
