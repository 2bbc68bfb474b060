package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"gantry/fleet"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// operatorFaults are what operators do to schedulers and hosts, which must disturb nobody.
func operatorFaults() []fault {
	return []fault{
		{"scheduler replaced", 2, schedulerReplaced},
		{"leadership handed on", 2, leadershipHandedOn},
		{"host drained", 2, hostOut(fleet.EligibilityDraining)},
		{"host cordoned", 1, hostOut(fleet.EligibilityCordoned)},
		{"host fenced", 2, hostFenced},
	}
}

// operates runs something that an operator does until it is done; heal waits for it.
func (d *driver) operates(what string, do func() error) (done chan struct{}) {
	done = make(chan struct{})
	d.operating.Go(func() {
		defer close(done)
		if err := do(); err != nil {
			d.broke("%s: %v", what, err)
			return
		}
		d.note(what + " done")
	})
	return done
}

// insists does something at the leader again and again, until it is done or refused.
func (w *world) insists(limit time.Duration, do func(context.Context, *process) error) error {
	for end := time.Now().Add(limit); ; {
		_, err := w.ask(func(ctx context.Context, p *process) (fleet.PodView, error) { return fleet.PodView{}, do(ctx, p) })
		if err == nil || fleet.CodeOf(err) != fleet.CodeUnavailable {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: %w", errBound, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// patience is how long an operator goes on; longer than any load, so that no fault is left on.
const patience = loadTime + 2*time.Minute

func propose(ctx context.Context, p *process, cmds ...state.Command) error {
	res, err := p.node.Propose(ctx, cmds...)
	for _, r := range res {
		err = errors.Join(err, r.Err)
	}
	return err
}

// join has a scheduler join the cluster, as gantry-scheduler join and the leader's keeper do.
func (w *world) join(m *member) error {
	if err := m.enroll(); err != nil {
		return err
	}
	w.mu.Lock()
	w.members = append(w.members, m)
	w.mu.Unlock()
	if err := m.start(); err != nil {
		return err
	}
	who := replica.Member{ID: m.id, Address: m.addr}
	err := w.insists(patience, func(ctx context.Context, p *process) error {
		if err := propose(ctx, p, state.PutMember{Member: m.record()}); err != nil {
			return err
		}
		return p.node.AddNonVoter(ctx, who)
	})
	if err != nil {
		return fmt.Errorf("add: %w", err)
	}
	return w.insists(patience, func(ctx context.Context, p *process) error {
		own := w.process(m)
		if own == nil || own.node.AppliedIndex()+100 < p.node.LastIndex() {
			return errDown
		}
		if err := p.node.Promote(ctx, who); err != nil {
			return err
		}
		return p.changeJobs(func(g *replica.Node) error { return g.Promote(ctx, who) })
	})
}

// remove takes a scheduler out for ever; its process goes on.
func (w *world) remove(m *member) error {
	err := w.insists(patience, func(ctx context.Context, p *process) error {
		if err := propose(ctx, p, state.RemoveMember{Member: fleet.MemberID(m.id), At: time.Now()}); err != nil {
			return err
		}
		if p.id != m.id { // one that leads hands leadership on
			if err := p.changeJobs(func(g *replica.Node) error { return g.Remove(ctx, m.id) }); err != nil {
				return err
			}
		}
		return p.node.Remove(ctx, m.id)
	})
	if err == nil {
		w.mu.Lock()
		m.removed = true
		w.mu.Unlock()
	}
	return err
}

// schedulerReplaced has a new scheduler join and takes an old one out. That one runs on for a while with
// what it has.
func schedulerReplaced(d *driver) (time.Duration, func()) {
	stays := d.stays()
	if d.on["scheduler replaced"] || len(stays) < 2 {
		return 0, nil
	}
	old := stays[d.rng.IntN(len(stays))]
	m, err := d.newMember()
	if err != nil {
		d.broke("new scheduler: %v", err)
		return 0, nil
	}
	d.on["scheduler replaced"] = true
	d.log.Info("FAULT begins", "fault", "scheduler replaced", "old", old.name, "new", m.name)
	done := d.operates("scheduler replaced", func() error {
		if err := d.join(m); err != nil {
			return err
		}
		return d.remove(old)
	})
	return d.between(20*time.Second, 40*time.Second), func() {
		d.later(done, func() {
			old.kill(stateClean)
			delete(d.on, "scheduler replaced")
		})
	}
}

// later has the driver do something once done is closed.
func (d *driver) later(done chan struct{}, do func()) {
	select {
	case <-done:
		do()
	default:
		d.repairs = append(d.repairs, repair{time.Now().Add(time.Second), "", func() { d.later(done, do) }})
	}
}

func leadershipHandedOn(d *driver) (time.Duration, func()) {
	p := d.scheduler()
	if p == nil || len(d.stays()) < 2 {
		return 0, nil
	}
	d.log.Info("FAULT begins", "fault", "leadership handed on", "by", p.name)
	d.operating.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		defer cancel()
		if err := p.node.Transfer(ctx, ""); err == nil {
			d.note("leadership handed on done")
		} else if fleet.CodeOf(err) != fleet.CodeUnavailable {
			d.broke("hand leadership on: %v", err)
		}
	})
	return time.Second, func() {}
}

// eligibility sets a host's eligibility. One that is not gone yet of what a fence freed cannot be opened, for a while.
func (d *driver) eligibility(h *host, eligibility fleet.Eligibility) error {
	return d.wants(func(ctx context.Context, p *process) error {
		_, err := p.service.SetHostEligibility(ctx, h.id, eligibility)
		return err
	})
}

// drains drains a host, and notes before whether that may stop what its owner did not allow to be moved.
func (d *driver) drains(h *host, req fleet.DrainRequest) error {
	if req.Force || !req.Deadline.IsZero() {
		d.mu.Lock()
		if d.evicts == nil {
			d.evicts = map[fleet.HostID]bool{}
		}
		d.evicts[h.id] = true
		d.mu.Unlock()
	}
	return d.wants(func(ctx context.Context, p *process) error {
		if !req.Deadline.IsZero() && !req.Deadline.After(p.service.Now()) {
			req.Deadline, req.Force = time.Time{}, true // it took that long until anybody led, or the leader has another clock
		}
		_, err := p.service.DrainHost(ctx, h.id, req)
		return err
	})
}

// mayEvict reports whether a drain of the host ever had a deadline, or was forced.
func (w *world) mayEvict(id fleet.HostID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evicts[id]
}

func (d *driver) wants(do func(context.Context, *process) error) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		err := d.insists(patience, do)
		if fleet.CodeOf(err) != fleet.CodeNotAllowed || time.Now().After(end) {
			return err
		}
	}
}

