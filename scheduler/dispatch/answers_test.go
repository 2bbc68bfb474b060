package dispatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/feed/s3"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/state"
)

// as is the context of a call of who has a certificate, and a request for another one.
func (y *yard) as(role pki.Role, id string) (ctx context.Context, csr []byte) {
	y.Helper()
	certs := y.certs(role, id)
	leaf, err := certs.Leaf()
	check(y, err)
	csr, err = certs.Request()
	check(y, err)
	return peer.NewContext(y.ctx, &peer.Peer{AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf, y.ca.Cert()}}},
	}}), csr
}

// TestWhatStandsInTheWayOfACertificate of a host that has one already.
func TestWhatStandsInTheWayOfACertificate(t *testing.T) {
	y := newYard(t)
	y.join("h1")
	s := New(Config{Store: y.store, Node: y, Log: slog.New(slog.DiscardHandler), CA: func(context.Context) (*pki.CA, error) { return y.ca, nil }})
	host, csr := y.as(pki.RoleHost, "h1")
	stranger, _ := y.as(pki.RoleHost, "h2")
	member, _ := y.as(pki.RoleScheduler, "s1")
	refused := func(what string, ctx context.Context, csr []byte, want codes.Code) {
		t.Helper()
		if answer, err := s.Renew(ctx, &agentrpc.RenewRequest{Csr: csr}); status.Code(err) != want || (answer != nil) != (want == codes.OK) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a host", host, csr, codes.OK)
	refused("nobody", y.ctx, csr, codes.PermissionDenied)
	refused("a scheduler", member, csr, codes.PermissionDenied)
	refused("a host that is not known", stranger, csr, codes.PermissionDenied)
	refused("no request", host, nil, codes.InvalidArgument)
	y.follows.Store(true)
	refused("it does not lead", host, csr, codes.Unavailable)
	y.follows.Store(false)
	s.CA = func(context.Context) (*pki.CA, error) { return nil, errors.New("secret") }
	refused("no CA", host, csr, codes.Internal)
	s.CA = func(context.Context) (*pki.CA, error) { return nil, fleet.Unavailable("it leads no more", nil) }
	refused("another leads since", host, csr, codes.Unavailable)
	y.do(state.RemoveHost{Host: "h1", At: time.Now()})
	refused("a host that is gone", host, csr, codes.PermissionDenied)
}

// TestWhatAnAccessKeyOpens: volumes whose backend can be reached, until the key expires, for hosts alone.
func TestWhatAnAccessKeyOpens(t *testing.T) {
	y := newYard(t)
	b := ceph("fast")
	g := y.join("h1", fleet.RoleS3, fleet.RoleStorage).connect()
	y.do(state.PutBackend{Backend: b, New: true})
	y.addVolume("vol1", &b, 10)
	g.is("fast: vol1=10")
	g.says(made("vol1", 10))
	g.is("fast:")
	host, _ := y.as(pki.RoleHost, "h1")
	member, _ := y.as(pki.RoleScheduler, "s1")
	now := time.Now()
	access, expires := "user_"+strings.Repeat("a", 27), now.Add(time.Hour)
	y.do(state.Put[fleet.S3Key]{Record: fleet.S3Key{ID: access, Account: "acme", Name: "k", Sealed: []byte("s"), CreatedAt: now, ExpiresAt: expires}})
	quiet := slog.New(slog.DiscardHandler)
	keys := s3.New(s3.Config{Store: y.store, Log: quiet})
	s := New(Config{Store: y.store, Node: y, Log: quiet})
	ask := func(ctx context.Context) (string, error) {
		out, err := s.S3Access(ctx, &agentrpc.S3AccessRequest{AccessKey: access, Date: now.UTC().Format("20060102"), Region: "dc-1"})
		return fmt.Sprintf("%d volumes until %d", len(out.GetVolumes()), out.GetExpiresNs()), err
	}
	refused := func(what string, ctx context.Context, want codes.Code) {
		t.Helper()
		if _, err := ask(ctx); status.Code(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("nothing that answers", host, codes.NotFound)
	s.S3 = keys
	refused("no secrets", host, codes.NotFound)
	keys.Secret = func(*fleet.S3Key) (fleet.Secret, error) { return "", errors.New("secret") }
	refused("a secret that cannot be opened", host, codes.Internal)
	keys.Secret = func(*fleet.S3Key) (fleet.Secret, error) { return "s", nil }
	refused("nobody", y.ctx, codes.PermissionDenied)
	refused("a scheduler", member, codes.PermissionDenied)
	y.follows.Store(true)
	refused("it does not lead", host, codes.Unavailable)
	y.follows.Store(false)
	is := func(what string, most int) {
		t.Helper()
		if got, err := ask(host); err != nil || got != fmt.Sprintf("%d volumes until %d", most, expires.UnixNano()) {
			t.Errorf("%s: %s, %v", what, got, err)
		}
	}
	is("with keys of the backend", 1)
	s.Backends = volumes.Backends{
		Secrets: func(*fleet.Backend) (fleet.BackendSecrets, error) {
			return fleet.BackendSecrets{}, errors.New("no key")
		},
		Log: quiet,
	}
	keys.Backends = s.Backends
	is("without", 0)
	x := newSession(s, "h1", &agentrpc.Hello{}, nil)
	pod := &fleet.Pod{Account: "acme", Goal: fleet.GoalRun, Spec: fleet.PodSpec{Network: &fleet.NetworkMount{Volume: "vol1", Path: "/v"}}}
	if v := x.volume(pod); v.GetReady() || v.GetBackend().GetId() != "fast" || v.GetPath() != "/v" {
		t.Errorf("a pod's volume whose keys cannot be opened: %v", v)
	}
	s.Backends = volumes.Backends{}
	if v := x.volume(pod); !v.GetReady() || v.GetBackend().GetId() != "fast" || v.GetPath() != "/v" {
		t.Errorf("a pod's volume: %v", v)
	}
	stopped := *pod
	if stopped.Goal = fleet.GoalStop; x.volume(&stopped) != nil || x.volume(&fleet.Pod{Goal: fleet.GoalRun}) != nil {
		t.Error("a pod that is not to run, or has no volume, is given one")
	}
	for name, change := range map[string]func(*fleet.Pod){
		"another account's": func(p *fleet.Pod) { p.Account = "other" }, "one that is not there": func(p *fleet.Pod) { p.Spec.Network = &fleet.NetworkMount{Volume: "vol9"} },
	} {
		other := *pod
		if change(&other); x.volume(&other).GetBackend() != nil {
			t.Errorf("%s volume is mounted", name)
		}
	}
}

// Who does not lead says who does.
func TestAFollowerNamesTheLeader(t *testing.T) {
	y := newYard(t)
	g := y.join("h1", fleet.RoleS3)
	for _, leader := range []string{"", "leader:1"} {
		s := New(Config{Store: y.store, Node: y, Log: slog.New(slog.DiscardHandler)})
		if leader != "" {
			s.Leader = func() string { return leader }
		}
		tell := &trailer{}
		ctx, _ := y.as(pki.RoleHost, "h1")
		y.follows.Store(true)
		_, err := s.Renew(grpc.NewContextWithServerTransportStream(ctx, tell), &agentrpc.RenewRequest{})
		y.follows.Store(false)
		if status.Code(err) != codes.Unavailable || agentrpc.LeaderHint(tell.md) != leader {
			t.Errorf("%s: %v, told %v", g.id, err, tell.md)
		}
	}
}

// trailer is a call whose trailer a test reads.
type trailer struct{ md metadata.MD }

func (c *trailer) Method() string               { return "" }
func (c *trailer) SetHeader(metadata.MD) error  { return nil }
func (c *trailer) SendHeader(metadata.MD) error { return nil }
func (c *trailer) SetTrailer(md metadata.MD) error {
	c.md = metadata.Join(c.md, md)
	return nil
}

// TestWhatLogsAreAskedFor says since when, or nothing of it.
func TestWhatLogsAreAskedFor(t *testing.T) {
	w := newWire(t)
	for _, since := range []time.Time{{}, time.Unix(1000, 5)} {
		w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
			want := int64(0)
			if !since.IsZero() {
				want = since.UnixNano()
			}
			if got := ask.GetLogs(); got.GetSinceNs() != want || got.GetTail() != 3 || !got.GetPrevious() || got.GetPodId() != string(testPod) {
				t.Errorf("asked for %v", got)
			}
			send(stream, &agentrpc.Frame{Id: ask.GetId()}, &agentrpc.Frame{End: true})
		})
		check(t, w.server.Logs(w.ctx, testHost, testPod, fleet.LogQuery{Tail: 3, Since: since, Previous: true}, func(fleet.LogLine) error { return nil }))
	}
	w.host(answers(strings.Repeat(" ", maxHostNetwork) + "{}"))
	_, err := w.server.HostNetwork(w.ctx, testHost)
	wantError(t, "too much of the network", err, fleet.CodeUnavailable, "tells too much")
}

// TestWhatASessionLooksUp: whose pods its host has, and nothing of a host that is not known; a report that is not kept ends it.
func TestWhatASessionLooksUp(t *testing.T) {
	y := newYard(t)
	y.join("h1").connect()
	y.runPod("acme", "p1", "h1")
	check(t, y.store.View(func(v *state.View) error {
		of := accountsOf(v, []fleet.Pod{{ID: "p9", Account: "zeta"}, {ID: "p1"}, {ID: "nowhere"}, {ID: "p1", Account: "acme"}})
		if fmt.Sprint(of) != "[acme zeta]" {
			t.Errorf("accounts %q", of)
		}
		return nil
	}))
	x := newSession(y.server, "nobody", &agentrpc.Hello{}, nil)
	if _, err := x.next(); status.Code(err) != codes.PermissionDenied || x.orders != nil || !x.fullNext {
		t.Errorf("of nobody: %v, %v", err, x.orders)
	}
	x = newSession(y.server, "h1", &agentrpc.Hello{}, nil)
	for round := range 2 { // all again is all
		x.fullNext, x.orders, x.due = true, nil, nil
		check(t, x.look())
		if o := x.orders; len(o.put) != 1 || len(o.at["p1"]) != 1 || !o.full {
			t.Errorf("round %d: %+v", round, o)
		}
	}
	x.orders, x.due = nil, nil
	if check(t, x.look()); x.orders != nil || len(x.due) != 0 {
		t.Errorf("nothing changed: %+v, %v", x.orders, x.due)
	}
	other := newSession(y.server, "h2", &agentrpc.Hello{}, nil)
	s := New(Config{})
	s.sessions["h1"], s.sessions["h2"] = x, other
	x.epoch = y.host("h1").Epoch
	y.spoil(func(state.Command) error { return errLine })
	report := &agentrpc.Reports{Pods: []*agentrpc.PodReport{{PodId: "p1", Incarnation: 1, Event: "running"}}}
	if err := x.receive(y.ctx, &agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: report}}); !errors.Is(err, errLine) || len(x.down) != 0 {
		t.Errorf("a report that is not kept: %v", err)
	}
	y.spoil(func(state.Command) error { return nil })
	if err := x.record(y.ctx, report); err != nil || len(x.down) != 1 {
		t.Errorf("a report: %v", err)
	}
	y.spoil(func(state.Command) error { return errLine })
	if err := x.record(y.ctx, report); err != nil || len(x.down) != 2 {
		t.Errorf("a report that says nothing new: %v", err)
	}
}
