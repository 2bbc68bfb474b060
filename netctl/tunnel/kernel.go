package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"

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
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		a := netlink.NewLinkAttrs()
		a.Name, a.MTU = k.name, want.MTU+Overhead
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: a}); err != nil {
			return nil, fmt.Errorf("add link: %w", err)
		}
		k.log.Info("tunnel to other hosts is up", "link", k.name)
		return netlink.LinkByName(k.name)
	case err != nil:
		return nil, fmt.Errorf("find link: %w", err)
	}
	return l, ensureMTU(l, want)
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
	change, err := difference(have, want, k.told)
	if err != nil {
		return err
	}
	if err := client.ConfigureDevice(k.name, change); err != nil {
		return fmt.Errorf("set peers: %w", err)
	}
	k.told = endpoints(want.Peers)
	return nil
}

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
	return states(have, k.want), nil
}

// Remove implements Tunnel.
func (k *Kernel) Remove(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told, k.want = nil, nil
	l, err := netlink.LinkByName(k.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) || err == nil && l.Type() != k.typ { // it is a process's
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
