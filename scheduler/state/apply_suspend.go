package state

import (
	"time"

	"gantry/fleet"
)

const maxSuspension = 1024 // bytes of the reason

// SuspendAccount has the keys of an account refused, or, with Resume, taken again. What runs is not touched. Suspended
// again, it keeps the time and takes the new reason. Value: fleet.Account. Errors: not_found, invalid (no reason, or one
// that is too long), not_allowed (one of its keys is an operator's).
type SuspendAccount struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Reason  string          `cbor:"2,keyasint,omitempty"`
	At      time.Time       `cbor:"3,keyasint"`
	Resume  bool            `cbor:"4,keyasint,omitempty"`
}

// NoteBackup remembers when the newest back-up was taken that is whole where it is kept. A time after that of the command
// counts as that; one before the newest that is known changes nothing. Value: the time that is remembered. Errors: invalid, not_found (no cluster).
type NoteBackup struct {
	SavedAt time.Time `cbor:"1,keyasint"`
	At      time.Time `cbor:"2,keyasint"`
}

func (c SuspendAccount) apply(t *txn) (any, error) {
	old := t.base.accounts.Get(t.Txn, c.Account)
	switch {
	case old == nil:
		return nil, fleet.NotFound("account")
	case !c.Resume && (c.Reason == "" || len(c.Reason) > maxSuspension):
		return nil, fleet.Invalid("$.reason", "must have 1 to 1024 bytes")
	case !c.Resume && t.base.keysOf.CountIf(t.Txn, c.Account, isOperators) > 0:
		return nil, fleet.NotAllowed("the account has an operator's key, and operators are not suspended: delete that key first")
	}
	account := *old
	account.Suspended = nil
	if !c.Resume {
		account.Suspended = &fleet.Suspension{Reason: c.Reason, At: c.At}
		if old.Suspended != nil {
			account.Suspended.At = old.Suspended.At
		}
	}
	t.base.accounts.Put(t.Txn, account.ID, &account)
	t.Note(KindAccount, string(account.ID))
	return cloneAccount(&account), nil
}

// isOperators reports whether a key takes operators' routes.
func isOperators(k *fleet.Key) bool { return k.Can[fleet.GroupAdmin] != fleet.AccessNone }

func (c NoteBackup) apply(t *txn) (any, error) {
	cluster, err := t.cluster()
	switch {
	case err != nil:
		return nil, err
	case c.SavedAt.IsZero() || c.At.IsZero():
		return nil, fleet.Invalid("$.savedAt", "must be set")
	}
	saved := earliest(c.SavedAt, c.At)
	// One in the future is of a clock that was put back since.
	if had := cluster.BackupAt; saved.After(had) || had.After(c.At) {
		cluster.BackupAt = saved
		t.base.cluster.Put(t.Txn, onlyKey, &cluster)
		t.Note(KindMember, "")
	}
	return cluster.BackupAt, nil
}
