package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/ledger/ledgertest"
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

// TestPublicAddressThatComesLate starts an agent on a host whose network is not up yet.
func TestPublicAddressThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer func() { _ = there.Close() }()
		ip := netip.MustParseAddr("203.0.113.7")
		var found atomic.Pointer[Publish]
		found.Store(&Publish{From: 30_000, To: 30_009})
		control := newControl(t)
		d := &daemon{
			Config: Config{Network: control, Containers: &usage{}, Log: slog.New(slog.DiscardHandler), Publish: *found.Load(), Instance: "0a1b"},
			book:   ledgertest.Open(t, t.TempDir()),
			lines:  newLines(func(context.Context, string) (net.Conn, error) { return here, nil }),
		}
		d.FindPublish = func() (Publish, error) { return *found.Load(), nil }
		d.public.Store(&d.Publish)
		d.pods = pod.NewPods(t.Context(), pod.Deps{})
		if _, err := d.lines.dial(t.Context(), "scheduler"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { d.findPublic(t.Context()); close(ended) }()
		time.Sleep(time.Hour)
		if inv := encodeInventory(d.inventory()); inv.GetPublicIp() != "" || inv.GetPortFrom() != 0 || inv.GetPortTo() != 0 || d.publicIP() != "" {
			t.Errorf("told %v", inv)
		}
		n, port := podNetwork{instance: "0a1b", control: control}, []fleet.PortMapping{{Private: 22, Public: 30_001}}
		if err := n.Ensure(t.Context(), "p1", pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Ports: port}); err == nil {
			t.Error("a port is published nowhere")
		}
		late := Publish{IP: ip, At: []netip.Addr{ip}, From: 30_000, To: 30_009}
		found.Store(&late)
		<-ended
		if inv := encodeInventory(d.inventory()); inv.GetPublicIp() != "203.0.113.7" || inv.GetPortFrom() != 30_000 || inv.GetPortTo() != 30_009 {
			t.Errorf("told %v", inv)
		}
		if d.publicIP() != "203.0.113.7" {
			t.Errorf("pods are told %q", d.publicIP())
		}
		if _, err := there.Read(make([]byte, 1)); err == nil {
			t.Error("the session of before goes on")
		}
		if err := n.Ensure(t.Context(), "p1", pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Ports: port}); err != nil {
			t.Error(err)
		}
	})
}

func TestPublicAddressIsNotLookedFor(t *testing.T) {
	for name, p := range map[string]Publish{
		"no ports": {}, "known": {IP: netip.MustParseAddr("203.0.113.7"), From: 30_000, To: 30_009},
	} {
		d := &daemon{Config: Config{FindPublish: func() (Publish, error) { t.Error(name); return Publish{}, nil }}}
		d.public.Store(&p)
		d.findPublic(t.Context())
	}
}

// TestNetworkThatIsHalfRemovedIsLeft: the pod's machine goes on with the removal.
func TestNetworkThatIsHalfRemovedIsLeft(t *testing.T) {
	kernel := netctl.NewFakeKernel()
	control := netctl.NewFake(kernel, "0a1b")
	conf := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
	if err := control.Set(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	n, addr := podNetwork{instance: "0a1b", control: control}, netip.MustParseAddr("10.88.0.2")
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
