package agent

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/netctl"
)

// meter tells what it was asked for.
type meter struct{ asked []string }

func (m *meter) Use(_ context.Context, uuids []string) []fleet.GPUUse {
	m.asked = slices.Clone(uuids)
	return []fleet.GPUUse{{Util: 40, MemoryUtil: 50}, {Util: 130, MemoryUtil: -1}}[:min(len(uuids), 2)]
}

// usage is a runtime of which only the pods' usage is asked, and what is removed is noted.
type usage struct {
	pod.Runtime
	removed []fleet.PodID
	err     error
}

func (u *usage) Usage(context.Context, fleet.PodID) (pod.Usage, error) {
	return pod.Usage{CPU: time.Second, Memory: 500 * mb}, nil
}

func (u *usage) Remove(_ context.Context, id fleet.PodID) error {
	u.removed = append(u.removed, id)
	return u.err
}

func (u *usage) Version(context.Context) (string, error)     { return "test", nil }
func (u *usage) List(context.Context) ([]fleet.PodID, error) { return nil, nil }
func (u *usage) Images(context.Context) ([]string, error)    { return nil, nil }
func (u *usage) Import(context.Context, io.Reader) ([]string, error) {
	return nil, errors.New("not asked")
}
func (u *usage) Clean(_ context.Context, images bool) error { return u.err }

func TestHeartbeatHasGPUs(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	order := func(id fleet.PodID, gpus ...string) pod.Assignment {
		return pod.Assignment{Pod: id, Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, GPUs: gpus, Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000}}
	}
	ledgertest.SetFull(t, book, order("p1", "GPU-b", "GPU-a"), order("p2"), order("p3", "1", "2", "3"))
	for _, id := range []fleet.PodID{"p1", "p2", "p3"} {
		if err := book.Begin(pod.Assignment{Pod: id, Incarnation: 1}, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	m := &meter{}
	s := newSampler(&usage{}, m, book, reports.New(func() {}, func(pod.Report) {}))
	s.readAll(t.Context())
	got := map[string][]*link.GPUUse{}
	for _, p := range s.heartbeat().GetPods() {
		got[p.GetPodId()] = p.GetGpus()
		if p.GetMemoryPercent() != 50 {
			t.Errorf("memory of %s: %d", p.GetPodId(), p.GetMemoryPercent())
		}
	}
	if g := got["p1"]; len(g) != 2 || g[0].GetUtil() != 40 || g[0].GetMemoryUtil() != 50 || g[1].GetUtil() != 100 || g[1].GetMemoryUtil() != 0 {
		t.Errorf("GPUs of p1: %v", g)
	}
	if len(got["p2"]) != 0 || len(got["p3"]) != 0 { // none, and a meter that tells of too few
		t.Errorf("GPUs of the others: %v, %v", got["p2"], got["p3"])
	}
	s.meter = nil
	s.readAll(t.Context())
	for _, p := range s.heartbeat().GetPods() {
		if len(p.GetGpus()) != 0 {
			t.Errorf("without a meter: %v", p)
		}
	}
}

func TestNetworkOfAPodKnowsItsPorts(t *testing.T) {
	ctx := t.Context()
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	host := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
	host.Public = []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	if err := control.Set(ctx, host); err != nil {
		t.Fatal(err)
	}
	n, addr := podNetwork{instance: "0a1b", control: control}, netip.MustParseAddr("10.88.0.2")
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
	d := &daemon{Config: Config{where: someDirectory(t), Instance: "0a1b", Network: control, Publish: Publish{At: public}}, book: book}
	if err := d.network(t.Context()); err != nil {
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
	start := func(base func(netip.Addr) uint32) podNetwork {
		d := &daemon{Config: Config{where: someDirectory(t), Instance: "0a1b", Network: netctl.NewFake(kernel, "0a1b"), IDBase: base}, book: book}
		if err := d.network(t.Context()); err != nil {
			t.Fatal(err)
		}
		return podNetwork{instance: "0a1b", control: d.Network}
	}
	old := start(nil)
	steps := old.control.(*netctl.Fake).Steps()
	n, rec := start(IDBase("0a1b")), book.Records()[0]
	if got := n.control.(*netctl.Fake).Steps(); got != steps {
		t.Errorf("the network was changed in %d steps", got-steps)
	}
	want := pod.Link{Addr: rec.Addr, IDBase: rec.Assignment.IDBase(IDBase("0a1b"), rec.Addr)}
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
