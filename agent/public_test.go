package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/inventory"
	"gantry/agent/pod"
	"gantry/agent/podnet"
	"gantry/fleet"
	"gantry/netctl"
)

// TestPublicAddressThatComesLate starts an agent on a host whose network is not up yet.
func TestPublicAddressThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ip := netip.MustParseAddr("203.0.113.7")
		var found atomic.Pointer[Publish]
		found.Store(&Publish{From: 30_000, To: 30_009})
		control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
		conf := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
		if err := control.Set(t.Context(), conf); err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		d := newPublished(*found.Load())
		has := inventory.New(inventory.Config{Published: d.ports, Runtime: inventory.NewRuntime(nil, nil, log)})
		tries := 0
		look := func() (Publish, error) {
			if tries++; tries == 1 {
				return Publish{}, errors.New("not yet")
			}
			return *found.Load(), nil
		}
		told := 0
		ended := make(chan struct{})
		go func() { d.find(t.Context(), look, control, log, func() { told++ }); close(ended) }()
		time.Sleep(time.Hour)
		if inv := has.Encoded(); inv.GetPublicIp() != "" || inv.GetPortFrom() != 0 || inv.GetPortTo() != 0 || d.ip() != "" {
			t.Errorf("told %v", inv)
		}
		n, port := podnet.Network{Instance: "0a1b", Control: control}, []fleet.PortMapping{{Private: 22, Public: 30_001}}
		if err := n.Ensure(t.Context(), "p1", pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Ports: port}); err == nil {
			t.Error("a port is published nowhere")
		}
		late := Publish{IP: ip, At: []netip.Addr{ip}, From: 30_000, To: 30_009}
		found.Store(&late)
		<-ended
		if inv := has.Encoded(); inv.GetPublicIp() != "203.0.113.7" || inv.GetPortFrom() != 30_000 || inv.GetPortTo() != 30_009 {
			t.Errorf("told %v", inv)
		}
		if told != 1 || !slices.Equal(d.addresses(), late.At) {
			t.Errorf("told %d times of %v", told, d.addresses())
		}
		if d.ip() != "203.0.113.7" {
			t.Errorf("pods are told %q", d.ip())
		}
		if err := n.Ensure(t.Context(), "p1", pod.Link{Addr: netip.MustParseAddr("10.88.0.2"), Ports: port}); err != nil {
			t.Error(err)
		}
	})
}

func TestPublicAddressIsNotLookedFor(t *testing.T) {
	newPublished(Publish{From: 30_000}).find(t.Context(), nil, nil, nil, func() { t.Error("nobody looks for it, and it is found") })
	for name, p := range map[string]Publish{
		"no ports": {}, "known": {IP: netip.MustParseAddr("203.0.113.7"), From: 30_000, To: 30_009},
	} {
		look := func() (Publish, error) { t.Error(name); return Publish{}, nil }
		newPublished(p).find(t.Context(), look, nil, nil, func() { t.Error(name) })
	}
}
