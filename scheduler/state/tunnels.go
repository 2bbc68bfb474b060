package state

import (
	"cmp"
	"encoding/base64"
	"net/netip"
	"slices"

	"gantry/fleet"
)

// The codes of conditions on a host's end of the tunnel.
const (
	conditionKeyTaken   = "tunnel_key_taken"
	conditionRangeTaken = "tunnel_range_full"
)

// keyBytes is the length of a public key of Curve25519.
const keyBytes = 32

// tidyTunnel returns what a host says of its end of the tunnel as its record keeps it: what cannot be meant is left out.
func tidyTunnel(in fleet.HostTunnel) fleet.HostTunnel {
	out := fleet.HostTunnel{Plain: usableAddr(in.Plain)}
	key, err := base64.StdEncoding.Strict().DecodeString(in.PublicKey)
	if err != nil || len(key) != keyBytes || !slices.ContainsFunc(key, func(b byte) bool { return b != 0 }) {
		return out
	}
	out.PublicKey, out.UserSpace = base64.StdEncoding.EncodeToString(key), in.UserSpace
	out.MTU = min(max(in.MTU, 0), fleet.MaxOverlayMTU+fleet.OverlayOverhead)
	if addr := usableAddr(in.Endpoint.Addr()); addr.IsValid() && in.Endpoint.Port() != 0 {
		out.Endpoint = netip.AddrPortFrom(addr, in.Endpoint.Port())
	}
	return out
}

// usableAddr returns the address if other hosts can reach one by it, else the zero value.
func usableAddr(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); !addr.IsGlobalUnicast() || addr.Zone() != "" {
		return netip.Addr{}
	}
	return addr
}

// joinTunnel gives a host that has none yet its address in the tunnel, and takes from what it says of its own end what it cannot
// have: another host's key, and a way that leads through the tunnel itself.
func (t *txn) joinTunnel(h *fleet.Host) {
	s, own := t.networkSettings(), &h.Inventory.Tunnel
	if s.Tunnel.Contains(own.Endpoint.Addr()) {
		own.Endpoint = netip.AddrPort{}
	}
	if s.Tunnel.Contains(own.Plain) {
		own.Plain = netip.Addr{}
	}
	if own.PublicKey != "" && t.keyTaken(own.PublicKey, h.ID) {
		*own = fleet.HostTunnel{}
		addCondition(h, conditionKeyTaken, "The host says that its key for the tunnel to other hosts is one that another host has: it takes part in no private network.")
	}
	if !h.Tunnel.IsValid() && !t.takeTunnel(h) {
		addCondition(h, conditionRangeTaken, "There is no address left for the host in the tunnel to other hosts: it takes part in no private network.")
	}
}

// addCondition adds a condition to those of a host's tidy inventory, in their order.
func addCondition(h *fleet.Host, code, text string) {
	n := fleet.Condition{Code: code, Text: text}
	i, _ := slices.BinarySearchFunc(h.Inventory.Conditions, n, func(a, b fleet.Condition) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text))
	})
	h.Inventory.Conditions = slices.Insert(slices.Clone(h.Inventory.Conditions), i, n)
}

// keyTaken reports whether another host has a public key.
func (t *txn) keyTaken(key string, but fleet.HostID) bool {
	return slices.ContainsFunc(t.base.hostsByKey.Keys(t.Txn, key), func(id fleet.HostID) bool { return id != but })
}

// tunnelsOf returns how many addresses there are in the tunnel: the first and the last of the range are left out.
func tunnelsOf(s *fleet.NetworkSettings) uint32 { return 1<<(32-s.Tunnel.Bits()) - 2 }

// takeTunnel gives a host the next free address in the tunnel; false when there is none.
func (t *txn) takeTunnel(h *fleet.Host) bool {
	s, c := t.networkSettings(), t.cursors()
	for range tunnelsOf(s) {
		n := c.Tunnel % tunnelsOf(s)
		c.Tunnel = n + 1
		addr := addrAt(s.Tunnel, n+1)
		if t.base.hostsByTunnel.Count(t.Txn, addrKey(addr)) == 0 {
			h.Tunnel = addr
			t.putCursors(c)
			return true
		}
	}
	return false
}

// tunnelKey is the public key that no other host may have as long as this one does; empty: none.
func tunnelKey(h *fleet.Host) string {
	if h.State == fleet.HostGone {
		return ""
	}
	return h.Inventory.Tunnel.PublicKey
}

// addrKey is an address as a value of an index; empty: none.
func addrKey(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}
