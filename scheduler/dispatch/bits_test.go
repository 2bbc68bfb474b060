package dispatch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// TestBoundsOfWhatAHostSays, on both sides of each.
func TestBoundsOfWhatAHostSays(t *testing.T) {
	if most := strings.Repeat("d", maxWord-len(inventoryForm)); digestOf(&agentrpc.Inventory{Digest: most}) != inventoryForm+most || digestOf(&agentrpc.Inventory{Digest: most + "d"}) != "" || digestOf(&agentrpc.Inventory{}) != "" {
		t.Error("the digest of an inventory has another bound")
	}
	if got := decodeImages([]string{strings.Repeat("i", maxImage), strings.Repeat("i", maxImage+1), "a"}); len(got) != 2 || got[1] != "a" {
		t.Errorf("%d images", len(got))
	}
	for class, want := range map[string]string{"gvisor": "gvisor", "kata": "kata", "runc": "", "": ""} {
		if got := decodeClass(class); got != want {
			t.Errorf("class %q is read as %q", class, got)
		}
	}
	now := time.Unix(1000, 0)
	for off, want := range map[time.Duration]time.Duration{
		maxTransit: 0, maxTransit + 1: maxTransit + 1, -maxTransit: 0, -maxTransit - 1: -maxTransit - 1,
	} {
		if got := clockError(now.Add(-off).UnixNano(), now); got != want {
			t.Errorf("a clock that is %v off is %v off", off, got)
		}
	}
	for ports, want := range map[[2]int32]bool{
		{0, 5}: false, {1, 1}: true, {2, 1}: false, {1, 65535}: true, {1, 65536}: false, {-1, 5}: false,
	} {
		if got := isRange(ports[0], ports[1]); got != want {
			t.Errorf("%v is a range: %v", ports, got)
		}
	}
	pods := decodePods([]*agentrpc.LedgerPod{{PodId: "p", Gpus: []string{"", "g", strings.Repeat("g", maxWord), strings.Repeat("g", maxWord+1)}, Ports: []*agentrpc.Port{
		{Number: 22, Public: 30022}, {Number: 0, Public: 30022}, {Number: 22}, {Number: 65536, Public: 1}, {Number: 1, Public: 65536},
	}}})
	if len(pods) != 1 || len(pods[0].GPUs) != 2 || pods[0].GPUs[0] != "g" || !cmp.Equal(pods[0].Mappings, []fleet.PortMapping{{Private: 22, Public: 30022}}) {
		t.Errorf("read %+v", pods)
	}
	for event, want := range map[fleet.Trigger]bool{"starting": true, "waiting": true, "reboot": true, "created": false, "": false} {
		if got := len(decodeReports([]*agentrpc.PodReport{{PodId: "p", Event: string(event)}}, 0)) == 1; got != want {
			t.Errorf("a report of %q is taken: %v", event, got)
		}
	}
}

// TestWhichSchedulersHostsAreToldOf: members that were not removed, each once, as long as that is the same.
func TestWhichSchedulersHostsAreToldOf(t *testing.T) {
	b, s, said := newBetween(t)
	now := time.Now()
	is := func(what, want string, another bool) {
		t.Helper()
		before := s.members.Load()
		s.learnMembers()
		if got := strings.Join(*s.members.Load(), " "); got != want || (s.members.Load() != before) != another {
			t.Errorf("%s: %q, another one: %v", what, got, s.members.Load() != before)
		}
	}
	is("nobody", "", false)
	for _, m := range []fleet.Member{{ID: "m2", Address: "b:1"}, {ID: "m1", Address: "a:1"}, {ID: "m4", Address: "c:1"}} {
		m.Name, m.JoinedAt = string(m.ID), now
		b.must(state.PutMember{Member: m})
	}
	b.must(state.RemoveMember{Member: "m4", At: now})
	is("members", "a:1 b:1", true)
	is("the same", "a:1 b:1", false)
	s.Schedulers = func() []string { return []string{"y:1", "x:1", "y:1"} }
	is("as told", "x:1 y:1", true)
	if said.String() != "" {
		t.Errorf("said %s", said.String())
	}
	trusted := s.trust.Load()
	if s.learnMembers(); s.trust.Load() != trusted {
		t.Error("the same CAs are other ones")
	}
}

