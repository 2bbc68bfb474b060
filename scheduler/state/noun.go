package state

import (
	"reflect"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// Noun lists the plain records of accounts. Each is declared once, in nouns.go; this file does the rest.
type Noun interface {
	fleet.Template | fleet.Registry | fleet.AccountSecret | fleet.S3Key | fleet.Endpoint | fleet.Cluster
}

// Put creates a plain record of an account, or replaces one where its noun allows that. Value: the record, or Replay.
// Errors: not_found (account, or what is to be replaced), exists, stale (what is to be replaced changed), rule (the
// account has too many), and those of the noun's own checks.
type Put[T Noun] struct {
	Record T           `cbor:"1,keyasint"`
	Once   *fleet.Once `cbor:"2,keyasint,omitempty"`
}

// Delete deletes a plain record of an account. Errors: not_found, in_use.
type Delete[T Noun] struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	ID      string          `cbor:"2,keyasint"` // or its name, where the noun has no id
	// At is when, of what ends with the record: a cluster's members.
	At time.Time `cbor:"3,keyasint,omitzero"`
}

// noun declares a kind of plain records.
type noun[K ~string, T any] struct {
	put, remove uint64   // the numbers of Put and Delete
	name        string   // of one, as errors say it
	most        int      // of one account; 0: what its limits say, by counts
	once        onceKind // of creates; empty: they have no idempotency key
	of          func(*tables) *table.Index[fleet.AccountID, K, T]
	id          func(*T) K
	created     func(*T) time.Time
	clone       func(*T) T

	// named: the id is a name that is unique within the account, a list is by name, and a Put replaces what is there.
	named bool
	// rev is the revision of a record that may be replaced: a Put with revision 0 creates. nil: no Put replaces, unless named.
	rev func(*T) *uint64
	// keep sets what is not the proposer's to set; old is what is replaced, or nil.
	keep func(in, old *T)
	// check refuses what the record may not say or refer to.
	check func(t *txn, in *T) error
	// counts is what a record counts for in the account's limits; nil: nothing.
	counts func(*T) fleet.Counts
	// users returns what uses a record, which is not deleted then. nil: nothing does.
	users func(t *txn, account fleet.AccountID, id K) []uses
	// dropped is called after a record was deleted. nil: nothing goes with it.
	dropped func(t *txn, id K)
}

// declaration is a noun with the type of its keys hidden.
type declaration[T any] interface {
	title() string
	numbers() (put, remove uint64)
	apply(t *txn, record *T, once *fleet.Once) (any, error)
	drop(t *txn, account fleet.AccountID, id string) (any, error)
	find(tb *tables, account fleet.AccountID, id string) (owner fleet.AccountID, record T, ok bool)
	list(tb *tables, account fleet.AccountID) []T
}

// nouns has the declarations by the types of their records.
var nouns = sync.OnceValue(func() map[reflect.Type]any {
	return map[reflect.Type]any{
		reflect.TypeFor[fleet.Template]():      templates(),
		reflect.TypeFor[fleet.Registry]():      registries(),
		reflect.TypeFor[fleet.AccountSecret](): secrets(),
		reflect.TypeFor[fleet.S3Key]():         s3Keys(),
		reflect.TypeFor[fleet.Endpoint]():      endpoints(),
		reflect.TypeFor[fleet.Cluster]():       clusters(),
	}
})

func declared[T Noun]() declaration[T] { return nouns()[reflect.TypeFor[T]()].(declaration[T]) }

func (Put[T]) number() uint64 {
	put, _ := declared[T]().numbers()
	return put
}

func (Delete[T]) number() uint64 {
	_, remove := declared[T]().numbers()
	return remove
}

func (c Put[T]) apply(t *txn) (any, error) { return declared[T]().apply(t, &c.Record, c.Once) }

func (c Delete[T]) apply(t *txn) (any, error) { return declared[T]().drop(t, c.Account, c.ID) }

func (n *noun[K, T]) title() string { return n.name }

func (n *noun[K, T]) numbers() (put, remove uint64) { return n.put, n.remove }

// key is the key of a record's row. No account's id has a slash.
func (n *noun[K, T]) key(account fleet.AccountID, id K) K {
	if n.named {
		return K(account) + "/" + id
	}
	return id
}

