package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/netctl"
)

func placeOf(vni uint32, addr, name string) *link.OverlayPlace {
	return &link.OverlayPlace{OverlayId: "account-a", Vni: vni, Cidr: "10.64.0.0/16", Addr: addr, Link: name}
}

func TestPlacesOfAnOrder(t *testing.T) {
	s := &sessions{log: slog.New(slog.DiscardHandler)}
	got := s.decode(&link.Assignment{PodId: "p", Overlays: []*link.OverlayPlace{placeOf(4097, "10.64.0.3", "podnet2"), placeOf(4096, "10.64.0.2", "podnet1")}})
	cidr := netip.MustParsePrefix("10.64.0.0/16")
	want := []pod.Place{
		{Overlay: "account-a", VNI: 4096, CIDR: cidr, Addr: netip.MustParseAddr("10.64.0.2"), Link: "podnet1"},
		{Overlay: "account-a", VNI: 4097, CIDR: cidr, Addr: netip.MustParseAddr("10.64.0.3"), Link: "podnet2"},
	}
	if d := cmp.Diff(want, got.Overlays, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" || got.Refused != "" {
		t.Errorf("%s %s", got.Refused, d)
	}
	for name, bad := range map[string][]*link.OverlayPlace{
		"an address outside": {placeOf(4096, "10.65.0.2", "podnet1")},
		"no VNI":             {placeOf(0, "10.64.0.2", "podnet1")},
		"a VNI too large":    {placeOf(1<<24, "10.64.0.2", "podnet1")},
		"the pod's own link": {placeOf(4096, "10.64.0.2", "eth0")},
		"a path for a link":  {placeOf(4096, "10.64.0.2", "../x")},
		"a VNI twice":        {placeOf(4096, "10.64.0.2", "podnet1"), placeOf(4096, "10.64.0.3", "podnet2")},
		"a link twice":       {placeOf(4096, "10.64.0.2", "podnet1"), placeOf(4097, "10.64.0.3", "podnet1")},
		"too many":           slices.Repeat([]*link.OverlayPlace{placeOf(4096, "10.64.0.2", "podnet1")}, 5),
	} {
		if got := s.decode(&link.Assignment{PodId: "p", Overlays: bad}); got.Refused == "" || got.Overlays != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestPlacesArePartOfAPodsNetwork gives a pod that does not run a place and takes it away again.
func TestPlacesArePartOfAPodsNetwork(t *testing.T) {
	control := newControl(t)
	n := podNetwork{"0a1b", control, newKeeper(t, control)}
	without := pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Account: "a"}
	with := without
	with.Overlays = []pod.Place{{Overlay: "account-a", VNI: 4096, CIDR: netip.MustParsePrefix("10.64.0.0/16"), Addr: netip.MustParseAddr("10.64.0.2"), Link: "podnet1"}}
	for _, want := range []pod.Link{without, with, without} {
		if _, whole, err := n.Ready(t.Context(), "p1", want); err != nil || whole {
			t.Errorf("%v is there before: %v", want.Overlays, err)
		}
		if err := n.Ensure(t.Context(), "p1", want); err != nil {
			t.Fatal(err)
		}
		if some, whole, err := n.Ready(t.Context(), "p1", want); err != nil || !some || !whole {
			t.Errorf("%v is not there: %v", want.Overlays, err)
		}
		is, err := control.Observed(t.Context())
		if p, _ := is.Config.Pod("p1"); err != nil || len(p.Overlays) != len(want.Overlays) {
			t.Errorf("%v %v", p, err)
		}
	}
	if err := n.Release(t.Context(), "p1"); err != nil || n.overlays.At("p1") != nil {
		t.Errorf("after the pod: %v", err)
	}
}

func newKeeper(t *testing.T, control netctl.Controller) *overlay.Keeper {
	dir := t.TempDir()
	return overlay.New(overlay.Config{
		Host: "h1", Control: control, Resolv: filepath.Join(dir, "resolv.conf"), File: filepath.Join(dir, "networks.bin"),
		Changed: func() {}, Log: slog.New(slog.DiscardHandler),
	}, netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500})
}

