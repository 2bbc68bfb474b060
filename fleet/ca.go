package fleet

import "time"

// NodeCertificate is what a host or a scheduler says of its own certificate, and of the CAs that it trusts. A zero one says nothing: the
// program is older, or was not heard yet.
type NodeCertificate struct {
	CA     string    `cbor:"1,keyasint,omitempty"` // digest of the CA that signed it
	Trusts []string  `cbor:"2,keyasint,omitempty"` // digests of CAs, sorted; what it will go by after a crash too
	EndsAt time.Time `cbor:"3,keyasint,omitzero"`
}

// RotationStep is how far a cluster has come on its way from one CA to the next.
type RotationStep string

// The steps. Without one, there is but one CA.
const (
	RotationSpreads RotationStep = "spreads" // the next CA is made known to everybody; the old one signs
	RotationRenews  RotationStep = "renews"  // the next CA signs; the old one is trusted until every certificate is new
)

// CAState is what a CA is to the cluster.
type CAState string

// The states.
const (
	CASigns CAState = "signs"
	CANext  CAState = "next"    // trusted, and to sign when everybody knows it
	CAOld   CAState = "retires" // trusted until nobody needs it
)

// CARecord is one CA of the cluster.
type CARecord struct {
	Digest              string // SHA-256 of the certificate, hexadecimal
	State               CAState
	NotBefore, NotAfter time.Time
}

// CANode is a host, a scheduler or a gateway, with its certificate as it told it last.
type CANode struct {
	Scheduler   bool
	Gateway     bool
	ID          string
	Name        string
	Certificate NodeCertificate
	// Waits says in one sentence what the present step waits for of it; empty: nothing.
	Waits string
}

// CAView is the cluster's CA and who is still to follow a change of it.
type CAView struct {
	CAs     []CARecord   // the one that signs first
	Step    RotationStep // empty: none is under way
	BegunAt time.Time    // of the rotation; zero: none is under way
	SignsAt time.Time    // since when the new CA signs; zero: it does not
	// EndsBy is when the step ends at the latest, since no certificate of the old CA is valid any more; zero: it has no such end.
	EndsBy  time.Time
	Waiting int      // how many nodes the step waits for
	Nodes   []CANode // all that are not gone: those that it waits for first, then by when their certificates end
}
