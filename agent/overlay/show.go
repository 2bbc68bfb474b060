package overlay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/tunnel"
)

const (
	silentAfter  = 3 * time.Minute // without a handshake, while something is sent: WireGuard has one every two
	mostProblems = 100
)

// The kinds of tunnel as fleet.HostNetwork names them.
const (
	kindKernel = "kernel"
	kindUser   = "user space"
	kindNone   = "none"
)

// Show tells what a host's network should be and is. public are the addresses at which ports are published.
func (k *Reconciler) Show(ctx context.Context, public []netip.Addr) (fleet.HostNetwork, error) {
	want := k.config(public)
	is, err := k.Control.Observed(ctx)
	if err != nil {
		return fleet.HostNetwork{}, fmt.Errorf("read the host's network: %w", err)
	}
	out := fleet.HostNetwork{
		Desired: want.String(), Real: is.Config.String(), Steps: []string{}, Problems: k.problems(), Drops: []fleet.NetDrop{},
		Tunnels: []fleet.TunnelPeer{}, Tunnel: k.kind(),
	}
	for _, op := range netctl.Diff(is.Config, want.Keeping(is.Config)) {
		out.Steps = append(out.Steps, op.Text)
	}
	for _, name := range is.Partial {
		out.Problems = append(out.Problems, "something is half made or half removed: "+name)
	}
	drops, err := k.drops(ctx)
	if err != nil {
		out.Problems = append(out.Problems, "what was dropped cannot be read: "+err.Error())
	}
	for _, d := range drops {
		out.Drops = append(out.Drops, fleet.NetDrop{Why: d.Why, Packets: d.Packets, Bytes: d.Bytes})
	}
	states, err := k.peers(ctx)
	if err != nil {
		out.Problems = append(out.Problems, "the tunnel's state cannot be read: "+err.Error())
	}
	out.Tunnels = k.tunnels(states)
	out.Problems = append(out.Problems, k.silent(states, time.Now())...)
	out.Problems = out.Problems[:min(len(out.Problems), mostProblems)]
	return out, nil
}

// config is the host's network as it should be now.
func (k *Reconciler) config(public []netip.Addr) netctl.Config {
	want := k.host.Clone()
	want.Public = public
	k.mu.Lock()
	for _, id := range slices.Sorted(maps.Keys(k.pods)) {
		want = want.With(k.pods[id].link)
	}
	k.mu.Unlock()
	return k.Complete(want)
}

func (k *Reconciler) kind() string {
	switch {
	case k.Tunnel == nil:
		return kindNone
	case k.Tunnel.UserSpace():
		return kindUser
	}
	return kindKernel
}

// drops sums up what was dropped, by reason.
func (k *Reconciler) drops(ctx context.Context) ([]netctl.Drop, error) {
	all, err := k.Control.Drops(ctx)
	sums := map[string]netctl.Drop{}
	for _, d := range all {
		sum := sums[d.Why]
		sums[d.Why] = netctl.Drop{Why: d.Why, Packets: sum.Packets + d.Packets, Bytes: sum.Bytes + d.Bytes}
	}
	out := slices.Collect(maps.Values(sums))
	slices.SortFunc(out, func(a, b netctl.Drop) int { return cmp.Compare(a.Why, b.Why) })
	return out, err
}

// tunnelStands reports whether the tunnel is needed now: else there is none to ask.
func (k *Reconciler) tunnelStands() bool {
	if k.Tunnel == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, needed := k.tunnelConfig()
	return needed
}

func (k *Reconciler) peers(ctx context.Context) ([]tunnel.PeerState, error) {
	if !k.tunnelStands() {
		return nil, nil
	}
	return k.Tunnel.Peers(ctx)
}

// tunnels are the ways to other hosts, by their ids.
func (k *Reconciler) tunnels(states []tunnel.PeerState) []fleet.TunnelPeer {
	out := []fleet.TunnelPeer{}
	for _, s := range states {
		p := fleet.TunnelPeer{Host: fleet.HostID(s.Host), Addr: s.Addr.String(), Handshake: s.Handshake, Received: s.Received, Sent: s.Sent}
		if s.Endpoint.IsValid() {
			p.Endpoint = s.Endpoint.String()
		}
		out = append(out, p)
	}
	k.mu.Lock()
	for id, p := range k.desired.peers {
		if p.plain.IsValid() {
			out = append(out, fleet.TunnelPeer{Host: id, Addr: p.plain.String(), Plain: true})
		}
	}
	k.mu.Unlock()
	slices.SortFunc(out, func(a, b fleet.TunnelPeer) int { return cmp.Compare(a.Host, b.Host) })
	return out
}

// problems say what does not work, but for what the tunnel's peers tell.
func (k *Reconciler) problems() []string {
	out := []string{}
	for _, n := range k.Conditions() {
		out = append(out, n.Text)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.desired.set == nil {
		out = append(out, "no scheduler has told the host of private networks yet")
	}
	lost := map[fleet.HostID]int{}
	via := k.via()
	for _, vni := range k.inUse() {
		n := k.desired.byVNI(vni)
		if n == nil {
			out = append(out, fmt.Sprintf("who takes part in the network with the VNI %d is not known", vni))
			continue
		}
		for _, m := range n.members {
			if _, reached := via[m.host]; !reached && m.host != k.Host {
				lost[m.host]++
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(lost)) {
		out = append(out, fmt.Sprintf("%d pods on host %s cannot be reached: %s", lost[id], id, k.reason(id)))
	}
	if k.Tunnel == nil || k.says.Endpoint.IsValid() {
		return out
	}
	for _, id := range slices.Sorted(maps.Keys(k.desired.peers)) {
		if p := k.desired.peers[id]; k.through(p) && !p.endpoint.IsValid() {
			out = append(out, fmt.Sprintf("host %s and this one cannot call each other: both are behind NAT", id))
		}
	}
	return out
}

// reason says why another host cannot be reached. The caller holds mu.
func (k *Reconciler) reason(id fleet.HostID) string {
	p, desired := k.desired.peers[id]
	switch {
	case k.Tunnel == nil:
		return "this host has no tunnel"
	case !k.desired.settings.addr.IsValid():
		return "this host was given no address in the tunnel"
	case !desired:
		return "where it is was not told"
	}
	if p.key == "" {
		return "it has no tunnel"
	}
	return "its address in the tunnel is none"
}

// traffic is what was seen of the tunnel to another host.
type traffic struct {
	sent   int64
	moving time.Time // when more had been sent the last time
}

// note keeps what the tunnel's peers sent, to tell a silent one from one that nobody talks to.
func (k *Reconciler) note(states []tunnel.PeerState, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := make(map[string]traffic, len(states))
	for _, s := range states {
		t, known := k.heard[s.Host]
		if !known || t.sent != s.Sent {
			t = traffic{s.Sent, now}
		}
		next[s.Host] = t
	}
	k.heard = next
}

// silent names the hosts to which something is sent and which do not answer.
func (k *Reconciler) silent(states []tunnel.PeerState, now time.Time) []string {
	k.note(states, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, s := range states {
		moving := s.Sent > 0 && now.Sub(k.heard[s.Host].moving) < silentAfter
		switch {
		case !moving || now.Sub(s.Handshake) < silentAfter:
		case s.Handshake.IsZero():
			out = append(out, fmt.Sprintf("host %s does not answer through the tunnel, and never has", s.Host))
		default:
			out = append(out, fmt.Sprintf("host %s does not answer through the tunnel since %s", s.Host, s.Handshake.UTC().Format(time.RFC3339)))
		}
	}
	return out
}
