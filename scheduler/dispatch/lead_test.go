package dispatch

import (
	"testing"

	"gantry/fleet"
	"gantry/internal/link"
)

// TestALostHostIsMarked: the server that leads looks for hosts that left, and has them marked when they stay away.
func TestALostHostIsMarked(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	y.soon("it is ready", func() bool { return y.host("h1").State == fleet.HostReady })
	g.leave()
	y.soon("it is unreachable", func() bool { return y.host("h1").State == fleet.HostUnreachable })
}

// TestAVolumeThatIsNotThere: a pod whose volume, or its backend, the state does not have waits for it.
func TestAVolumeThatIsNotThere(t *testing.T) {
	_, s, said := newBetween(t)
	x := newSession(s, "host", &link.Hello{}, nil)
	pod := fleet.Pod{ID: "p1", Account: "acme", Goal: fleet.GoalRun, Spec: fleet.PodSpec{Network: &fleet.NetworkMount{Volume: "gone", Path: "/v"}}}
	got := x.volume(&pod)
	if got.GetVolumeId() != "gone" || got.GetPath() != "/v" || got.GetReady() || got.GetBackend() != nil || len(said.String()) == 0 {
		t.Errorf("got %v, said %q", got, said.String())
	}
}
