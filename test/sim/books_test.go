package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// leastBid is what interruptible pods bid at least; every price on demand is higher.
const leastBid = 2 * fleet.Dollar

// prepaidAccount spends credit. Operators give it some, and take it away again.
const prepaidAccount fleet.AccountID = "account-p"

// books is all money of the state at the log's time, so that what they say follows from the state alone.
type books struct {
	at      time.Time
	held    bool // the log's time
	balance map[fleet.AccountID]fleet.Money
	rate    map[fleet.AccountID]fleet.Money
	pods    map[fleet.PodID]fleet.Money // what each was charged that stands alone
	sets    map[string]fleet.Money      // what all workers of an endpoint, or members of a cluster, were
	of      map[fleet.AccountID]fleet.Money
}

func readBooks(v *state.View) (books, error) {
	b := books{
		balance: map[fleet.AccountID]fleet.Money{}, rate: map[fleet.AccountID]fleet.Money{},
		pods: map[fleet.PodID]fleet.Money{}, sets: map[string]fleet.Money{}, of: map[fleet.AccountID]fleet.Money{},
	}
	if clock := v.Clock(); clock != nil {
		b.at, b.held = clock.At, clock.Held()
	}
	for _, a := range v.Accounts() {
		b.balance[a.ID], b.rate[a.ID] = v.Balance(a.ID, b.at), v.HourlyRate(a.ID)
		hours, err := v.Usage(a.ID, "", "", b.at.AddDate(0, 0, -1), b.at.Add(time.Hour), b.at)
		if err != nil {
			return b, err
		}
		for _, h := range hours {
			switch h.Kind {
			case fleet.ChargePod:
				b.pods[fleet.PodID(h.ID)] += h.Amounts.Total()
			case fleet.ChargeEndpoint, fleet.ChargeCluster:
				b.sets[h.ID] += h.Amounts.Total()
			}
			b.of[a.ID] += h.Amounts.Total()
		}
	}
	return b, nil
}

// text is the same for the same books.
func (b books) text() string { return fmt.Sprint(b.balance, b.rate, b.pods, b.sets, b.of) }

// charge is what a pod's record says that it costs.
type charge struct {
	open, running bool
	rate          fleet.Money // per hour
}

// monthly is what GB cost per hour at a price per month.
func monthly(gb int, price fleet.Money) fleet.Money { return (fleet.Money(gb)*price + 365) / 730 }

// chargeOf works out what a pod costs, by docs/api.md: all it has while it runs, what it keeps while it is
// stopped, nothing once it is terminated.
func chargeOf(p *fleet.Pod, prices *fleet.StoragePrices) charge {
	data, unready := 0, p != nil && p.Owner.Kind == fleet.OwnerEndpoint && (p.Ready.IsZero() || !p.Frozen.IsZero())
	if p != nil && p.Spec.Persistent != nil {
		data = p.Spec.Persistent.SizeGB
	}
	switch {
	case p == nil, p.Status == fleet.StatusTerminated:
		return charge{}
	case p.Status.Active() && p.EndedAt.IsZero() && p.Waiting.IsZero() && !unready: // nor does an image that cannot be had, nor a worker that stands still
		return charge{true, true, p.HourlyRate + monthly(p.Spec.DiskGB, prices.ContainerDisk) + monthly(data, prices.PersistentRunning)}
	}
	return charge{true, false, monthly(data, prices.PersistentStopped)}
}

