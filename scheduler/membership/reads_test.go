package membership

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// TestAFollowerReadsWhatWasAcknowledged, each time, also what was written a moment ago; without a leader it says that it cannot.
func TestAFollowerReadsWhatWasAcknowledged(t *testing.T) {
	w := newWorld(t)
	m := w.member(true)
	t.Cleanup(m.close)
	for i := range 50 {
		id := fleet.AccountID(fleet.NewID())
		_, err := w.lead.node.Propose(within(t), state.PutAccount{Account: fleet.Account{ID: id, Name: string(id), CreatedAt: time.Now()}})
		w.must(err)
		w.must(m.reads.Barrier(within(t)))
		w.must(m.store.View(func(v *state.View) error {
			if _, ok := v.Account(id); !ok {
				t.Errorf("write %d was acknowledged and is not seen", i)
			}
			return nil
		}))
	}
	w.must(w.lead.reads.Barrier(within(t)))
	w.lead.close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := m.reads.Barrier(ctx); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("without a leader: %v", err)
	}
}

// TestOnlyMembersAskForTheIndex: it needs a member's certificate, and a leader.
func TestOnlyMembersAskForTheIndex(t *testing.T) {
	w := newWorld(t)
	m := w.member(true)
	t.Cleanup(m.close)
	ask := func(certs *pki.Store, address string) error {
		conn, err := dialPeer(certs, address)
		w.must(err)
		defer func() { _ = conn.Close() }()
		_, err = agentrpc.NewPeerClient(conn).ReadIndex(within(t), &agentrpc.ReadIndexRequest{})
		return err
	}
	host, err := pki.OpenStore(t.TempDir())
	w.must(err)
	w.must(host.Enroll(w.ca, pki.Identity{Role: pki.RoleHost, ID: "h1"}, time.Hour, time.Now()))
	w.must(ask(m.certs, w.lead.address))
	if err := ask(host, w.lead.address); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a host: %v", err)
	}
	if err := ask(w.lead.certs, m.address); status.Code(err) != codes.Unavailable {
		t.Errorf("at a follower: %v", err)
	}
}
