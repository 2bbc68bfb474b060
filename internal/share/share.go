// Package share bounds what one client may hold of what all clients share: connections, and requests under way. A client is
// an IPv4 address or an IPv6 /64. The package knows nothing of what is said over a connection.
package share

import (
	"net"
	"net/netip"
	"sync"
)

const subnetBits = 64 // what one customer of a network has in IPv6

// Why says which bound was reached.
type Why int

// What a caller was refused for.
const (
	Free Why = iota // nothing
	Own             // the caller's own share is used up
	All             // what all share is used up
)

// Of returns the client that a text of the form of http.Request.RemoteAddr stands for; all texts of another form stand for one client.
func Of(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return client(ap.Addr())
}

// OfAddr is Of for the address of a connection.
func OfAddr(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return client(tcp.AddrPort().Addr())
	}
	if a == nil {
		return netip.Addr{}
	}
	return Of(a.String())
}

func client(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		if p, err := a.Prefix(subnetBits); err == nil {
			return p.Addr()
		}
	}
	return a
}

// Held counts what each of K holds at a time, such as requests under way. It is safe for concurrent use.
type Held[K comparable] struct {
	all, each int
	exempt    func(K) bool

	mu   sync.Mutex
	sum  int
	held map[K]int
}

// NewHeld returns a count that lets each hold each, and everybody together all; 0: any number. For whom exempt, which may be nil,
// says so, only the second holds.
func NewHeld[K comparable](all, each int, exempt func(K) bool) *Held[K] {
	return &Held[K]{all: all, each: each, exempt: exempt, held: map[K]int{}}
}

// Take counts one more for who, unless a bound is reached. What is taken is given back with Give.
func (h *Held[K]) Take(who K) Why {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.each > 0 && h.held[who] >= h.each && (h.exempt == nil || !h.exempt(who)):
		return Own
	case h.all > 0 && h.sum >= h.all:
		return All
	}
	h.held[who]++
	h.sum++
	return Free
}

// Give takes back one of who.
func (h *Held[K]) Give(who K) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sum--
	if h.held[who]--; h.held[who] == 0 {
		delete(h.held, who)
	}
}

// Sum returns how many are held in all.
func (h *Held[K]) Sum() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sum
}
