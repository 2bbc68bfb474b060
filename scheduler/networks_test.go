package scheduler

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"gantry/fleet"
	"gantry/netctl"
	"gantry/scheduler/state"
)

func TestNetworkSettings(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	s, err := w.svc.NetworkSettings(ctx)
	if err != nil || s.Suffix != "gantry.internal" || s.Pool != netip.MustParsePrefix("10.64.0.0/10") {
		t.Fatalf("without any there are %+v, %v", s, err)
	}
	if fleet.LocalPods() != netctl.Pool() {
		t.Errorf("hosts give pods addresses of %s, and overlays leave out %s", netctl.Pool(), fleet.LocalPods())
	}
	s.Suffix, s.PodMbps = "pods.example", 100
	if err := w.svc.PutNetworkSettings(ctx, s); err != nil {
		t.Fatal(err)
	}
	if got, err := w.svc.NetworkSettings(ctx); err != nil || got.Suffix != "pods.example" || got.PodMbps != 100 {
		t.Errorf("got %+v, %v", got, err)
	}
	s.MTU = 100
	refused(t, w.svc.PutNetworkSettings(ctx, s), fleet.CodeInvalid, "$.mtu: must be 1280 to 8930")
	none := fleet.EgressNone
	if view, err := w.svc.UpdateAccount(ctx, acme, fleet.AccountUpdate{Egress: &none}); err != nil || view.Account.Egress != none {
		t.Errorf("got %+v, %v", view, err)
	}
	err = w.svc.PutDataCenter(ctx, fleet.DataCenter{ID: "dc-1", Underlay: "open"})
	refused(t, err, fleet.CodeInvalid, "$.underlay")
}

// networkedWorld has hosts host-1 in dc-1, without global networking, and host-2 and bare-2 in dc-2, which has it; bare-2 has no
// end of the tunnel.
func networkedWorld(t *testing.T) *world {
	w := newWorld(t)
	w.addHost("host-1", "dc-1", h100, 1)
	w.addHost("bare-2", "dc-2", h100, 4, func(inv *fleet.Inventory) { inv.Tunnel = fleet.HostTunnel{} })
	w.addHost("host-2", "dc-2", h100, 4)
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-2", Name: "two", GlobalNetwork: true}})
	return w
}

func TestNetworksOfAnAccount(t *testing.T) {
	w := networkedWorld(t)
	ctx := context.Background()
	if got, err := w.svc.Networks(ctx, member(acme)); err != nil || len(got) != 0 {
		t.Errorf("before there is any: %+v, %v", got, err)
	}
	req := gpuPod(1)
	req.GlobalNetworking = true
	pod := w.create(req)
	place, on := pod.AccountPlace()
	if pod.Host != "host-2" || !on {
		t.Fatalf("the pod is on %s with %+v", pod.Host, pod.Overlays)
	}
	view, err := w.svc.Pod(ctx, member(acme), pod.ID)
	if err != nil || fleet.InternalDNS(pod.ID, view.Suffix) != string(pod.ID)+".gantry.internal" {
		t.Errorf("its name has %q, %v", view.Suffix, err)
	}
	got, err := w.svc.Networks(ctx, member(acme))
	if err != nil || len(got) != 1 || got[0].Overlay.ID != place.Overlay || got[0].Suffix != "gantry.internal" || len(got[0].Members) != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if m := got[0].Members[0]; m.Pod != pod.ID || m.Name != "trainer" || m.Addr != place.Addr || m.Host != "host-2" {
		t.Errorf("got %+v", m)
	}
	if got, err := w.svc.Networks(ctx, member(other)); err != nil || len(got) != 0 {
		t.Errorf("the other account has %+v, %v", got, err)
	}
}

// A pod that is to be networked starts where that can be, from the next start on.
func TestNetworkingDecidesWhereAPodStarts(t *testing.T) {
	w := networkedWorld(t)
	ctx := context.Background()
	req := gpuPod(1)
	req.Centers = []fleet.DataCenterID{"dc-1", "dc-2"}
	pod := w.create(req)
	w.report(pod.ID, fleet.EventRunning)
	act := func(action fleet.Trigger) fleet.Pod {
		t.Helper()
		view, err := w.svc.ActPod(ctx, member(acme), pod.ID, action)
		if err != nil {
			t.Fatalf("%s: %v", action, err)
		}
		return *view.Pod
	}
	patch := func(on bool) {
		t.Helper()
		if _, err := w.svc.UpdatePod(ctx, member(acme), pod.ID, fleet.PodUpdate{GlobalNetworking: &on}); err != nil {
			t.Fatal(err)
		}
	}
	if pod.Host != "host-1" {
		t.Fatalf("it begins on %s", pod.Host)
	}
	patch(true)
	if p := w.pod(pod.ID); p.Incarnation != pod.Incarnation || len(p.Overlays) != 0 {
		t.Errorf("the change restarted it, or gave it %+v", p.Overlays)
	}
	if p := act(fleet.ActionRestart); p.Host != "host-1" || len(p.Overlays) != 0 {
		t.Errorf("where there is no network it restarts with %+v", p.Overlays)
	}
	w.report(pod.ID, fleet.EventRunning)
	stop := func() {
		t.Helper()
		act(fleet.ActionStop)
		w.report(pod.ID, fleet.EventExited)
	}
	stop()
	started := act(fleet.ActionStart)
	place, on := started.AccountPlace()
	if started.Host != "host-2" || !on {
		t.Errorf("it starts on %s with %+v", started.Host, started.Overlays)
	}
	w.report(pod.ID, fleet.EventRunning)
	patch(false)
	stop()
	patch(true)
	again := act(fleet.ActionStart)
	if now, _ := again.AccountPlace(); again.Host != "host-2" || now != place {
		t.Errorf("it starts again on %s with %+v", again.Host, again.Overlays)
	}
}

func TestHostsWithoutATunnelGetNoNetworkedPods(t *testing.T) {
	w := networkedWorld(t)
	req := gpuPod(4)
	req.GlobalNetworking = true
	w.create(req)
	req.GPU.Count = 1
	_, err := w.svc.CreatePod(context.Background(), member(acme), req)
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity || !slices.Contains(e.Excluded, fleet.Exclusion{Reason: "no tunnel to other hosts", Hosts: 1}) {
		t.Errorf("got %+v", e)
	}
	if req.GlobalNetworking = false; w.create(req).Host == "" {
		t.Error("there is no room")
	}
}