func (n *noun[K, T]) apply(t *txn, record *T, once *fleet.Once) (any, error) {
	in, of := n.clone(record), n.of(t.base)
	account, tab := of.Value(&in), of.Table
	key, replaces := n.key(account, n.id(&in)), n.named
	if n.rev != nil {
		replaces = *n.rev(&in) != 0
	}
	if once != nil && n.once == "" {
		return nil, fleet.Invalid("Idempotency-Key", "is not remembered for this kind of record")
	}
	if !replaces {
		again, err := t.replay(n.once, account, once, recorded(t, tab, n.clone))
		if err != nil || again != nil {
			return again, err
		}
	}
	if t.base.accounts.Get(t.Txn, account) == nil {
		return nil, fleet.NotFound("account")
	}
	old := tab.Get(t.Txn, key)
	if err := n.mayPut(t, &in, old, replaces); err != nil {
		return nil, err
	}
	if err := n.check(t, &in); err != nil {
		return nil, err
	}
	if n.keep != nil {
		n.keep(&in, old)
	}
	if !replaces {
		t.remember(n.once, account, once, string(key), n.created(&in))
	}
	return n.write(t, &in), nil
}

// mayPut refuses to create what is there or is too much, and to replace what is not there or was changed.
func (n *noun[K, T]) mayPut(t *txn, in, old *T, replaces bool) error {
	of := n.of(t.base)
	account := of.Value(in)
	switch {
	case old == nil && replaces && !n.named, old != nil && replaces && of.Value(old) != account:
		return fleet.NotFound(n.name)
	case old != nil && !replaces:
		return exists("the id is that of another " + n.name)
	case old != nil && n.rev != nil && *n.rev(old) != *n.rev(in):
		return fleet.Stale("the " + n.name + " changed")
	case old == nil && n.most > 0 && of.Count(t.Txn, account) >= n.most:
		return tooMany(n.most, n.name+"s")
	case n.counts == nil:
		return nil
	}
	more := n.counts(in)
	if old != nil {
		for i, had := range n.counts(old) {
			more[i] -= had
		}
	}
	return t.within(account, more)
}

// write writes a record, with the next revision, and returns a copy of it.
func (n *noun[K, T]) write(t *txn, in *T) T {
	if n.rev != nil {
		*n.rev(in)++
	}
	of := n.of(t.base)
	account := of.Value(in)
	of.Table.Put(t.Txn, n.key(account, n.id(in)), in)
	t.Note(KindAccount, string(account))
	return n.clone(in)
}

func (n *noun[K, T]) drop(t *txn, account fleet.AccountID, id string) (any, error) {
	of, key := n.of(t.base), n.key(account, K(id))
	if row := of.Table.Get(t.Txn, key); of.Value(row) != account {
		return nil, fleet.NotFound(n.name)
	}
	if n.users != nil {
		if err := inUse("the "+n.name, n.users(t, account, K(id))...); err != nil {
			return nil, err
		}
	}
	of.Table.Drop(t.Txn, key)
	if n.dropped != nil {
		n.dropped(t, K(id))
	}
	t.Note(KindAccount, string(account))
	return nil, nil
}

func (n *noun[K, T]) find(tb *tables, account fleet.AccountID, id string) (owner fleet.AccountID, record T, ok bool) {
	of := n.of(tb)
	row := of.Table.Rows[n.key(account, K(id))]
	if row == nil {
		return owner, record, false
	}
	return of.Value(row), n.clone(row), true
}

func (n *noun[K, T]) list(tb *tables, account fleet.AccountID) []T {
	rows := n.of(tb).Rows[account]
	if !n.named {
		return byAgeOf(rows, func(row *T) (time.Time, string) { return n.created(row), string(n.id(row)) }, n.clone)
	}
	out := make([]T, 0, len(rows))
	for _, key := range sortedKeys(rows) {
		out = append(out, n.clone(rows[key]))
	}
	return out
}

// Get returns a plain record of an account by its id, or its name where the noun has no id. Errors: not_found.
func Get[T Noun, ID ~string](v *View, account fleet.AccountID, id ID) (T, error) {
	noun := declared[T]()
	if owner, record, ok := noun.find(v.tb, account, string(id)); ok && owner == account {
		return record, nil
	}
	return *new(T), fleet.NotFound(noun.title())
}

// Find returns a plain record by its id, whoever owns it.
func Find[T fleet.Template | fleet.Registry | fleet.S3Key | fleet.Endpoint | fleet.Cluster, ID ~string](v *View, id ID) (T, bool) {
	_, record, ok := declared[T]().find(v.tb, "", string(id))
	return record, ok
}

// List returns the plain records of an account, oldest first, or by name where the noun has no id.
func List[T Noun](v *View, account fleet.AccountID) []T {
	return declared[T]().list(v.tb, account)
}

// Title returns what errors and logs call a plain record.
func Title[T Noun]() string { return declared[T]().title() }
