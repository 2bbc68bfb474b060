// Package outbound says which addresses a program may connect to on behalf of a user: a registry that a pod's image is
// pulled from, a webhook that is called. Whatever name or redirect leads there, the address that is about to be connected
// to is looked at, so that no user reaches services of the host, its pods, the control plane or a cloud's metadata.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ErrRefused is matched by the error of a connection that is not allowed.
var ErrRefused = errors.New("address is not allowed")

// Guard says which addresses may be connected to. The zero value opens all that are nobody's own.
type Guard struct {
	Bridge string // the pods' bridge; empty: none
	// Allow opens private ranges, Deny closes any. Never has addresses that are closed whatever is allowed; nil: none.
	Allow, Deny []netip.Prefix
	Never       *Resolved
}

// private are the ranges of networks that are somebody's own: of the operator, where a registry may be, and also what
// manages machines and their storage. They are closed but for what Guard.Allow names.
func private() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Transport makes one that reaches no address of this host, of its pods or of its cloud's metadata
// service, whatever name or redirect leads there: it looks at each address that is about to be
// connected to. With loopback, the host's loopback addresses may be reached. It uses no proxy, which would hide the
// address. Errors of connections that are refused match ErrRefused.
func (g Guard) Transport(loopback bool) *http.Transport {
	d := net.Dialer{
		Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
		ControlContext: func(ctx context.Context, network, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || g.Refuses(ctx, ap.Addr(), loopback) {
				return fmt.Errorf("dial %s: %w", network, ErrRefused)
			}
			return nil
		},
	}
	return &http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout: 30 * time.Second, MaxIdleConns: 10, ExpectContinueTimeout: 5 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Refuses reports whether an address may not be connected to.
func (g Guard) Refuses(ctx context.Context, a netip.Addr, loopback bool) bool {
	a = plain(a)
	switch {
	case refused(a, loopback):
		return true
	case a.IsLoopback():
		return false
	case g.ours(a), g.Never.has(ctx, a), contains(g.Deny, a):
		return true
	}
	return contains(private(), a) && !contains(g.Allow, a)
}

const (
	resolveAgain = time.Minute
	resolveMost  = 2 * time.Second // for one name
)

// Resolved knows the addresses of machines that are named as HOST:PORT. A nil one knows none. It is safe for concurrent use.
type Resolved struct {
	list func() []string

	mu    sync.Mutex // guards the fields below
	at    time.Time  // when names were looked up last
	names map[string][]netip.Addr
}

// Resolve returns the addresses of those that list names; it is called each time that an address is looked at.
func Resolve(list func() []string) *Resolved { return &Resolved{list: list} }

func (r *Resolved) has(ctx context.Context, a netip.Addr) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	before, at := r.names, r.at
	r.mu.Unlock()
	fresh, now := time.Since(at) < resolveAgain, map[string][]netip.Addr{}
	for _, hostPort := range r.list() {
		host, _, err := net.SplitHostPort(hostPort)
		if err != nil {
			continue
		}
		if known, ok := before[host]; ok && fresh {
			now[host] = known
		} else {
			now[host] = lookUp(ctx, host, known)
		}
	}
	if !fresh {
		at = time.Now()
	}
	r.mu.Lock()
	r.names, r.at = now, at
	r.mu.Unlock()
	for _, addrs := range now {
		if slices.ContainsFunc(addrs, func(b netip.Addr) bool { return plain(b) == a }) {
			return true
		}
	}
	return false
}

// lookUp returns the addresses of a name, or those of before when they cannot be had.
func lookUp(ctx context.Context, host string, before []netip.Addr) []netip.Addr {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveMost)
	defer cancel()
	if now, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host); err == nil {
		return now
	}
	return before
}

// ours reports whether an address is one of the host's own or in the pods' subnet. Links come and go,
// so it is asked each time; when the answer cannot be had, it is yes.
func (g Guard) ours(a netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, o := range own {
		if p, ok := prefixOf(o); !ok || p.Addr() == a {
			return true
		}
	}
	if g.Bridge == "" {
		return false
	}
	link, err := net.InterfaceByName(g.Bridge)
	if err != nil {
		return false // there is no pod
	}
	pods, err := link.Addrs()
	if err != nil {
		return true
	}
	for _, o := range pods {
		if p, ok := prefixOf(o); !ok || p.Contains(a) {
			return true
		}
	}
	return false
}

// prefixOf returns the address of a link, with the length of its subnet.
func prefixOf(a net.Addr) (netip.Prefix, bool) {
	n, ok := a.(*net.IPNet)
	if !ok {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits), true
}

// plain returns the IPv4 address that an IPv6 one stands for, else itself without its zone.
func plain(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	if netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// isMetadata names addresses at which clouds serve a machine's credentials, beside link-local ones.
func isMetadata(a netip.Addr) bool {
	switch a.String() {
	case "fd00:ec2::254", "100.100.100.200", "168.63.129.16":
		return true
	}
	return false
}

// refused names what is no other machine's address on any host.
func refused(a netip.Addr, loopback bool) bool {
	a = plain(a)
	if a.IsLoopback() {
		return !loopback
	}
	return a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || isMetadata(a) ||
		a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}))
}
