package session

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// successor signs what is asked for at once, and names the CAs to be trusted.
type successor struct {
	agentrpc.UnimplementedJoinServer
	ca *pki.CA
}

// Renew implements agentrpc.JoinServer.
func (s *successor) Renew(_ context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	leaf, err := s.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	return &agentrpc.RenewResponse{Certificate: leaf.Raw, Cas: [][]byte{s.ca.Cert().Raw}}, nil
}

func TestAHostFollowsTheCAsThatItIsTold(t *testing.T) {
	d := newGround(t)
	old, err := pki.NewCA("cluster", time.Now())
	d.must(err)
	next, err := old.Next(time.Now())
	d.must(err)
	dir := filepath.Join(t.TempDir(), "pki")
	d.must(os.Mkdir(dir, 0o700))
	store, err := pki.OpenStore(dir)
	d.must(err)
	d.must(store.Enroll(old, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()))
	s := newSessions(t, Config{Store: store, Changed: NewBell()})
	trusts := func(what string, want ...*pki.CA) {
		t.Helper()
		got, err := store.Trusted()
		if err != nil || !slices.EqualFunc(got, want, func(c *x509.Certificate, ca *pki.CA) bool { return c.Equal(ca.Cert()) }) {
			t.Fatalf("%s: it trusts %d CAs: %v", what, len(got), err)
		}
	}
	told := func() bool {
		select {
		case <-s.Changed:
			return true
		default:
			return false
		}
	}
	both := [][]byte{old.Cert().Raw, next.Cert().Raw}

	// What cannot be written down is not said, and tried again with the next beat.
	aside := dir + ".aside"
	d.must(os.Rename(dir, aside))
	s.trust(both)
	trusts("without a disk", old)
	if told() {
		t.Error("the scheduler is told of what is not on the disk")
	}
	d.must(os.Rename(aside, dir))
	s.trust(nil)
	trusts("with one", old, next)
	if !told() {
		t.Error("the scheduler is not told")
	}
	s.trust([][]byte{old.Cert().Raw})
	trusts("a scheduler that lags", old, next)
	s.trust([][]byte{{1}})
	trusts("no certificate", old, next)

	// A host that was late is told of the new CA alone, in a session that it still has: it gets a certificate of that one.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	g := grpc.NewServer()
	agentrpc.RegisterJoinServer(g, &successor{ca: next})
	listened := make(chan error, 1)
	go func() { listened <- g.Serve(ln) }()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.must(err)
	t.Cleanup(func() { _ = conn.Close(); g.Stop(); d.must(<-listened) })
	ctx, end := context.WithCancel(d.ctx)
	over := make(chan error, 1)
	go func() { over <- s.renewInTime(ctx, conn) }()
	s.trust([][]byte{next.Cert().Raw})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, ca, _, err := store.Current(); err == nil && ca.Equal(next.Cert()) {
			break
		}
	}
	end()
	if err := <-over; err == nil {
		t.Error("it ended without a reason")
	}
	if _, ca, _, err := store.Current(); err != nil || !ca.Equal(next.Cert()) {
		t.Fatalf("it has no certificate of the new CA: %v", err)
	}
	s.trust(nil)
	trusts("afterwards", next)
	if s.ousted.Load() {
		t.Error("it still counts as ousted")
	}
}
