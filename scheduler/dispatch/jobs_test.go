package dispatch

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestJobsGoToHostsWithASession with the leader, and to no others.
func TestJobsGoToHostsWithASession(t *testing.T) {
	y := newYard(t)
	host, other := y.join("host1").connect(), y.join("host2")
	ask := func(g *guest) (*agentrpc.JobsDown, error) {
		s, err := g.client.Jobs(y.ctx)
		check(t, err)
		return s.Recv()
	}
	if _, err := ask(host); status.Code(err) != codes.Unimplemented {
		t.Errorf("without workers: %v", err)
	}
	y.server.Workers = func(id fleet.HostID, _ <-chan struct{}, s agentrpc.Link_JobsServer) error {
		return s.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Stop{Stop: &agentrpc.JobStop{PodId: string(id)}}})
	}
	if got, err := ask(host); err != nil || got.GetStop().GetPodId() != "host1" {
		t.Errorf("with a session: %v, %v", got, err)
	}
	if _, err := ask(other); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without a session: %v", err)
	}
	y.follows.Store(true)
	if _, err := ask(host); status.Code(err) != codes.Unavailable {
		t.Errorf("of a follower: %v", err)
	}
}

// TestAStreamOfJobsHearsOfTheEndOfItsSession, though the host's connection stands.
func TestAStreamOfJobsHearsOfTheEndOfItsSession(t *testing.T) {
	y := newYard(t)
	g := y.join("host1").connect()
	begun, ended := make(chan struct{}), make(chan struct{})
	y.server.Workers = func(_ fleet.HostID, session <-chan struct{}, s agentrpc.Link_JobsServer) error {
		close(begun)
		select {
		case <-session:
			close(ended)
		case <-s.Context().Done():
		}
		return nil
	}
	s, err := g.client.Jobs(y.ctx)
	check(t, err)
	wait(t, begun)
	y.server.session("host1").cancel(errSilent)
	wait(t, ended)
	if _, err := s.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("not in time")
	}
}

// TestAHostIsToldOfWhichEndpointAPodIsAWorker, whatever is to become of it.
func TestAHostIsToldOfWhichEndpointAPodIsAWorker(t *testing.T) {
	for _, goal := range []fleet.Goal{fleet.GoalRun, fleet.GoalStop, fleet.GoalGone} {
		p := &fleet.Pod{ID: "p", Account: "a", Goal: goal, Owner: fleet.EndpointID("endpoint000001").Owner()}
		if got := encodeAssignment(p, 0).GetEndpointId(); got != "endpoint000001" {
			t.Errorf("to %s a worker: %q", goal, got)
		}
		p.Owner = fleet.ClusterID("cluster0000001").Owner()
		if got := encodeAssignment(p, 0).GetEndpointId(); got != "" {
			t.Errorf("to %s a member of a cluster: %q", goal, got)
		}
	}
}
