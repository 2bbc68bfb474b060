package state

import (
	"bytes"
	"strconv"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// maxOnceKey is the most bytes of an idempotency key.
const maxOnceKey = 255

// onceKind says what a create under an idempotency key makes; equal keys of two kinds have nothing to do
// with one another.
type onceKind string

// The kinds. They are part of the keys of rows and never change.
const (
	oncePod      onceKind = "pod"
	onceTemplate onceKind = "template"
	onceRegistry onceKind = "registry"
	onceVolume   onceKind = "volume"
	onceCredit   onceKind = "credit"
	onceEndpoint onceKind = "endpoint"
	onceCluster  onceKind = "cluster"
)

// onceRow remembers a create that was made under an idempotency key.
type onceRow struct {
	Fingerprint []byte    `cbor:"1,keyasint"` // of the request
	Made        string    `cbor:"2,keyasint"` // id of what it made; empty when that has none
	At          time.Time `cbor:"3,keyasint"`
}

// onceKey is the key of a row: the account's length is in it, so that no two are written alike.
func onceKey(kind onceKind, account fleet.AccountID, once *fleet.Once) string {
	return string(kind) + " " + strconv.Itoa(len(account)) + " " + string(account) + once.Key
}

// replay returns the answer to a create that the account made before under the same key: a Replay of
// what present gives for the id of what was made. It is nil when the create is the first, or once is
// nil. Errors: invalid (the key was used with another request), exists (what was made is gone).
func (t *txn) replay(kind onceKind, account fleet.AccountID, once *fleet.Once, present func(id string) any) (any, error) {
	if once == nil {
		return nil, nil
	}
	if once.Key == "" || len(once.Key) > maxOnceKey {
		return nil, fleet.Invalid("Idempotency-Key", "must have 1 to 255 bytes")
	}
	row := t.base.once.Get(t.Txn, onceKey(kind, account, once))
	if row == nil {
		return nil, nil
	}
	if !bytes.Equal(row.Fingerprint, once.Fingerprint) {
		return nil, fleet.Invalid("Idempotency-Key", "was used with another request")
	}
	value := present(row.Made)
	if value == nil {
		return nil, exists("what was made under this Idempotency-Key is gone")
	}
	return Replay{Value: value}, nil
}

// remember records what a create made, for replay; it does nothing when once is nil.
func (t *txn) remember(kind onceKind, account fleet.AccountID, once *fleet.Once, made string, at time.Time) {
	if once != nil {
		t.base.once.Put(t.Txn, onceKey(kind, account, once), &onceRow{Fingerprint: once.Fingerprint, Made: made, At: at})
	}
}

// recorded looks things up for replay: it returns a copy of the record with an id, nil when it is gone.
func recorded[K ~string, T any](t *txn, tab *table.Table[K, T], clone func(*T) T) func(id string) any {
	return func(id string) any {
		if row := tab.Get(t.Txn, K(id)); row != nil {
			return clone(row)
		}
		return nil
	}
}

func (c PurgeOnce) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	keys := t.base.once.Keys(t.Txn, c.Limit, func(row *onceRow) bool { return !row.At.After(c.Before) })
	for _, key := range keys {
		t.base.once.Drop(t.Txn, key)
	}
	return len(keys), nil
}
