package gpu

import (
	"testing"

	"gantry/fleet"
)

func TestIdleTellsZerosOfTheRightNumber(t *testing.T) {
	for n := range 4 {
		got := Idle{}.Use(t.Context(), make([]string, n))
		if len(got) != n {
			t.Errorf("%d readings of %d GPUs", len(got), n)
		}
		for _, g := range got {
			if g != (fleet.GPUUse{}) {
				t.Errorf("%+v", g)
			}
		}
	}
}
