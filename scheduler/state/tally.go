package state

import (
	"math"
	"math/big"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// tally is what an account has, in sums: so that no question about it takes longer the more it has. It is derived from the
// rows of pods, volumes and meters.
type tally struct {
	use  fleet.Counts // but for what it spends
	rate fleet.Money  // per hour, of its open meters
	// settled is the sum of rate times settle point of its open meters; nil: 0. It is never changed in place.
	settled *big.Int
}

// ownerOf returns whose tally a row is part of.
func ownerOf(row any) (fleet.AccountID, bool) {
	switch row := row.(type) {
	case *fleet.Pod:
		return row.Account, true
	case *fleet.Volume:
		return row.Account, true
	case *fleet.Endpoint:
		return row.Account, true
	case *fleet.Cluster:
		return row.Account, true
	case *openMeter:
		return row.Account, true
	}
	return "", false
}

// recount takes a row out of the tally of its account and puts another in its place; either may be nil.
func recount(of func(fleet.AccountID) *tally, old, row any) {
	if account, ok := ownerOf(old); ok {
		of(account).add(old, -1)
	}
	if account, ok := ownerOf(row); ok {
		of(account).add(row, 1)
	}
}

// add counts a row n times.
func (y *tally) add(row any, n int64) {
	var more fleet.Counts
	switch row := row.(type) {
	case *fleet.Pod:
		more = countsOf(row)
	case *fleet.Volume:
		more = countsOfVolume(row)
	case *fleet.Endpoint:
		more = countsOfEndpoint(row)
	case *fleet.Cluster:
		more[fleet.LimitClusters] = 1
	case *openMeter:
		rate := row.Rates.Total()
		if rate == 0 {
			return
		}
		y.rate += fleet.Money(n) * rate
		product := new(big.Int).Mul(big.NewInt(n*int64(rate)), big.NewInt(row.Settled))
		if y.settled != nil {
			product.Add(product, y.settled)
		}
		y.settled = product
		return
	}
	for i := range more {
		y.use[i] += n * more[i]
	}
}

// running returns what the open meters have run up to a second and is not settled. It is off by less than 10^-9 dollar for each
// component of each meter, whose parts are rounded one by one.
func (y *tally) running(to int64) fleet.Money {
	if y.rate == 0 {
		return 0
	}
	cost := new(big.Int).Mul(big.NewInt(int64(y.rate)), big.NewInt(to))
	cost.Sub(cost, y.settled)
	cost.Quo(cost, big.NewInt(meter.HourSeconds))
	switch {
	case cost.IsInt64():
		return fleet.Money(cost.Int64())
	case cost.Sign() < 0:
		return math.MinInt64 / 2
	}
	return math.MaxInt64 / 2
}

// empty reports whether nothing is counted.
func (y *tally) empty() bool {
	return y.use == (fleet.Counts{}) && y.rate == 0 && (y.settled == nil || y.settled.Sign() == 0)
}

// used returns what the account has of everything that there is a limit of.
func (y *tally) used() fleet.Counts {
	out := y.use
	out[fleet.LimitSpend] = int64(y.rate)
	return out
}

// countsOf returns what a pod counts for.
func countsOf(p *fleet.Pod) (out fleet.Counts) {
	if p.Status == fleet.StatusTerminated {
		return out
	}
	out[fleet.LimitPods], out[fleet.LimitSpecBytes] = 1, specBytes(&p.Spec)
	if !endable(p) || !p.Frozen.IsZero() {
		return out
	}
	out[fleet.LimitRunning] = 1
	if p.Owner.Kind == fleet.OwnerEndpoint {
		out[fleet.LimitWorkers] = 1
	}
	if p.Spec.GPU != nil {
		out[fleet.LimitGPUs] = int64(p.Spec.GPU.Count)
	}
	if p.Spec.CPU != nil {
		out[fleet.LimitVCPUs] = int64(p.Spec.CPU.VCPU)
	}
	return out
}

// countsOfVolume returns what a network volume counts for. One of which something is left keeps its ids, so it is still one.
func countsOfVolume(v *fleet.Volume) (out fleet.Counts) {
	out[fleet.LimitVolumes] = 1
	if charged(v) != nil {
		out[fleet.LimitVolumeGB] = int64(v.SizeGB)
	}
	return out
}

// countsOfEndpoint returns what an endpoint counts for; its workers are pods.
func countsOfEndpoint(e *fleet.Endpoint) (out fleet.Counts) {
	s := &e.Spec
	bytes := textBytes(len(s.Name)+len(s.Image)+len(s.Args), len(s.Ports)+len(s.Centers)+len(s.Volumes)+len(s.CPU), s.Env)
	for _, r := range e.Releases {
		for _, c := range r.Changes {
			bytes += int64(len(c.Field) + len(c.Old) + len(c.New))
		}
	}
	out[fleet.LimitEndpoints], out[fleet.LimitSpecBytes] = 1, bytes
	return out
}

// specBytes is about what a specification takes in memory and in the log.
func specBytes(s *fleet.PodSpec) int64 {
	return textBytes(len(s.Name)+len(s.Image)+len(s.Args), len(s.Ports)+len(s.Centers), s.Env)
}

// textBytes is about what texts, entries of lists and an environment take.
func textBytes(n, entries int, env map[string]string) int64 {
	const each = 16 // of an entry of a list or map
	n += each * (entries + len(env))
	for name, value := range env {
		n += len(name) + len(value)
	}
	return int64(n)
}

// tally returns that of an account, as the batch has it before the command at hand. It must not be changed.
func (t *txn) tally(account fleet.AccountID) *tally {
	if y := t.tallies[account]; y != nil {
		return y
	}
	if y := t.base.tallies[account]; y != nil {
		return y
	}
	return &tally{}
}

// recount keeps the tallies as the batch has them.
func (t *txn) recount(old, row any) {
	recount(func(account fleet.AccountID) *tally {
		y := t.tallies[account]
		if y == nil {
			own := *t.tally(account)
			y = &own
			t.tallies[account] = y
		}
		return y
	}, old, row)
}

// recount keeps the tallies.
func (tb *tables) recount(old, row any) {
	recount(func(account fleet.AccountID) *tally {
		if tb.tallies[account] == nil {
			tb.tallies[account] = &tally{}
		}
		return tb.tallies[account]
	}, old, row)
	for _, r := range []any{old, row} {
		if account, ok := ownerOf(r); ok && tb.tallies[account] != nil && tb.tallies[account].empty() {
			delete(tb.tallies, account)
		}
	}
}

// deriveMeter keeps which meters cost something, by account and by the hour up to which they are settled.
func (tb *tables) deriveMeter(key string, old, m *openMeter) {
	if old != nil && old.Rates != (fleet.Amounts{}) {
		leave(tb.charging, old.Account, key)
		leave(tb.due, meter.Hour(old.Settled), key)
	}
	if m != nil && m.Rates != (fleet.Amounts{}) {
		enter(tb.charging, m.Account, key, m)
		enter(tb.due, meter.Hour(m.Settled), key, m)
	}
}

// limitsOf returns the limits of an account, and those of all accounts that have none of their own.
func limitsOf(account *fleet.Account, all *fleet.Limits) []fleet.Limits {
	var out []fleet.Limits
	if account != nil {
		out = append(out, account.Limits)
	}
	if all != nil {
		out = append(out, *all)
	}
	return out
}

// checkLimits refuses what is more than an account may have, or lets itself spend. All are the limits of accounts without their own.
func checkLimits(account *fleet.Account, all *fleet.Limits, used, more *fleet.Counts) error {
	limits := limitsOf(account, all)
	for _, l := range fleet.AllLimits() {
		if more[l] <= 0 {
			continue
		}
		if err := l.Check(l.Of(limits...), used[l], more[l]); err != nil {
			return err
		}
	}
	return account.MaySpend(fleet.Money(used[fleet.LimitSpend]), fleet.Money(more[fleet.LimitSpend]))
}

// within refuses what is more than an account may have on top of what it has.
func (t *txn) within(account fleet.AccountID, more fleet.Counts) error {
	used := t.tally(account).used()
	return checkLimits(t.base.accounts.Get(t.Txn, account), t.base.limits.Get(t.Txn, onlyKey), &used, &more)
}

// rented is what a pod of an owner that runs with a specification counts for, on top of old: the pod as it is, stopped; nil: there is none.
func rented(old *fleet.Pod, owner fleet.Owner, spec *fleet.PodSpec, compute fleet.Money, prices *fleet.StoragePrices) fleet.Counts {
	out := countsOf(&fleet.Pod{Status: fleet.StatusProvisioning, Goal: fleet.GoalRun, Owner: owner, Spec: *spec})
	out[fleet.LimitSpend] = int64(meter.Running(spec, compute, prices).Total())
	if old == nil {
		return out
	}
	return grown(old, out, meter.Stopped(&old.Spec, prices).Total())
}

// grown is what a pod counts for more than old does, which costs rate per hour.
func grown(old *fleet.Pod, is fleet.Counts, rate fleet.Money) fleet.Counts {
	for i, had := range countsOf(old) {
		is[i] -= had
	}
	is[fleet.LimitSpend] -= int64(rate)
	return is
}

// enter puts a value into one of some maps; leave takes it out.
func enter[A, B comparable, T any](maps map[A]map[B]T, a A, b B, value T) {
	if maps[a] == nil {
		maps[a] = map[B]T{}
	}
	maps[a][b] = value
}

func leave[A, B comparable, T any](maps map[A]map[B]T, a A, b B) {
	delete(maps[a], b)
	if len(maps[a]) == 0 {
		delete(maps, a)
	}
}
