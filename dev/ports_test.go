package dev

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryDevHasPortsOfItsOwn(t *testing.T) {
	var starts []int
	for range 3 {
		from, held := takePorts(0)
		if held == nil {
			t.Fatal("no slot is free")
		}
		defer func() { _ = held.Close() }()
		if slices.Contains(starts, from) || (from-firstPodPort)%slotPorts != 0 {
			t.Errorf("slot %d beside %v", from, starts)
		}
		starts = append(starts, from)
	}
	if from, held := takePorts(starts[1]); held == nil || from == starts[1] {
		t.Errorf("a slot that is taken was given away: %d", from)
	} else if err := held.Close(); err != nil {
		t.Error(err)
	}
	from, held := takePorts(starts[2] + slotPorts)
	if held == nil {
		t.Fatal("no slot is free")
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, held := takePorts(from)
	if held == nil || again != from {
		t.Fatalf("asked for %d, got %d", from, again)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	for _, odd := range []int{-1, 1, firstPodPort + 1, firstPodPort + slotCount*slotPorts, 1 << 20} {
		from, held := takePorts(odd)
		if held == nil || from == odd {
			t.Errorf("asked for %d: %d", odd, from)
		} else if err := held.Close(); err != nil {
			t.Error(err)
		}
	}
	for from, want := range map[int]string{0: "0", 30_000: "30001-30249", 39_750: "39751-39999"} {
		if got := portRange(from); got != want {
			t.Errorf("range at %d: %s, want %s", from, got, want)
		}
	}
}

func TestAgentsOfTwoDevsPublishOtherPorts(t *testing.T) {
	ranges := map[string]bool{}
	for range 2 {
		b := newBench(t)
		stop := b.run()
		defer func() {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}()
		b.wait("the agent", func() bool { return len(rangesOf(b.noted())) == 1 })
		r := rangesOf(b.noted())[0]
		if ranges[r] {
			t.Errorf("two devs publish %s", r)
		}
		ranges[r] = true
	}
}

// rangesOf finds the port ranges that agents were given.
func rangesOf(events []string) []string {
	var out []string
	for _, e := range events {
		if _, rest, ok := strings.Cut(e, "--port-range_"); ok && strings.HasPrefix(e, "agent_runs") {
			r, _, _ := strings.Cut(rest, "_")
			out = append(out, r)
		}
	}
	return out
}
