package history

import (
	"testing"
	"time"
)

// made builds a history from calls whose times are given in milliseconds.
func made(calls ...Call) *History {
	h := New()
	for _, c := range calls {
		if c.Key == "" {
			c.Key = "k"
		}
		c.Start *= time.Millisecond
		c.End *= time.Millisecond
		h.Add(c)
	}
	return h
}

func TestHistoriesAreJudged(t *testing.T) {
	create := Call{Kind: Create, Pod: "p", Name: "a", Result: OK, Start: 0, End: 1}
	call := func(kind Kind, name string, result Result, start, end time.Duration) Call {
		return Call{Kind: kind, Pod: "p", Name: name, Result: result, Start: start, End: end}
	}
	absent := func(kind Kind, start, end time.Duration) Call {
		return Call{Kind: kind, Pod: "p", Absent: true, Result: OK, Start: start, End: end}
	}
	for _, c := range []struct {
		name  string
		good  bool
		calls []Call
	}{
		{"one after the other", true, []Call{create, call(Read, "a", OK, 2, 3), call(Rename, "b", OK, 4, 5), call(Read, "b", OK, 6, 7)}},
		{"a lost write", false, []Call{create, call(Rename, "b", OK, 2, 3), call(Read, "a", OK, 4, 5)}},
		{"a stale read", false, []Call{create, call(Rename, "b", OK, 2, 9), call(Read, "b", OK, 3, 4), call(Read, "a", OK, 5, 6)}},
		{"a read beside a write", true, []Call{create, call(Rename, "b", OK, 2, 9), call(Read, "a", OK, 3, 4), call(Read, "b", OK, 5, 6)}},
		{"unknown and done", true, []Call{create, call(Rename, "b", Unknown, 2, 3), call(Read, "b", OK, 4, 5)}},
		{"unknown and not done", true, []Call{create, call(Rename, "b", Unknown, 2, 3), call(Read, "a", OK, 4, 5)}},
		{"unknown and done late", true, []Call{create, call(Rename, "b", Unknown, 2, 3), call(Read, "a", OK, 4, 5), call(Read, "b", OK, 6, 7)}},
		{"unknown and done twice", false, []Call{
			create, call(Rename, "b", Unknown, 2, 3), call(Read, "b", OK, 4, 5), call(Rename, "c", OK, 6, 7), call(Read, "b", OK, 8, 9),
		}},
		{"refused and done", false, []Call{create, call(Rename, "b", Refused, 2, 3), call(Read, "b", OK, 4, 5)}},
		{"a lost create", false, []Call{create, absent(Read, 2, 3)}},
		{"the same key, the same pod", true, []Call{call(Create, "a", Unknown, 0, 1), create, create, call(Read, "a", OK, 2, 3)}},
		{"the same key, another pod", false, []Call{create, {Kind: Create, Pod: "q", Name: "a", Result: OK, Start: 2, End: 3}}},
		{"two keys, one pod", false, []Call{create, {Key: "l", Kind: Create, Pod: "p", Name: "a", Result: OK, Start: 2, End: 3}}},
		{"removed", true, []Call{create, call(Remove, "", OK, 2, 3), call(Read, "a", OK, 4, 5), absent(Read, 6, 7)}},
		{"removed by the unknown try", true, []Call{create, call(Remove, "", Unknown, 2, 3), absent(Remove, 4, 5)}},
		{"gone by itself", false, []Call{create, absent(Remove, 4, 5)}},
		{"renamed after its removal", false, []Call{create, call(Remove, "", OK, 2, 3), call(Rename, "b", OK, 4, 5)}},
	} {
		if err := made(c.calls...).Check(10 * time.Second); (err == nil) != c.good {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestTrafficIsCounted(t *testing.T) {
	h := made(
		Call{Kind: Create, Pod: "p", Result: OK, Start: 0, End: 10},
		Call{Kind: Read, Pod: "p", Result: OK, Start: 20, End: 30},
		Call{Kind: Rename, Pod: "p", Result: Unknown, Start: 40, End: 50},
		Call{Kind: Rename, Pod: "p", Result: OK, Start: 60, End: 70},
	)
	if n := h.Writes(0); n != 2 {
		t.Errorf("%d writes", n)
	}
	if n := h.Writes(50 * time.Millisecond); n != 1 {
		t.Errorf("%d late writes", n)
	}
	if gap := h.Gap(0, 100*time.Millisecond); gap != 60*time.Millisecond {
		t.Errorf("gap %v", gap)
	}
	if gap := h.Gap(0, 300*time.Millisecond); gap != 230*time.Millisecond {
		t.Errorf("gap at the end %v", gap)
	}
}
