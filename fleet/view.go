package fleet

import (
	"context"
	"time"
)

// TryingAgain ends Live.Activity while something failed and is tried again.
const TryingAgain = ", trying again"

// Live is what a host last said of a pod. It is never stored and is gone with the host's session.
type Live struct {
	At            time.Time // when it was heard
	CPUPercent    int       // of the pod's own limit
	MemoryPercent int       // of the pod's own limit
	Activity      string    // what the host does for the pod right now, in words
	PullDone      int64     // bytes
	PullTotal     int64     // bytes; 0 while unknown
	GPUs          []GPUUse  // in the order of Pod.GPUs; empty while nothing is measured
	DiskPercent   int       // of the container's disk
}

// GPUUse is how busy a GPU is, in percent.
type GPUUse struct {
	Util       int
	MemoryUtil int
}

// PodView is a pod's record with what is live of it; Live is nil when its host is not heard. The record may be the state's own: it must
// not be changed, nor what it leads to, and stays as it is.
type PodView struct {
	Pod         *Pod
	Reason      string // why it is as it is, in one sentence; that of the record where nothing newer is known
	Live        *Live
	Unreachable bool // the host's session is lost while the pod may still run
	PublicIP    string
	Suffix      string      // of the names in private networks
	ProxyURL    string      // of the proxy domain, such as https://proxy.example.com:8443; empty: http ports have no address
	Replayed    bool        // the answer to a create that was made before with the same Once
	Drain       *Drain      // of its host; nil: that is not being drained
	Cluster     ClusterType // of which it is a member; empty: of none
}

// HostView is a host's record with what its pods use of it.
type HostView struct {
	Host     Host
	Used     Resources
	UsedGPUs int
	Pods     int // that hold something
}

// HeldPod is a pod that holds something of a host, as an operator sees it: nothing of what its owner put in.
type HeldPod struct {
	ID      PodID
	Account AccountID
	Status  PodStatus
	GPUs    int
	Moving  bool
	Waits   string             // why a drain waits for it, in one sentence; empty: it does not, or there is no drain
	To      HostID             // where a drain moves it; empty: nowhere
	Stops   bool               // a drain that is forced, or comes to its deadline, stops it
	Steps   map[Step]time.Time // when its present start reached each
}

// DrainRequest says how a host is to be drained.
type DrainRequest struct {
	KeepRunning bool
	Reason      string    // for the owners of its pods; may be empty
	Deadline    time.Time // from when on what still runs is stopped; zero: never
	Force       bool      // Deadline is now
}

// PodRequest is what a caller asks for when creating a pod; its shape is already checked, its
// meaning is not.
type PodRequest struct {
	Name    string
	Image   string
	Args    string
	DiskGB  int // 0: the default
	Ports   []Port
	Env     map[string]string
	GPU     *GPURequest
	CPU     *CPURequest // MemoryGB is ignored
	Cloud   Cloud       // empty: SECURE
	Centers []DataCenterID

	Template   TemplateID  // empty: none. What the request leaves out (nil, empty, 0) is the template's; Env is merged per key
	Registry   *RegistryID // nil: not said; empty: none, also against a template
	Persistent *PersistentMount
	Network    *NetworkMount
	CUDA       *CUDARange // nil: not said; the zero value: any, also against a template

	MinRAMPerGPU, MinVCPUPerGPU int
	GlobalNetworking            bool
	StartSSH, StartJupyter      *bool // nil: the template's, or false
	Movable                     *bool // nil: the installation's default

	Interruptible             bool
	Bid                       Money // per GPU and hour, of an interruptible pod; 0: the lowest
	Return                    bool  // of an interruptible pod; see Spot
	StopAfter, TerminateAfter time.Time
	HTTP                      []HTTPSetting
	Models                    []string // as those of PodSpec

	// What the body names explicitly though it is empty; a template then does not fill it in.
	ArgsSet, PortsSet bool

	Once *Once
}

// Once makes a create happen at most once: of two requests of an account with equal Key, the second
// is answered as the first. RFC draft-ietf-httpapi-idempotency-key-header.
type Once struct {
	Key         string `cbor:"1,keyasint"` // 1 to 255 bytes
	Fingerprint []byte `cbor:"2,keyasint"` // of the request; another one under the same key is refused
}

