package pod

import (
	"context"
	"sync"

	"gantry/fleet"
)

// Pods runs one machine for each pod of the host. It is safe for concurrent use.
type Pods struct {
	deps Deps

	mu       sync.Mutex // guards the fields below
	ctx      context.Context
	machines map[fleet.PodID]*machine
	wg       sync.WaitGroup
}

// NewPods returns a host without pods. Machines live until ctx ends; Wait waits for them.
func NewPods(ctx context.Context, deps Deps) *Pods {
	deps.claims = newClaims()
	return &Pods{deps: deps, ctx: ctx, machines: map[fleet.PodID]*machine{}}
}

// Set gives a pod's machine its order, and starts the machine when there is none.
func (p *Pods) Set(want Assignment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deps.claims.freed() // the order may need less than the one before
	if m, ok := p.machines[want.Pod]; ok {
		m.set(want)
		return
	}
	if p.ctx.Err() != nil {
		return
	}
	m := newMachine(p.deps, want)
	p.machines[want.Pod] = m
	p.wg.Go(func() {
		m.run(p.ctx)
		p.drop(m)
	})
}

// drop takes an ended machine off the list. An order that came after it had looked for the last
// time starts a new one.
func (p *Pods) drop(m *machine) {
	p.mu.Lock()
	delete(p.machines, m.id)
	p.mu.Unlock()
	p.deps.claims.freed()
	rec, again := p.deps.Ledger.Record(m.id)
	if again && p.ctx.Err() == nil {
		p.Set(rec.Assignment)
	}
}

// Poke makes every machine look again: a scheduler was heard for the first time, or something
// outside may have changed.
func (p *Pods) Poke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.machines {
		m.poke()
	}
}

// Wait returns when every machine has ended, after ctx has.
func (p *Pods) Wait() { p.wg.Wait() }
