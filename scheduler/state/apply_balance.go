package state

import (
	"slices"
	"time"

	"gantry/fleet"
)

const numNoteBalances uint64 = 97

// NoteBalances tells the owners of accounts whose balances became low, or no longer are, since they were told last: so once per
// crossing. Value: int, how many there are. Accounts that do not exist are ignored.
type NoteBalances struct {
	Accounts []fleet.AccountID `cbor:"1,keyasint"`
	At       time.Time         `cbor:"2,keyasint"`
}

func (NoteBalances) number() uint64 { return numNoteBalances }

func (c NoteBalances) apply(t *txn) (any, error) {
	n := 0
	for _, id := range c.Accounts {
		account, told := t.base.accounts.Get(t.Txn, id), t.base.lowBalances.Get(t.Txn, id)
		if account == nil {
			continue
		}
		switch _, low := account.Low(t.balanceAt(id, c.At), t.tally(id).rate); {
		case low && told == nil:
			t.base.lowBalances.Put(t.Txn, id, &c.At)
		case !low && told != nil:
			t.base.lowBalances.Drop(t.Txn, id)
		default:
			continue
		}
		n++
	}
	return n, nil
}

// Crossed returns up to limit accounts, by id, whose owners NoteBalances with the same time would tell something.
func (v *View) Crossed(now time.Time, limit int) []fleet.AccountID {
	at, _ := v.Clock().Of(now)
	out := []fleet.AccountID{}
	for id, a := range v.tb.accounts.Rows {
		if !a.Prepaid && v.tb.lowBalances.Rows[id] == nil {
			continue
		}
		balance, rate := v.balance(id, at), v.HourlyRate(id)
		if _, low := a.Low(balance, rate); low != (v.tb.lowBalances.Rows[id] != nil) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out[:min(len(out), limit)]
}

// LowSince returns since when the owner of an account is told that its balance is low; zero: it is not.
func (v *View) LowSince(account fleet.AccountID) time.Time {
	if at := v.tb.lowBalances.Rows[account]; at != nil {
		return *at
	}
	return time.Time{}
}
