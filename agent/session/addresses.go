package session

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Addresses finds the addresses of the control plane.
type Addresses struct {
	where   *Directory
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	mu   sync.Mutex
	last map[string][]netip.Addr // of names, as they were found last
}

// Addresses resolves what the directory knows. resolve finds the addresses of a name; nil: the host's resolver does.
func (d *Directory) Addresses(resolve func(ctx context.Context, host string) ([]netip.Addr, error)) *Addresses {
	if resolve == nil {
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		}
	}
	return &Addresses{where: d, resolve: resolve, last: map[string][]netip.Addr{}}
}

// All returns where schedulers are, sorted. Those on this host's loopback need not be told to anybody.
func (b *Addresses) All(ctx context.Context) []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []netip.AddrPort
	for _, at := range b.where.Known() {
		host, text, _ := net.SplitHostPort(at) // the directory has checked both
		port, _ := net.LookupPort("tcp", text)
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
func (b *Addresses) find(ctx context.Context, host string) []netip.Addr {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if found, err := b.resolve(ctx, host); err == nil {
		b.last[host] = found
	}
	return b.last[host]
}
