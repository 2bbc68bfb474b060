package state

import (
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// reasonNoCredit is the reason of a pod that was ended because its account has no credit left.
const reasonNoCredit = "the account's balance is used up"

const (
	// maxCredit bounds the amount of one AddCredit, either way.
	maxCredit = 1_000_000_000 * fleet.Dollar
	// maxBalance bounds what an AddCredit may lead to, far from where sums overflow.
	maxBalance = 4 * maxCredit
)

// addBalance adds to an account's balance, which is what it was given less what was settled.
func (t *txn) addBalance(account fleet.AccountID, amount fleet.Money) {
	if row := t.base.balances.Get(t.Txn, account); row != nil {
		amount += *row
	}
	t.base.balances.Put(t.Txn, account, &amount)
}

// balanceAt returns what is left of an account's credit at a time, running charges counted by the account's tally: it takes no
// longer for an account that has much.
func (t *txn) balanceAt(account fleet.AccountID, at time.Time) fleet.Money {
	left := -t.tally(account).running(meter.Seconds(at))
	if row := t.base.balances.Get(t.Txn, account); row != nil {
		left += *row
	}
	return left
}

func (c AddCredit) apply(t *txn) (any, error) {
	again, err := t.replay(onceCredit, c.Account, c.Once, func(string) any { return t.balanceAt(c.Account, c.At) })
	if err != nil || again != nil {
		return again, err
	}
	if t.base.accounts.Get(t.Txn, c.Account) == nil {
		return nil, fleet.NotFound("account")
	}
	if c.Amount > maxCredit || c.Amount < -maxCredit {
		return nil, fleet.Invalid("$.amount", "must be at most 1000000000, either way")
	}
	var had fleet.Money
	if row := t.base.balances.Get(t.Txn, c.Account); row != nil {
		had = *row
	}
	if (c.Amount > 0 && had > maxBalance-c.Amount) || (c.Amount < 0 && had < -maxBalance-c.Amount) {
		return nil, fleet.BreaksRule("the balance would be out of its range")
	}
	t.addBalance(c.Account, c.Amount)
	t.remember(onceCredit, c.Account, c.Once, "", c.At)
	t.Note(KindAccount, string(c.Account))
	return t.balanceAt(c.Account, c.At), nil
}

// rentable refuses a pod that is to run, with what is rented per hour, when its account may not have it or cannot pay it. Old is
// the pod as it is; nil: there is none yet.
func (t *txn) rentable(old, pod *fleet.Pod, compute fleet.Money, at time.Time) error {
	if err := t.within(pod.Account, rented(old, pod.Owner, &pod.Spec, compute, storagePrices(t.base.catalog.Get(t.Txn, onlyKey)))); err != nil {
		return err
	}
	return t.affordable(pod.Account, &pod.Spec, compute, at)
}

// affordable refuses a pod that a prepaid account cannot pay for an hour, or that has no price.
func (t *txn) affordable(account fleet.AccountID, spec *fleet.PodSpec, compute fleet.Money, at time.Time) error {
	catalog := t.base.catalog.Get(t.Txn, onlyKey)
	if t.base.accounts.Get(t.Txn, account).Prepaid && unpriced(catalog, spec) {
		return fleet.BreaksRule("the GPU type has no price yet, so a prepaid account cannot rent it")
	}
	rate := meter.Running(spec, compute, storagePrices(catalog)).Total()
	return t.solvent(account, rate, at, "Your account balance is too low to rent a pod")
}

// solvent refuses what a prepaid account cannot pay for an hour, with a message for its owner.
func (t *txn) solvent(account fleet.AccountID, hourly fleet.Money, at time.Time, msg string) error {
	if !t.base.accounts.Get(t.Txn, account).Prepaid {
		return nil
	}
	if balance := t.balanceAt(account, at); balance < hourly {
		return fleet.NoCredit(msg, hourly, balance)
	}
	return nil
}

// unpriced reports whether a pod's GPUs are of a type that a host brought along and that still costs
// nothing.
func unpriced(catalog *fleet.Catalog, spec *fleet.PodSpec) bool {
	if catalog == nil || spec.GPU == nil {
		return false
	}
	i := slices.IndexFunc(catalog.GPUs, func(g fleet.GPUType) bool { return g.ID == spec.GPU.Type })
	if i < 0 {
		return false
	}
	price := catalog.GPUs[i].Secure
	if spec.Cloud == fleet.CloudCommunity {
		price = catalog.GPUs[i].Community
	}
	return catalog.GPUs[i].Contributed && price == 0
}

// maxEnded is how many pods one ExhaustAccounts ends at most.
const maxEnded = 2000

func (c ExhaustAccounts) apply(t *txn) (any, error) {
	if err := t.final(c.At); err != nil {
		return nil, err
	}
	n := 0
	for _, id := range c.Accounts {
		account := t.base.accounts.Get(t.Txn, id)
		if account == nil || !account.Prepaid || t.balanceAt(id, c.At) > 0 {
			continue
		}
		for _, pod := range t.base.endableOf.Keys(t.Txn, id) {
			if n >= maxEnded {
				return n, nil
			}
			c.end(t, t.base.pods.Get(t.Txn, pod))
			n++
		}
	}
	return n, nil
}

// endable reports whether a pod spends what an exhausted account does not have, and is not being stopped.
func endable(p *fleet.Pod) bool { return p != nil && p.Status.Active() && !p.Stopping() }

// end stops a pod that has data or a cluster to come back to, and terminates any other. A lock does not help.
func (c ExhaustAccounts) end(t *txn, old *fleet.Pod) {
	pod, act := *old, ActPod{At: c.At}
	if pod.KeepsData() || pod.Spec.Network != nil || memberOf(&pod) != "" {
		act.stop(t, &pod)
	} else {
		act.terminate(t, &pod)
	}
	pod.Reason = reasonNoCredit
	t.putPod(&pod)
}

// stoppedReason is the reason that is left of a pod's when an accepted stop is done.
func stoppedReason(while string) string {
	if slices.Contains([]string{reasonNoCredit, reasonMoving, reasonInterrupted, reasonStopAfter, reasonClusterStopped}, while) || strings.HasPrefix(while, reasonDrained) {
		return while
	}
	return ""
}

// podsOf returns the ids of all pods that an account has or had in the batch, in no order.
func (t *txn) podsOf(account fleet.AccountID) []fleet.PodID {
	had, wrote := t.base.ofAccount[account], t.base.podsOf.Changed(t.Txn, account)
	out := make([]fleet.PodID, 0, len(had)+len(wrote))
	for _, p := range had {
		out = append(out, p.ID)
	}
	for id := range wrote {
		if p := t.base.pods.Rows[fleet.PodID(id)]; p == nil || p.Account != account {
			out = append(out, fleet.PodID(id))
		}
	}
	return out
}

// Balance returns what is left of an account's credit at now: what it was given less all charges up to
// then. It is negative when more was charged.
func (v *View) Balance(account fleet.AccountID, now time.Time) fleet.Money {
	var left fleet.Money
	if row := v.tb.balances.Rows[account]; row != nil {
		left = *row
	}
	second := v.seconds(now)
	for _, m := range v.tb.charging[account] {
		left -= m.running(second).Total()
	}
	return left
}

// Covers reports whether an account's credit at now covers an amount, as Apply looks at it: in a time that does not grow with
// what the account has.
func (v *View) Covers(account fleet.AccountID, amount fleet.Money, now time.Time) bool {
	return v.balance(account, now) >= amount
}

// balance is what Apply takes for an account's balance.
func (v *View) balance(account fleet.AccountID, now time.Time) fleet.Money {
	var left fleet.Money
	if row := v.tb.balances.Rows[account]; row != nil {
		left = *row
	}
	if y := v.tb.tallies[account]; y != nil {
		left -= y.running(meter.Seconds(now))
	}
	return left
}

// HourlyRate returns what an account spends per hour now, storage included.
func (v *View) HourlyRate(account fleet.AccountID) fleet.Money {
	if y := v.tb.tallies[account]; y != nil {
		return y.rate
	}
	return 0
}

// PodRate returns what a pod of a specification costs per hour while it runs, at the prices of now:
// compute and its disks.
func (v *View) PodRate(spec fleet.PodSpec, compute fleet.Money) fleet.Money {
	return meter.Running(&spec, compute, storagePrices(v.tb.catalog.Rows[onlyKey])).Total()
}

// Exhausted returns up to limit prepaid accounts, by id, without credit at now that have pods which
// ExhaustAccounts with the same time would end.
func (v *View) Exhausted(now time.Time, limit int) []fleet.AccountID {
	out := []fleet.AccountID{}
	for id, a := range v.tb.accounts.Rows {
		if a.Prepaid && len(v.tb.endableOf.Rows[id]) > 0 && !v.Covers(id, 1, now) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), limit)]
}
