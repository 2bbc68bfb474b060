// Package tunnel carries overlays' frames between hosts through WireGuard: one device on each host, and one peer for each
// other host, of which it takes only what comes from that host's own address in the tunnel. Inside rides VXLAN over UDP over
// IPv4, which the kernel does. It does WireGuard too where it can; elsewhere the process `gantry-net wireguard` does, at a TUN, much
// slower. Both speak the same on the wire.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"gantry/netctl"
)

const (
	// Overhead is what VXLAN adds to a packet of a pod inside the tunnel, in bytes: Ethernet, VXLAN, UDP and IPv4.
	Overhead = 50

	minMTU   = 576
	maxMTU   = 8930
	maxPeers = 4096
	maxHost  = 64
)

// ErrDown says that the tunnel's process is not there now. It is started again, and filled with all it has to know; the caller
// need not repeat anything.
var ErrDown = errors.New("the tunnel's process is not running")

// Config is the tunnel that one host should have.
type Config struct {
	// Instance tells the agents of one machine apart (netctl.Config).
	Instance string
	// Addr is the host's own address in the tunnel, one of Range, which holds those of all hosts. Both are of IPv4.
	Addr  netip.Addr
	Range netip.Prefix
	// ListenPort is the UDP port of WireGuard, VXLANPort that of VXLAN inside the tunnel.
	ListenPort, VXLANPort uint16
	// MTU is that of pods' links in overlays, in bytes.
	MTU int
	Key Key `json:"-"`
	// Peers may be in any order. No two have one Host, PublicKey or Addr.
	Peers []Peer
}

// Peer is another host.
type Peer struct {
	Host      string // its id
	PublicKey string // base64
	Addr      netip.Addr
	// Endpoint is where it is called; the zero value: it calls. Wherever it was heard last is where it is answered.
	Endpoint netip.AddrPort
	// Keepalive is how often it hears from this host without cause, in whole seconds to 65,535; 0: never.
	Keepalive time.Duration
}

// PeerState is what is known of the tunnel to another host.
type PeerState struct {
	Host           string
	Addr           netip.Addr
	Endpoint       netip.AddrPort // where it was heard last, or is to be called; the zero value: neither
	Handshake      time.Time      // the last; zero: none yet
	Received, Sent int64          // bytes
}

// Tunnel is the host's end of it. All verbs are safe for concurrent use, and may be repeated.
type Tunnel interface {
	// Set makes the tunnel as given. What is right is left untouched: sessions with other peers go on.
	Set(ctx context.Context, want Config) error
	// Peers returns the state of all peers, by Host.
	Peers(ctx context.Context) ([]PeerState, error)
	// Remove takes the tunnel away; one that is not there is no error.
	Remove(ctx context.Context) error
	// UserSpace says that the tunnel is a process.
	UserSpace() bool
	// Close lets go of it. The tunnel stays, for the next agent.
	Close()
}

// Validate says what is wrong with the value.
func (c Config) Validate() error {
	if err := netctl.CheckInstance(c.Instance); err != nil {
		return err
	}
	switch {
	case !c.Addr.Is4() || !c.Range.IsValid() || c.Range != c.Range.Masked() || !c.Range.Contains(c.Addr):
		return errors.New("tunnel: want an address of IPv4 inside its range")
	case c.ListenPort == 0 || c.VXLANPort == 0:
		return errors.New("tunnel: want two ports")
	case c.MTU < minMTU || c.MTU > maxMTU:
		return fmt.Errorf("tunnel: mtu: want %d to %d", minMTU, maxMTU)
	case c.Key == Key{}:
		return errors.New("tunnel: there is no key")
	case len(c.Peers) > maxPeers:
		return fmt.Errorf("tunnel: want at most %d peers", maxPeers)
	}
	return c.validatePeers()
}

func (c Config) validatePeers() error {
	own, seen := c.Key.Public(), make(map[string]bool, 3*len(c.Peers))
	for _, p := range c.Peers {
		if err := p.validate(c); err != nil {
			return fmt.Errorf("tunnel: peer %q: %w", p.Host, err)
		}
		for _, word := range []string{"host " + p.Host, "key " + p.PublicKey, "address " + p.Addr.String()} {
			if seen[word] {
				return fmt.Errorf("tunnel: peer %q: another peer has the same %s", p.Host, word)
			}
			seen[word] = true
		}
		if p.PublicKey == own {
			return fmt.Errorf("tunnel: peer %q has this host's own key", p.Host)
		}
	}
	return nil
}

func (p Peer) validate(c Config) error {
	if p.Host == "" || len(p.Host) > maxHost {
		return fmt.Errorf("host: want 1 to %d characters", maxHost)
	}
	if _, err := parsePublic(p.PublicKey); err != nil {
		return err
	}
	switch {
	case !c.Range.Contains(p.Addr) || p.Addr == c.Addr:
		return errors.New("address: want another one of the range")
	case p.Endpoint != netip.AddrPort{} && (!p.Endpoint.IsValid() || p.Endpoint.Port() == 0 || p.Endpoint.Addr().IsUnspecified() || p.Endpoint.Addr().Zone() != ""):
		return errors.New("endpoint: want an address and a port")
	case p.Keepalive < 0 || p.Keepalive > 65535*time.Second || p.Keepalive%time.Second != 0:
		return errors.New("keepalive: want 0 to 65,535 whole seconds")
	}
	return nil
}
