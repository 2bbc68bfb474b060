package agent

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/netctl"
	"gantry/netctl/tunnel"
)

// Private says how a host takes part in private networks.
type Private struct {
	Tunnel tunnel.Tunnel // to other hosts; nil: there is none
	Port   uint16        // of WireGuard; 0: that of the operator's settings
	// NewNames begins to answer the names that pods ask the gateway for; nil: nobody does.
	NewNames func(gateway netip.Addr) (overlay.Names, error)
	// Find is that of overlay.Config.
	Find   func(ctx context.Context, port uint16) (endpoint netip.AddrPort, plain netip.Addr, err error)
	KeyAge time.Duration // after which the tunnel has another key; 0: never
	// Resolve finds the addresses of a scheduler that is known by its name; nil: the host's resolver does.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Within runs a function in a named network namespace; nil: pods are not asked to reach each other.
	Within func(namespace string, f func() error) error
}

const hostsConf = "/etc/resolv.conf"

// networksFile is where an agent with that data folder keeps what it was told of private networks, and keyFile where the
// tunnel's private key is.
func networksFile(dir string) string { return filepath.Join(dir, "networks.bin") }
func keyFile(dir string) string      { return filepath.Join(dir, "wireguard.key") }

// newOverlays makes what looks after private networks on a host with that network.
func (d *daemon) newOverlays(host netctl.Config) *overlay.Keeper {
	p := d.Private
	return overlay.New(overlay.Config{
		Host: d.host, Control: d.Network, Tunnel: p.Tunnel, Port: p.Port, NewNames: p.NewNames, Resolv: hostsConf, Find: p.Find,
		File: networksFile(d.Dir), KeyFile: keyFile(d.Dir), KeyAge: p.KeyAge, Barred: d.where.Addresses(p.Resolve).All,
		Changed: d.stir, Resolved: d.resolve, Sample: d.Metrics != "", Log: d.Log,
	}, host)
}

// sharePlaces takes places from pods that others have already: first have those that run, then later orders. Such as after the control
// plane was restored from a copy, a ledger may hold two; both at once are no network, and the agent would not start.
func sharePlaces(pods []attachment) {
	type at struct {
		vni  uint32
		addr netip.Addr
	}
	taken, ranges := map[at]bool{}, map[uint32]netip.Prefix{}
	for _, runs := range []bool{true, false} {
		for i := range slices.Backward(pods) {
			if pods[i].runs != runs {
				continue
			}
			link := &pods[i].link
			link.Overlays = slices.DeleteFunc(slices.Clone(link.Overlays), func(p pod.Place) bool {
				cidr, known := ranges[p.VNI]
				return known && cidr != p.CIDR || taken[at{p.VNI, p.Addr}]
			})
			for _, p := range link.Overlays {
				taken[at{p.VNI, p.Addr}], ranges[p.VNI] = true, p.CIDR
			}
		}
	}
}

// resolve has pods that run ask where pods ask that are made now.
func (d *daemon) resolve(text string) {
	for _, rec := range d.book.Records() {
		if _, runs := rec.Holds(); !runs {
			continue
		}
		if err := rewrite(filepath.Join(d.Dir, "pods", string(rec.Assignment.Pod), "resolv.conf"), text); err != nil {
			d.Log.Warn("write a pod's resolv.conf", "pod", rec.Assignment.Pod, "err", err)
		}
	}
}

// rewrite gives a file another text, where it is: it is mounted in a container. One that is not there is not made.
func rewrite(path, text string) error {
	if old, err := os.ReadFile(path); err != nil || string(old) == text {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text) // without a moment in which it is empty
	return errors.Join(err, f.Truncate(int64(len(text))), f.Close())
}

func encodeTunnel(t fleet.HostTunnel) *link.HostTunnel {
	if t.PublicKey == "" {
		return nil
	}
	out := &link.HostTunnel{PublicKey: t.PublicKey, UserSpace: t.UserSpace}
	if t.Endpoint.IsValid() {
		out.Endpoint = t.Endpoint.String()
	}
	if t.Plain.IsValid() {
		out.Plain = t.Plain.String()
	}
	return out
}

// pinger opens what sends echoes from a pod's network.
func (d *daemon) pinger(id fleet.PodID) (p *overlay.Pinger, err error) {
	if d.Private.Within == nil {
		return nil, fleet.Unavailable("this host sends no echoes from pods", nil)
	}
	err = d.Private.Within(netctl.NamespaceName(d.Instance, string(id)), func() error {
		p, err = overlay.OpenPinger()
		return err
	})
	return p, err
}
