package inventory

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"gantry/agent/gpu"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// said is a container runtime that says what it is told to.
type said struct {
	version string
	images  []string
	err     error // of Version
	ierr    error // of Images
	slow    time.Duration
}

func (s *said) Version(ctx context.Context) (string, error) {
	if s.slow > 0 {
		select {
		case <-time.After(s.slow):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return s.version, s.err
}

func (s *said) Images(context.Context) ([]string, error) { return s.images, s.ierr }

func hostOf(rt *Runtime, change func(*Config)) *Host {
	c := Config{
		Stock: fleet.Inventory{
			Total: fleet.Resources{MilliCPU: 3000}, Kernel: "6.1", GPUs: []fleet.GPU{{UUID: "GPU-0", Type: "pretended", Simulated: true}},
		},
		Version: "1.2.3", RuntimeClass: "kata", Runtime: rt,
	}
	if change != nil {
		change(&c)
	}
	return New(c)
}

func TestAnInventoryHasWhatEachPartTells(t *testing.T) {
	rt := NewRuntime(&said{version: "containerd 2.0, runc 1.3.3", images: []string{"a", "b"}}, func(error) {}, slog.New(slog.DiscardHandler))
	addresses := cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})
	rt.Ask()
	bare := hostOf(rt, nil)
	want := fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 3000}, Kernel: "6.1", GPUs: bare.Stock.GPUs, AgentVersion: "1.2.3", RuntimeClass: "kata",
		Runtime: "containerd 2.0, runc 1.3.3", Images: []string{"a", "b"},
	}
	if d := cmp.Diff(want, bare.Inventory(), addresses); d != "" {
		t.Errorf("without parts (-want +got):\n%s", d)
	}
	if bare.GPUName("GPU-0") != "pretended" || bare.GPUName("GPU-1") != "" {
		t.Errorf("GPUs are %q and %q", bare.GPUName("GPU-0"), bare.GPUName("GPU-1"))
	}

	ip, expires := netip.MustParseAddr("203.0.113.7"), time.Unix(2_000_000_000, 0).UTC()
	full := hostOf(rt, func(c *Config) {
		c.Found = func() gpu.Found {
			return gpu.Found{
				GPUs: []fleet.GPU{{UUID: "GPU-1", Type: "found", MemoryMB: 80, NUMA: 1, Island: 2, Sick: "xid 79", PCI: "0000:01:00.0", Parent: "GPU-9"}}, CUDA: "12.4", Driver: "550",
				Conditions: []fleet.Condition{{Code: "gpu_sick", Text: "one", Severe: true}},
			}
		}
		c.Published = func() (netip.Addr, int, int) { return ip, 30_000, 40_000 }
		c.Volumes = func() []fleet.BackendKind { return []fleet.BackendKind{"ceph", "nfs"} }
		c.Tunnel = func() fleet.HostTunnel {
			return fleet.HostTunnel{PublicKey: "key", Endpoint: netip.MustParseAddrPort("203.0.113.7:51820"), Plain: netip.MustParseAddr("10.0.0.7"), UserSpace: true}
		}
		c.Certificate = func() fleet.NodeCertificate { return fleet.NodeCertificate{EndsAt: expires} }
		c.Conditions = []func() []fleet.Condition{
			func() []fleet.Condition { return []fleet.Condition{{Code: "z", Text: "2"}, {Code: "z", Text: "1"}} },
			func() []fleet.Condition { return []fleet.Condition{{Code: "a", Text: "3"}} },
		}
	})
	want.GPUs = append(want.GPUs[:1:1], full.Found().GPUs...)
	want.CUDA, want.Driver, want.PublicIP, want.PortFrom, want.PortTo = "12.4", "550", "203.0.113.7", 30_000, 40_000
	want.Volumes, want.Tunnel, want.Certificate = []fleet.BackendKind{"ceph", "nfs"}, full.Tunnel(), full.Certificate()
	want.Conditions = []fleet.Condition{{Code: "a", Text: "3"}, {Code: "gpu_sick", Text: "one", Severe: true}, {Code: "z", Text: "1"}, {Code: "z", Text: "2"}}
	if d := cmp.Diff(want, full.Inventory(), addresses); d != "" {
		t.Errorf("with all parts (-want +got):\n%s", d)
	}
	if full.GPUName("GPU-0") != "pretended" || full.GPUName("GPU-1") != "found" {
		t.Errorf("GPUs are %q and %q", full.GPUName("GPU-0"), full.GPUName("GPU-1"))
	}

	sent := full.Encoded()
	for what, same := range map[string]bool{
		"address":    sent.GetPublicIp() == "203.0.113.7" && sent.GetPortFrom() == 30_000 && sent.GetPortTo() == 40_000,
		"volumes":    cmp.Equal(sent.GetVolumes(), []string{"ceph", "nfs"}),
		"conditions": len(sent.GetConditions()) == 4 && sent.GetConditions()[1].GetSevere() && sent.GetConditions()[0].GetCode() == "a",
		"tunnel": proto.Equal(sent.GetTunnel(), &agentrpc.HostTunnel{
			PublicKey: "key", UserSpace: true, Endpoint: "203.0.113.7:51820", Plain: "10.0.0.7",
		}),
		"GPUs": len(sent.GetGpus()) == 2 && sent.GetGpus()[0].GetSimulated() && proto.Equal(sent.GetGpus()[1], &agentrpc.GPU{
			Uuid: "GPU-1", Type: "found", MemoryMb: 80, Numa: 1, Island: 2, Sick: "xid 79", Pci: "0000:01:00.0", Parent: "GPU-9",
		}),
	} {
		if !same {
			t.Errorf("%s on the link: %v", what, sent)
		}
	}

	ip = netip.Addr{} // as long as it is not known
	if inv := full.Inventory(); inv.PublicIP != "" || inv.PortFrom != 0 || inv.PortTo != 0 {
		t.Errorf("published at %q, %d to %d", inv.PublicIP, inv.PortFrom, inv.PortTo)
	}
	if got := encodeTunnel(fleet.HostTunnel{}); got != nil {
		t.Errorf("a host without a tunnel has %v", got)
	}
	if got := encodeTunnel(fleet.HostTunnel{PublicKey: "key"}); got.GetEndpoint() != "" || got.GetPlain() != "" {
		t.Errorf("a tunnel without addresses has %v", got)
	}
}

