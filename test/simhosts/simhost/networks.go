package simhost

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"gantry/internal/agentrpc"
)

// Networks is what a host was told of private networks, put together from the messages. The zero value is a host that was told
// nothing. It is for one goroutine at a time.
type Networks struct {
	Set      *agentrpc.NetworkSet
	Peers    map[string]*agentrpc.HostPeer // by host; nil: none was told of
	Overlays map[string]*Overlay           // by id
	Messages int
}

// Overlay is what a host was told of one overlay.
type Overlay struct {
	Account string
	VNI     uint32
	CIDR    netip.Prefix
	Rev     uint64
	Members map[string]*agentrpc.OverlayMember // by address
}

// Take takes a message of a session; others than those of private networks are left alone. gap says that a message before
// it is missing, so that everything has to be asked for; fault is what a scheduler must never say, in words.
func (n *Networks) Take(msg *agentrpc.Down) (gap bool, fault string) {
	switch {
	case msg.GetNetwork() != nil:
		n.Messages++
		n.Set = msg.GetNetwork()
		maps.DeleteFunc(n.Overlays, func(id string, _ *Overlay) bool { return !slices.Contains(n.Set.GetOverlays(), id) })
	case msg.GetPeers() != nil:
		n.Messages++
		return n.takePeers(msg.GetPeers())
	case msg.GetOverlay() != nil:
		n.Messages++
		return n.takeOverlay(msg.GetOverlay())
	}
	return false, ""
}

func (n *Networks) takePeers(c *agentrpc.PeerChange) (gap bool, fault string) {
	if c.GetFull() {
		n.Peers = map[string]*agentrpc.HostPeer{}
	}
	if n.Peers == nil {
		return true, ""
	}
	for _, id := range c.GetGone() {
		delete(n.Peers, id)
	}
	for _, p := range c.GetPut() {
		if n.Peers[p.GetHostId()] = p; p.GetPlain() == "" && p.GetPublicKey() == "" {
			fault = fmt.Sprintf("host %s is told of as a peer, and not how it is reached", p.GetHostId())
		}
	}
	return false, fault
}

func (n *Networks) takeOverlay(c *agentrpc.OverlayChange) (gap bool, fault string) {
	id := c.GetOverlayId()
	if n.Set == nil || !slices.Contains(n.Set.GetOverlays(), id) {
		return false, fmt.Sprintf("I8: overlay %s is told of where no pod takes part", id)
	}
	cidr, err := netip.ParsePrefix(c.GetCidr())
	if err != nil {
		return false, fmt.Sprintf("overlay %s has the range %q", id, c.GetCidr())
	}
	o := n.Overlays[id]
	switch {
	case c.GetFrom() == 0:
		o = &Overlay{Account: c.GetAccountId(), VNI: c.GetVni(), CIDR: cidr, Members: map[string]*agentrpc.OverlayMember{}}
	case o == nil || o.Rev != c.GetFrom():
		return true, ""
	}
	if n.Overlays == nil {
		n.Overlays = map[string]*Overlay{}
	}
	n.Overlays[id], o.Rev = o, c.GetTo()
	for _, addr := range c.GetGone() {
		delete(o.Members, addr)
	}
	for _, m := range c.GetPut() {
		addr, err := netip.ParseAddr(m.GetAddr())
		if err != nil || !cidr.Contains(addr) || m.GetHostId() == "" || m.GetPodId() == "" {
			fault = fmt.Sprintf("overlay %s has the member %v", id, m)
		}
		o.Members[m.GetAddr()] = m
	}
	return false, fault
}

// String is all of it in words: overlays with their members, then peers, both in order.
func (n *Networks) String() string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(n.Overlays)) {
		o := n.Overlays[id]
		out = append(out, id+":")
		for _, addr := range slices.Sorted(maps.Keys(o.Members)) {
			m := o.Members[addr]
			out = append(out, fmt.Sprintf("%s@%s", m.GetPodId(), m.GetHostId()))
		}
	}
	out = append(out, "peers:")
	for _, id := range slices.Sorted(maps.Keys(n.Peers)) {
		if p := n.Peers[id]; p.GetPlain() != "" {
			id += "=plain"
		}
		out = append(out, id)
	}
	return strings.Join(out, " ")
}

// takeNetwork takes a message of private networks.
func (h *Host) takeNetwork(msg *agentrpc.Down) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gap, fault := h.networks.Take(msg)
	if gap {
		h.reply(&agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}})
	}
	if fault != "" {
		h.fleet.census.found("%s: %s", h.id, fault)
	}
}

// checkNetworks conditions overlays that the host was told of and in which none of its pods has a place. Networks come before
// the assignments of the same moment. The caller holds mu.
func (h *Host) checkNetworks() {
	for id := range h.networks.Overlays {
		held := false
		for _, p := range h.pods {
			held = held || slices.ContainsFunc(p.order.GetOverlays(), func(at *agentrpc.OverlayPlace) bool { return at.GetOverlayId() == id })
		}
		if !held {
			h.fleet.census.found("I8: %s knows overlay %s, in which it has no pod", h.id, id)
		}
	}
}

// ReadNetworks calls fn with what the host was told of private networks; fn must not keep it.
func (h *Host) ReadNetworks(fn func(*Networks)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn(&h.networks)
}

// wireGuardPort is that of every host.
const wireGuardPort = 51_820

// tunnel is the host's end of the tunnel to others: host i of a fleet is at the i-th address of 198.18.0.0/15.
func (h *Host) tunnel() *agentrpc.HostTunnel {
	key := sha256.Sum256([]byte(h.machine))
	return &agentrpc.HostTunnel{
		PublicKey: base64.StdEncoding.EncodeToString(key[:]),
		Endpoint:  fmt.Sprintf("198.%d.%d.%d:%d", 18+h.number>>16&1, h.number>>8&0xff, h.number&0xff, wireGuardPort),
	}
}
