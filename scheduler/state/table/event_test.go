package table

import "testing"

func TestEventsFallOutOfTheRing(t *testing.T) {
	r := newRing[Event](3, 5)
	for i := range uint64(4) {
		r.add(Event{Index: 6 + i, Kind: 1, ID: "p"})
	}
	if _, ok := r.after(5); ok {
		t.Error("the event at 6 is gone, but 5 is answered")
	}
	evs, ok := r.after(6)
	if !ok || len(evs) != 3 || evs[0].Index != 7 || evs[2].Index != 9 {
		t.Errorf("got %v, %t", evs, ok)
	}
	if evs, ok := r.after(8); !ok || len(evs) != 1 {
		t.Errorf("got %v, %t", evs, ok)
	}
	if evs, ok := r.after(100); !ok || len(evs) != 0 {
		t.Errorf("got %v, %t", evs, ok)
	}
	// Part of what happened at one index fell out.
	r.add(Event{Index: 10})
	r.add(Event{Index: 10})
	r.add(Event{Index: 10})
	r.add(Event{Index: 10})
	if _, ok := r.after(9); ok {
		t.Error("one of four events at 10 is gone, but 9 is answered")
	}
}
