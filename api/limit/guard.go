package limit

import (
	"net/netip"
	"time"
)

const (
	// DefaultFailures is how many authentications may fail in a minute at one client address unless something else was said.
	DefaultFailures = 60

	maxAddresses = 1 << 14
	subnetBits   = 64 // what one customer of a network has in IPv6
)

// Guard counts failed authentications of client addresses, against those who try keys. IPv6 addresses
// count by their /64. It is safe for concurrent use. Requests that are under way together may all fail
// before the first has been counted.
type Guard struct {
	table  *table[netip.Addr]
	quotas Quotas
}

// NewGuard returns a Guard that lets failures authentications fail per minute and address; 0: any
// number. now is the clock; it is called concurrently.
func NewGuard(failures int, now func() time.Time) *Guard {
	return &Guard{newTable[netip.Addr](maxAddresses, now), Quotas{Minute: failures}}
}

// Blocked returns for how many seconds no key from the address may be looked up; 0: it may now. remote
// is of the form of http.Request.RemoteAddr; all texts of another form count as one address.
func (g *Guard) Blocked(remote string) int {
	_, wait := g.table.look(address(remote), g.quotas).Exceeded()
	return wait
}

// Failed counts a failed authentication.
func (g *Guard) Failed(remote string) { g.table.take(address(remote), g.quotas) }

// Size returns how many addresses are remembered.
func (g *Guard) Size() int { return g.table.size() }

func address(remote string) netip.Addr {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap()
	if a.Is6() {
		if p, err := a.Prefix(subnetBits); err == nil {
			return p.Addr()
		}
	}
	return a
}
