package table

import "math"

// Place is where a change is among all. The zero Place is before the first.
type Place struct {
	Index uint64 // of the entry
	Seq   uint32 // among the changes of the entry, from 1
}

// endOf is behind all changes of an entry.
func endOf(index uint64) Place { return Place{index, math.MaxUint32} }

// Change is what one command did to one row. Every replica has the same ones at the same places.
type Change struct {
	Place
	What any // what the user of the tables said of it; see Txn.Told
}

func (c Change) at() uint64 { return c.Index }

// before returns the rows that those that the command at hand wrote take the place of: nil for those that it wrote again later.
func (t *Txn) before() []any {
	if t.Told == nil {
		return nil
	}
	out := make([]any, len(t.staged))
	for i, c := range t.staged {
		old, changed := t.batch[c.at]
		if !changed && t.latest[c.at] == i {
			old = t.tables[c.at.Bucket].row(c.at.Key)
		}
		out[i] = old
	}
	return out
}

// tell records what the command at hand did to the rows that it wrote.
func (t *Txn) tell(before []any) {
	for i, old := range before {
		c := t.staged[i]
		if t.latest[c.at] != i { // it was written again
			continue
		}
		what := t.Told(c.at, old, c.row)
		if what == nil {
			continue
		}
		place := Place{t.index, 1}
		if n := len(t.changes); n > 0 && t.changes[n-1].Index == t.index {
			place.Seq = t.changes[n-1].Seq + 1
		}
		t.changes = append(t.changes, Change{place, what})
	}
}

// Changes calls fn with the changes after a place, oldest first and at most this many, until it returns false. It returns the
// place to go on from: of the last change that fn was called with, or, when there is none after it, the end. ok is false
// when some changes after the place are no longer known, or it is not a place of this log: fn is not called then.
// fn is called under the store's lock: it must be short.
func (s *Store[S]) Changes(after Place, most int, fn func(Change) bool) (upTo Place, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := &s.told
	// The ring may have a part of the entry at its floor.
	if after.Index > s.index || after.Index < r.floor || after.Index == r.floor && after.Seq != math.MaxUint32 {
		return endOf(s.index), false
	}
	n, _ := r.above(after.Index)
	for n < r.n && r.back(n).Index == after.Index && r.back(n).Seq > after.Seq {
		n++
	}
	for i := n - 1; i >= 0; i-- {
		c := r.back(i)
		if most--; most < 0 {
			return after, true
		}
		after = c.Place
		if !fn(*c) {
			return after, true
		}
	}
	return endOf(s.index), true
}

// End returns the place behind all changes so far.
func (s *Store[S]) End() Place { return endOf(s.Index()) }
