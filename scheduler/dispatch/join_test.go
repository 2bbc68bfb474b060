package dispatch

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// A host that did not hear the answer to its join asks again, also after a restart, and is the host that it was made: the token is good for
// that one request until it expires, or the host connects, and for no other.
func TestAJoinCanBeAskedAgain(t *testing.T) {
	y := newYard(t)
	token := pki.NewJoinToken(pki.DigestOf(y.ca.Cert()))
	hash := pki.Hash(token.Secret)
	y.do(state.PutToken{At: time.Now(), Token: fleet.JoinToken{
		ID: token.ID, Hash: hash[:], DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: time.Now().Add(time.Hour),
	}})
	dir := t.TempDir()
	request := func(dir, machine string) *agentrpc.JoinRequest {
		store, err := pki.OpenStore(dir)
		check(t, err)
		csr, err := store.Request()
		check(t, err)
		return &agentrpc.JoinRequest{Token: token.Text(), Csr: csr, MachineId: machine, Name: "gpu-01"}
	}
	y.server.learnMembers()

	// The commit is made, and its outcome does not reach who asked.
	var joins atomic.Int32
	y.spoil(func(cmd state.Command) error {
		if join, ok := cmd.(state.JoinHost); ok && joins.Add(1) == 1 {
			y.do(join)
			return fleet.Unavailable("outcome unknown", nil)
		}
		return nil
	})
	_, err := y.server.Join(y.ctx, request(dir, "m-1"))
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("the first time: %v", err)
	}
	var hosts []fleet.Host
	count := func() []fleet.Host {
		check(t, y.store.View(func(v *state.View) error { hosts = v.Hosts(); return nil }))
		return hosts
	}
	if len(count()) != 1 {
		t.Fatalf("hosts %v", hosts)
	}
	made := hosts[0].ID
	for range 2 {
		answer, err := y.server.Join(y.ctx, request(dir, "m-1"))
		if err != nil || answer.GetHostId() != string(made) || len(count()) != 1 {
			t.Fatalf("again: %v, %v, hosts %v", answer.GetHostId(), err, hosts)
		}
	}
	if joins.Load() != 1 {
		t.Errorf("%d joins were proposed for one host", joins.Load())
	}
	for name, other := range map[string]*agentrpc.JoinRequest{
		"another key": request(t.TempDir(), "m-1"), "another machine": request(dir, "m-2"),
	} {
		if _, err := y.server.Join(y.ctx, other); status.Code(err) != codes.Unauthenticated || len(count()) != 1 {
			t.Errorf("%s: %v, hosts %v", name, err, hosts)
		}
	}
	connected := &session{}
	connected.welcomed.Store(true)
	y.server.mu.Lock() // those that look after hosts read it
	y.server.sessions[made] = connected
	y.server.mu.Unlock()
	if _, err := y.server.Join(y.ctx, request(dir, "m-1")); status.Code(err) != codes.AlreadyExists || joins.Load() != 1 {
		t.Errorf("while it is connected: %v, %d joins", err, joins.Load())
	}
	y.server.mu.Lock()
	delete(y.server.sessions, made)
	y.server.mu.Unlock()
	// Once it has connected it has heard the answer.
	y.do(state.ConnectHost{Host: made, MachineID: "m-1", BootID: "b", At: time.Now()})
	if _, err := y.server.Join(y.ctx, request(dir, "m-1")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("after it connected: %v", err)
	}
}

// The same request that comes twice at once makes one host, and both hear of it.
func TestAJoinAskedTwiceAtOnce(t *testing.T) {
	y := newYard(t)
	token := pki.NewJoinToken(pki.DigestOf(y.ca.Cert()))
	hash := pki.Hash(token.Secret)
	y.do(state.PutToken{At: time.Now(), Token: fleet.JoinToken{
		ID: token.ID, Hash: hash[:], DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: time.Now().Add(time.Hour),
	}})
	y.server.learnMembers()
	store, err := pki.OpenStore(t.TempDir())
	check(t, err)
	csr, err := store.Request()
	check(t, err)
	in := &agentrpc.JoinRequest{Token: token.Text(), Csr: csr, MachineId: "m-1", Name: "gpu-01"}
	first := make(chan string, 1)
	var inner atomic.Bool
	y.spoil(func(cmd state.Command) error {
		if _, ok := cmd.(state.JoinHost); ok && !inner.Swap(true) { // the other one is committed in between
			answer, err := y.server.Join(y.ctx, in)
			check(t, err)
			first <- answer.GetHostId()
		}
		return nil
	})
	answer, err := y.server.Join(y.ctx, in)
	if err != nil || answer.GetHostId() != <-first {
		t.Errorf("got %v, %v", answer.GetHostId(), err)
	}
}
