package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"gantry/netctl"
)

const kernelLink = "wireguard" // type of the kernel's links

// Supported says whether the kernel has WireGuard. It tries, once.
var Supported = sync.OnceValue(func() bool {
	a := netlink.NewLinkAttrs()
	a.Name = fmt.Sprintf("gwtry%06x", time.Now().UnixNano()&0xffffff)
	l := &netlink.Wireguard{LinkAttrs: a}
	if err := netlink.LinkAdd(l); err != nil {
		return false
	}
	return netlink.LinkDel(l) == nil
})

// Kernel is the tunnel of a host whose kernel has WireGuard: a link with the host's address in the tunnel, over which the kernel's
// VXLAN links send.
type Kernel struct {
	log  *slog.Logger
	name string // of the link
	typ  string // of the link

	mu   sync.Mutex
	told map[string]netip.AddrPort // endpoints of peers as they were set last, by key
	want []Peer
}

// NewKernel makes the client of an agent's instance. Nothing is made before the first Set.
func NewKernel(instance string, log *slog.Logger) *Kernel {
	return &Kernel{log: log, name: netctl.TunnelLink(instance), typ: kernelLink}
}

// Set implements Tunnel.
func (k *Kernel) Set(ctx context.Context, want Config) error {
	if err := want.Validate(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if netctl.TunnelLink(want.Instance) != k.name {
		return errors.New("tunnel: it is another instance's")
	}
	l, err := k.ensureLink(want)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if err := k.ensurePeers(want); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if err := ensureAddress(l, want); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	k.want = slices.Clone(want.Peers)
	return nil
}

// ensureLink makes the link and its MTU so. What stands is left.
func (k *Kernel) ensureLink(want Config) (netlink.Link, error) {
	l, err := netlink.LinkByName(k.name)
	if err == nil && l.Type() != k.typ {
		if err := netlink.LinkDel(l); err != nil {
			return nil, fmt.Errorf("remove a link of another type: %w", err)
		}
		l, err = nil, netlink.LinkNotFoundError{}
	}
	mtu := want.MTU + Overhead
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		a := netlink.NewLinkAttrs()
		a.Name, a.MTU = k.name, mtu
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: a}); err != nil {
			return nil, fmt.Errorf("add link: %w", err)
		}
		k.log.Info("tunnel to other hosts is up", "link", k.name)
		return netlink.LinkByName(k.name)
	case err != nil:
		return nil, fmt.Errorf("find link: %w", err)
	}
	if l.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return nil, fmt.Errorf("set mtu: %w", err)
		}
	}
	return l, nil
}

// ensureAddress leaves the host's address as the link's only one, and leads all others of the range there.
func ensureAddress(l netlink.Link, want Config) error {
	have, err := netlink.AddrList(l, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	own := net.IPNet{IP: want.Addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
	for i := range have {
		if have[i].IPNet.String() == own.String() {
			continue
		}
		if err := netlink.AddrDel(l, &have[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address: %w", err)
		}
	}
	if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &own}); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	return ensureRoute(l, want)
}

// ensureRoute leaves one route over the link.
func ensureRoute(l netlink.Link, want Config) error {
	to := &net.IPNet{IP: want.Range.Addr().AsSlice(), Mask: net.CIDRMask(want.Range.Bits(), 32)}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Src: want.Addr.AsSlice(), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add route: %w", err)
	}
	have, err := netlink.RouteList(l, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for i := range have {
		if have[i].Dst != nil && have[i].Dst.String() == to.String() {
			continue
		}
		if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route: %w", err)
		}
	}
	return nil
}

// ensurePeers gives the link its key and peers. Those that are right are not touched.
func (k *Kernel) ensurePeers(want Config) error {
	client, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("ask for peers: %w", err)
	}
	defer func() { _ = client.Close() }() // its questions were answered
	have, err := client.Device(k.name)
	if err != nil {
		return fmt.Errorf("ask for peers: %w", err)
	}
	change, err := k.difference(have, want)
	if err != nil {
		return err
	}
	if err := client.ConfigureDevice(k.name, change); err != nil {
		return fmt.Errorf("set peers: %w", err)
	}
	k.told = map[string]netip.AddrPort{}
	for _, p := range want.Peers {
		k.told[p.PublicKey] = p.Endpoint
	}
	return nil
}

// difference is what has to be told of what is wanted.
func (k *Kernel) difference(have *wgtypes.Device, want Config) (out wgtypes.Config, err error) {
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
		call := p.Endpoint.IsValid() && (!there || now.Endpoint == nil || k.told[p.PublicKey] != p.Endpoint)
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

// SetOverlay implements Tunnel.
func (k *Kernel) SetOverlay(context.Context, netctl.Overlay) error { return nil }

// RemoveOverlay implements Tunnel.
func (k *Kernel) RemoveOverlay(context.Context, uint32) error { return nil }

// Peers implements Tunnel.
func (k *Kernel) Peers(ctx context.Context) ([]PeerState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want == nil {
		return nil, ctx.Err()
	}
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("tunnel: ask for peers: %w", err)
	}
	defer func() { _ = client.Close() }() // its question was answered
	have, err := client.Device(k.name)
	if err != nil {
		return nil, fmt.Errorf("tunnel: ask for peers: %w", err)
	}
	real := make(map[string]wgtypes.Peer, len(have.Peers))
	for _, p := range have.Peers {
		real[p.PublicKey.String()] = p
	}
	out := make([]PeerState, 0, len(k.want))
	for _, p := range k.want {
		now := real[p.PublicKey]
		s := PeerState{Host: p.Host, Addr: p.Addr, Handshake: now.LastHandshakeTime, Received: now.ReceiveBytes, Sent: now.TransmitBytes}
		if now.Endpoint != nil {
			at := now.Endpoint.AddrPort()
			s.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b PeerState) int { return cmp.Compare(a.Host, b.Host) })
	return out, nil
}

// Drops implements Tunnel.
func (k *Kernel) Drops(context.Context) ([]netctl.Drop, error) { return nil, nil }

// Remove implements Tunnel.
func (k *Kernel) Remove(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told, k.want = nil, nil
	l, err := netlink.LinkByName(k.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("tunnel: remove link: %w", err)
	}
	return nil
}

// UserSpace implements Tunnel.
func (k *Kernel) UserSpace() bool { return false }

// Close implements Tunnel.
func (k *Kernel) Close() {}

var _ Tunnel = (*Kernel)(nil)
