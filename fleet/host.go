package fleet

import (
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"
)

// HostState is what the control plane knows of a host's readiness.
type HostState string

// The states of a host. A record holds joining, ready, unreachable, fenced or gone; of a ready host,
// Host.Shown tells cordoned or draining instead.
const (
	HostJoining     HostState = "joining"     // has a certificate, has not connected yet
	HostReady       HostState = "ready"       // connected, takes pods
	HostCordoned    HostState = "cordoned"    // connected, takes no new pods
	HostDraining    HostState = "draining"    // connected, takes no new pods and is being emptied
	HostUnreachable HostState = "unreachable" // its session is lost; its pods may still run
	HostFenced      HostState = "fenced"      // an operator vouches that nothing runs there any more
	HostGone        HostState = "gone"        // removed for good; its certificate is refused
)

// Eligibility says whether a host takes new pods.
type Eligibility string

// The eligibilities of a host.
const (
	EligibilityOpen     Eligibility = ""
	EligibilityCordoned Eligibility = "cordoned"
	EligibilityDraining Eligibility = "draining"
)

// GPU is one device of a host.
type GPU struct {
	UUID      string `cbor:"1,keyasint"`
	Type      string `cbor:"2,keyasint"` // NVIDIA's device name
	MemoryMB  int64  `cbor:"3,keyasint"`
	NUMA      int    `cbor:"4,keyasint"`
	Island    int    `cbor:"5,keyasint"` // GPUs of one number are joined by NVLink
	Simulated bool   `cbor:"6,keyasint,omitempty"`
	Sick      string `cbor:"7,keyasint,omitempty"` // why it is out of placement; empty when healthy
	PCI       string `cbor:"8,keyasint,omitempty"` // bus address, "0000:3b:00.0"
	Parent    string `cbor:"9,keyasint,omitempty"` // of a MIG instance: the UUID of the GPU that it is a slice of
	// Cordoned is why an operator took it out of service; empty: it is in service. It follows from Host.GPUCordons.
	Cordoned string `cbor:"10,keyasint,omitempty"`
}

// ConditionPrefetchFailed is the code of the condition that a host could not get an image that it was asked for ahead of pods.
// Its text begins with "image ", the reference and " was not prefetched".
const ConditionPrefetchFailed = "prefetch_failed"

// Condition is something that an operator should know of a host: what it does without, or what is wrong with it.
type Condition struct {
	Code string `cbor:"1,keyasint"` // snake case, stable, listed in docs/operations.md
	Text string `cbor:"2,keyasint"` // one sentence
	// Severe says that the host takes no new pods because of it.
	Severe bool `cbor:"3,keyasint,omitempty"`
}

// Inventory is what a host has, as its agent reports it when it connects.
type Inventory struct {
	Total        Resources `cbor:"1,keyasint"` // what pods may use: the system's reserve is already off
	GPUs         []GPU     `cbor:"2,keyasint,omitempty"`
	CUDA         string    `cbor:"3,keyasint,omitempty"` // newest CUDA version that the driver offers, "12.8"
	Driver       string    `cbor:"4,keyasint,omitempty"`
	Kernel       string    `cbor:"5,keyasint,omitempty"`
	Runtime      string    `cbor:"6,keyasint,omitempty"` // "containerd 1.6.20, runc 1.1.5"
	AgentVersion string    `cbor:"7,keyasint,omitempty"`
	Images       []string  `cbor:"8,keyasint,omitempty"` // references that are on the host, at most 200
	// Public ports: PortFrom to PortTo of PublicIP are forwarded to pods. Zero: the host publishes none.
	PublicIP string `cbor:"9,keyasint,omitempty"`
	PortFrom int    `cbor:"10,keyasint,omitempty"`
	PortTo   int    `cbor:"11,keyasint,omitempty"`

	Conditions   []Condition `cbor:"12,keyasint,omitempty"` // by code, at most 32
	RuntimeClass string      `cbor:"13,keyasint,omitempty"` // what isolates pods beyond the kernel: "" (runc), "gvisor" or "kata"

	Volumes []BackendKind `cbor:"14,keyasint,omitempty"` // of network volumes, that the host can mount
	Tunnel  HostTunnel    `cbor:"15,keyasint,omitzero"`

	Certificate NodeCertificate `cbor:"16,keyasint,omitzero"`  // the host's own
	Models      []string        `cbor:"18,keyasint,omitempty"` // references of models that are on the host, at most 200
	// Digest names what the host said, of which this is what was kept; empty: the host says it whole each time.
	Digest string `cbor:"17,keyasint,omitempty"`
	Fabric Fabric `cbor:"19,keyasint,omitzero"`
}