// opens opens a host again, and lets its eligibility be changed by others after that.
func (d *driver) opens(h *host, after chan struct{}) {
	open := d.operates("host opened", func() error {
		<-after
		return d.eligibility(h, fleet.EligibilityOpen)
	})
	d.later(open, func() { delete(d.on, "eligibility "+h.name) })
}

// hostOut takes a host out of placement, and empties it.
func hostOut(eligibility fleet.Eligibility) func(d *driver) (time.Duration, func()) {
	return func(d *driver) (time.Duration, func()) {
		h := d.anyHost("eligibility", runs)
		if h == nil {
			return 0, nil
		}
		d.on["eligibility "+h.name] = true
		req := fleet.DrainRequest{Reason: "the simulation"}
		switch d.rng.IntN(4) {
		case 0:
			req.KeepRunning = true
		case 1:
			req.Deadline = time.Now().Add(d.between(2*time.Second, 20*time.Second))
		case 2:
			req.Force = true
		}
		out := d.operates("host "+string(eligibility), func() error {
			if eligibility == fleet.EligibilityDraining {
				return d.drains(h, req)
			}
			return d.eligibility(h, eligibility)
		})
		return d.between(5*time.Second, 30*time.Second), func() { d.opens(h, out) }
	}
}

// hostFenced cuts a machine's power and has an operator say so. The machine comes back only after that.
func hostFenced(d *driver) (time.Duration, func()) {
	h := d.anyHost("eligibility", runs)
	if h == nil {
		return 0, nil
	}
	d.on["eligibility "+h.name] = true
	h.reboot()
	d.leaves(h)
	fenced := d.operates("host fenced", func() error {
		for {
			err := d.insists(patience, func(ctx context.Context, p *process) error {
				_, err := p.service.FenceHost(ctx, h.id)
				return err
			})
			if fleet.CodeOf(err) != fleet.CodeNotAllowed { // it is not known yet that it is away
				return err
			}
			time.Sleep(time.Second)
		}
	})
	return d.between(15*time.Second, 40*time.Second), func() {
		d.later(fenced, func() {
			h.start()
			d.opens(h, fenced)
		})
	}
}

// backup is what gantry snapshot save gives.
func (w *world) backup() ([]byte, error) {
	var out []byte
	err := w.insists(patience, func(ctx context.Context, p *process) error {
		var file bytes.Buffer
		err := p.service.SaveSnapshot(ctx, &file)
		out = file.Bytes()
		return err
	})
	return out, err
}
