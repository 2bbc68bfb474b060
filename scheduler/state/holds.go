package state

import (
	"fmt"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

func (HoldCredit) number() uint64  { return numHoldCredit }
func (SettleHolds) number() uint64 { return numSettleHolds }

const (
	maxHolds   = 100_000 // of all accounts
	maxSettled = 1000    // in one command
)

// HoldCredit keeps credit of an account for a job of a public model that is about to be submitted: the most that the job may cost.
// Value: fleet.CreditHold. Errors: exists, not_found (account, model), not_allowed (the model is closed), low_balance (what others
// keep counts as spent), rate_limited (the account, or all accounts together, have as many jobs as may wait or run).
type HoldCredit struct {
	Hold fleet.CreditHold `cbor:"1,keyasint"` // without Owner and Price
}

// SettleHolds ends holds: it charges what their jobs cost, at most what was held, to their accounts, and gives it to the owners of the
// models. A hold that is not there was settled before, and is ignored: so nothing is charged twice. Value: int, how many it ended.
// Errors: invalid (too many).
type SettleHolds struct {
	Holds []SettledHold `cbor:"1,keyasint"`
	At    time.Time     `cbor:"2,keyasint"`
}

// SettledHold is a hold with what its job cost: 0 for one that did not complete.
type SettledHold struct {
	ID   string      `cbor:"1,keyasint"`
	Cost fleet.Money `cbor:"2,keyasint,omitempty"`
}

func (c HoldCredit) apply(t *txn) (any, error) {
	in := c.Hold
	if err := checkID("$.id", in.ID); err != nil {
		return nil, err
	}
	account, model := t.base.accounts.Get(t.Txn, in.Account), t.base.models.Get(t.Txn, in.Model)
	switch {
	case t.base.holds.Get(t.Txn, in.ID) != nil:
		return nil, exists("there is a hold with this id")
	case account == nil:
		return nil, fleet.NotFound("account")
	case model == nil:
		return nil, fleet.NotFound("public model")
	case model.Closed:
		return nil, fleet.NotAllowed("this model takes no new requests")
	case t.base.allHolds.Count(t.Txn, onlyKey) >= maxHolds:
		return nil, tooManyHolds("as many jobs of public models wait or run as may")
	}
	in.Owner, in.Price = model.Owner, model.Price
	held, all, jobs := fleet.Money(0), 0, 0
	t.base.holdsOf.Each(t.Txn, in.Account, func(_ string, h *fleet.CreditHold) {
		all++
		if held += h.Price.Most(); h.Model == in.Model {
			jobs++
		}
	})
	switch balance := t.balanceAt(in.Account, in.At) - held; {
	case jobs >= model.Limits.Jobs || all >= fleet.MaxModelJobs:
		return nil, tooManyHolds("the account has as many jobs of public models as may wait or run")
	case account.Prepaid && (balance <= 0 || balance < in.Price.Most()):
		return nil, &fleet.Error{Code: fleet.CodeNoCredit, NothingDone: true, Msg: fmt.Sprintf(
			"Your account balance is too low to call this model: a job may cost $%.3f, and $%.3f are not held for others", in.Price.Most().USD(), balance.USD())}
	}
	t.base.holds.Put(t.Txn, in.ID, &in)
	return in, nil
}

func tooManyHolds(text string) error {
	return &fleet.Error{Code: fleet.CodeLimited, Msg: text, NothingDone: true}
}

func (c SettleHolds) apply(t *txn) (any, error) {
	if len(c.Holds) > maxSettled {
		return nil, fleet.Invalid("$.holds", "must be at most 1000")
	}
	n, hour := 0, meter.Hour(meter.Seconds(c.At))
	for _, settled := range c.Holds {
		h := t.base.holds.Get(t.Txn, settled.ID)
		if h == nil {
			continue
		}
		t.base.holds.Drop(t.Txn, h.ID)
		n++
		cost := min(max(settled.Cost, 0), h.Price.Most())
		if cost == 0 {
			continue
		}
		id := MeterID{fleet.ChargeModel, string(h.Model)}
		t.addUsage(usageKey{h.Account, hour, id}, fleet.Amounts{Calls: cost})
		t.addBalance(h.Account, -cost)
		t.addUsage(usageKey{h.Owner, hour, id}, fleet.Amounts{Revenue: cost})
		t.addBalance(h.Owner, cost)
		t.Note(KindAccount, string(h.Account))
	}
	return n, nil
}

// Holds returns the holds that are older at now, in no order, at most limit.
func (v *View) Holds(now time.Time, older time.Duration, limit int) []fleet.CreditHold {
	at, _ := v.Clock().Of(now)
	before := at.Add(-older)
	var out []fleet.CreditHold
	for _, h := range v.tb.holds.Rows {
		if len(out) == limit {
			break
		}
		if h.At.Before(before) {
			out = append(out, *h)
		}
	}
	return out
}