// charged checks the money of every moment: what accounts were given is what they have left and what they
// were charged; they spend what their pods and volumes cost; and a pod that is terminated costs nothing more.
func (c *checker) charged(now picture) {
	spend := map[fleet.AccountID]fleet.Money{}
	for _, p := range now.pods {
		spend[p.Account] += chargeOf(&p, simPrices()).rate
	}
	for _, v := range now.volumes {
		if v.State != fleet.VolumeDeleting {
			spend[v.Account] += monthly(v.SizeGB, simPrices().VolumeFirst)
		}
	}
	for _, id := range c.w.accounts {
		given := now.books.balance[id] + now.books.of[id]
		if given != c.credit[id] && (id != prepaidAccount || given != c.credit[id]+c.unsure) {
			c.w.broke("money: %s was given %d (or %d more); %d are left and %d were charged", id, c.credit[id], c.unsure, now.books.balance[id], now.books.of[id])
		}
		if now.books.rate[id] != spend[id] {
			c.w.broke("money: %s spends %d per hour, its pods and volumes cost %d", id, now.books.rate[id], spend[id])
		}
	}
	for id, p := range c.before.pods {
		if p.Status == fleet.StatusTerminated && now.books.pods[id] != c.before.books.pods[id] {
			c.w.broke("money: pod %s is terminated and was charged %d, then %d", id, c.before.books.pods[id], now.books.pods[id])
		}
	}
}

// endsWithCredit checks that what an account without credit has running is ended soon.
func (c *checker) endsWithCredit(now picture) {
	if c.troubled() || len(c.spent(now)) == 0 {
		c.dry = time.Time{}
		return
	}
	if c.dry.IsZero() {
		c.dry = time.Now()
	}
	if time.Since(c.dry) > 4*lookAtCredit {
		c.w.broke("money: %v", c.spent(now))
	}
}

// spent tells of pods that run though their account, a prepaid one, has no credit.
func (c *checker) spent(now picture) (wrong []string) {
	var balance fleet.Money
	p := c.w.scheduler()
	if p == nil {
		return nil
	}
	c.w.check(p.store.View(func(v *state.View) error { balance = v.Balance(prepaidAccount, time.Now()); return nil }))
	for id, p := range now.pods {
		if p.Account == prepaidAccount && balance <= 0 && p.Status.Active() && !p.Stopping() {
			wrong = append(wrong, fmt.Sprintf("pod %s is %s, and its account has %d", id, p.Status, balance))
		}
	}
	return wrong
}

// simPrices are what storage costs in every run: that of a new cluster.
func simPrices() *fleet.StoragePrices {
	return &fleet.StoragePrices{
		ContainerDisk: fleet.Dollar / 10, PersistentRunning: fleet.Dollar / 10, PersistentStopped: fleet.Dollar / 5,
		VolumeFirst: 7 * fleet.Dollar / 100,
	}
}

// charges is a second bookkeeper: it learns of one change after the other and counts real time.
type charges struct {
	bills     map[fleet.PodID]*bill
	intervals int
}

type bill struct {
	charge
	owner fleet.Owner
	since time.Time
	sum   float64 // 10^-9 dollars
	slack float64 // a second of every interval
	turns []string
}

// change is told of each record before and after a command, of the time at.
func (c *charges) change(old, now *fleet.Pod, at time.Time) {
	was, is := chargeOf(old, simPrices()), chargeOf(now, simPrices())
	if was == is {
		return
	}
	switch {
	case !is.open:
		at = now.TerminatedAt
	case was.running && !is.running:
		at = cmp.Or(now.EndedAt, now.Waiting, now.Frozen, now.Steps[fleet.StepCreated])
	case !was.running && is.running && now.Owner.Kind == fleet.OwnerEndpoint:
		if old == nil || old.Ready.IsZero() {
			at = now.Ready
		}
	case old != nil && !old.Waiting.IsZero() && old.Incarnation == now.Incarnation: // when the cluster hears of it
	case !was.running && is.running:
		at = now.Steps[fleet.StepCreated]
	}
	b := c.bills[now.ID]
	if b == nil {
		b = &bill{owner: now.Owner}
		c.bills[now.ID] = b
	}
	b.until(at)
	c.intervals++
	if b.charge = is; at.After(b.since) {
		b.since = at
	}
	b.turns = append(b.turns, fmt.Sprintf("from %s at %d per hour, %s in incarnation %d", b.since.Format(time.TimeOnly+".000"), is.rate, now.Status, now.Incarnation))
}

