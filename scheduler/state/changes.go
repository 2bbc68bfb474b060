package state

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
	"gantry/scheduler/state/table"
)

// told returns the event of a row that a command wrote in the place of old: nil where nobody but the program has to know. It is
// the one place that says which rows are events. It is a function of the log alone, so that every replica has the same events.
func (t *txn) told(at table.Slot, old, row any) any {
	e := &fleet.Event{Type: fleet.EventChanged, At: t.eventTime()}
	one := row
	switch {
	case old == nil && row == nil:
		return nil
	case old == nil:
		e.Type = fleet.EventCreated
	case row == nil:
		e.Type, one = fleet.EventDeleted, old
	}
	switch at.Bucket { // rows that do not say whose they are
	case t.base.balances.Bucket:
		return t.toldBalance(e, fleet.AccountID(at.Key), row)
	case t.base.lowBalances.Bucket:
		return t.toldLow(e, fleet.AccountID(at.Key))
	case t.base.sshKeys.Bucket:
		e.Kind, e.Account, e.Object = fleet.EventSSHKeys, fleet.AccountID(at.Key), at.Key
		return e
	}
	if !describe(e, one) && !describeForOperators(e, one) {
		return nil
	}
	if over(old) { // it was told when that began
		return nil
	}
	if over(row) {
		e.Type = fleet.EventDeleted
	}
	return e
}

// describe fills in what an account's row is; false when it is none.
func describe(e *fleet.Event, row any) bool {
	set := func(kind fleet.EventKind, account fleet.AccountID, id, status, reason string) {
		e.Kind, e.Account, e.Object, e.Status, e.Reason = kind, account, id, status, reason
	}
	switch r := row.(type) {
	case *fleet.Pod:
		set(fleet.EventPod, r.Account, string(r.ID), string(r.Status), r.Reason)
		switch r.Owner.Kind {
		case fleet.OwnerEndpoint:
			e.Kind, e.Parent = fleet.EventWorker, r.Owner.ID
		case fleet.OwnerCluster:
			*e = fleet.Event{Type: fleet.EventChanged, At: e.At, Kind: fleet.EventCluster, Account: r.Account, Object: r.Owner.ID}
		}
	case *fleet.Endpoint:
		set(fleet.EventEndpoint, r.Account, string(r.ID), "", "")
	case *fleet.Cluster:
		set(fleet.EventCluster, r.Account, string(r.ID), "", "")
	case *fleet.Volume:
		set(fleet.EventVolume, r.Account, string(r.ID), string(r.State), "")
	case *fleet.Overlay:
		set(fleet.EventNetwork, r.Account, string(r.ID), "", "")
	case *fleet.Template:
		set(fleet.EventTemplate, r.Account, string(r.ID), "", "")
	case *fleet.Registry:
		set(fleet.EventRegistry, r.Account, string(r.ID), "", "")
	case *fleet.AccountSecret:
		set(fleet.EventSecret, r.Account, r.Name, "", "")
	case *fleet.S3Key:
		set(fleet.EventS3Key, r.Account, r.ID, "", "")
	case *fleet.Key:
		set(fleet.EventKey, r.Account, string(r.ID), "", "")
	case *fleet.Account:
		set(fleet.EventAccount, r.ID, string(r.ID), "", "")
		if r.Suspended != nil {
			e.Status, e.Reason = "suspended", r.Suspended.Reason
		}
	default:
		return false
	}
	return true
}

// describeForOperators fills in what a row of operators is; false when it is none.
func describeForOperators(e *fleet.Event, row any) bool {
	switch r := row.(type) {
	case *fleet.Host:
		e.Kind, e.Object, e.Status, e.Reason = fleet.EventHost, string(r.ID), string(r.State), r.Alarm
	case *fleet.DataCenter:
		e.Kind, e.Object = fleet.EventDataCenter, string(r.ID)
	case *fleet.Backend:
		e.Kind, e.Object = fleet.EventBackend, string(r.ID)
	case *fleet.Member:
		e.Kind, e.Object = fleet.EventScheduler, string(r.ID)
	default:
		return false
	}
	return true
}

// over reports whether a row is kept though its object is gone for who asks.
func over(row any) bool {
	switch r := row.(type) {
	case *fleet.Volume:
		return r != nil && !r.DeletedAt.IsZero()
	case *fleet.Member:
		return r != nil && !r.RemovedAt.IsZero()
	}
	return false
}

// toldBalance tells of a prepaid account's balance, as the batch has it with the command at hand.
func (t *txn) toldBalance(e *fleet.Event, account fleet.AccountID, row any) any {
	owner := t.base.accounts.Get(t.Txn, account)
	left, _ := row.(*fleet.Money)
	if !owner.Prepaid {
		return nil
	}
	sums := t.tally(account)
	now := *left - sums.running(meter.Seconds(e.At))
	e.Type, e.Kind, e.Account, e.Object, e.Status = fleet.EventChanged, fleet.EventBalance, account, string(account), fleet.BalanceOK
	if why, low := owner.Low(now, sums.rate); low {
		e.Status, e.Reason = fleet.BalanceLow, why
	}
	if now <= 0 {
		e.Status, e.Reason = fleet.BalanceOut, reasonNoCredit
	}
	return e
}

// toldLow tells that a balance became low, or no longer is.
func (t *txn) toldLow(e *fleet.Event, account fleet.AccountID) any {
	e.Kind, e.Account, e.Object = fleet.EventLowBalance, account, string(account)
	if owner := t.base.accounts.Get(t.Txn, account); e.Type == fleet.EventCreated {
		e.Status = fleet.BalanceLow
		e.Reason, _ = owner.Low(t.balanceAt(account, e.At), t.tally(account).rate)
	}
	return e
}

// eventTime is the log's time of the command at hand, as far as that is known.
func (t *txn) eventTime() time.Time {
	at := t.now
	if c := t.base.clock.Get(t.Txn, onlyKey); c != nil {
		at = latest(at, c.At)
	}
	return at.UTC()
}

// Changes calls fn with the events after a place, oldest first and at most this many, until it returns false; see table.Changes.
// Events are read-only and do not say their place. fn must be short. lost says that some are no longer known: upTo is the end then.
func (s *Store) Changes(after fleet.EventPlace, most int, fn func(fleet.EventPlace, *fleet.Event) bool) (upTo fleet.EventPlace, lost bool) {
	lineage := s.lineage()
	if after.Lineage != lineage {
		return s.EndOfChanges(), true
	}
	end, ok := s.Store.Changes(table.Place{Index: after.Index, Seq: after.Seq}, most, func(c table.Change) bool {
		e, _ := c.What.(*fleet.Event)
		return fn(fleet.EventPlace{Lineage: lineage, Index: c.Index, Seq: c.Seq}, e)
	})
	return fleet.EventPlace{Lineage: lineage, Index: end.Index, Seq: end.Seq}, !ok
}

// EndOfChanges returns the place behind all events so far.
func (s *Store) EndOfChanges() fleet.EventPlace {
	end := s.End()
	return fleet.EventPlace{Lineage: s.lineage(), Index: end.Index, Seq: end.Seq}
}

func (s *Store) lineage() (n uint64) {
	_ = s.View(func(v *View) error { n = v.tb.lineage(); return nil }) // a closed store has no events
	return n
}