func TestPretendedGPUsAreTheHostsAlone(t *testing.T) {
	p := Pretended{GPUs: []fleet.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1"}}}
	for _, uuids := range [][]string{nil, {"GPU-0"}, {"GPU-1", "GPU-0"}} {
		if _, err := p.Devices(t.Context(), uuids); err != nil {
			t.Errorf("%v: %v", uuids, err)
		}
	}
	var e *pod.Error
	if _, err := p.Devices(t.Context(), []string{"GPU-0", "GPU-2"}); !errors.As(err, &e) || e.Class != pod.Retry || e.Sentence == "" {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if by, err := p.Busy(t.Context(), []string{"GPU-0"}); by != "" || err != nil {
		t.Errorf("held by %q, %v", by, err)
	}
}

// TestWhatTheRuntimeSaidLast stands while it is slow, and is "not reachable" while it is away. How well it isolates pods is judged by
// what it said last; that no pod can run with it is severe.
func TestWhatTheRuntimeSaidLast(t *testing.T) {
	away, unfit := errors.New("away"), &pod.Error{Class: pod.Fatal, Sentence: "no pod can run"}
	type ask struct {
		said    said
		version string
		images  int
		codes   []string
	}
	const old, safe = "containerd 2.0, runc 1.1.0", "containerd 2.0, runc 1.3.3"
	for name, asks := range map[string][]ask{
		"well":                {{said{version: safe, images: []string{"a"}}, safe, 1, nil}},
		"away from the start": {{said{err: away, ierr: away}, "not reachable", 0, nil}},
		"away later": {
			{said{version: old, images: []string{"a", "b"}}, old, 2, []string{"runc_old"}},
			{said{err: away, ierr: away}, "not reachable", 2, []string{"runc_old"}},
			{said{version: safe}, safe, 0, nil},
		},
		"slow from the start": {{said{slow: time.Minute, version: safe}, "not reachable", 0, nil}},
		"slow later": {
			{said{version: safe}, safe, 0, nil},
			{said{slow: time.Second, version: old}, safe, 0, nil},
		},
		"slower than later asks may be": {{said{slow: time.Second, version: safe}, safe, 0, nil}},
		"unfit": {
			{said{err: unfit}, "not reachable", 0, []string{"runtime_unfit"}},
			{said{err: &pod.Error{Class: pod.Retry, Sentence: "later"}}, "not reachable", 0, []string{"runtime_unfit"}},
			{said{version: safe}, safe, 0, nil},
			{said{err: &pod.Error{Class: pod.Retry, Sentence: "later"}}, "not reachable", 0, nil},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt := &said{}
			var answers []error
			r := NewRuntime(rt, func(err error) { answers = append(answers, err) }, slog.New(slog.DiscardHandler))
			for i, a := range asks {
				*rt = a.said
				r.Ask()
				if len(answers) != i+1 || answers[i] != a.said.err && a.said.slow == 0 { //nolint:errorlint // the very same
					t.Errorf("%s, %d: its answers are told as %v", name, i, answers)
				}
				inv := fleet.Inventory{}
				r.tell(&inv, false)
				var codes []string
				for _, c := range inv.Conditions {
					if codes = append(codes, c.Code); !c.Severe {
						t.Errorf("%s, %d: %+v is not severe", name, i, c)
					}
				}
				if inv.Runtime != a.version || len(inv.Images) != a.images || !cmp.Equal(codes, a.codes) {
					t.Errorf("%s, %d: %q, %v, %v", name, i, inv.Runtime, inv.Images, codes)
				}
			}
		})
	}
}

func TestALookTellsWhatChanged(t *testing.T) {
	rt := &said{version: "containerd 2.0, runc 1.1.0", images: []string{"a"}}
	var answers []error
	r := NewRuntime(rt, func(err error) { answers = append(answers, err) }, slog.New(slog.DiscardHandler))
	for i, step := range []struct {
		change func()
		want   bool
	}{
		{func() {}, true},
		{func() {}, false},
		{func() { rt.images = []string{"a", "b"} }, true},
		{func() { rt.err = errors.New("away") }, false},
		{func() { rt.err, rt.ierr, rt.images = nil, errors.New("away"), nil }, false},
		{func() { rt.ierr, rt.images = nil, []string{"a", "b"} }, false},
		{func() { rt.version = "containerd 2.0, runc 1.3.3" }, true},
	} {
		step.change()
		if got := r.Look(t.Context()); got != step.want {
			t.Errorf("step %d: changed is %v", i, got)
		}
		if len(answers) != i+1 || answers[i] != rt.ierr { //nolint:errorlint // the very same
			t.Errorf("step %d: its answers are told as %v", i, answers)
		}
		inv := fleet.Inventory{}
		if r.tell(&inv, true); len(inv.Conditions) > 0 != (i < 6) || len(inv.Conditions) > 0 && inv.Conditions[0].Severe {
			t.Errorf("step %d: %+v", i, inv.Conditions) // with user namespaces an old runtime is not severe
		}
	}
}
