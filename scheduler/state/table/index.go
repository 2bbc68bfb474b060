package table

import "slices"

// Index has the rows of a table by a value of theirs, such as their account. Rows whose value is empty are not in it.
type Index[X, K ~string, T any] struct {
	Table *Table[K, T]
	name  string
	of    func(*T) X
	Rows  map[X]map[K]*T // which must not be changed. nil: something else has them, and only what a batch changed is asked for
}

// mark is a value of an index of which a batch changed the rows.
type mark struct{ index, value string }

// NewIndex adds an index to a table.
func NewIndex[X, K ~string, T any](tab *Table[K, T], by string, of func(*T) X) *Index[X, K, T] {
	x := &Index[X, K, T]{Table: tab, name: tab.Bucket + " by " + by, of: of, Rows: map[X]map[K]*T{}}
	tab.indexes = append(tab.indexes, x)
	return x
}

// keeper is an index with the type of its values hidden.
type keeper[K ~string, T any] interface {
	// replace puts row in the place of old, and note says that a batch does; either row may be nil.
	replace(key K, old, row *T)
	note(t *Txn, key K, old, row *T)
}

// Value returns the value of a row, which may be nil.
func (x *Index[X, K, T]) Value(row *T) X {
	if row == nil {
		return ""
	}
	return x.of(row)
}

func (x *Index[X, K, T]) replace(key K, old, row *T) {
	if x.Rows == nil {
		return
	}
	was, is := x.Value(old), x.Value(row)
	if was != "" && was != is {
		if delete(x.Rows[was], key); len(x.Rows[was]) == 0 {
			delete(x.Rows, was)
		}
	}
	if is == "" {
		return
	}
	if x.Rows[is] == nil {
		x.Rows[is] = map[K]*T{}
	}
	x.Rows[is][key] = row
}

func (x *Index[X, K, T]) note(t *Txn, key K, old, row *T) {
	was, is := x.Value(old), x.Value(row)
	if was != is {
		t.mark(mark{x.name, string(was)}, string(key))
	}
	t.mark(mark{x.name, string(is)}, string(key))
}

// mark says that a row may have got or lost a value.
func (t *Txn) mark(m mark, key string) {
	if m.value == "" {
		return
	}
	if t.marks[m] == nil {
		t.marks[m] = map[string]struct{}{}
	}
	t.marks[m][key] = struct{}{}
}

// Changed returns the keys of all rows that may have got or lost a value in the batch.
func (x *Index[X, K, T]) Changed(t *Txn, value X) map[string]struct{} {
	return t.marks[mark{x.name, string(value)}]
}

// Each calls fn with every row that has a value, as the batch and the command at hand have them, in no order.
func (x *Index[X, K, T]) Each(t *Txn, value X, fn func(K, *T)) {
	had := x.Rows[value]
	visit := func(key K) {
		if row := x.Table.Get(t, key); x.Value(row) == value {
			fn(key, row)
		}
	}
	for key := range had {
		visit(key)
	}
	for key := range x.Changed(t, value) {
		if _, done := had[K(key)]; !done {
			visit(K(key))
		}
	}
}

// Keys returns the keys of the rows that have a value, sorted; see Each.
func (x *Index[X, K, T]) Keys(t *Txn, value X) []K {
	out := make([]K, 0, len(x.Rows[value]))
	x.Each(t, value, func(key K, _ *T) { out = append(out, key) })
	slices.Sort(out)
	return out
}

// Count returns how many rows have a value; see Each. It looks only at those that the batch changed.
func (x *Index[X, K, T]) Count(t *Txn, value X) int {
	had := x.Rows[value]
	n := len(had)
	for key := range x.Changed(t, value) {
		if _, ok := had[K(key)]; ok {
			n--
		}
		if x.Value(x.Table.Get(t, K(key))) == value {
			n++
		}
	}
	return n
}

// CountIf returns how many rows that have a value match; see Each.
func (x *Index[X, K, T]) CountIf(t *Txn, value X, match func(*T) bool) (n int) {
	x.Each(t, value, func(_ K, row *T) {
		if match(row) {
			n++
		}
	})
	return n
}

// One returns the row that alone has a value; nil when none has.
func (x *Index[X, K, T]) One(value X) *T {
	for _, row := range x.Rows[value] {
		return row
	}
	return nil
}
