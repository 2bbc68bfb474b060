package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/podnet"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/netctl"
)

// TestStartWithOnePortTwice: the ledger of a crash may name one public port for two pods.
func TestStartWithOnePortTwice(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	order := func(id fleet.PodID, generation uint64) pod.Assignment {
		return pod.Assignment{
			Pod: id, Incarnation: 1, Goal: fleet.GoalRun, Generation: generation, Mappings: []fleet.PortMapping{{Private: 22, Public: 30_001}},
		}
	}
	if _, err := book.SetFull(5, []pod.Assignment{order("old", 2), order("new", 5), order("mid", 3)}, ledgertest.FirstFree); err != nil {
		t.Fatal(err)
	}
	if err := book.SetSubnet(netip.MustParsePrefix("10.88.0.0/20")); err != nil {
		t.Fatal(err)
	}
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	public := []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	c := Config{Dir: dir, Instance: "0a1b", Network: control, Publish: Publish{At: public}}
	if _, err := newNetwork(t.Context(), c, someJoined(t), book, func() {}); err != nil {
		t.Fatal(err)
	}
	st, err := control.Observed(t.Context())
	if err != nil || !slices.Equal(st.Config.Public, public) || len(st.Config.Pods) != 3 {
		t.Fatalf("%+v, %v", st, err)
	}
	for _, p := range st.Config.Pods {
		if has := len(p.Ports) == 1; has != (p.ID == "new") {
			t.Errorf("%s publishes %v", p.ID, p.Ports)
		}
	}
}

// TestUpgradeKeepsTheNetworkOfWhatRuns starts an agent that gives pods user namespaces after one that did not.
func TestUpgradeKeepsTheNetworkOfWhatRuns(t *testing.T) {
	kernel, book := netctl.NewFakeKernel(), ledgertest.Open(t, t.TempDir())
	if _, err := book.SetFull(1, []pod.Assignment{{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1}}, ledgertest.FirstFree); err != nil {
		t.Fatal(err)
	}
	if err := book.SetSubnet(netip.MustParsePrefix("10.88.0.0/20")); err != nil {
		t.Fatal(err)
	}
	start := func(base func(netip.Addr) uint32) podnet.Network {
		c := Config{Dir: t.TempDir(), Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), IDBase: base}
		n, err := newNetwork(t.Context(), c, someJoined(t), book, func() {})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	old := start(nil)
	steps := old.Control.(*netctl.Fake).Steps()
	n, rec := start(podnet.IDBase("0a1b")), book.Records()[0]
	if got := n.Control.(*netctl.Fake).Steps(); got != steps {
		t.Errorf("the network was changed in %d steps", got-steps)
	}
	want := pod.Link{Addr: rec.Addr, IDBase: rec.Assignment.IDBase(podnet.IDBase("0a1b"), rec.Addr)}
	check := func(when string, wantWhole bool) {
		t.Helper()
		if some, whole, err := n.Ready(t.Context(), "p1", want); err != nil || !some || whole != wantWhole {
			t.Errorf("%s: some %v, whole %v, %v", when, some, whole, err)
		}
	}
	check("before the pod is started again", false)
	if err := n.Ensure(t.Context(), "p1", want); err != nil {
		t.Fatal(err)
	}
	check("after", true)
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
		control := netctl.NewFake(kernel, "0a1b")
		c := Config{Dir: dir, Instance: "0a1b", Network: control, Log: slog.New(slog.DiscardHandler)}
		if _, err := newNetwork(t.Context(), c, someJoined(t), book, func() {}); err != nil {
			t.Fatal(err)
		}
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
	control := netctl.NewFake(kernel, "0a1b")
	c := Config{Dir: dir, Instance: "0a1b", Network: control, Log: slog.New(slog.DiscardHandler)}
	_, nerr := newNetwork(t.Context(), c, someJoined(t), book, func() {})
	if err := errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	is, err := control.Observed(t.Context())
	if p, _ := is.Config.Pod("p1"); err != nil || len(p.Overlays) != 1 || len(is.Config.Pods) != 3 {
		t.Errorf("%v %s", err, is.Config)
	}
}

// TestTheControlPlaneIsBarredFromTheStart: pods of before reach it at no moment, and their names are answered.
func TestTheControlPlaneIsBarredFromTheStart(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	c := Config{Dir: dir, Instance: "0a1b", Network: control, Log: slog.New(slog.DiscardHandler)}
	c.PickSubnet = func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil }
	asked := netip.Addr{}
	c.Private.NewNames = func(gateway netip.Addr) (overlay.Names, error) { asked = gateway; return nil, errors.New("not now") }
	j := someJoined(t)
	var err error
	if j.where, err = session.OpenDirectory(t.TempDir(), []string{"198.51.100.2:7000"}); err != nil {
		t.Fatal(err)
	}
	if _, err := newNetwork(t.Context(), c, j, book, func() {}); err != nil {
		t.Fatal(err)
	}
	is, err := control.Observed(t.Context())
	if err != nil || !strings.Contains(is.Config.String(), "198.51.100.2") || asked != netip.MustParseAddr("10.88.0.1") {
		t.Errorf("%v, names are asked for at %v\n%s", err, asked, is.Config)
	}
}
