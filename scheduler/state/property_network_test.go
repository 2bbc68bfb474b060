package state

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// drawTunnel draws what a host says of its end of the tunnel: mostly what is right; now and then another host's key, or none.
func drawTunnel(t *rapid.T, host fleet.HostID) fleet.HostTunnel {
	switch rapid.IntRange(0, 9).Draw(t, "end of the tunnel") {
	case 0:
		return hostTunnel(pick[fleet.HostID](t, "whose", "host-a", "host-b", "host-c"))
	case 1:
		return fleet.HostTunnel{}
	}
	return hostTunnel(host)
}

// drawNetwork draws a command of operators on private networks.
func drawNetwork(t *rapid.T) Command {
	if rapid.Bool().Draw(t, "of a data center") {
		on := rapid.IntRange(0, 3).Draw(t, "global networking") > 0
		return PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", GlobalNetwork: on, Underlay: pick(t, "underlay", "", fleet.UnderlayPrivate, "none")}}
	}
	s := smallNetworks()
	s.Tunnel = netip.MustParsePrefix(pick(t, "tunnel", "100.127.0.0/16", "100.127.0.0/16", "100.127.0.0/28", "100.64.0.0/16"))
	s.Pool = netip.MustParsePrefix(pick(t, "pool", "10.64.0.0/26", "10.64.0.0/28", "10.64.0.8/28"))
	s.Grace = time.Duration(rapid.IntRange(0, 4).Draw(t, "grace")) * time.Second
	s.FirstVNI = uint32(rapid.IntRange(4095, 4097).Draw(t, "first VNI")) //nolint:gosec // small
	return PutNetworkSettings{s}
}

// checkNetworks checks that no two have what only one may have, that members are what pods' records say, that a pod keeps its
// address, that none is given out within its grace time, and that what hosts are told of changes is all that changed.
func (w *world) checkNetworks(t *rapid.T, before, after dump, now time.Time) {
	checkTunnels(t, after)
	vnis := map[uint32]bool{}
	for _, o := range after.Overlays {
		if vnis[o.VNI] || !o.CIDR.IsValid() || o.CIDR.Overlaps(fleet.LocalPods()) || o.CIDR != o.CIDR.Masked() {
			t.Fatalf("overlay %+v", o)
		}
		vnis[o.VNI] = true
		checkTold(t, o.ID, before, after)
	}
	pods := podsByID(after)
	w.view(func(v *View) {
		for key, m := range v.tb.overlayMembers.Rows {
			o := v.tb.overlays.Rows[m.Overlay]
			if o == nil || m.Rev > o.Rev || key != memberKey(m.Overlay, m.Addr) || !o.CIDR.Contains(m.Addr) {
				t.Fatalf("member %+v of %+v", m, o)
			}
			n := slices.IndexFunc(addrsOf(o), func(a netip.Addr) bool { return a == m.Addr })
			if n < 0 {
				t.Fatalf("member %+v has an address of the range that no pod can have", m)
			}
			checkAddress(t, m, pods[m.Pod])
		}
		checkNetworkIndex(t, v)
	})
	for id, p := range pods {
		old, had := podsByID(before)[id]
		for _, place := range p.Overlays {
			i := slices.IndexFunc(old.Overlays, func(o fleet.OverlayPlace) bool { return o.Overlay == place.Overlay })
			if had && old.CreatedAt.Equal(p.CreatedAt) && i >= 0 && old.Overlays[i].Addr != place.Addr {
				t.Fatalf("pod %s had %+v and has %+v", id, old.Overlays, p.Overlays)
			}
			if m := v(after.Has[place.Overlay], place.Addr); !finished(&p) && (m == nil || m.Pod != id) {
				t.Fatalf("pod %s has %s, which is that of %+v", id, place.Addr, m)
			}
			if m := v(before.Changed[place.Overlay], place.Addr); m != nil && m.Pod != id && m.FreeAt.After(now) {
				t.Fatalf("pod %s has %s at %s, which was free at %s", id, place.Addr, now, m.FreeAt)
			}
		}
	}
}

// v returns the member of an address; nil when there is none.
func v(of []fleet.OverlayMember, addr netip.Addr) *fleet.OverlayMember {
	if i := slices.IndexFunc(of, func(m fleet.OverlayMember) bool { return m.Addr == addr }); i >= 0 {
		return &of[i]
	}
	return nil
}

