package table

import (
	"slices"

	"gantry/scheduler/entry"
)

// Set is the tables of one state machine, with what is derived from their rows.
type Set interface {
	// Tables lists all of them, in any order.
	Tables() []Any
	// Derive is called before row takes the place of old, either of which may be nil: for rows of a batch, in no order, and for
	// rows that are read from the file.
	Derive(at Slot, old, row any)
	// Settled is called when all rows of a batch, or of a file, are in their tables.
	Settled()
	// Usable refuses a file or a snapshot with these rows. The file is kept, for a program that can go on with it.
	Usable() error
}

// Any is a *Table or a *Cold.
type Any interface {
	name() string
	// set puts a row, which is of the table's type, or deletes it when it is nil.
	set(key string, row any)
	// row returns a row; nil when there is none, or when it is not in memory.
	row(key string) any
	// decode reads a row from its bytes in the file.
	decode(enc entry.Encoding, value []byte) (any, error)
	// inMemory reports whether rows are.
	inMemory() bool
}

// Slot is where a row is.
type Slot struct{ Bucket, Key string }

// Table is one bucket of the file, decoded.
type Table[K ~string, T any] struct {
	Bucket  string
	Rows    map[K]*T // which must not be changed, nor what is in it
	indexes []keeper[K, T]
}

// New returns an empty table.
func New[K ~string, T any](bucket string) Table[K, T] {
	return Table[K, T]{Bucket: bucket, Rows: map[K]*T{}}
}

func (tab *Table[K, T]) name() string { return tab.Bucket }

func (tab *Table[K, T]) inMemory() bool { return true }

func (tab *Table[K, T]) set(key string, row any) {
	typed, _ := row.(*T)
	old := tab.Rows[K(key)]
	for _, x := range tab.indexes {
		x.replace(K(key), old, typed)
	}
	if row == nil {
		delete(tab.Rows, K(key))
		return
	}
	tab.Rows[K(key)] = typed
}

func (tab *Table[K, T]) row(key string) any {
	if row := tab.Rows[K(key)]; row != nil {
		return row
	}
	return nil
}

func (tab *Table[K, T]) decode(enc entry.Encoding, value []byte) (any, error) {
	return decoded[T](enc, value)
}

func decoded[T any](enc entry.Encoding, value []byte) (any, error) {
	row := new(T)
	if err := enc.Dec.Unmarshal(value, row); err != nil {
		return nil, err
	}
	return row, nil
}

// Get reads a row as the batch and the command at hand have it; it must not be changed.
func (tab *Table[K, T]) Get(t *Txn, key K) *T {
	at := Slot{tab.Bucket, string(key)}
	if i, ok := t.latest[at]; ok {
		row, _ := t.staged[i].row.(*T)
		return row
	}
	if row, ok := t.batch[at]; ok {
		row, _ := row.(*T)
		return row
	}
	return tab.Rows[key]
}

// Put writes a row, which must not be changed afterwards.
func (tab *Table[K, T]) Put(t *Txn, key K, row *T) {
	tab.note(t, key, row)
	t.stage(Slot{tab.Bucket, string(key)}, row)
}

// Drop deletes a row.
func (tab *Table[K, T]) Drop(t *Txn, key K) {
	tab.note(t, key, nil)
	t.stage(Slot{tab.Bucket, string(key)}, nil)
}

// note says to the indexes that a row is written, or deleted when it is nil.
func (tab *Table[K, T]) note(t *Txn, key K, row *T) {
	if len(tab.indexes) == 0 {
		return
	}
	old := tab.Rows[key]
	for _, x := range tab.indexes {
		x.note(t, key, old, row)
	}
}

// Wrote reports whether the command at hand wrote or deleted a row.
func (tab *Table[K, T]) Wrote(t *Txn, key K) bool {
	_, ok := t.latest[Slot{tab.Bucket, string(key)}]
	return ok
}

// each calls fn with every row as the batch has it before the command at hand, in no order.
func (tab *Table[K, T]) each(t *Txn, fn func(K, *T)) {
	for key, row := range tab.Rows {
		if _, changed := t.batch[Slot{tab.Bucket, string(key)}]; !changed {
			fn(key, row)
		}
	}
	for at, row := range t.batch {
		if row, ok := row.(*T); ok && at.Bucket == tab.Bucket {
			fn(K(at.Key), row)
		}
	}
}

// Keys returns the first keys of the rows that match, sorted, as the batch has it before the command at hand: at most limit,
// unless that is not positive.
func (tab *Table[K, T]) Keys(t *Txn, limit int, match func(*T) bool) []K {
	var out []K
	tab.each(t, func(key K, row *T) {
		if !match(row) {
			return
		}
		if out = append(out, key); limit > 0 && len(out) >= 2*limit {
			slices.Sort(out)
			out = out[:limit]
		}
	})
	slices.Sort(out)
	if limit > 0 {
		out = out[:min(limit, len(out))]
	}
	return out
}

// All matches every row.
func All[T any](*T) bool { return true }

// Count returns how many rows match, as the batch has it before the command at hand.
func (tab *Table[K, T]) Count(t *Txn, match func(*T) bool) (n int) {
	tab.each(t, func(_ K, row *T) {
		if match(row) {
			n++
		}
	})
	return n
}
