package rest

import (
	"fmt"
	"testing"

	"gantry/fleet"
)

// TestAReserveIsForWhoHasNone fills what all may hold: an account without any still gets one.
func TestAReserveIsForWhoHasNone(t *testing.T) {
	c := newCounter(8)
	c.all, c.reserve = 10, 4
	n := 0
	for c.take("greedy") {
		n++
	}
	if n != 6 {
		t.Errorf("one account holds %d of 10 with a reserve of 4", n)
	}
	for i := range 4 {
		if !c.take(fleet.AccountID(fmt.Sprint("other", i))) {
			t.Errorf("other %d got none", i)
		}
	}
	if c.take("late") {
		t.Error("more than all")
	}
	c.give("greedy")
	if c.take("other1") || !c.take("late") {
		t.Error("what became free is of the reserve")
	}
}
