package dispatch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// alone is a store with a log of its own: the edge to the replicas is all that is not real.
type alone struct {
	t     *testing.T
	store *state.Store
	index uint64
}

func newAlone(t *testing.T) *alone {
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	a, now := &alone{t: t, store: store}, time.Now()
	for _, cmd := range []state.Command{
		state.Bootstrap{ClusterID: "c", At: now},
		state.PutToken{Token: fleet.JoinToken{ID: "t", Hash: []byte("h"), DataCenter: "dc", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}, At: now},
		state.JoinHost{Token: "t", Hash: []byte("h"), Host: fleet.Host{ID: "host", MachineID: "m"}, At: now},
	} {
		a.must(cmd)
	}
	return a
}

func (a *alone) must(cmd state.Command) {
	a.t.Helper()
	res, err := a.Propose(a.t.Context(), cmd)
	check(a.t, err)
	check(a.t, res[0].Err)
}

func (a *alone) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	data, err := state.Encode(cmds...)
	if err != nil {
		return nil, err
	}
	a.index++
	res, err := a.store.Apply([]entry.Entry{{Index: a.index, Term: 1, Data: data}})
	if err != nil {
		return nil, err
	}
	return res[0], nil
}

func (a *alone) Barrier(context.Context) error { return nil }
func (a *alone) IsLeader() bool                { return true }

func TestAHostThatIsGoneGetsNoFreshCertificate(t *testing.T) {
	a := newAlone(t)
	ca, err := pki.NewCA("c", time.Now())
	check(t, err)
	certs, err := pki.OpenStore(t.TempDir())
	check(t, err)
	check(t, certs.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()))
	leaf, err := certs.Leaf()
	check(t, err)
	csr, err := certs.Request()
	check(t, err)
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf, ca.Cert()}}},
	}})
	s := New(Config{Store: a.store, Node: a, CA: func(context.Context) (*pki.CA, error) { return ca, nil }, Log: slog.New(slog.DiscardHandler)})
	renew := func() error {
		_, err := s.Renew(ctx, &agentrpc.RenewRequest{Csr: csr})
		return err
	}
	check(t, renew())
	a.must(state.RemoveHost{Host: "host", At: time.Now()})
	if err := renew(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v", err)
	}
}

func TestAnUnknownHostIsToldToOperatorsNowAndThen(t *testing.T) {
	a := newAlone(t)
	var said bytes.Buffer
	s := New(Config{Store: a.store, Node: a, Log: slog.New(slog.NewTextHandler(&said, nil))})
	for range 3 {
		for _, id := range []fleet.HostID{"later", "other"} {
			x := newSession(s, id, &agentrpc.Hello{}, func(error) {})
			if _, err := x.connect(t.Context(), nil, &agentrpc.Hello{MachineId: "m", BootId: "b"}); fleet.CodeOf(err) != fleet.CodeNotFound {
				t.Errorf("got %v", err)
			}
		}
	}
	text := said.String()
	if strings.Count(text, "level=ERROR") != 2 || strings.Count(text, textUnknown) != 2 || !strings.Contains(text, "host=later") || !strings.Contains(text, "host=other") {
		t.Errorf("said:\n%s", text)
	}
}

func TestALargeFleetIsHeardLessOften(t *testing.T) {
	s := New(Config{})
	if got := s.interval(); got != DefaultHeartbeat {
		t.Errorf("of no hosts: %v", got)
	}
	for i := range largeFleet + 1 {
		s.absent[fleet.HostID(rune(i))] = time.Time{}
	}
	// One that is lost leaves room for the next.
	if got := s.interval(); got <= DefaultHeartbeat || 2*got >= DefaultHeartbeatTimeout {
		t.Errorf("of many: %v", got)
	}
	s.Heartbeat, s.HeartbeatTimeout = time.Second, 2*time.Second
	if got := s.interval(); got != time.Second {
		t.Errorf("with little room: %v", got)
	}
}

func TestAHeartbeatReplacesTheOneBefore(t *testing.T) {
	x := &session{}
	for _, ids := range [][]string{{"p1", "p2"}, {"p2"}, {}} {
		h := &agentrpc.Heartbeat{}
		for _, id := range ids {
			h.Pods = append(h.Pods, &agentrpc.PodLive{PodId: id, Activity: "a"})
		}
		x.heartbeat(h, time.Now())
		if len(x.live) != len(ids) {
			t.Errorf("%v: %v", ids, x.live)
		}
		for _, id := range []fleet.PodID{"p1", "p2"} {
			if got := x.livePod(id); (got != nil) != slices.Contains(ids, string(id)) || got != nil && got.Activity != "a" {
				t.Errorf("%v: of %s is known %v", ids, id, got)
			}
		}
		now := time.Now()
		if n := testing.AllocsPerRun(10, func() { x.heartbeat(h, now) }); n > 0 {
			t.Errorf("%v: %v allocations", ids, n)
		}
	}
}