// PodUpdate changes a pod; nil leaves a field as it is.
type PodUpdate struct {
	Name     *string
	Image    *string
	Args     *string
	DiskGB   *int
	Ports    *[]Port
	Env      *map[string]string // replaces the whole
	Registry *RegistryID        // empty: none

	Persistent *PersistentMount
	Network    *NetworkMount

	Locked           *bool
	GlobalNetworking *bool
	Movable          *bool
	Return           *bool      // of an interruptible pod
	StopAfter        *time.Time // zero: never
	TerminateAfter   *time.Time // zero: never
	HTTP             *[]HTTPSetting
	Template         TemplateID // applied once, under the other fields; its mounts are not
}

// Availability is how much of a catalog entry is free, in the words of the public catalog.
type Availability string

// The availabilities: none, fewer than 4, fewer than 16, or more could be created now.
const (
	AvailableNone   Availability = "NONE"
	AvailableLow    Availability = "LOW"
	AvailableMedium Availability = "MEDIUM"
	AvailableHigh   Availability = "HIGH"
)

// CenterStock is what one data center has of a catalog entry.
type CenterStock struct {
	Center DataCenter
	Stock  Availability
}

// GPUOffer is a GPU type with what the fleet has of it.
type GPUOffer struct {
	GPUType
	MaxSecure    int // most GPUs of one pod on the largest host of the tier
	MaxCommunity int
	Stock        Availability // for the count and tier asked for
	Centers      []CenterStock
	CUDA         []string // versions that hosts with this type offer, newest first
	Fabrics      []FabricOffer
}

// CPUOffer is a CPU flavor with what the fleet has of it.
type CPUOffer struct {
	CPUFlavor
	Stock   Availability // for the vCPU count asked for
	Centers []CenterStock
}

// CatalogQuery narrows what stock is counted; the zero value counts single GPUs and the smallest
// CPU pods of the SECURE tier.
type CatalogQuery struct {
	Count int // GPUs of one pod; 0: 1
	VCPU  int // of one pod; 0: the flavor's least
	Cloud Cloud
	// Only hosts whose driver and place fit count; the zero values: any.
	CUDA      CUDARange
	Countries []string // ISO 3166-1 alpha-2
}

// CatalogView is the catalog with stock. Numbers come from the code that places pods.
type CatalogView struct {
	GPUs    []GPUOffer
	CPUs    []CPUOffer
	Centers []DataCenter
	// VolumeTypes are the tiers in which a network volume can be made, of the data centers that have any;
	// STANDARD comes first.
	VolumeTypes map[DataCenterID][]VolumeType
}

// LogQuery selects lines of a pod's log.
type LogQuery struct {
	Source string    // "container", "system" or "" for both
	Tail   int       // at most 5000
	Since  time.Time // zero: no bound
	After  string    // event id; wins over Since, which wins over Tail
	Follow bool
	// Previous selects the lines of the run of the container before the newest one; nothing is followed then.
	Previous bool
}

// LogLine is one line of a pod's log. ID is unique and ordered within the pod.
type LogLine struct {
	ID     string    `json:"id"`
	Source string    `json:"source"`
	Line   string    `json:"line"`
	At     time.Time `json:"ts"`
}

// LogSink receives the lines of a log in order; an error ends the log.
type LogSink func(LogLine) error

// Dialer opens byte streams to the ports of pods, wherever their hosts are.
type Dialer interface {
	// DialPod connects to a port inside the pod. Errors: not_found, not_allowed when it does not
	// run, unavailable when its host cannot be reached or nothing listens.
	DialPod(ctx context.Context, pod PodID, port int) (Stream, error)
}

// WorkerWish is the worker of an endpoint that balances that a request asks for.
type WorkerWish struct {
	Worker PodID // empty: any
	Strict bool  // no other
	Wake   bool  // also one that stands still
}

// WorkerSeat is a worker's, for one request. Leave is called once at its end.
type WorkerSeat struct {
	Worker PodID
	Port   int
	Leave  func()
}

// Stream is a two-way byte stream whose writing half can be closed by itself.
type Stream interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	CloseWrite() error
	Close() error
}