// TestWhoIsWokenByAChange: sessions of hosts whose record or assignments changed, and all when nobody knows.
func TestWhoIsWokenByAChange(t *testing.T) {
	for name, c := range map[string]struct {
		events []state.Event
		all    bool
		want   bool
	}{
		"its assignments": {[]state.Event{{Kind: state.KindAssign, ID: "h"}}, false, true}, "its record": {[]state.Event{{Kind: state.KindHost, ID: "h"}}, false, true},
		"another's": {[]state.Event{{Kind: state.KindAssign, ID: "i"}}, false, false}, "a pod": {[]state.Event{{Kind: state.KindPod, ID: "h"}}, false, false},
		"after another": {[]state.Event{{Kind: state.KindPod, ID: "h"}, {Kind: state.KindHost, ID: "h"}}, false, true}, "nobody knows": {nil, true, true},
	} {
		s := New(Config{})
		x := newSession(s, "h", &agentrpc.Hello{}, nil)
		s.sessions["h"] = x
		x.changed.Store(false)
		if s.wakeFor(c.events, c.all); x.changed.Load() != c.want || (len(x.wake) > 0) != c.want {
			t.Errorf("%s: woken %v", name, x.changed.Load())
		}
	}
}

// TestWhatAHostIsToldOfAnError: its code, the text of one that is meant for others, and of no other.
func TestWhatAHostIsToldOfAnError(t *testing.T) {
	for code, want := range map[fleet.Code]codes.Code{
		fleet.CodeUnauthorized: codes.Unauthenticated, fleet.CodeForbidden: codes.PermissionDenied, fleet.CodeNotFound: codes.NotFound,
		fleet.CodeUnavailable: codes.Unavailable, fleet.CodeStale: codes.FailedPrecondition, fleet.CodeTooLarge: codes.Internal,
	} {
		if got := grpcError(&fleet.Error{Code: code, Msg: "why"}); status.Code(got) != want || status.Convert(got).Message() != "why" {
			t.Errorf("%s: %v", code, got)
		}
	}
	for name, c := range map[string]struct {
		in, want error
	}{
		"none": {nil, nil}, "a secret one": {errors.New("secret"), status.Error(codes.Internal, "internal error")}, "a status": {status.Error(codes.Aborted, "a"), status.Error(codes.Aborted, "a")},
	} {
		if got := grpcOrStatus(c.in); status.Code(got) != status.Code(c.want) || (got == nil) != (c.want == nil) || status.Convert(got).Message() != status.Convert(c.want).Message() {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A join that cannot be answered now is refused by what stands in its way; one that is answered tells of the schedulers of now.
func TestWhatStandsInTheWayOfAJoin(t *testing.T) {
	y := newYard(t)
	token := pki.NewJoinToken(pki.DigestOf(y.ca.Cert()))
	hash := pki.Hash(token.Secret)
	y.do(state.PutToken{At: time.Now(), Token: fleet.JoinToken{ID: token.ID, Hash: hash[:], DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: time.Now().Add(time.Hour)}})
	store, err := pki.OpenStore(t.TempDir())
	check(t, err)
	csr, err := store.Request()
	check(t, err)
	good := func() *agentrpc.JoinRequest {
		return &agentrpc.JoinRequest{Token: token.Text(), Csr: csr, MachineId: strings.Repeat("m", maxHostName), Name: strings.Repeat("n", maxHostName), Hardware: strings.Repeat("h", maxHostName)}
	}
	refused := func(what string, want codes.Code, change func(*agentrpc.JoinRequest)) {
		t.Helper()
		in := good()
		change(in)
		if _, err := y.server.Join(y.ctx, in); status.Code(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	none := func(*agentrpc.JoinRequest) {}
	refused("no token", codes.Unauthenticated, func(in *agentrpc.JoinRequest) { in.Token = "x" })
	if y.barriers.Load() != 0 {
		t.Error("what is no token costs a round of the members")
	}
	refused("long hardware", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.Hardware += "h" })
	refused("a long machine", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.MachineId += "m" })
	refused("a long name", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.Name += "n" })
	refused("no name", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.Name = "" })
	refused("no machine", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.MachineId = "" })
	refused("no request", codes.InvalidArgument, func(in *agentrpc.JoinRequest) { in.Csr = nil })
	y.follows.Store(true)
	refused("it does not lead", codes.Unavailable, none)
	y.follows.Store(false)
	y.spoil(func(state.Command) error { return errors.New("secret") })
	refused("it is not kept", codes.Internal, none)
	y.spoil(func(state.Command) error { return nil })
	ca := y.server.CA
	y.server.CA = func(context.Context) (*pki.CA, error) { return nil, errors.New("secret") }
	refused("no CA", codes.Internal, none)
	y.server.CA = func(context.Context) (*pki.CA, error) { return nil, fleet.Unavailable("it leads no more", nil) }
	refused("another leads since", codes.Unavailable, none)
	y.server.CA = ca
	y.do(state.PutMember{Member: fleet.Member{ID: "m1", Name: "m1", Address: "a:1", JoinedAt: time.Now()}})
	answer, err := y.server.Join(y.ctx, good())
	if err != nil || !cmp.Equal(answer.GetSchedulers(), []string{"a:1"}) || answer.GetClusterId() != "cluster-1" {
		t.Errorf("%v, %v", answer, err)
	}
}