// TestNetworkThroughATunnel asks for the host's network, and for who reaches whom.
func TestNetworkThroughATunnel(t *testing.T) {
	d := newDesk(t)
	control := newControl(t)
	d.t.overlays, d.t.public = newKeeper(t, control), func() []netip.Addr { return nil }
	d.t.pinger = func(fleet.PodID) (*overlay.Pinger, error) { return overlay.OpenPinger() }
	ask := func(probes ...*link.ProbeFrom) string {
		tunnel, first := d.open(d.ctx, &link.OpenTunnel{Target: &link.OpenTunnel_Network{Network: &link.NetworkTarget{Probes: probes}}})
		defer close(tunnel.leave)
		text := first.GetError()
		for {
			f, err := tunnel.Recv()
			d.must(err)
			if text += string(f.GetData()); f.GetEnd() {
				return text
			}
		}
	}
	var is fleet.HostNetwork
	d.must(json.Unmarshal([]byte(ask()), &is))
	if !strings.Contains(is.Real, "bridge gn0a1b") || is.Tunnel != "none" || is.Problems == nil {
		t.Errorf("%+v", is)
	}
	to := []*link.ProbeTo{{PodId: "x", Addr: "127.0.0.1"}, {PodId: "y", Addr: "255.255.255.254"}, {PodId: "z", Addr: "nowhere"}}
	lines := strings.Split(strings.TrimSpace(ask(&link.ProbeFrom{PodId: "pod1", To: to}, &link.ProbeFrom{PodId: "waiting", To: to[:1]})), "\n")
	got := map[string]fleet.Probe{}
	for _, line := range lines {
		var p fleet.Probe
		d.must(json.Unmarshal([]byte(line), &p))
		got[string(p.From)+" "+string(p.To)] = p
	}
	if p := got["pod1 x"]; p.Millis <= 0 || p.Problem != "" || p.Addr != "127.0.0.1" {
		t.Errorf("an address that answers: %+v", p)
	}
	if len(got) != 4 || got["pod1 y"].Problem == "" || got["pod1 z"].Problem == "" || got["waiting x"].Problem != "the pod does not run" {
		t.Errorf("%+v", got)
	}
}

// TestAddressesOfTheControlPlane finds those that pods must not reach.
func TestAddressesOfTheControlPlane(t *testing.T) {
	where := &directory{named: []string{"198.51.100.2:7000", "127.0.0.1:7000", "one.example:7001", "[2001:db8::1]:7000"}}
	down := false
	b := &barred{where: where, resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		if down || host != "one.example" {
			return nil, errors.New("no answer")
		}
		return []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::2")}, nil
	}}
	want := []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:7001"), netip.MustParseAddrPort("198.51.100.2:7000")}
	for range 2 {
		if got := b.addrs(t.Context()); !slices.Equal(got, want) {
			t.Errorf("resolver down %v: %v", down, got)
		}
		down = true
	}
}

