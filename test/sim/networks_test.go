package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/agent"
	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/tunnel"
	"gantry/scheduler/state"
)

// simTunnel is a machine's tunnel to other hosts: a process that outlives agents, and carries nothing.
type simTunnel struct {
	mu   sync.Mutex // guards the fields below
	conf tunnel.Config
}

// Set implements tunnel.Tunnel.
func (t *simTunnel) Set(_ context.Context, want tunnel.Config) error {
	if err := want.Validate(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conf = want
	return nil
}

// Peers implements tunnel.Tunnel: all are there.
func (t *simTunnel) Peers(context.Context) (out []tunnel.PeerState, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.conf.Peers {
		out = append(out, tunnel.PeerState{Host: p.Host, Addr: p.Addr, Endpoint: p.Endpoint})
	}
	slices.SortFunc(out, func(a, b tunnel.PeerState) int { return strings.Compare(a.Host, b.Host) })
	return out, nil
}

// Remove implements tunnel.Tunnel.
func (t *simTunnel) Remove(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conf = tunnel.Config{}
	return nil
}

// UserSpace implements tunnel.Tunnel.
func (t *simTunnel) UserSpace() bool { return true }

// Close implements tunnel.Tunnel.
func (t *simTunnel) Close() {}

// private is how a host takes part in private networks: others reach it at an address of its own.
func (h *host) private(t *simTunnel) agent.Private {
	return agent.Private{Tunnel: t, Find: func(_ context.Context, port uint16) (netip.AddrPort, netip.Addr, error) {
		var n int
		_, err := fmt.Sscanf(h.name, "host-%d", &n)
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}), port), netip.Addr{}, err //nolint:gosec // few
	}, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("198.18.1.1")}, nil // of every scheduler
	}}
}

