package tunnel

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// difference is how WireGuard has to be changed to be as wanted. Peers that are right are not touched. told are the endpoints that were
// set last, by key.
func difference(have *wgtypes.Device, want Config, told map[string]netip.AddrPort) (out wgtypes.Config, err error) {
	if key := wgtypes.Key(want.Key.b); key != have.PrivateKey {
		out.PrivateKey = &key
	}
	if port := int(want.ListenPort); port != have.ListenPort {
		out.ListenPort = &port
	}
	old, wanted := make(map[wgtypes.Key]wgtypes.Peer, len(have.Peers)), make(map[string]bool, len(want.Peers))
	for _, p := range want.Peers {
		wanted[p.PublicKey] = true
	}
	for _, p := range have.Peers {
		old[p.PublicKey] = p
		if !wanted[p.PublicKey.String()] {
			out.Peers = append(out.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		}
	}
	for _, p := range want.Peers {
		key, err := parsePublic(p.PublicKey)
		if err != nil {
			return out, err
		}
		now, there := old[key]
		allowed := []net.IPNet{{IP: p.Addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		// Where a peer was heard counts for more than where it was to be called, until that changes.
		call := p.Endpoint.IsValid() && (!there || now.Endpoint == nil || told[p.PublicKey] != p.Endpoint)
		if there && !call && now.PersistentKeepaliveInterval == p.Keepalive && len(now.AllowedIPs) == 1 && now.AllowedIPs[0].String() == allowed[0].String() {
			continue
		}
		one := wgtypes.PeerConfig{PublicKey: key, ReplaceAllowedIPs: true, AllowedIPs: allowed, PersistentKeepaliveInterval: &p.Keepalive}
		if call {
			one.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint)
		}
		out.Peers = append(out.Peers, one)
	}
	return out, nil
}

// endpoints are those of peers, by key.
func endpoints(peers []Peer) map[string]netip.AddrPort {
	out := make(map[string]netip.AddrPort, len(peers))
	for _, p := range peers {
		out[p.PublicKey] = p.Endpoint
	}
	return out
}

// states is what WireGuard says of peers, by Host.
func states(have *wgtypes.Device, peers []Peer) []PeerState {
	found := make(map[string]wgtypes.Peer, len(have.Peers))
	for _, p := range have.Peers {
		found[p.PublicKey.String()] = p
	}
	out := make([]PeerState, 0, len(peers))
	for _, p := range peers {
		now := found[p.PublicKey] // the zero value is true of one that is not there yet
		out = append(out, PeerState{
			Host: p.Host, Addr: p.Addr, Endpoint: addrPort(now.Endpoint), Handshake: now.LastHandshakeTime, Received: now.ReceiveBytes, Sent: now.TransmitBytes,
		})
	}
	slices.SortFunc(out, func(a, b PeerState) int { return cmp.Compare(a.Host, b.Host) })
	return out
}

func addrPort(a *net.UDPAddr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
