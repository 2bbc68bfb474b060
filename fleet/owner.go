package fleet

// OwnerKind is what a pod can belong to, besides its account.
type OwnerKind string

// The kinds.
const (
	OwnerEndpoint OwnerKind = "endpoint" // the pod is a worker of it
	OwnerCluster  OwnerKind = "cluster"  // the pod is a member of it
)

// Owner is what made a pod and decides about it; the zero value: its account. A pod with another owner is not among those that the
// account lists, acts on or changes; it counts in the account's limits, and its owner is charged for it.
type Owner struct {
	Kind OwnerKind `cbor:"1,keyasint,omitempty"`
	ID   string    `cbor:"2,keyasint,omitempty"` // an EndpointID or a ClusterID
}

// Owner returns an endpoint as an owner.
func (id EndpointID) Owner() Owner { return Owner{OwnerEndpoint, string(id)} }

// Owner returns a cluster as an owner.
func (id ClusterID) Owner() Owner { return Owner{OwnerCluster, string(id)} }

// Check refuses what is no owner.
func (o Owner) Check() error {
	switch {
	case o == Owner{}:
		return nil
	case o.Kind != OwnerEndpoint && o.Kind != OwnerCluster:
		return Invalid("$.owner.kind", "must be endpoint or cluster")
	case !ValidID(o.ID):
		return Invalid("$.owner.id", "must be an identifier")
	}
	return nil
}
