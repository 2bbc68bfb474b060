package agent

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
		d := &daemon{Config: Config{where: someDirectory(t), Dir: dir, Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), Log: slog.New(slog.DiscardHandler)}, book: book}
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
	d := &daemon{Config: Config{where: someDirectory(t), Dir: dir, Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), Log: slog.New(slog.DiscardHandler)}, book: book}
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
