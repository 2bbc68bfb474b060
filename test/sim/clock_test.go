package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// clockLeap is that of every run; see state.Clock.
const clockLeap = 10 * time.Minute

// byClock is a replica as a part of a scheduler has it that tells the time by its machine's clock.
type byClock struct {
	*replica.Node
	m *member
}

// Propose commits commands with the times that the member's clock says.
func (n byClock) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	by := n.m.off()
	for i, cmd := range cmds {
		switch c := cmd.(type) {
		case state.ReportPods:
			c.At, c.Reports = c.At.Add(by), shifted(c.Reports, by)
			cmds[i] = c
		case state.ConnectHost:
			c.At = c.At.Add(by)
			cmds[i] = c
		case state.UpdateInventory:
			c.At = c.At.Add(by)
			cmds[i] = c
		case state.SetHostState:
			c.At = c.At.Add(by)
			cmds[i] = c
		case state.ReportVolumes:
			c.At = c.At.Add(by)
			cmds[i] = c
		}
	}
	return n.Node.Propose(ctx, cmds...)
}

// shifted returns reports as a scheduler has them whose clock is off.
func shifted(reports []state.PodReport, by time.Duration) []state.PodReport {
	out := make([]state.PodReport, len(reports))
	for i, r := range reports {
		if !r.At.IsZero() {
			r.At = r.At.Add(by)
		}
		steps := map[fleet.Step]time.Time{}
		for step, at := range r.Steps {
			steps[step] = at.Add(by)
		}
		r.Steps = steps
		out[i] = r
	}
	return out
}

// Clocks implements control.Clocks: the clocks of the other members that run.
func (p *process) Clocks() (others []time.Duration, voters int) {
	own := p.off()
	for _, s := range p.node.Servers() {
		if !s.Voter {
			continue
		}
		voters++
		for _, q := range p.world.living() {
			if q.id == s.ID && q.id != p.id {
				others = append(others, q.off()-own)
			}
		}
	}
	return others, voters
}

// TestSeededClocks runs a cluster for hours; its members' clocks drift and jump, and do not come back for long. CLOCK_SEEDS=n
// runs n seeds.
func TestSeededClocks(t *testing.T) {
	last := uint64(4)
	if n, ok := number(t, "CLOCK_SEEDS"); ok {
		last = n
	}
	for seed := uint64(1); seed <= last; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			change := func(w *world) { three(w); w.accounts = append(w.accounts, prepaidAccount) }
			play(t, []int{4}, change, func(s *scene) { newClockRun(s, seed).run() })
		})
	}
}

// clockRun is one run with what is true.
type clockRun struct {
	*scene
	rng    *rand.Rand
	pods   map[fleet.PodID]*trueRun
	credit fleet.Money // of the prepaid account
	begun  time.Time
}

// trueRun is a pod and for how long it truly ran.
type trueRun struct {
	rec   fleet.Pod
	rate  fleet.Money // per hour
	since time.Time
	ran   time.Duration
	ended time.Time     // zero: it runs
	turns int           // how often it began or ended
	held  bool          // it began while the log's time was held: a leap that is confirmed does not count for it
	off   time.Duration // of its time all schedulers were off
}

func newClockRun(s *scene, seed uint64) *clockRun {
	c := &clockRun{scene: s, rng: rand.New(rand.NewPCG(seed, 88)), pods: map[fleet.PodID]*trueRun{}, begun: time.Now()}
	for _, m := range s.members {
		m.clock.Store(int64(time.Duration(c.rng.IntN(20)-10) * time.Second))
		m.drift.Store(int64(c.rng.IntN(400) - 200))
	}
	yes := true
	s.insist("prepay", func(ctx context.Context, p *process) error {
		_, err := p.service.UpdateAccount(ctx, prepaidAccount, fleet.AccountUpdate{Prepaid: &yes})
		return err
	})
	price := fleet.MoneyUSD(2.69)
	s.insist("price", func(ctx context.Context, p *process) error {
		return p.service.PutGPUType(ctx, fleet.GPUType{ID: gpuType, Name: "H100 SXM", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: price, Community: price})
	})
	c.pay(20 * fleet.Dollar)
	return c
}

