package state

import (
	"bytes"
	"slices"
	"time"

	"gantry/fleet"
)

// maxCA bounds each part of a CA in the state, in bytes; one has about 700.
const maxCA = 16 << 10

// Rotation is the way of a cluster from one CA to the next. The one that signs is in the cluster's own record.
type Rotation struct {
	Step      fleet.RotationStep `cbor:"1,keyasint"`
	Other     []byte             `cbor:"2,keyasint"`           // certificate of the next CA, and once that signs of the old one
	SealedKey []byte             `cbor:"3,keyasint,omitempty"` // of the next; the key of the old one is forgotten
	Bridge    []byte             `cbor:"4,keyasint"`           // certificate by which the old CA vouches for the next
	BegunAt   time.Time          `cbor:"5,keyasint"`
	SignsAt   time.Time          `cbor:"6,keyasint,omitzero"` // since when the next one signs
}

// Trusted returns the certificates of the CAs that are to be trusted, as PEM, the one that signs first.
func (c *Cluster) Trusted() []byte {
	if c.Rotation == nil {
		return c.CA
	}
	return slices.Concat(c.CA, c.Rotation.Other)
}

// BeginRotation makes another CA known, which is trusted from now on and signs nothing yet. Errors: rule (another rotation is under
// way), invalid.
type BeginRotation struct {
	CA        []byte    `cbor:"1,keyasint"` // certificate
	SealedKey []byte    `cbor:"2,keyasint"`
	Bridge    []byte    `cbor:"3,keyasint"`
	At        time.Time `cbor:"4,keyasint"`
}

// AdvanceRotation ends a step of the rotation that began at BegunAt: the next CA signs instead of the old one, or the old one is trusted
// no more. Errors: stale (it is not at that step, or another one), not_allowed (as of PurgePods).
type AdvanceRotation struct {
	From    fleet.RotationStep `cbor:"1,keyasint"`
	BegunAt time.Time          `cbor:"2,keyasint"`
	At      time.Time          `cbor:"3,keyasint"`
}

func (c BeginRotation) apply(t *txn) (any, error) {
	cluster, err := t.cluster()
	if err != nil {
		return nil, err
	}
	switch {
	case cluster.Rotation != nil:
		return nil, fleet.BreaksRule("The cluster is on its way from one CA to the next already.")
	case c.At.IsZero():
		return nil, fleet.Invalid("$.at", "must be set")
	case bytes.Equal(c.CA, cluster.CA):
		return nil, fleet.Invalid("$.ca", "is the one that signs already")
	}
	for _, part := range [][]byte{c.CA, c.SealedKey, c.Bridge} {
		if len(part) == 0 || len(part) > maxCA {
			return nil, fleet.Invalid("$.ca", "must have a certificate, a key and a bridge of at most 16384 bytes each")
		}
	}
	cluster.Rotation = &Rotation{
		Step: fleet.RotationSpreads, Other: slices.Clone(c.CA), SealedKey: slices.Clone(c.SealedKey), Bridge: slices.Clone(c.Bridge), BegunAt: c.At,
	}
	t.putCluster(cluster)
	return nil, nil
}

func (c AdvanceRotation) apply(t *txn) (any, error) {
	cluster, err := t.cluster()
	if err != nil {
		return nil, err
	}
	r := cluster.Rotation
	if err := t.final(c.At); err != nil {
		return nil, err
	}
	if r == nil || r.Step != c.From || !r.BegunAt.Equal(c.BegunAt) {
		return nil, fleet.Stale("the cluster's CA is not at that step of that change any more")
	}
	if r.Step == fleet.RotationRenews {
		cluster.Rotation = nil
	} else {
		next := *r
		next.Step, next.Other, next.SealedKey, next.SignsAt = fleet.RotationRenews, cluster.CA, nil, c.At
		cluster.CA, cluster.SealedCAKey, cluster.Rotation = r.Other, r.SealedKey, &next
	}
	t.putCluster(cluster)
	return nil, nil
}

// putCluster writes the cluster's record.
func (t *txn) putCluster(c Cluster) {
	t.base.cluster.Put(t.Txn, onlyKey, &c)
	t.Note(KindMember, "")
}
