package dispatch

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

// TestALostHostIsMarked: the server that leads looks for hosts that left, and has them marked when they stay away.
func TestALostHostIsMarked(t *testing.T) {
	y := newYard(t)
	g := y.join("h1").connect()
	y.soon("it is ready", func() bool { return y.host("h1").State == fleet.HostReady })
	g.leave()
	y.soon("it is unreachable", func() bool { return y.host("h1").State == fleet.HostUnreachable })
}

// TestWhomANewLeaderLooksFor: hosts that were ready under the leader before, and none that never connected.
func TestWhomANewLeaderLooksFor(t *testing.T) {
	b, s, _ := newBetween(t)
	now := time.Now()
	b.must(state.PutToken{Token: fleet.JoinToken{ID: "t2", Hash: []byte("h"), DataCenter: "dc", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}, At: now})
	b.must(state.JoinHost{Token: "t2", Hash: []byte("h"), Host: fleet.Host{ID: "new", MachineID: "m2"}, At: now})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, s.Lead(ctx))
	if until, waits := s.absent["host"]; !waits || !until.IsZero() || len(s.absent) != 1 {
		t.Errorf("looked for are %v", s.absent)
	}
}

// TestWhyASessionEnded: the host hears it of a scheduler that still leads.
func TestWhyASessionEnded(t *testing.T) {
	y := newYard(t)
	stream, _ := y.join("h1").raw()
	y.soon("it has a session", func() bool { return y.server.session("h1") != nil })
	y.server.session("h1").cancel(errAgain)
	var err error
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != errAgain.Error() {
		t.Errorf("it was told %v", err)
	}
}

// TestAHelloThatIsBriefAgain: who was asked for everything has to say it.
func TestAHelloThatIsBriefAgain(t *testing.T) {
	_, s, _ := newBetween(t)
	says := &agentrpc.Hello{MachineId: "m", BootId: "b", Brief: true, Inventory: &agentrpc.Inventory{}}
	line := &lineTo{up: make(chan *agentrpc.Up, 1)}
	line.up <- hello(says)
	x := newSession(s, "host", says, func(error) {})
	if _, err := x.connect(t.Context(), line, says); status.Code(err) != codes.InvalidArgument || len(line.down) != 1 || line.down[0].GetWhole() == nil {
		t.Errorf("%v, told %v", err, line.down)
	}
}

// TestAnotherMachineWithAHostsIdentity is refused, and operators hear of it.
func TestAnotherMachineWithAHostsIdentity(t *testing.T) {
	b, s, _ := newBetween(t)
	x := newSession(s, "host", &agentrpc.Hello{}, func(error) {})
	_, err := x.connect(t.Context(), nil, &agentrpc.Hello{MachineId: "other", BootId: "b"})
	if fleet.CodeOf(err) != fleet.CodeForbidden || x.connecting || b.host().Alarm != "an agent was refused that uses the identity of this host: "+err.Error() {
		t.Errorf("%v, the alarm is %q", err, b.host().Alarm)
	}
}

// TestAVolumeThatIsNotThere: a pod whose volume, or its backend, the state does not have waits for it.
func TestAVolumeThatIsNotThere(t *testing.T) {
	_, s, said := newBetween(t)
	x := newSession(s, "host", &agentrpc.Hello{}, nil)
	pod := fleet.Pod{ID: "p1", Account: "acme", Goal: fleet.GoalRun, Spec: fleet.PodSpec{Network: &fleet.NetworkMount{Volume: "gone", Path: "/v"}}}
	got := x.volume(&pod)
	if got.GetVolumeId() != "gone" || got.GetPath() != "/v" || got.GetReady() || got.GetBackend() != nil || len(said.String()) == 0 {
		t.Errorf("got %v, said %q", got, said.String())
	}
}
