package place

import (
	"math"

	"github.com/google/go-cmp/cmp"
)

// failer is what testing.TB and rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// scan is what a pick means: every host is looked at, and compared with the best before it.
func scan(req Request, candidates []Candidate) (Choice, error) {
	q := ask(&req)
	var best rank
	found := -1
	for i := range candidates {
		c := &candidates[i]
		if firstRefusal(&q, c) != passes {
			continue
		}
		r := rankOf(&req, c)
		if found < 0 || r.betterThan(&best, &q) {
			best, found = r, i
		}
	}
	if found >= 0 {
		c := &candidates[found]
		return Choice{Host: c.Host.ID, GPUs: chooseGPUs(req.GPU, c), DataCenter: c.Host.DataCenter}, nil
	}
	t := tally{}
	for i := range candidates {
		t.host(&q, &candidates[i])
	}
	return Choice{}, t.error(&q)
}

func indexOf(candidates []Candidate) *Index {
	x := NewIndex()
	for _, c := range candidates {
		x.Put(c)
	}
	return x
}

// pick picks by the index, and fails unless every host looked at one by one gives the same.
func pick(t failer, req Request, candidates []Candidate) (Choice, error) {
	t.Helper()
	return pickOf(t, indexOf(candidates), req, candidates, nil)
}

func pickOf(t failer, x *Index, req Request, candidates []Candidate, instead Instead) (Choice, error) {
	t.Helper()
	var seen []Candidate
	for _, c := range candidates {
		if other, ok := instead[c.Host.ID]; !ok {
			seen = append(seen, c)
		} else if other != nil {
			seen = append(seen, *other)
		}
	}
	want, wantErr := scan(req, seen)
	got, err := x.Pick(req, instead)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("the index picks otherwise: %s", d)
	}
	if d := cmp.Diff(wantErr, err); d != "" {
		t.Fatalf("the index explains otherwise: %s", d)
	}
	return got, err
}

// stock counts by the index, and compares with every host counted one by one.
func stock(t failer, req Request, candidates []Candidate) int {
	t.Helper()
	q, want := ask(&req), 0
	for i := range candidates {
		if firstRefusal(&q, &candidates[i]) == passes {
			want = min(want+fits(&req, &candidates[i]), math.MaxInt32)
		}
	}
	x := indexOf(candidates)
	got := x.Stock(req, math.MaxInt32)
	if got != want {
		t.Fatalf("the index has a stock of %d, want %d", got, want)
	}
	for limit := range 3 {
		if n := x.Stock(req, limit); n != min(limit, want) {
			t.Fatalf("counted to %d: %d", limit, n)
		}
	}
	return got
}
