package fleet

import (
	"regexp"
	"testing"
)

func FuzzEventPlace(f *testing.F) {
	for _, id := range []string{"0-0-0", "1-2-3", "18446744073709551615-18446744073709551615-4294967295", "", "1-2", "01-2-3", "1-2-4294967296", "+1-2-3", "1-2-3-4"} {
		f.Add(id)
	}
	form := regexp.MustCompile(EventPlaceForm)
	f.Fuzz(func(t *testing.T, id string) {
		p, ok := ParseEventPlace(id)
		if ok && (p.String() != id || !form.MatchString(id)) {
			t.Errorf("%q is read as %v", id, p)
		}
		if again, ok := ParseEventPlace(p.String()); !ok || again != p {
			t.Errorf("%v is read as %v", p, again)
		}
	})
}

func TestWhatAnEventQueryWants(t *testing.T) {
	e := Event{Kind: EventWorker, Account: "a", Object: "w", Parent: "e"}
	for name, c := range map[string]struct {
		q       EventQuery
		account AccountID
		want    bool
	}{
		"its kind":         {EventQuery{Kinds: []EventKind{EventPod, EventWorker}}, "a", true},
		"another kind":     {EventQuery{Kinds: []EventKind{EventPod}}, "a", false},
		"another account":  {EventQuery{Kinds: []EventKind{EventWorker}}, "b", false},
		"its id":           {EventQuery{Kinds: []EventKind{EventWorker}, Objects: []string{"x", "w"}}, "a", true},
		"its endpoint":     {EventQuery{Kinds: []EventKind{EventWorker}, Objects: []string{"e"}}, "a", true},
		"another id":       {EventQuery{Kinds: []EventKind{EventWorker}, Objects: []string{"x"}}, "a", false},
		"an empty id":      {EventQuery{Kinds: []EventKind{EventWorker}, Objects: []string{""}}, "a", false},
		"operators' kinds": {EventQuery{Kinds: OperatorEventKinds(), Operator: true}, "op", false},
	} {
		if got := c.q.Wants(c.account, &e); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
