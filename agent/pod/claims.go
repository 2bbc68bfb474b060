package pod

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"gantry/fleet"
)

// claims keeps two pods of a host from having one GPU or one public port at a time, whatever schedulers
// order: a control plane that was restored, or an operator's word that nothing runs here any more, may give
// away what a pod of before still has.
type claims struct {
	begin sync.Mutex // held from the last look at the other pods until the start is written down

	mu      sync.Mutex // guards waiting
	waiting map[*machine]struct{}
}

func newClaims() *claims { return &claims{waiting: map[*machine]struct{}{}} }

// freed has machines look again that wait for what others have.
func (c *claims) freed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m := range c.waiting {
		m.poke()
	}
}

// enlist has freed poke the machine, until the returned function is called.
func (c *claims) enlist(m *machine) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[m] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, m)
	}
}

// makes says whether a step makes something of a pod that needs its GPUs and ports.
func makes(s Step) bool {
	return s == StepNetwork || s == StepDefine || s == StepTask || s == StepStart
}

// begins reports whether a step is one of a start.
func begins(s Step) bool { return s == StepPull || s == StepModels || makes(s) }

// waited waits while another pod, or a process that is left over, has what the order needs, and reports whether it
// had to.
func (m *machine) waited(ctx context.Context, s Step, want Assignment) (bool, error) {
	if len(want.GPUs)+len(want.Mappings) == 0 {
		return false, nil
	}
	// First on the list, then a look: what is freed after the look is not missed.
	defer m.claims.enlist(m)()
	thing := taken(m.Ledger.Records(), want)
	if thing == "" {
		return m.busy(ctx, s, want)
	}
	m.Log.Warn("pod start waits: another pod on this host holds its GPUs or ports", "incarnation", want.Incarnation, "needs", thing)
	m.Reports.Activity(m.id, "waits for "+thing+" to be free", 0, 0)
	m.idle(ctx)
	return true, nil
}

// taken names a GPU or public port of the order that another pod of the host has; "" when there is none.
func taken(records []Record, want Assignment) string {
	for _, rec := range records {
		if rec.Assignment.Pod == want.Pod {
			continue
		}
		if held, ok := rec.Holds(); ok {
			if thing := held.common(want); thing != "" {
				return thing
			}
		}
		if rec.before(want) {
			if thing := (Holding{rec.Assignment.GPUs, rec.Assignment.Mappings, rec.Assignment.Overlays}).common(want); thing != "" {
				return thing
			}
		}
	}
	return ""
}

// common names something that the order needs too; "" when there is none.
func (h Holding) common(want Assignment) string {
	for _, uuid := range want.GPUs {
		if slices.Contains(h.GPUs, uuid) {
			return "GPU " + uuid
		}
	}
	for _, p := range want.Mappings {
		if slices.ContainsFunc(h.Mappings, func(o fleet.PortMapping) bool { return o.Public == p.Public }) {
			return "public port " + strconv.Itoa(p.Public)
		}
	}
	for _, p := range want.Overlays {
		if slices.ContainsFunc(h.Overlays, func(o Place) bool { return o.VNI == p.VNI && o.Addr == p.Addr }) {
			return "private address " + p.Addr.String()
		}
	}
	return ""
}

// before reports whether the newest order of the record is to be started before another one.
func (r Record) before(want Assignment) bool {
	a := r.Assignment
	if r.HasEnded() || a.Goal != fleet.GoalRun || r.Begun >= a.Incarnation {
		return false
	}
	return a.Generation < want.Generation || a.Generation == want.Generation && a.Pod < want.Pod
}

// begun writes down that the incarnation may run from now on, unless another pod has taken what it needs.
func (m *machine) begun(want Assignment) error {
	if len(want.GPUs)+len(want.Mappings) > 0 {
		m.claims.begin.Lock()
		defer m.claims.begin.Unlock()
		if taken(m.Ledger.Records(), want) != "" {
			return errSuperseded
		}
	}
	return m.Ledger.Begin(want, m.Boot)
}

// letGo writes down that a begun incarnation has ended of which nothing is left, and which a later order has
// replaced: others need not wait until that one begins.
func (m *machine) letGo(want Assignment, see Seen) error {
	begun := see.Record.Begun
	if _, holds := see.Record.Holds(); !holds || begun >= want.Incarnation || see.Container.Exists && see.Container.Incarnation <= begun {
		return nil
	}
	return m.ended(Ended{Incarnation: begun, Event: fleet.EventExited, At: time.Now()})
}

// ended writes down how an incarnation ended.
func (m *machine) ended(e Ended) error {
	err := m.Ledger.End(m.id, e)
	if err == nil {
		m.claims.freed()
	}
	return err
}