func (b *bill) until(at time.Time) {
	if at.Before(b.since) {
		at = b.since
	}
	b.sum += float64(b.rate) * at.Sub(b.since).Hours()
	b.slack += float64(b.rate)/3600 + 5
}

// check compares the second bookkeeper with the books, and returns how many intervals there were.
func (c *charges) check(w *world, end picture) int {
	for id := range end.books.pods {
		if c.bills[id] == nil {
			w.broke("money: pod %s was charged %d and never was", id, end.books.pods[id])
		}
	}
	sets := map[string]*bill{}
	for id := range end.books.sets {
		sets[id] = &bill{}
	}
	for id, b := range c.bills {
		b.until(end.books.at)
		if b.owner.Kind != "" { // they are charged together
			if sets[b.owner.ID] == nil {
				sets[b.owner.ID] = &bill{}
			}
			all := sets[b.owner.ID]
			all.sum, all.slack = all.sum+b.sum, all.slack+b.slack
			continue
		}
		if got := end.books.pods[id]; math.Abs(float64(got)-b.sum) > b.slack {
			w.broke("money: pod %s was charged %d, it cost %.0f, give or take %.0f: %s", id, got, b.sum, b.slack, strings.Join(b.turns, "; "))
		}
	}
	for id, b := range sets {
		if got := end.books.sets[id]; math.Abs(float64(got)-b.sum) > b.slack {
			w.broke("money: endpoint or cluster %s was charged %d, its pods cost %.0f, give or take %.0f", id, got, b.sum, b.slack)
		}
	}
	return c.intervals
}

// prepay makes the account that spends credit.
func (d *driver) prepay(ctx context.Context) error {
	yes := true
	lead, err := awaitLeader(ctx, d.living())
	if err != nil {
		return err
	}
	service := lead.service
	if _, err := service.UpdateAccount(ctx, prepaidAccount, fleet.AccountUpdate{Prepaid: &yes}); err != nil {
		return err
	}
	d.credit[prepaidAccount] = 60 * fleet.Dollar
	_, _, err = service.AddCredit(ctx, prepaidAccount, 60*fleet.Dollar, nil)
	return err
}

// operator does what an operator does now and then; tally is held.
func (d *driver) operator() func() {
	switch d.rng.IntN(4) {
	case 0:
		price := fleet.MoneyUSD(2.5) + fleet.Money(d.rng.IntN(1000))*1_000_003
		return func() {
			t := fleet.GPUType{
				ID: gpuType, Name: "H100 SXM", Manufacturer: "NVIDIA", MemoryGB: 80, Pool: gpuPool,
				Secure: price, Community: price, SecureSpot: leastBid, CommunitySpot: leastBid, Serverless: price,
			}
			d.orders("price", func(ctx context.Context, p *process) error { return p.service.PutGPUType(ctx, t) })
		}
	case 1: // as at a full hour, and at any other time
		return func() {
			d.orders("settlement", func(ctx context.Context, p *process) error {
				cmd := state.SettleMeters{At: time.Now()}
				if err := p.store.View(func(v *state.View) error { cmd.Meters = v.OpenMeters(cmd.At, math.MaxInt); return nil }); err != nil {
					return fleet.Unavailable("the store is closed", err)
				}
				_, err := p.node.Propose(ctx, cmd)
				return err
			})
		}
	}
	if d.crediting {
		return nil
	}
	amount := fleet.Dollar * fleet.Money(10+d.rng.IntN(50))
	if d.rng.IntN(2) == 0 { // down to what lasts for some seconds
		rate := d.last.books.rate[prepaidAccount]
		left := d.last.books.balance[prepaidAccount] - fleet.Money(float64(rate)*time.Since(d.last.books.at).Hours())
		amount = rate*fleet.Money(d.rng.IntN(30))/3600 - left
	}
	if amount == 0 {
		return nil
	}
	d.crediting = true
	once := d.once("credit")
	d.unsure, d.unsureKey = amount, once.key
	return func() { d.credits(amount, once) }
}

