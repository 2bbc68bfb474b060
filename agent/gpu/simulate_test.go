package gpu

import "testing"

func TestSimulate(t *testing.T) {
	got, err := Simulate("host", []string{"NVIDIA H100 80GB HBM3:8", "NVIDIA L4:1"})
	if err != nil || len(got) != 9 {
		t.Fatalf("%d GPUs, %v", len(got), err)
	}
	if got[0].MemoryMB != 80_000 || got[8].MemoryMB != 24_000 || got[8].Type != "NVIDIA L4" || !got[0].Simulated {
		t.Errorf("first %+v, last %+v", got[0], got[8])
	}
	again, _ := Simulate("host", []string{"NVIDIA H100 80GB HBM3:8", "NVIDIA L4:1"})
	other, _ := Simulate("other", []string{"NVIDIA H100 80GB HBM3:8"})
	seen := map[string]bool{}
	for i, g := range got {
		if again[i].UUID != g.UUID {
			t.Errorf("UUID %d is another one after a restart", i)
		}
		seen[g.UUID] = true
	}
	if len(seen) != 9 || seen[other[0].UUID] {
		t.Error("UUIDs are not unique")
	}
	for _, bad := range []string{"", "H100", "H100:", ":3", "H100:0", "H100:-1", "H100:65", "H100:x"} {
		if _, err := Simulate("host", []string{bad}); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
