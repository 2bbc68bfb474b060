package limit

import (
	"net/netip"
	"time"

	"gantry/internal/share"
)

const (
	// DefaultFailures is how many requests may fail in a minute at one client address unless something else was said.
	DefaultFailures = 60

	maxAddresses = 1 << 14
)

// Guard counts failed requests of client addresses, against those who try keys and paths. IPv6 addresses
// count by their /64. It is safe for concurrent use. Requests that are under way together may all fail
// before the first has been counted.
type Guard struct {
	table  *table[netip.Addr]
	quotas Quotas
}

// NewGuard returns a Guard that lets failures requests fail per minute and address; 0: any
// number. now is the clock; it is called concurrently.
func NewGuard(failures int, now func() time.Time) *Guard {
	return &Guard{newTable[netip.Addr](maxAddresses, now), Quotas{Minute: failures}}
}

// Blocked returns for how many seconds the address has failed often enough; 0: it may fail now. remote
// is of the form of http.Request.RemoteAddr; all texts of another form count as one address.
func (g *Guard) Blocked(remote string) int {
	_, wait := g.table.look(share.Of(remote), g.quotas).Exceeded()
	return wait
}

// Failed counts a failed request.
func (g *Guard) Failed(remote string) { g.table.take(share.Of(remote), g.quotas) }

// Size returns how many addresses are remembered.
func (g *Guard) Size() int { return g.table.size() }
