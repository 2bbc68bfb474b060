// Package dns answers the names that pods ask for: those of their private networks itself, all others by asking the host's
// resolvers. What answers is a process of its own without rights (Run), which the agent starts, fills and adopts again
// (Process). Nothing here is durable: the tables are in the process's memory, and who has them is the agent.
package dns

import "net/netip"

// Base is what concerns all pods.
type Base struct {
	// Suffixes are the internal ones, without dots at their ends. All mean the same; the first one stands in answers.
	Suffixes []string
	// Ranges hold the addresses whose names are asked of nobody else: those of private networks and of pods on hosts. IPv4.
	Ranges []netip.Prefix
	// Upstreams answer all other questions. The first one that is well is asked.
	Upstreams []netip.AddrPort
}

// Overlay is the names in one private network. Two members may have one name: then it means neither.
type Overlay struct {
	VNI     uint32
	Members []Name // in any order, each address once
}

// Name is a member of a private network: what its address is called.
type Name struct {
	Addr netip.Addr `json:"a"`
	Pod  string     `json:"p"`           // id of the pod
	Name string     `json:"n,omitempty"` // of the pod; one that is no DNS label cannot be asked for
}

// Stats count what happened since the process began.
type Stats struct {
	Internal  uint64 `json:"internal"`  // answered from the tables, also with "there is none"
	Forwarded uint64 `json:"forwarded"` // sent on
	Failed    uint64 `json:"failed"`    // sent on, and no upstream had an answer
	Refused   uint64 `json:"refused"`   // of senders that are no pods, or of a kind that is not answered
	Malformed uint64 `json:"malformed"`
	Limited   uint64 `json:"limited"` // more than a pod may ask in a time
	Busy      uint64 `json:"busy"`    // more than may be under way at once
	Closed    uint64 `json:"closed"`  // connections above a limit
}