// insist has the leader do something, whoever that is.
func (s *scene) insist(what string, do func(ctx context.Context, p *process) error) {
	s.Helper()
	if err := s.insists(5*time.Minute, do); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (c *clockRun) pay(amount fleet.Money) {
	c.credit += amount
	once := &fleet.Once{Key: fmt.Sprint("pay ", c.credit, " ", time.Now().UnixNano()), Fingerprint: []byte("pay")}
	c.insist("credit", func(ctx context.Context, p *process) error {
		_, _, err := p.service.AddCredit(ctx, prepaidAccount, amount, once)
		return err
	})
}

// run has clocks jump while pods begin and end, then puts the clocks right.
func (c *clockRun) run() {
	for range 12 {
		c.clocks()
		c.users()
		time.Sleep(time.Duration(1+c.rng.IntN(8)) * time.Minute)
		c.check()
		if c.Failed() || len(c.broken()) > 0 {
			return
		}
	}
	for _, m := range c.members {
		m.clock.Store(0)
		m.drift.Store(0)
	}
	time.Sleep(2 * time.Minute)
	c.check()
	c.books()
	c.runsDry()
}

// clocks puts one clock wrong, for a minority has to be, or all right again; and now and then another scheduler leads.
func (c *clockRun) clocks() {
	switch c.rng.IntN(4) {
	case 0:
		for _, m := range c.members {
			m.clock.Store(int64(time.Duration(c.rng.IntN(20)-10) * time.Second))
		}
		jumps := []time.Duration{
			30 * time.Second, 5 * time.Minute, 9*time.Minute + 50*time.Second, 11 * time.Minute, time.Hour, 25 * time.Hour, 401 * 24 * time.Hour, 10 * 365 * 24 * time.Hour,
		}
		by := jumps[c.rng.IntN(len(jumps))]
		if c.rng.IntN(2) == 0 {
			by = -by
		}
		m := c.members[c.rng.IntN(len(c.members))]
		m.clock.Store(int64(by))
		c.log.Info("clock jumps", "at", m.name, "by", by)
	case 1:
		lead := c.lead()
		lead.kill(stateClean)
		time.Sleep(time.Duration(1+c.rng.IntN(20)) * time.Second)
		if err := lead.start(); err != nil {
			c.Fatal(err)
		}
		c.lead()
	case 2: // all are off for long, and their machines with them; hosts are not
		if c.rng.IntN(3) > 0 {
			return
		}
		for _, m := range c.members {
			m.kill(stateClean)
			m.clock.Store(0)
		}
		off := time.Duration(15+c.rng.IntN(120)) * time.Minute
		time.Sleep(off)
		for _, p := range c.pods {
			if p.ended.IsZero() {
				p.off += off
			}
		}
		for _, m := range c.members {
			if err := m.start(); err != nil {
				c.Fatal(err)
			}
		}
		c.lead()
	}
}

// users begin and end pods, and pay before their credit ends.
func (c *clockRun) users() {
	for id, p := range c.pods {
		if !p.ended.IsZero() || c.rng.IntN(4) > 0 {
			continue
		}
		c.terminate(id, p)
	}
	for c.left() < 12+4*c.spends() { // what a time without schedulers costs, and what begins now
		c.pay(10 * fleet.Dollar)
	}
	for range c.rng.IntN(3) {
		account := []fleet.AccountID{prepaidAccount, c.account()}[c.rng.IntN(2)]
		rec, err := c.create(account, gpuPod(1, image("steady", 0, 0)))
		if err != nil {
			continue
		}
		c.pods[rec.ID] = &trueRun{rec: rec, rate: chargeOf(&rec, simPrices()).rate, since: time.Now(), turns: 1, held: c.picture().books.held}
	}
}

func (c *clockRun) terminate(id fleet.PodID, p *trueRun) {
	c.insist("terminate", func(ctx context.Context, q *process) error {
		_, err := q.service.ActPod(ctx, principal(p.rec.Account), id, fleet.ActionTerminate)
		if code := fleet.CodeOf(err); code == fleet.CodeNotAllowed || code == fleet.CodeNotFound {
			return nil // an answer was lost
		}
		return err
	})
	p.end()
}

func (p *trueRun) end() {
	p.ran, p.ended = p.ran+time.Since(p.since), time.Now()
	p.turns++
}

// truly returns for how long a pod ran.
func (p *trueRun) truly() time.Duration {
	if p.ended.IsZero() {
		return p.ran + time.Since(p.since)
	}
	return p.ran
}

// left is what is left of the prepaid account's credit, in dollars, and spends what it spends in an hour.
func (c *clockRun) left() float64 {
	left := float64(c.credit) / float64(fleet.Dollar)
	for _, p := range c.pods {
		if p.rec.Account == prepaidAccount {
			left -= p.truly().Hours() * float64(p.rate) / float64(fleet.Dollar)
		}
	}
	return left
}

func (c *clockRun) spends() (sum float64) {
	for _, p := range c.pods {
		if p.rec.Account == prepaidAccount && p.ended.IsZero() {
			sum += float64(p.rate) / float64(fleet.Dollar)
		}
	}
	return sum
}

// check checks that nothing was ended while there was credit, and nothing forgotten before its time.
func (c *clockRun) check() {
	now := c.picture()
	for id, p := range c.pods {
		rec, known := now.pods[id]
		switch {
		case p.ended.IsZero() && (!known || !rec.Status.Active() || rec.Stopping()):
			c.broke("clocks: pod %s of %s was ended (%v, %q), with $%.2f of credit", id, p.rec.Account, rec.Status, rec.Reason, c.left())
			p.end()
		case !p.ended.IsZero() && !known && time.Since(p.ended) < keepTerminated-time.Minute:
			c.broke("clocks: pod %s is forgotten %v after its end", id, time.Since(p.ended))
		}
	}
	if ahead := time.Until(now.books.at); ahead > clockLeap+time.Minute {
		c.broke("clocks: the log's time is %v ahead", ahead)
	}
}

// books checks what pods were charged.
func (c *clockRun) books() {
	c.insist("books", func(_ context.Context, p *process) error {
		return p.store.View(func(v *state.View) error {
			charged := map[fleet.PodID]fleet.Money{}
			for _, a := range v.Accounts() {
				hours, err := v.Usage(a.ID, fleet.ChargePod, "", c.begun.Add(-time.Hour), time.Now().Add(time.Hour), p.now())
				if err != nil {
					return err
				}
				for _, h := range hours {
					charged[fleet.PodID(h.ID)] += h.Amounts.Total()
				}
			}
			for id, r := range c.pods {
				got := time.Duration(float64(charged[id]) / float64(r.rate) * float64(time.Hour))
				turns := r.turns
				if r.ended.IsZero() {
					turns++ // it is looked at now
				}
				give, less := time.Duration(turns)*(clockLeap+2*time.Minute), time.Duration(0)
				if r.held {
					less = r.off
				}
				if got-r.truly() > give || r.truly()-got > give+less {
					c.broke("clocks: pod %s ran for %v and is charged for %v", id, r.truly(), got)
				}
			}
			return nil
		})
	})
}

// runsDry checks that what was held back is done once all clocks are right.
func (c *clockRun) runsDry() {
	for id, p := range c.pods {
		if p.ended.IsZero() {
			c.terminate(id, p)
		}
	}
	c.soon("the host is empty", func() bool {
		for _, p := range c.picture().pods {
			if p.Held {
				return false
			}
		}
		return true
	})
	rec, err := c.create(prepaidAccount, gpuPod(1, image("steady", 0, 0)))
	if err != nil {
		c.Fatal(err)
	}
	free := 0.0 // what ran and is not charged
	for _, p := range c.pods {
		if p.held {
			free += p.off.Hours() * float64(p.rate) / float64(fleet.Dollar)
		}
	}
	c.pay(-fleet.Money((c.left() + free + 1) * float64(fleet.Dollar)))
	time.Sleep(2 * clockLeap)
	if p, known := c.pod(rec.ID); known && p.Status.Active() {
		c.broke("clocks: pod %s runs on without credit", rec.ID)
	}
	time.Sleep(2 * keepTerminated)
	if _, known := c.pod(rec.ID); known {
		c.broke("clocks: pod %s is not forgotten", rec.ID)
	}
}
