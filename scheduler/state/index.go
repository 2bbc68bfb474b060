package state

import "slices"

// index has the rows of a table by a value of theirs, such as their account. Rows whose value is empty are not in it.
type index[X, K ~string, T any] struct {
	tab  *table[K, T]
	name string
	of   func(*T) X
	rows map[X]map[K]*T // nil: something else has them, and only what a batch changed is asked for
}

// mark is a value of an index of which a batch changed the rows.
type mark struct{ index, value string }

// newIndex adds an index to a table.
func newIndex[X, K ~string, T any](tab *table[K, T], by string, of func(*T) X) *index[X, K, T] {
	x := &index[X, K, T]{tab: tab, name: tab.bucket + " by " + by, of: of, rows: map[X]map[K]*T{}}
	tab.indexes = append(tab.indexes, x)
	return x
}

// keeper is an index with the type of its values hidden.
type keeper[K ~string, T any] interface {
	// replace puts row in the place of old, and note says that a batch does; either row may be nil.
	replace(key K, old, row *T)
	note(t *txn, key K, old, row *T)
}

func (x *index[X, K, T]) value(row *T) X {
	if row == nil {
		return ""
	}
	return x.of(row)
}

func (x *index[X, K, T]) replace(key K, old, row *T) {
	if x.rows == nil {
		return
	}
	was, is := x.value(old), x.value(row)
	if was != "" && was != is {
		leave(x.rows, was, key)
	}
	if is != "" {
		enter(x.rows, is, key, row)
	}
}

func (x *index[X, K, T]) note(t *txn, key K, old, row *T) {
	was, is := x.value(old), x.value(row)
	if was != "" && was != is {
		enter(t.marks, mark{x.name, string(was)}, string(key), struct{}{})
	}
	if is != "" {
		enter(t.marks, mark{x.name, string(is)}, string(key), struct{}{})
	}
}

// changed returns the keys of all rows that may have got or lost a value in the batch.
func (x *index[X, K, T]) changed(t *txn, value X) map[string]struct{} {
	return t.marks[mark{x.name, string(value)}]
}

// each calls fn with every row that has a value, as the batch and the command at hand have them, in no order.
func (x *index[X, K, T]) each(t *txn, value X, fn func(K, *T)) {
	had := x.rows[value]
	visit := func(key K) {
		if row := get(t, x.tab, key); x.value(row) == value {
			fn(key, row)
		}
	}
	for key := range had {
		visit(key)
	}
	for key := range x.changed(t, value) {
		if _, done := had[K(key)]; !done {
			visit(K(key))
		}
	}
}

// keys returns the keys of the rows that have a value, sorted; see each.
func (x *index[X, K, T]) keys(t *txn, value X) []K {
	out := make([]K, 0, len(x.rows[value]))
	x.each(t, value, func(key K, _ *T) { out = append(out, key) })
	slices.Sort(out)
	return out
}

// count returns how many rows have a value; see each. It looks only at those that the batch changed.
func (x *index[X, K, T]) count(t *txn, value X) int {
	had := x.rows[value]
	n := len(had)
	for key := range x.changed(t, value) {
		if _, ok := had[K(key)]; ok {
			n--
		}
		if x.value(get(t, x.tab, K(key))) == value {
			n++
		}
	}
	return n
}

// countIf returns how many rows that have a value match; see each.
func (x *index[X, K, T]) countIf(t *txn, value X, match func(*T) bool) (n int) {
	x.each(t, value, func(_ K, row *T) {
		if match(row) {
			n++
		}
	})
	return n
}

// one returns the row that alone has a value; nil when none has.
func (x *index[X, K, T]) one(value X) *T {
	for _, row := range x.rows[value] {
		return row
	}
	return nil
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