// Host is the record of a host.
type Host struct {
	ID         HostID       `cbor:"1,keyasint"`
	Name       string       `cbor:"2,keyasint"`
	DataCenter DataCenterID `cbor:"3,keyasint"`
	Cloud      Cloud        `cbor:"4,keyasint"`
	State      HostState    `cbor:"5,keyasint"`
	MachineID  string       `cbor:"6,keyasint"` // bound at join
	BootID     string       `cbor:"7,keyasint,omitempty"`
	Epoch      uint64       `cbor:"8,keyasint"` // grows with every session
	Rev        uint64       `cbor:"9,keyasint"`
	Generation uint64       `cbor:"10,keyasint"` // of its assignments; grows with every change of one
	Inventory  Inventory    `cbor:"11,keyasint"`
	JoinedAt   time.Time    `cbor:"12,keyasint"`
	SeenAt     time.Time    `cbor:"13,keyasint,omitempty"` // when State last changed

	Eligibility Eligibility `cbor:"14,keyasint,omitempty"`
	// KeepRunning makes a drain move no pod.
	KeepRunning bool              `cbor:"15,keyasint,omitempty"`
	Labels      map[string]string `cbor:"16,keyasint,omitempty"`
	// Lineage is that of the cluster when the host's pods were last compared with the state. While it is
	// not the cluster's, the host takes no pods and is ordered nothing.
	Lineage   uint64   `cbor:"17,keyasint,omitempty"`
	PastBoots []string `cbor:"18,keyasint,omitempty"` // before BootID, oldest first, at most 16
	Hardware  string   `cbor:"19,keyasint,omitempty"` // identity of the main board, hashed; empty: unknown
	// Alarm says in one sentence what an operator has to look into; empty: nothing.
	Alarm   string    `cbor:"20,keyasint,omitempty"`
	AlarmAt time.Time `cbor:"21,keyasint,omitzero"`

	// Leftovers are containers, and data of terminated pods, that the host may still have, of pods that hold
	// nothing there: what a fence freed, and what a restored control plane does not know. It is told to remove
	// them, and takes no pods until none is left.
	Leftovers []Leftover `cbor:"22,keyasint,omitempty"`
	Roles     []HostRole `cbor:"23,keyasint,omitempty"` // that an operator gave it, sorted
	// Tunnel is the host's address in the tunnel, from its first session on; it is no other host's.
	Tunnel netip.Addr `cbor:"24,keyasint,omitzero"`
	Drain  *Drain     `cbor:"25,keyasint,omitempty"` // what its operator said of it; nil unless the host is drained
	// GPUCordons are the GPUs that an operator took out of service, by UUID; they need not be there.
	GPUCordons []GPUCordon `cbor:"26,keyasint,omitempty"`
	// Behind says that Lineage is not the cluster's. It is set in what views return.
	Behind bool `cbor:"-"`
	// Crowded says that the host has as many assignments as MostPods. It is set in what views return.
	Crowded bool `cbor:"-"`
}

// Drain is what an operator said of a drain.
type Drain struct {
	Since    time.Time `cbor:"1,keyasint"`
	Reason   string    `cbor:"2,keyasint,omitempty"` // for the owners of pods
	Deadline time.Time `cbor:"3,keyasint,omitzero"`  // from when on what still runs is stopped; zero: never
}

// Leftover is what a host may still have of a pod.
type Leftover struct {
	Pod         PodID  `cbor:"1,keyasint"`
	Incarnation uint64 `cbor:"2,keyasint"`
	// Gone says that its data goes, too: the pod is terminated. It is left until nothing of it is there.
	Gone bool `cbor:"3,keyasint,omitempty"`
}

// Has reports whether an operator gave the host a role.
func (h *Host) Has(r HostRole) bool { return slices.Contains(h.Roles, r) }

// Shown is the state as people see it: of a ready host, its eligibility.
func (h *Host) Shown() HostState {
	if h.State == HostReady && h.Eligibility != EligibilityOpen {
		return HostState(h.Eligibility)
	}
	return h.State
}

// Networked reports whether the host can take part in private networks of pods: it has an end of the tunnel, and an address there.
func (h *Host) Networked() bool { return h.Inventory.Tunnel.PublicKey != "" && h.Tunnel.IsValid() }

// MostPods is how many pods a host has at most. Each has one of the 4,093 addresses of its host's range, and a few more are of pods
// that are just leaving.
const MostPods = 4000

// Takes reports whether new pods may be bound to the host, and if not why, in a few words. It goes by the
// record as views return it.
func (h *Host) Takes() (ok bool, why string) {
	switch {
	case h.State == HostJoining:
		return false, "not connected yet"
	case h.State == HostFenced, h.State == HostGone:
		return false, string(h.State)
	case h.State != HostReady:
		return false, "unreachable"
	case h.Behind:
		return false, "not compared with the restored state yet"
	case h.Eligibility != EligibilityOpen:
		return false, string(h.Eligibility)
	case h.Crowded:
		return false, "no network address left"
	case len(h.Leftovers) > 0:
		return false, "removing what ran there before"
	}
	for _, n := range h.Inventory.Conditions {
		if n.Severe {
			return false, "not fit: " + n.Code
		}
	}
	return true, ""
}

