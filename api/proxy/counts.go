package proxy

import "sync/atomic"

type counts struct{ address, pod, account, all atomic.Uint64 }

// Counts are those of a Proxy since it was made.
type Counts struct {
	Open int // requests under way, WebSockets included
	// Requests that were refused because too many were under way: of the client's address, for the pod, for its account, in all.
	Address, Pod, Account, All uint64
}

// Counts returns what was counted.
func (p *Proxy) Counts() Counts {
	r := &p.refused
	return Counts{Open: p.pods.Sum(), Address: r.address.Load(), Pod: r.pod.Load(), Account: r.account.Load(), All: r.all.Load()}
}