// overlays returns the overlays of the machine's kernel, and the hosts to which the tunnel leads, sorted.
func (m *machine) overlays() (kernel []netctl.Overlay, peers []string) {
	m.mu.Lock()
	network, t := netctl.NewFake(m.kernel, m.instance), m.tunnel
	m.mu.Unlock()
	st, err := network.Observed(context.Background())
	if err != nil {
		m.watch.broke("%s: %v", m.name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.conf.Peers {
		peers = append(peers, p.Host)
	}
	slices.Sort(peers)
	return st.Config.Overlays, peers
}

// joins has a pod take part in its account's network, as about half of those do that may; tally is held.
func (d *driver) joins(req *fleet.PodRequest) {
	req.GlobalNetworking = req.GPU != nil && len(d.ids)%2 == 0
}

// private is the private networks in a picture.
type private struct {
	settings fleet.NetworkSettings
	overlays []fleet.Overlay
	members  map[fleet.OverlayID][]fleet.OverlayMember // that a host holds
	of       map[fleet.HostID][]fleet.OverlayID
	all      []any
}

func readNetworks(v *state.View) private {
	out := private{
		settings: v.NetworkSettings(), overlays: v.Overlays(),
		members: map[fleet.OverlayID][]fleet.OverlayMember{}, of: map[fleet.HostID][]fleet.OverlayID{},
	}
	out.all = append(out.all, out.settings, out.overlays)
	for _, o := range out.overlays {
		out.members[o.ID] = v.OverlayMembers(o.ID, 0)
		out.all = append(out.all, v.OverlayAddresses(o.ID))
		for _, h := range v.OverlayHosts(o.ID) {
			out.of[h] = append(out.of[h], o.ID)
		}
	}
	return out
}

// mixing is what was ever seen of private networks.
type mixing struct {
	ids  map[uint32]fleet.OverlayID                   // by VNI
	pods map[*machine]map[fleet.OverlayID]fleet.PodID // that took part there
}

// apart checks I8 of private networks: no two have one VNI, no address is two pods', and no host has one in which it never had a pod.
func (c *checker) apart(now picture) {
	for _, o := range now.private.overlays {
		if other, taken := c.mixing.ids[o.VNI]; taken && other != o.ID {
			c.w.broke("I8: overlays %s and %s have the VNI %d", other, o.ID, o.VNI)
		}
		c.mixing.ids[o.VNI] = o.ID
		for _, m := range now.private.members[o.ID] {
			if p := now.pods[m.Pod]; p.Account != o.Account || !p.Held || p.Host != m.Host || !o.CIDR.Contains(m.Addr) {
				c.w.broke("I8: overlay %s has the member %+v; the pod is %+v", o.ID, m, p)
			}
		}
	}
	c.tookPart(now)
	for _, h := range c.w.allHosts() {
		kernel, _ := h.overlays()
		for _, o := range kernel {
			id := c.mixing.ids[o.VNI]
			// A pod of which only the state before a restore knew may have come and gone between two looks.
			if _, had := c.mixing.pods[h.machine][id]; !had && !c.w.wasRestored() {
				c.w.broke("I8: %s has overlay %q (VNI %d), in which it never had a pod", h.name, id, o.VNI)
			}
		}
	}
}

// tookPart remembers which private networks machines had pods in.
func (c *checker) tookPart(now picture) {
	for id, p := range now.pods {
		m := c.w.machineOf(p.Host)
		for _, place := range p.Overlays {
			if c.mixing.pods[m] == nil {
				c.mixing.pods[m] = map[fleet.OverlayID]fleet.PodID{}
			}
			c.mixing.pods[m][place.Overlay] = id
		}
	}
}

// joined tells which hosts' private networks are not exactly those of the state.
func (c *checker) joined(now picture) (wrong []string) {
	for _, h := range c.w.allHosts() {
		var want, others []string
		for _, id := range now.private.of[h.id] {
			i := slices.IndexFunc(now.private.overlays, func(o fleet.Overlay) bool { return o.ID == id })
			members := []string{}
			for _, m := range now.private.members[id] {
				via := "here"
				if m.Host != h.id {
					via = now.hosts[m.Host].Tunnel.String()
					others = append(others, string(m.Host))
				}
				members = append(members, fmt.Sprintf("%s>%s", m.Addr, via))
			}
			want = append(want, overlayText(now.private.overlays[i].VNI, members))
		}
		slices.Sort(others)
		kernel, peers := h.overlays()
		for _, x := range []struct {
			what      string
			got, want []string
		}{
			{"overlays", overlayTexts(kernel), sorted(want)},
			{"peers", peers, slices.Compact(others)},
		} {
			if !slices.Equal(x.got, x.want) {
				wrong = append(wrong, fmt.Sprintf("%s has the %s %v, wanted are %v", h.name, x.what, x.got, x.want))
			}
		}
	}
	return wrong
}

func sorted(all []string) []string {
	slices.Sort(all)
	return all
}

func overlayTexts(all []netctl.Overlay) (out []string) {
	for _, o := range all {
		var members []string
		for _, m := range o.Members {
			via := "here"
			if m.Via != (netctl.Via{}) {
				via = m.Via.Addr.String()
			}
			members = append(members, fmt.Sprintf("%s>%s", m.Addr, via))
		}
		out = append(out, overlayText(o.VNI, members))
	}
	slices.Sort(out)
	return out
}

func overlayText(vni uint32, members []string) string {
	return fmt.Sprintf("%08d %s", vni, strings.Join(members, " "))
}

// TestPrivateNetworksHeal: whatever happens, hosts have the networks of the state in the end, and never another.
func TestPrivateNetworksHeal(t *testing.T) {
	play(t, []int{4, 4, 4}, nil, func(s *scene) {
		c := newChecker(s.world)
		asks := gpuPod(1, image("steady", 0, 0))
		asks.GlobalNetworking = true
		add := func(account fleet.AccountID) fleet.Pod {
			t.Helper()
			p, err := s.create(account, asks)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		agree := func(when string, members int) {
			t.Helper()
			var wrong []string
			s.soon("hosts' networks are those of the state "+when, func() bool {
				now := s.picture()
				c.apart(now)
				n := 0
				for _, all := range now.private.members {
					n += len(all)
				}
				if wrong = c.joined(now); n != members {
					wrong = append(wrong, fmt.Sprintf("%d members", n))
				}
				return len(wrong) == 0
			})
		}
		defer func() {
			if t.Failed() {
				t.Log(c.joined(s.picture()))
			}
		}()
		var pods []fleet.Pod
		for _, account := range []fleet.AccountID{s.accounts[0], s.accounts[1], s.accounts[0], s.accounts[1], s.accounts[0], s.accounts[0]} {
			pods = append(pods, add(account))
		}
		agree("at first", 6)
		away := s.byHost[pods[0].Host]
		for _, f := range []struct {
			name  string
			begin func() (mend func())
		}{
			{"its agent was away", func() func() { away.kill(true); return away.start }},
			{"it was cut off", func() func() {
				s.wire.cut(away.name, true, true)
				return func() { s.wire.cut(away.name, false, false) }
			}},
			{"the scheduler was away", func() func() { s.killScheduler(stateOpen); s.begin(); return func() {} }},
			{"it was rebooted", func() func() { away.reboot(); return away.start }},
		} {
			mend := f.begin()
			var made fleet.Pod
			s.soon("a pod is made", func() bool {
				var err error
				made, err = s.create(s.accounts[0], asks)
				return err == nil
			})
			time.Sleep(20 * time.Second)
			mend()
			agree("when "+f.name, 7)
			if _, err := s.act(s.accounts[0], made.ID, fleet.ActionTerminate); err != nil {
				t.Fatal(err)
			}
			agree("when "+f.name+", with a pod less", 6)
		}
		for i, p := range pods {
			if _, err := s.act(p.Account, p.ID, fleet.ActionStop); err != nil {
				t.Fatal(err)
			}
			agree("after a stop", len(pods)-1-i)
		}
	})
}
