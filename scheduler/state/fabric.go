package state

import "gantry/fleet"

// fabricsHeld counts the members of clusters that have their host's fabric.
func fabricsHeld(on []*fleet.Pod) (n int) {
	for _, p := range on {
		if p.Held && p.Fabric != "" {
			n++
		}
	}
	return n
}

// shareFabric gives the members of a cluster that are about to start the fabric of their hosts, or none of them: all hosts must share it
// and have room for one more member. Programs that find it on some members only would not reach the others.
func (t *txn) shareFabric(id fleet.ClusterID) {
	var members []*fleet.Pod
	common := ""
	for _, pod := range t.base.membersOf.Keys(t.Txn, id) {
		p := t.base.pods.Get(t.Txn, pod)
		if p.Status == fleet.StatusTerminated || !p.Status.Active() {
			continue
		}
		name := t.fabricFor(p)
		if len(members) == 0 {
			common = name
		}
		if members = append(members, p); name != common {
			common = ""
		}
	}
	for _, p := range members {
		if p.Fabric != common {
			next := *p
			next.Fabric = common
			t.putPod(&next)
		}
	}
}

// sizeNetwork gives the links of a cluster's network the frames that the interfaces of all hosts of its members carry, when that is more than
// the settings say.
func (t *txn) sizeNetwork(id fleet.ClusterID) {
	o := t.base.overlays.Get(t.Txn, fleet.ClusterOverlay(id))
	if o == nil {
		return
	}
	mtu := fleet.MaxOverlayMTU
	for _, pod := range t.base.membersOf.Keys(t.Txn, id) {
		if p := t.base.pods.Get(t.Txn, pod); p.Status.Active() {
			h, _ := t.host(p.Host)
			mtu = min(mtu, h.Inventory.Tunnel.MTU-fleet.OverlayOverhead)
		}
	}
	if mtu <= t.networkSettings().MTU {
		mtu = 0
	}
	if o.MTU != mtu {
		t.revise(o.ID)
		next := *t.base.overlays.Get(t.Txn, o.ID)
		next.MTU = mtu
		t.putOverlay(&next)
	}
}

// joinFabric is shareFabric for a member that starts while the others go on: it has what they have, or nothing.
func (t *txn) joinFabric(pod *fleet.Pod) {
	if pod.Fabric = ""; memberOf(pod) == "" {
		return
	}
	for _, id := range t.base.membersOf.Keys(t.Txn, memberOf(pod)) {
		if p := t.base.pods.Get(t.Txn, id); p.ID != pod.ID && p.Status.Active() && p.Fabric != t.fabricFor(pod) {
			return
		}
	}
	pod.Fabric = t.fabricFor(pod)
}

// fabricFor names the fabric that a member's host has for it; empty: none.
func (t *txn) fabricFor(pod *fleet.Pod) string {
	h, ok := t.host(pod.Host)
	if !ok {
		return ""
	}
	others := 0
	for _, p := range t.occupants(pod.Host) {
		if p.ID != pod.ID && p.Held && p.Fabric != "" {
			others++
		}
	}
	if others >= h.Inventory.Fabric.Members() {
		return ""
	}
	return h.FabricName()
}
