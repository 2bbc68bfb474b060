package state

import (
	"fmt"
	"testing"

	"gantry/fleet"
)

// TestACreditIsGivenOnce: who asks again with the same key, because the first answer was lost, gets no more money.
func TestACreditIsGivenOnce(t *testing.T) {
	w := newWorld(t).settle()
	credit := func(key string, amount fleet.Money) AddCredit {
		return AddCredit{Account: "acme", Amount: amount, Once: &fleet.Once{Key: key, Fingerprint: fmt.Append(nil, amount)}, At: at(2)}
	}
	before := w.balance("acme", at(2))
	w.must(credit("a", fleet.Dollar), credit("a", fleet.Dollar), credit("b", fleet.Dollar))
	if got := w.balance("acme", at(2)) - before; got != 2*fleet.Dollar {
		t.Errorf("two credits of a dollar are %d", got)
	}
	if r := w.do(credit("a", 5*fleet.Dollar)); r.Err == nil {
		t.Error("another request has the key of the first")
	}
	if got := w.balance("acme", at(2)) - before; got != 2*fleet.Dollar {
		t.Errorf("after a refusal: %d", got)
	}
	w.check()
}
