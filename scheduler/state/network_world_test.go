package state

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"gantry/fleet"
)

const acmeNet = fleet.OverlayID("account-acme")

// hostTunnel is a host's end of the tunnel: a key of its own, and an address.
func hostTunnel(id fleet.HostID) fleet.HostTunnel {
	key := sha256.Sum256([]byte(id))
	return fleet.HostTunnel{
		PublicKey: base64.StdEncoding.EncodeToString(key[:]),
		Endpoint:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, key[0]}), 51_820),
	}
}

// smallNetworks are settings with ranges of 13 addresses for pods, which are free again after three seconds.
func smallNetworks() fleet.NetworkSettings {
	s := fleet.DefaultNetworkSettings()
	s.Pool, s.Bits, s.Grace = netip.MustParsePrefix("10.64.0.0/26"), 28, 3*time.Second
	return s
}

// networked is a world with hosts in a data center with global networking.
func networked(t testing.TB, s fleet.NetworkSettings) *world {
	t.Helper()
	w := newWorld(t).settle()
	w.must(PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", GlobalNetwork: true}}, PutNetworkSettings{s})
	return w
}

// inNetwork is a record to create: a pod of an account that takes part in its network and needs next to nothing.
func inNetwork(id fleet.PodID, account fleet.AccountID, host fleet.HostID, now time.Time) fleet.Pod {
	p := podOn(id, host)
	p.Account, p.CreatedAt, p.Spec.GlobalNetworking, p.Spec.Name = account, now, true, "name-of-"+string(id)
	p.Need, p.Spec.DiskGB = fleet.Resources{MilliCPU: 1}, 0
	return p
}

// joins creates such a pod and returns its address.
func (w *world) joins(id fleet.PodID, account fleet.AccountID, host fleet.HostID, now time.Time) netip.Addr {
	w.t.Helper()
	pod := w.must(CreatePods{Pods: []NewPod{{Pod: inNetwork(id, account, host, now), HostEpoch: w.host(host).Epoch}}}).([]fleet.Pod)[0]
	if len(pod.Overlays) != 1 || !pod.Overlays[0].On || pod.Overlays[0].Overlay != fleet.AccountOverlay(account) {
		w.t.Fatalf("pod %s has the places %+v", id, pod.Overlays)
	}
	return pod.Overlays[0].Addr
}

// acts does an action at a time, a start on a host.
func (w *world) acts(id fleet.PodID, a fleet.Trigger, on fleet.HostID, now time.Time) fleet.Pod {
	w.t.Helper()
	c := ActPod{Account: w.pod(id).Account, Pod: id, Action: a, At: now}
	if a == fleet.ActionStart {
		c.Bind = &Binding{Host: on, HostEpoch: w.host(on).Epoch}
	}
	return w.must(c).(fleet.Pod)
}

// reports has the pod's host report an event at a time.
func (w *world) reports(id fleet.PodID, event fleet.Trigger, now time.Time) {
	w.t.Helper()
	c := w.report(id, event)
	c.At, c.Reports[0].At = now, now
	w.must(c)
}

// member returns the row of an address of acme's network.
func (w *world) member(addr netip.Addr) (m fleet.OverlayMember) {
	w.t.Helper()
	w.view(func(v *View) {
		row := v.tb.overlayMembers.Rows[memberKey(acmeNet, addr)]
		if row == nil {
			w.t.Fatalf("nobody has or had %s", addr)
		}
		m = *row
	})
	return m
}

// shown returns what a view shows of acme's network: "addr pod name host" of each that hosts hold, or that changed since a revision.
func (w *world) shown(since uint64) (out []string) {
	w.t.Helper()
	w.view(func(v *View) {
		for _, m := range v.OverlayMembers(acmeNet, since) {
			out = append(out, fmt.Sprintf("%s %s %s %s", m.Addr, m.Pod, m.Name, m.Host))
		}
	})
	return out
}

func (w *world) overlay(id fleet.OverlayID) (o fleet.Overlay) {
	w.t.Helper()
	w.view(func(v *View) {
		var ok bool
		if o, ok = v.Overlay(id); !ok {
			w.t.Fatalf("overlay %s is not there", id)
		}
	})
	return o
}

// ofNetworks adds what a view shows of private networks.
func (d *dump) ofNetworks(v *View) {
	d.Network, d.Overlays = v.NetworkSettings(), v.Overlays()
	d.Owned, d.HostOverlays = map[fleet.AccountID][]fleet.Overlay{}, map[fleet.HostID][]fleet.OverlayID{}
	d.In, d.Has = map[fleet.OverlayID][]fleet.OverlayMember{}, map[fleet.OverlayID][]fleet.OverlayMember{}
	d.Changed, d.Spans = map[fleet.OverlayID][]fleet.OverlayMember{}, map[fleet.OverlayID][]fleet.HostID{}
	for _, a := range d.Accounts {
		d.Owned[a.ID] = v.OverlaysOf(a.ID)
	}
	for _, o := range d.Overlays {
		d.In[o.ID], d.Has[o.ID], d.Spans[o.ID] = v.OverlayMembers(o.ID, 0), v.OverlayAddresses(o.ID), v.OverlayHosts(o.ID)
		if of := v.tb.networks.of[o.ID]; of != nil {
			d.Changed[o.ID] = of.since(0)
		}
	}
	for _, h := range d.Hosts {
		d.HostOverlays[h.Host.ID] = v.HostOverlays(h.Host.ID)
	}
}

// connected joins a host and begins its first session.
func (w *world) connected(id fleet.HostID, now time.Time) fleet.Host {
	w.t.Helper()
	w.join(id, "machine-of-"+string(id))
	return w.must(ConnectHost{
		Host: id, MachineID: "machine-of-" + string(id), BootID: "boot", Inventory: inventory(id), At: now,
	}).(fleet.Host)
}