// TestARestartKeepsThePlacesOfWhatRuns starts an agent while a pod still runs that was ordered without its network.
func TestARestartKeepsThePlacesOfWhatRuns(t *testing.T) {
	kernel, dir := netctl.NewFakeKernel(), t.TempDir()
	book := ledgertest.Open(t, dir)
	first := pod.Assignment{Pod: "p1", Account: "a", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, Overlays: []pod.Place{{
		Overlay: "account-a", VNI: 4096, CIDR: netip.MustParsePrefix("10.64.0.0/16"), Addr: netip.MustParseAddr("10.64.0.2"), Link: "podnet1",
	}}}
	ledgertest.SetFull(t, book, first)
	if err := book.Begin(first, "boot"); err != nil {
		t.Fatal(err)
	}
	if err := book.SetSubnet(netip.MustParsePrefix("10.88.0.0/20")); err != nil {
		t.Fatal(err)
	}
	steps := 0
	for life := range 3 {
		d := &daemon{Config: Config{Dir: dir, Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), Log: slog.New(slog.DiscardHandler)}, book: book}
		if err := d.network(t.Context()); err != nil {
			t.Fatal(err)
		}
		control := d.Network.(*netctl.Fake)
		is, err := control.Observed(t.Context())
		if p, _ := is.Config.Pod("p1"); err != nil || len(p.Overlays) != 1 || len(is.Config.Overlays) != 1 || life > 0 && control.Steps() != steps {
			t.Errorf("life %d: %d steps\n%s", life, control.Steps()-steps, is.Config)
		}
		steps = control.Steps()
		if _, err := book.SetFull(2, []pod.Assignment{{Pod: "p1", Account: "a", Incarnation: 2, Goal: fleet.GoalRun, Generation: 2}}, ledgertest.FirstFree); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnAgentStartsWhateverItsLedgerHolds has two pods with one place: the one that runs keeps it.
func TestAnAgentStartsWhateverItsLedgerHolds(t *testing.T) {
	kernel, dir := netctl.NewFakeKernel(), t.TempDir()
	book := ledgertest.Open(t, dir)
	at := []pod.Place{{Overlay: "account-a", VNI: 4096, CIDR: netip.MustParsePrefix("10.64.0.0/16"), Addr: netip.MustParseAddr("10.64.0.2"), Link: "podnet1"}}
	elsewhere := []pod.Place{{Overlay: "account-b", VNI: 4096, CIDR: netip.MustParsePrefix("10.65.0.0/16"), Addr: netip.MustParseAddr("10.65.0.2"), Link: "podnet1"}}
	order := func(id fleet.PodID, generation uint64, at []pod.Place) pod.Assignment {
		return pod.Assignment{Pod: id, Account: "a", Incarnation: 1, Goal: fleet.GoalRun, Generation: generation, Overlays: at}
	}
	ledgertest.SetFull(t, book, order("p1", 1, at), order("p2", 2, at), order("p3", 3, elsewhere))
	err := errors.Join(book.Begin(order("p1", 1, at), "boot"), book.SetSubnet(netip.MustParsePrefix("10.88.0.0/20")))
	d := &daemon{Config: Config{Dir: dir, Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), Log: slog.New(slog.DiscardHandler)}, book: book}
	if err := errors.Join(err, d.network(t.Context())); err != nil {
		t.Fatal(err)
	}
	is, err := d.Network.(*netctl.Fake).Observed(t.Context())
	if p, _ := is.Config.Pod("p1"); err != nil || len(p.Overlays) != 1 || len(is.Config.Pods) != 3 {
		t.Errorf("%v %s", err, is.Config)
	}
}

// TestPodsThatRunGetOtherResolvers writes a file that is mounted, in its place.
func TestPodsThatRunGetOtherResolvers(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	runs := pod.Assignment{Pod: "p1", Account: "a", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1}
	waits := pod.Assignment{Pod: "p2", Account: "a", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1}
	ledgertest.SetFull(t, book, runs, waits)
	if err := book.Begin(runs, "boot"); err != nil {
		t.Fatal(err)
	}
	d := &daemon{Config: Config{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, book: book}
	d.resolve("nothing is made")
	path := filepath.Join(dir, "pods", "p1", "resolv.conf")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("nameserver 192.0.2.53\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	mounted, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mounted.Close() }()
	const text = "nameserver 1.1.1.1\n"
	d.resolve(text)
	if got, err := io.ReadAll(mounted); err != nil || string(got) != text {
		t.Errorf("%q %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pods", "p2")); err == nil {
		t.Error("something was made for a pod that does not run")
	}
}
