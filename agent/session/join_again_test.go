package session

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// forgetful is a scheduler of which the first answer never arrives.
type forgetful struct {
	agentrpc.UnimplementedJoinServer
	ca    *pki.CA
	heard chan *agentrpc.JoinRequest
	calls atomic.Int32
}

// Join implements agentrpc.JoinServer.
func (f *forgetful) Join(ctx context.Context, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, error) {
	f.heard <- in
	if f.calls.Add(1) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	leaf, err := f.ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now())
	if err != nil {
		return nil, err
	}
	return &agentrpc.JoinResponse{HostId: "host", Certificate: leaf.Raw, Cas: [][]byte{f.ca.Cert().Raw}}, nil
}

// TestAnAgentThatStartsAnewRepeatsItsJoin with the same key, token and machine, by which the scheduler knows the request.
func TestAnAgentThatStartsAnewRepeatsItsJoin(t *testing.T) {
	d := newGround(t)
	ca, err := pki.NewCA("cluster", time.Now().Add(-time.Hour))
	d.must(err)
	certs, err := pki.OpenStore(t.TempDir())
	d.must(err)
	d.must(certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: "scheduler1"}, time.Hour, time.Now()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: slog.New(slog.DiscardHandler)})
	d.must(err)
	f := &forgetful{ca: ca, heard: make(chan *agentrpc.JoinRequest, 2)}
	g := grpc.NewServer(grpc.Creds(agentrpc.ServerCredentials()))
	agentrpc.RegisterJoinServer(g, f)
	served := make(chan error, 1)
	go func() { served <- g.Serve(mux.GRPC()) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // it had not begun yet
			d.must(err)
		}
		d.must(mux.Close())
	})

	conf := JoinConfig{
		Dir: t.TempDir(), Schedulers: []string{ln.Addr().String()}, Name: "n", Token: pki.NewJoinToken(ca.Digest()).Text(), Hardware: "board",
	}
	ctx, kill := context.WithCancel(d.ctx)
	over := make(chan error, 1)
	go func() {
		_, err := JoinCluster(ctx, conf)
		over <- err
	}()
	first := <-f.heard
	kill()
	if err := <-over; err == nil {
		t.Fatal("it joined without an answer")
	}
	id, err := JoinCluster(d.ctx, conf)
	d.must(err)
	again := <-f.heard
	before, err := pki.RequestID(first.GetCsr(), first.GetMachineId())
	d.must(err)
	after, err := pki.RequestID(again.GetCsr(), again.GetMachineId())
	d.must(err)
	if id != "host" || !bytes.Equal(before, after) || first.GetToken() != again.GetToken() {
		t.Errorf("host %s joined with another request than the one before: %x and %x", id, before, after)
	}
}
