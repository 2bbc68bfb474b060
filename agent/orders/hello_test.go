package orders

import (
	"slices"
	"testing"

	"gantry/agent/pod"
	"gantry/fleet"
)

func TestAHelloTellsWhatAPodHas(t *testing.T) {
	rec := pod.Record{
		Assignment: pod.Assignment{Pod: "p", Incarnation: 2, GPUs: []string{"new"}}, Begun: 1,
		Held: &pod.Holding{GPUs: []string{"old"}, Mappings: []fleet.PortMapping{{Private: 22, Public: 30_001}}},
	}
	if got := encodeRecord(rec); !slices.Equal(got.GetGpus(), []string{"old"}) || len(got.GetPorts()) != 1 || got.GetIncarnation() != 2 {
		t.Errorf("while the one before runs: %v", got)
	}
	rec.Ended = &pod.Ended{Incarnation: 1}
	if got := encodeRecord(rec); !slices.Equal(got.GetGpus(), []string{"new"}) || len(got.GetPorts()) != 0 {
		t.Errorf("after it: %v", got)
	}
}
