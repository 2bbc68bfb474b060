package podnet

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

func newControl(t *testing.T, public ...netip.Addr) *netctl.Fake {
	t.Helper()
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	conf := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500, Public: public}
	if err := control.Set(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	return control
}

func TestNetworkOfAPodKnowsItsPorts(t *testing.T) {
	ctx := t.Context()
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	host := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
	host.Public = []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	if err := control.Set(ctx, host); err != nil {
		t.Fatal(err)
	}
	n, addr := Network{Instance: "0a1b", Control: control}, netip.MustParseAddr("10.88.0.2")
	ports := []fleet.PortMapping{{Private: 9000, Public: 30_005}, {Private: 22, Public: 30_001}, {Private: 0, Public: 1}, {Private: 1, Public: 70_000}}
	check := func(when string, asked []fleet.PortMapping, wantReady, wantPublished bool) {
		t.Helper()
		ready, published, err := n.Ready(ctx, "p1", pod.Link{Addr: addr, Ports: asked})
		if err != nil || ready != wantReady || published != wantPublished {
			t.Errorf("%s: ready %v, published %v, %v", when, ready, published, err)
		}
	}
	check("before", ports, false, false)
	if err := n.Ensure(ctx, "p1", pod.Link{Addr: addr, Ports: ports}); err != nil {
		t.Fatal(err)
	}
	check("as made", ports, true, true)
	check("others", ports[:1], true, false)
	check("none", nil, true, false)
	// A port goes to who asked last.
	if err := n.Ensure(ctx, "p2", pod.Link{Addr: addr.Next(), Ports: ports[:1]}); err != nil {
		t.Fatal(err)
	}
	check("after another pod took one", ports[1:2], true, true)
	if err := n.Release(ctx, "p1"); err != nil {
		t.Fatal(err)
	}
	check("after", nil, false, false)
}

// TestNetworkThatIsHalfRemovedIsLeft: the pod's machine goes on with the removal.
func TestNetworkThatIsHalfRemovedIsLeft(t *testing.T) {
	kernel := netctl.NewFakeKernel()
	control := netctl.NewFake(kernel, "0a1b")
	conf := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
	if err := control.Set(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	n, addr := Network{Instance: "0a1b", Control: control}, netip.MustParseAddr("10.88.0.2")
	if err := n.Ensure(t.Context(), "p1", pod.Link{Addr: addr}); err != nil {
		t.Fatal(err)
	}
	check := func(when string, wantSome, wantWhole bool) {
		t.Helper()
		if some, whole, err := n.Ready(t.Context(), "p1", pod.Link{Addr: addr}); err != nil || some != wantSome || whole != wantWhole {
			t.Errorf("%s: some %v, whole %v, %v", when, some, whole, err)
		}
	}
	check("made", true, true)
	kernel.FailWith(func(string, string) error { return errors.New("busy") })
	if err := n.Release(t.Context(), "p1"); err == nil {
		t.Fatal("no error")
	}
	check("half removed", true, false)
	kernel.FailWith(nil)
	if err := n.Release(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	check("removed", false, false)
}

func TestPlacesArePartOfAPodsNetwork(t *testing.T) {
	control := newControl(t)
	n := Network{"0a1b", control, newKeeper(t, control)}
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
	if err := n.Release(t.Context(), "p1"); err != nil || n.Overlays.At("p1") != nil {
		t.Errorf("after the pod: %v", err)
	}
}

func newKeeper(t *testing.T, control netctl.Controller) *overlay.Reconciler {
	dir := t.TempDir()
	return overlay.New(overlay.Config{
		Host: "h1", Control: control, Resolv: filepath.Join(dir, "resolv.conf"), File: filepath.Join(dir, "networks.bin"),
		Changed: func() {}, Log: slog.New(slog.DiscardHandler),
	}, netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500})
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
	resolve := func(text string) {
		Resolve(filepath.Join(dir, "pods"), book.Records(), text, slog.New(slog.NewTextHandler(t.Output(), nil)))
	}
	resolve("nothing is made")
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
	resolve(text)
	if got, err := io.ReadAll(mounted); err != nil || string(got) != text {
		t.Errorf("%q %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pods", "p2")); err == nil {
		t.Error("something was made for a pod that does not run")
	}
}
