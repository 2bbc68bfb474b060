package tunnel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gantry/netctl"
)

// What the process is asked for over its control socket. Only gantry-net and the agent know them; both are of one build.
const (
	VerbConfig = "config" // Order; answer: nothing
	VerbMember = "member" // Members; answer: nothing
	VerbForget = "forget" // uint32, a VNI; answer: nothing
	VerbTap    = "tap"    // Tap, and one file; answer: nothing
	VerbState  = "state"  // answer: State
)

// Order is a Config for the process. It is the one thing that holds the key beside its file, and it crosses nothing but the control
// socket.
type Order struct {
	Addr       netip.Addr
	ListenPort uint16
	VXLANPort  uint16
	MTU        int
	Key        []byte
	Peers      []OrderPeer
}

// OrderPeer is a Peer for the process.
type OrderPeer struct {
	Key       []byte
	Addr      netip.Addr
	Endpoint  netip.AddrPort
	Keepalive time.Duration
}

// Members are those of an overlay: for each its hardware address, its address, and the address in the tunnel of the host that has
// it, which is zero for this host. Hosts without the tunnel are left out.
type Members struct {
	VNI uint32
	All []byte
}

// Tap is an overlay's link.
type Tap struct {
	VNI   uint32
	Index int
}

// State is what the process knows.
type State struct {
	Peers []OrderPeerState
	Drops []netctl.Drop
	Taps  map[uint32]int // index of each overlay's link; 0: it has none
}

// OrderPeerState is the state of the peer with a key.
type OrderPeerState struct {
	Key            []byte
	Endpoint       netip.AddrPort
	Handshake      time.Time
	Received, Sent int64
}

// order is what the process is told of a valid Config.
func (c Config) order() (Order, error) {
	o := Order{Addr: c.Addr, ListenPort: c.ListenPort, VXLANPort: c.VXLANPort, MTU: c.MTU, Key: c.Key.b[:]}
	for _, p := range c.Peers {
		key, err := parsePublic(p.PublicKey)
		if err != nil {
			return Order{}, err
		}
		o.Peers = append(o.Peers, OrderPeer{Key: key[:], Addr: p.Addr, Endpoint: p.Endpoint, Keepalive: p.Keepalive})
	}
	return o, nil
}

// members is what the process is told of an overlay.
func members(o netctl.Overlay) (Members, error) {
	out := Members{VNI: o.VNI, All: make([]byte, 0, len(o.Members)*14)}
	if o.VNI == 0 || o.VNI > maxVNI {
		return Members{}, fmt.Errorf("overlay: vni: want 1 to %d", maxVNI)
	}
	for _, m := range o.Members {
		if m.Via.Addr.IsValid() && !m.Via.Tunnel {
			continue
		}
		hw, err := net.ParseMAC(m.MAC)
		if err != nil || len(hw) != 6 || !m.Addr.Is4() || m.Via.Addr.IsValid() && !m.Via.Addr.Is4() {
			return Members{}, fmt.Errorf("overlay %d: member %s: want a hardware address, and addresses of IPv4", o.VNI, m.Addr)
		}
		via := binary.BigEndian.AppendUint32(nil, 0)
		if m.Via.Addr.IsValid() {
			via = m.Via.Addr.AsSlice()
		}
		out.All = append(append(append(out.All, hw...), m.Addr.AsSlice()...), via...)
	}
	return out, nil
}