// Labels that say where a host is. Hosts of one data center with an equal value are near each other; see place.Index.PickGroup.
const (
	LabelNVLink = "nvlink-domain"
	LabelRack   = "rack"
	LabelLeaf   = "leaf-switch"
)

// The bounds of labels.
const (
	maxLabels     = 64
	maxLabelKey   = 63
	maxLabelValue = 255
)

// CheckLabels refuses labels that a host cannot have. Errors: invalid.
func CheckLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return Invalid("$.labels", "must be at most 64")
	}
	for key, value := range labels {
		switch {
		case !validLabelKey(key):
			return Invalid("$.labels", "each key must be 1 to 63 of A-Z, a-z, 0-9, '.', '_', '/' and '-', and begin with a letter or digit")
		case len(value) > maxLabelValue || !utf8.ValidString(value):
			return Invalid("$.labels", "each value must be at most 255 bytes of UTF-8")
		}
	}
	return nil
}

func validLabelKey(key string) bool {
	if key == "" || len(key) > maxLabelKey {
		return false
	}
	for i := range len(key) {
		c := key[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !word && (i == 0 || c != '.' && c != '_' && c != '/' && c != '-') {
			return false
		}
	}
	return true
}

// DataCenter is a place where hosts stand.
type DataCenter struct {
	ID            DataCenterID `cbor:"1,keyasint"`
	Name          string       `cbor:"2,keyasint"`
	Region        string       `cbor:"3,keyasint"`
	GlobalNetwork bool         `cbor:"4,keyasint,omitempty"`
	Country       string       `cbor:"5,keyasint,omitempty"` // ISO 3166-1 alpha-2, upper case
	Compliance    []string     `cbor:"6,keyasint,omitempty"` // words of wire-facts 3.4
	Underlay      Underlay     `cbor:"7,keyasint,omitempty"`
}

// GPUType is a kind of GPU in the catalog.
type GPUType struct {
	ID           string `cbor:"1,keyasint"` // NVIDIA's device name
	Name         string `cbor:"2,keyasint"` // short
	Pool         string `cbor:"3,keyasint,omitempty"`
	Manufacturer string `cbor:"4,keyasint"`
	MemoryGB     int    `cbor:"5,keyasint"`
	Secure       Money  `cbor:"6,keyasint"` // per GPU and hour
	Community    Money  `cbor:"7,keyasint"`
	Serverless   Money  `cbor:"8,keyasint"`
	// Contributed marks a type that a host brought along and no operator has named or priced yet.
	Contributed bool `cbor:"9,keyasint,omitempty"`
	// SecureSpot and CommunitySpot are the lowest bids for interruptible pods, per GPU and hour; 0: there are none.
	SecureSpot    Money `cbor:"10,keyasint,omitempty"`
	CommunitySpot Money `cbor:"11,keyasint,omitempty"`
}

// Prices returns what a GPU costs per hour on demand in a tier, and the lowest bid there; 0: not priced, or not for interruptible pods.
func (t *GPUType) Prices(c Cloud) (onDemand, spot Money) {
	if c == CloudCommunity {
		return t.Community, t.CommunitySpot
	}
	return t.Secure, t.SecureSpot
}

// CPUFlavor is a kind of CPU share in the catalog.
type CPUFlavor struct {
	ID          string  `cbor:"1,keyasint"`
	Name        string  `cbor:"2,keyasint"`
	Group       string  `cbor:"3,keyasint"`
	MinVCPU     int     `cbor:"4,keyasint"`
	MaxVCPU     int     `cbor:"5,keyasint"`
	RAMPerVCPU  float64 `cbor:"6,keyasint"` // GB
	DiskPerVCPU int     `cbor:"7,keyasint"` // GB of container disk at most
	SecureVCPU  Money   `cbor:"8,keyasint"` // per vCPU and hour
	Serverless  Money   `cbor:"9,keyasint"`
}

// Catalog is what can be asked for, whatever is free at the moment.
type Catalog struct {
	GPUs []GPUType   `cbor:"1,keyasint"`
	CPUs []CPUFlavor `cbor:"2,keyasint"`
	// Storage is nil in clusters that were made before storage had prices; then it is free.
	Storage *StoragePrices `cbor:"3,keyasint,omitempty"`
}

// StoragePrices are per GB and month, of which a year has 12: an hour is 1/730 of it.
type StoragePrices struct {
	ContainerDisk     Money `cbor:"1,keyasint"` // while the pod is charged
	PersistentRunning Money `cbor:"2,keyasint"` // host-local mount, while the pod is charged
	PersistentStopped Money `cbor:"3,keyasint"` // host-local mount, while it is not
	VolumeFirst       Money `cbor:"4,keyasint"` // network volume, first 1000 GB of each
	VolumeBeyond      Money `cbor:"5,keyasint"` // network volume, above
	FastFirst         Money `cbor:"6,keyasint"` // the same of the high-performance tier
	FastBeyond        Money `cbor:"7,keyasint"`
}