func (d *driver) orders(what string, order func(context.Context, *process) error) {
	_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) { return fleet.PodView{}, order(ctx, p) })
	d.told(what, err)
}

// credits adds to the prepaid account's balance, or takes from it, once.
func (d *driver) credits(amount fleet.Money, once attempt) {
	for range tries {
		_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			_, _, err := p.service.AddCredit(ctx, prepaidAccount, amount, once.key)
			return fleet.PodView{}, err
		})
		d.told("credit", err)
		if err == nil && once.lost == 0 {
			d.tally.Lock()
			defer d.tally.Unlock()
			d.credit[prepaidAccount] += amount
			d.unsure, d.unsureKey, d.crediting = 0, nil, false
			return
		}
		if err == nil {
			once.lost--
			d.note("answer lost")
		}
		time.Sleep(2 * time.Second)
	}
	d.log.Info("credit without an answer", "key", once.name)
}

// credited asks once more for a credit of which nobody knows whether it was added.
func (d *driver) credited() {
	if d.unsureKey == nil || len(d.broken()) > 0 {
		return
	}
	d.credits(d.unsure, attempt{name: d.unsureKey.Key, key: d.unsureKey})
	if d.unsureKey != nil {
		d.broke("a credit has no answer after the last fault")
	}
}

// commandTime returns when a command was decided on, and the pods that it may change.
func commandTime(v *state.View, cmd state.Command) (time.Time, []fleet.PodID) {
	switch c := cmd.(type) {
	case state.CreatePods:
		if len(c.Pods) == 0 {
			return time.Time{}, nil
		}
		var ids []fleet.PodID
		for i := range c.Pods {
			ids = append(append(ids, c.Pods[i].Pod.ID), c.Pods[i].Evict...)
		}
		return c.Pods[0].Pod.CreatedAt, ids
	case state.CreateCluster:
		_, ids := commandTime(v, state.CreatePods{Pods: c.Pods})
		return c.Cluster.CreatedAt, ids
	case state.RestartCluster:
		ids := membersOf(v, c.ID)
		for i := range c.Starts {
			ids = append(ids, c.Starts[i].Bind.Evict...)
		}
		return c.At, ids
	case state.StopCluster:
		return c.At, membersOf(v, c.ID)
	case state.Delete[fleet.Cluster]:
		return c.At, membersOf(v, fleet.ClusterID(c.ID))
	case state.ActPod:
		if c.Bind != nil {
			return c.At, append([]fleet.PodID{c.Pod}, c.Bind.Evict...)
		}
		return c.At, []fleet.PodID{c.Pod}
	case state.ReadyWorkers:
		return c.At, c.Pods
	case state.FreezeWorker:
		return c.At, []fleet.PodID{c.Pod}
	case state.MovePod:
		if c.To != nil {
			return c.At, append([]fleet.PodID{c.Pod}, c.To.Evict...)
		}
		return c.At, []fleet.PodID{c.Pod}
	case state.EvictPod:
		return c.At, []fleet.PodID{c.Pod}
	case state.FenceHost:
		var out []fleet.PodID
		for _, p := range v.HostPods(c.Host) {
			out = append(out, p.ID)
		}
		return c.At, out
	case state.UpdatePod:
		return c.At, []fleet.PodID{c.Pod}
	case state.ReportPods:
		var out []fleet.PodID
		for _, r := range c.Reports {
			out = append(out, r.Pod)
		}
		slices.Sort(out)
		return c.At, slices.Compact(out)
	case state.ExhaustAccounts:
		var out []fleet.PodID
		for _, account := range c.Accounts {
			for _, p := range v.PodsOf(account) {
				out = append(out, p.ID)
			}
		}
		return c.At, out
	}
	return time.Time{}, nil
}

func membersOf(v *state.View, id fleet.ClusterID) (out []fleet.PodID) {
	for _, p := range v.MembersOf(id) {
		out = append(out, p.ID)
	}
	return out
}
