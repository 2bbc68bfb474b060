package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
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

const (
	maxPlaces = 4 // of a pod
	hostsConf = "/etc/resolv.conf"
)

// networksFile is where an agent with that data folder keeps what it was told of private networks, and keyFile where the
// tunnel's private key is.
func networksFile(dir string) string { return filepath.Join(dir, "networks.bin") }
func keyFile(dir string) string      { return filepath.Join(dir, "wireguard.key") }

// newOverlays makes what looks after private networks on a host with that network.
func (d *daemon) newOverlays(host netctl.Config) *overlay.Keeper {
	p := d.Private
	return overlay.New(overlay.Config{
		Host: d.host, Control: d.Network, Tunnel: p.Tunnel, Port: p.Port, NewNames: p.NewNames, Resolv: hostsConf, Find: p.Find,
		File: networksFile(d.Dir), KeyFile: keyFile(d.Dir), KeyAge: p.KeyAge, Barred: (&barred{where: d.where, resolve: p.Resolve}).addrs,
		Changed: d.stir, Resolved: d.resolve, Sample: d.Metrics != "", Log: d.Log,
	}, host)
}

// barred finds the addresses of the control plane.
type barred struct {
	where   *directory // nil: none is known
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	mu   sync.Mutex
	last map[string][]netip.Addr // of names, as they were found last
}

// addrs returns where schedulers are, sorted. Those on this host's loopback need not be told to anybody.
func (b *barred) addrs(ctx context.Context) []netip.AddrPort {
	if b.where == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[string][]netip.Addr{}
	}
	var out []netip.AddrPort
	for _, at := range b.where.known() {
		host, text, err := net.SplitHostPort(at)
		port, perr := net.LookupPort("tcp", text)
		if err != nil || perr != nil {
			continue
		}
		for _, addr := range b.find(ctx, host) {
			if addr = addr.Unmap(); addr.Is4() && !addr.IsLoopback() && !addr.IsUnspecified() {
				out = append(out, netip.AddrPortFrom(addr, uint16(port))) //nolint:gosec // a port
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// find returns a host's addresses; those of before while a name is not found.
func (b *barred) find(ctx context.Context, host string) []netip.Addr {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resolve := b.resolve
	if resolve == nil {
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		}
	}
	if found, err := resolve(ctx, host); err == nil {
		b.last[host] = found
	}
	return b.last[host]
}

// privateLink is what an interface of a private network in a pod may be called.
var privateLink = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)

// decodePlaces reads the places of an order in private networks. The error says in a sentence what the host does not take.
func decodePlaces(in []*link.OverlayPlace) ([]pod.Place, error) {
	if len(in) > maxPlaces {
		return nil, fmt.Errorf("the order has the pod in %d private networks, of which it can be in %d", len(in), maxPlaces)
	}
	var out []pod.Place
	for _, p := range in {
		cidr, err := overlay.CheckRange(p.GetOverlayId(), p.GetVni(), p.GetCidr())
		if err != nil {
			return nil, fmt.Errorf("the order has the pod in a private network that the host does not take: %w", err)
		}
		addr, err := netip.ParseAddr(p.GetAddr())
		if err != nil || !cidr.Contains(addr) {
			return nil, errors.New("the order has the pod in a private network at an address that is not the network's")
		}
		if name := p.GetLink(); !privateLink.MatchString(name) || name == "eth0" || name == "lo" {
			return nil, errors.New("the order has the pod in a private network by a link without a proper name")
		}
		out = append(out, pod.Place{Overlay: fleet.OverlayID(p.GetOverlayId()), VNI: p.GetVni(), CIDR: cidr, Addr: addr, Link: p.GetLink()})
	}
	slices.SortFunc(out, func(a, b pod.Place) int { return int(a.VNI) - int(b.VNI) })
	for i, p := range out {
		if i > 0 && out[i-1].VNI == p.VNI || slices.ContainsFunc(out[:i], func(o pod.Place) bool { return o.Link == p.Link }) {
			return nil, errors.New("the order has the pod in one private network twice")
		}
	}
	return out, nil
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
