package session

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// issuer renews certificates when it may.
type issuer struct {
	agentrpc.UnimplementedJoinServer
	ca    *pki.CA
	asked chan struct{}
}

// Renew implements agentrpc.JoinServer.
func (i *issuer) Renew(ctx context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	select {
	case <-i.asked:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leaf, err := i.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	return &agentrpc.RenewResponse{Certificate: leaf.Raw}, nil
}

func fresh(store *pki.Store) bool {
	leaf, err := store.Leaf()
	return err == nil && time.Until(leaf.NotAfter) > 30*time.Minute
}

// TestACertificateThatIsDueIsRenewedAtOnce however short the sessions are.
func TestACertificateThatIsDueIsRenewedAtOnce(t *testing.T) {
	d := newGround(t)
	ca, err := pki.NewCA("cluster", time.Now().Add(-2*time.Hour))
	d.must(err)
	store, err := pki.OpenStore(t.TempDir())
	d.must(err)
	d.must(store.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now().Add(-55*time.Minute)))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	i := &issuer{ca: ca, asked: make(chan struct{})}
	g := grpc.NewServer()
	agentrpc.RegisterJoinServer(g, i)
	listened := make(chan error, 1)
	go func() { listened <- g.Serve(ln) }()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.must(err)
	t.Cleanup(func() { _ = conn.Close(); g.Stop(); d.must(<-listened) })
	s := newSessions(t, Config{Store: store})
	s.renewal.fraction = 0
	// session holds a session until its certificate was asked for, or for no time.
	session := func(renews bool) {
		t.Helper()
		ctx, end := context.WithCancel(d.ctx)
		over := make(chan error, 1)
		go func() { over <- s.renewInTime(ctx, conn) }()
		if renews {
			select {
			case i.asked <- struct{}{}:
			case <-time.After(time.Minute):
				t.Error("it was not asked for")
			}
			for deadline := time.Now().Add(time.Minute); !fresh(store) && time.Now().Before(deadline); {
				select {
				case i.asked <- struct{}{}: // a request of an earlier session, which is over, had the one before
				case <-time.After(time.Millisecond):
				}
			}
		}
		end()
		if err := <-over; err == nil {
			t.Error("it ended without a reason")
		}
	}
	due, err := store.Leaf()
	d.must(err)
	session(false)
	session(false)
	session(true)
	if !fresh(store) {
		t.Error("it was not renewed")
	}
	leaf, err := store.Leaf()
	d.must(err)
	if left := s.renewal.wait(leaf); left < 25*time.Minute || left > 50*time.Minute {
		t.Errorf("the next time is in %v", left)
	}
	s.renewal.next = time.Now().Add(renewRetry)
	if left := s.renewal.wait(due); left < renewRetry/2 {
		t.Errorf("after a refusal it is asked for again in %v", left)
	}
}
