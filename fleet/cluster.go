package fleet

import (
	"net/netip"
	"strconv"
	"time"
)

// ClusterType says what a cluster's members are set up for.
type ClusterType string

// The types.
const (
	ClusterApplication ClusterType = "APPLICATION"
	ClusterTraining    ClusterType = "TRAINING"
	ClusterSlurm       ClusterType = "SLURM" // rank 0 is the controller
	ClusterRay         ClusterType = "RAY"   // rank 0 is the head
)

const (
	// ClusterLink is the name of the interface of a cluster's network in a member (wire-facts.md 7).
	ClusterLink = "ens1"
	// ClusterPort is that of MASTER_PORT.
	ClusterPort = 29500
	// MinClusterPods is how many members a cluster has at least.
	MinClusterPods = 2
)

// Cluster is a set of pods of one shape, each on a host of its own in one data center, in a private network of their own.
type Cluster struct {
	ID         ClusterID    `cbor:"1,keyasint"`
	Account    AccountID    `cbor:"2,keyasint"`
	Name       string       `cbor:"3,keyasint"`
	Type       ClusterType  `cbor:"4,keyasint"`
	GPU        GPURequest   `cbor:"5,keyasint"` // of each member
	Count      int          `cbor:"6,keyasint"` // members
	Template   TemplateID   `cbor:"7,keyasint,omitempty"`
	DataCenter DataCenterID `cbor:"8,keyasint"`
	Rev        uint64       `cbor:"9,keyasint"`
	CreatedAt  time.Time    `cbor:"10,keyasint"`
	OnFailure  OnFailure    `cbor:"11,keyasint,omitempty"`
	// Tries counts the restarts by itself since the members last ran for ten minutes, and RestartedAt is when the last restart was, also
	// one by its owner.
	Tries       int       `cbor:"12,keyasint,omitempty"`
	RestartedAt time.Time `cbor:"13,keyasint,omitzero"`
}

// OnFailure is what a cluster does when a member fails.
type OnFailure string

// The rules; empty is OnFailureNone.
const (
	OnFailureNone    OnFailure = "none"    // nothing
	OnFailureRestart OnFailure = "restart" // all members restart together, after a pause
	OnFailureStop    OnFailure = "stop"    // all members are stopped
)

// ClusterOverlay is the id of the network of a cluster's members.
func ClusterOverlay(id ClusterID) OverlayID { return OverlayID("cluster-" + string(id)) }

// NodeName is the name of a cluster's member in the cluster's network.
func NodeName(rank int) string { return "node-" + strconv.Itoa(rank) }

// Role is what a member of a rank is in a cluster of the type; empty: nothing beside the others.
func (t ClusterType) Role(rank int) string {
	switch {
	case t == ClusterSlurm && rank == 0:
		return "SLURM_CONTROLLER"
	case t == ClusterSlurm:
		return "SLURM_COMPUTE"
	case t == ClusterRay && rank == 0:
		return "RAY_HEAD"
	case t == ClusterRay:
		return "RAY_WORKER"
	}
	return ""
}

// ClusterRequest asks for a cluster.
type ClusterRequest struct {
	Type      ClusterType
	Count     int
	OnFailure OnFailure
	Pod       PodRequest
}

// ClusterStatus says how a cluster's members are together.
type ClusterStatus string

// The statuses.
const (
	ClusterStarting ClusterStatus = "STARTING" // members are on their way
	ClusterReady    ClusterStatus = "READY"    // all run
	ClusterDegraded ClusterStatus = "DEGRADED" // one failed, ended or cannot be reached
	ClusterStopped  ClusterStatus = "STOPPED"  // none runs, or is to
)

// ClusterFault says what is wrong with a member.
type ClusterFault struct {
	Rank   int
	Pod    PodID
	Host   HostID
	Reason string
	Log    string // its last lines
}

// ClusterPods is a cluster with its members.
type ClusterPods struct {
	Cluster Cluster
	Overlay Overlay
	Port    int // UDP, of VXLAN
	Status  ClusterStatus
	Faults  []ClusterFault // by rank
	Pods    []PodView      // by rank
}

// ClusterAddr returns a member's address in its cluster's network, whether it takes part at present or not; the zero Addr: it
// never had one.
func (p *Pod) ClusterAddr() netip.Addr {
	for _, at := range p.Overlays {
		if at.Overlay == ClusterOverlay(ClusterID(p.Owner.ID)) {
			return at.Addr
		}
	}
	return netip.Addr{}
}

// The bounds of a MemberSetup.
const (
	MaxPodFiles     = 64
	MaxPodFileBytes = 1 << 20 // of all files and lines of one pod
)

// MemberSetup is what a member of a cluster finds in its container, beside the image's files and its environment.
type MemberSetup struct {
	Hostname string
	Hosts    string // lines that /etc/hosts ends with
	Files    []PodFile
	Fabric   bool // the host passes its fabric into the container
}

// PodFile is a file that is written into a container's own file system before its process begins. It belongs to root.
type PodFile struct {
	Path string // clean, absolute
	Text Secret
	Mode uint32 // permission bits
}

// ClusterPlace returns a member's place in its cluster's network; false: its present incarnation takes no part in it.
func (p *Pod) ClusterPlace() (OverlayPlace, bool) {
	for _, at := range p.Overlays {
		if at.Overlay == ClusterOverlay(ClusterID(p.Owner.ID)) && at.On {
			return at, true
		}
	}
	return OverlayPlace{}, false
}