// finished reports whether nothing is left of a pod that could have an address.
func finished(p *fleet.Pod) bool { return p.Status == fleet.StatusTerminated && !p.Held }

func podsByID(d dump) map[fleet.PodID]fleet.Pod {
	out := map[fleet.PodID]fleet.Pod{}
	for _, pods := range d.Pods {
		for _, p := range pods {
			out[p.ID] = p
		}
	}
	return out
}

// addrsOf lists the addresses of a range that pods can have.
func addrsOf(o *fleet.Overlay) (out []netip.Addr) {
	for a := o.CIDR.Addr(); o.CIDR.Contains(a); a = a.Next() {
		out = append(out, a)
	}
	return out[2 : len(out)-1]
}

// checkAddress compares a member with its pod, which may be gone.
func checkAddress(t *rapid.T, m *fleet.OverlayMember, p fleet.Pod) {
	i := slices.IndexFunc(p.Overlays, func(at fleet.OverlayPlace) bool { return at.Overlay == m.Overlay && at.Addr == m.Addr })
	there := i >= 0 && !finished(&p)
	if m.FreeAt.IsZero() != there {
		t.Fatalf("member %+v of pod %+v", m, p)
	}
	host := fleet.HostID("")
	if there && p.Overlays[i].On && p.Held {
		host = p.Host
	}
	if m.Host != host || host != "" && m.Name != p.Spec.Name {
		t.Fatalf("member %+v of pod %+v", m, p)
	}
}

// checkTunnels checks that no two hosts have one address in the tunnel, or one key.
func checkTunnels(t *rapid.T, d dump) {
	addrs, keys := map[netip.Addr]bool{}, map[string]bool{}
	for _, h := range d.Hosts {
		if a := h.Host.Tunnel; a.IsValid() {
			if addrs[a] || !d.Network.Tunnel.Contains(a) {
				t.Fatalf("host %s has %s", h.Host.ID, a)
			}
			addrs[a] = true
		}
		if key := tunnelKey(&h.Host); key != "" {
			if keys[key] {
				t.Fatalf("host %s has the key of another", h.Host.ID)
			}
			keys[key] = true
		}
	}
}

// checkTold checks that what is told of the changes of an overlay leads from what it was to what it is.
func checkTold(t *rapid.T, id fleet.OverlayID, before, after dump) {
	have, rev := map[netip.Addr]fleet.OverlayMember{}, uint64(0)
	for _, m := range before.In[id] {
		have[m.Addr] = m
	}
	if i := slices.IndexFunc(before.Overlays, func(o fleet.Overlay) bool { return o.ID == id }); i >= 0 {
		rev = before.Overlays[i].Rev
	}
	for _, m := range after.Changed[id] {
		if m.Rev <= rev {
			continue
		}
		if have[m.Addr] = m; m.Host == "" {
			delete(have, m.Addr)
		}
	}
	if got := slices.SortedFunc(maps.Values(have), func(a, b fleet.OverlayMember) int { return a.Addr.Compare(b.Addr) }); !slices.Equal(got, after.In[id]) {
		t.Fatalf("told is\n%+v\nand it is\n%+v", got, after.In[id])
	}
}

// checkNetworkIndex compares what is derived of networks with what is worked out anew.
func checkNetworkIndex(t *rapid.T, v *View) {
	want, got := newNetworkIndex(), v.tb.networks
	for _, row := range v.tb.overlayMembers.Rows {
		want.takeMember(nil, row)
	}
	want.order()
	for id, of := range want.of {
		latest := v.tb.overlays.Rows[id].Rev
		for rev := latest - latest%(1<<lineageBits); rev <= latest; rev++ {
			if a, b := of.since(rev), got.of[id].since(rev); !slices.Equal(a, b) {
				t.Fatalf("since %d of %s changed\n%+v\nand should have\n%+v", rev, id, b, a)
			}
		}
	}
	for _, x := range []*networkIndex{&want, &got} {
		x.of = maps.Clone(x.of)
		for id, of := range x.of {
			x.of[id] = &memberIndex{rows: of.rows, hosts: of.hosts}
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("derived is\n%+v\nand should be\n%+v", got, want)
	}
}
