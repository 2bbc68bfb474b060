package fleet

import (
	"slices"
	"time"
)

// Money is an amount of US dollars in units of 10^-9 dollar.
type Money int64

// Dollar is one US dollar.
const Dollar Money = 1_000_000_000

// USD returns the amount in dollars, for showing only.
func (m Money) USD() float64 { return float64(m) / float64(Dollar) }

// MoneyUSD converts dollars to Money, rounded to the nearest unit.
func MoneyUSD(d float64) Money {
	if d < 0 {
		return -MoneyUSD(-d)
	}
	return Money(d*float64(Dollar) + 0.5)
}

// GB is the number of bytes of one GB, as every size of the API counts it.
const GB int64 = 1_000_000_000

// MB is a megabyte.
const MB int64 = 1_000_000

// Cloud is a tier of hosts.
type Cloud string

// The tiers.
const (
	CloudSecure    Cloud = "SECURE"
	CloudCommunity Cloud = "COMMUNITY"
)

// GPURequest asks for Count GPUs of one type; Type is NVIDIA's device name.
type GPURequest struct {
	Type  string `cbor:"1,keyasint"`
	Count int    `cbor:"2,keyasint"`
}

// CPURequest asks for virtual CPUs of a flavor; MemoryGB is derived from the flavor.
type CPURequest struct {
	Flavor   string `cbor:"1,keyasint"`
	VCPU     int    `cbor:"2,keyasint"`
	MemoryGB int    `cbor:"3,keyasint"`
}

// Port is an exposed container port.
type Port struct {
	Number   int    `cbor:"1,keyasint"` // 1 to 65535, or symmetrical
	Protocol string `cbor:"2,keyasint"` // "http" or "tcp"
}

// The numbers that ask for a symmetrical tcp port: the container listens at the very port that is published,
// and reads it from its environment.
const (
	SymmetricalLeast = 70_000
	SymmetricalMost  = 135_535
)

// Symmetrical reports whether a port's number asks for a symmetrical port rather than names one.
func Symmetrical(number int) bool { return number >= SymmetricalLeast && number <= SymmetricalMost }

// PodSpec is what a pod's owner asked for. Exactly one of GPU and CPU is set.
type PodSpec struct {
	Name    string            `cbor:"1,keyasint"`
	Image   string            `cbor:"2,keyasint"`
	Args    string            `cbor:"3,keyasint,omitempty"`
	DiskGB  int               `cbor:"4,keyasint"`
	Ports   []Port            `cbor:"5,keyasint,omitempty"`
	Env     map[string]string `cbor:"6,keyasint,omitempty"`
	GPU     *GPURequest       `cbor:"7,keyasint,omitempty"`
	CPU     *CPURequest       `cbor:"8,keyasint,omitempty"`
	Cloud   Cloud             `cbor:"9,keyasint"`
	Centers []DataCenterID    `cbor:"10,keyasint,omitempty"` // empty: any

	Registry   RegistryID       `cbor:"11,keyasint,omitempty"` // credential for the image; empty: none
	Template   TemplateID       `cbor:"12,keyasint,omitempty"` // that it was created from
	Persistent *PersistentMount `cbor:"13,keyasint,omitempty"` // excludes Network
	Network    *NetworkMount    `cbor:"14,keyasint,omitempty"`
	CUDA       *CUDARange       `cbor:"15,keyasint,omitempty"` // of the host; GPU pods only
	// Filters on the host, not shares: least memory in GB and vCPUs of the host per GPU asked for.
	MinRAMPerGPU     int  `cbor:"16,keyasint,omitempty"`
	MinVCPUPerGPU    int  `cbor:"17,keyasint,omitempty"`
	GlobalNetworking bool `cbor:"18,keyasint,omitempty"` // asked for
	// Movable allows a drain to stop the pod and to start it on another host, where its place is reserved first.
	Movable bool `cbor:"19,keyasint,omitempty"`
	// Spot makes it an interruptible pod; nil: it runs on demand, and keeps its place.
	Spot *Spot `cbor:"20,keyasint,omitempty"`
	// StopAfter and TerminateAfter are when the leader stops and terminates the pod; zero: never.
	StopAfter      time.Time `cbor:"21,keyasint,omitzero"`
	TerminateAfter time.Time `cbor:"22,keyasint,omitzero"`
	// HTTP is what its owner set for some of its http ports, one of each.
	HTTP []HTTPSetting `cbor:"23,keyasint,omitempty"`
	// Models are references of models of a hub that the container finds; see ModelRef.
	Models []string `cbor:"24,keyasint,omitempty"`
}

// LinkName is the query parameter and the cookie that hold the token of a link to an http port that needs a key.
const LinkName = "gantry-link"

// HTTPSetting is about requests to an http port.
type HTTPSetting struct {
	Port int `cbor:"1,keyasint"`
	// Keyed lets only those requests pass that have a key of the account or a link that one made.
	Keyed bool `cbor:"2,keyasint,omitempty"`
	// Most is how many seconds a request may take; 0: any.
	Most int `cbor:"3,keyasint,omitempty"`
}

// CheckHTTP refuses settings of what is no http port of the pod, and two of one.
func (s *PodSpec) CheckHTTP() error {
	for i, one := range s.HTTP {
		if !slices.Contains(s.Ports, Port{Number: one.Port, Protocol: "http"}) {
			return BreaksRule("portSettings has port %d, which is no http port of the pod", one.Port)
		}
		if slices.ContainsFunc(s.HTTP[:i], func(other HTTPSetting) bool { return other.Port == one.Port }) {
			return BreaksRule("portSettings has port %d twice", one.Port)
		}
	}
	return nil
}

// HTTPPort returns what is set for an http port.
func (s *PodSpec) HTTPPort(port int) HTTPSetting {
	for _, one := range s.HTTP {
		if one.Port == port {
			return one
		}
	}
	return HTTPSetting{Port: port}
}

// Spot says on what terms a pod is interruptible: it gives its place to any pod on demand and to one that bids more.
type Spot struct {
	Bid    Money `cbor:"1,keyasint"`           // what it pays per GPU and hour
	Return bool  `cbor:"2,keyasint,omitempty"` // once interrupted, it starts again by itself as soon as there is room
}

// PersistentMount is host-local storage that survives stops; it pins the pod to its host.
type PersistentMount struct {
	SizeGB int    `cbor:"1,keyasint"` // at least 10
	Path   string `cbor:"2,keyasint"` // in the container
}

// NetworkMount is a network volume in a pod.
type NetworkMount struct {
	Volume VolumeID `cbor:"1,keyasint"`
	Path   string   `cbor:"2,keyasint"` // in the container
}

// CUDARange says which CUDA versions of a host's driver will do. Both are "major.minor"; at most one
// of the fields is set.
type CUDARange struct {
	Allowed []string `cbor:"1,keyasint,omitempty"` // exactly one of these
	Min     string   `cbor:"2,keyasint,omitempty"` // this one or newer, compared number by number
}

// PortMapping is a tcp port of a pod that its host publishes.
type PortMapping struct {
	Private int `cbor:"1,keyasint"` // in the container, as asked for; see Inside
	Public  int `cbor:"2,keyasint"` // of the host's public address
}

// Inside returns the port at which the container listens.
func (m PortMapping) Inside() int {
	if Symmetrical(m.Private) {
		return m.Public
	}
	return m.Private
}

// Resources is an amount of a host's shared resources.
type Resources struct {
	MilliCPU int64 `cbor:"1,keyasint"` // thousandths of a core
	MemoryMB int64 `cbor:"2,keyasint"` // units of 10^6 bytes
	DiskGB   int64 `cbor:"3,keyasint"`
}

// Step names one moment of a pod's start, for the time line in its record.
type Step string

// The steps, in the order in which they happen.
const (
	StepCreated  Step = "created"  // the scheduler accepted the pod
	StepReceived Step = "received" // the host had the assignment
	StepPulling  Step = "pulling"  // a pull began; absent when the image was there
	// StepDownloaded: all bytes of the image are there; what is left of the pull is unpacking and writing to disk.
	StepDownloaded Step = "downloaded"
	StepPulled     Step = "pulled"    // the image is on the host
	StepNetworked  Step = "networked" // network namespace and addresses are up
	StepDefined    Step = "defined"   // the container's snapshot and spec exist
	StepTasked     Step = "tasked"    // the runtime made the container's process
	StepStarted    Step = "started"   // the process runs
	StepReported   Step = "reported"  // the report left the host
	StepRecorded   Step = "recorded"  // the scheduler recorded it
)

// Pod is the record of a pod, as the control plane keeps it.
type Pod struct {
	ID      PodID     `cbor:"1,keyasint"`
	Account AccountID `cbor:"2,keyasint"`
	Spec    PodSpec   `cbor:"3,keyasint"`

	Status      PodStatus `cbor:"4,keyasint"`
	Goal        Goal      `cbor:"5,keyasint"`
	Incarnation uint64    `cbor:"6,keyasint"` // grows with every start; never used twice
	Rev         uint64    `cbor:"7,keyasint"` // grows with every change of this record
	Generation  uint64    `cbor:"8,keyasint"` // of the host's assignments, when this pod's last changed

	Host       HostID       `cbor:"9,keyasint"`
	DataCenter DataCenterID `cbor:"10,keyasint"`
	GPUs       []string     `cbor:"11,keyasint,omitempty"` // UUIDs
	Need       Resources    `cbor:"12,keyasint"`
	// Held is true while the host may still have anything of the pod's container: from binding until
	// the host reported it gone. Only then are GPUs and shares free for others.
	Held bool `cbor:"13,keyasint"`

	HourlyRate Money  `cbor:"14,keyasint"` // while active
	Locked     bool   `cbor:"15,keyasint,omitempty"`
	Reason     string `cbor:"16,keyasint,omitempty"` // one sentence for the owner
	ExitCode   *int   `cbor:"17,keyasint,omitempty"` // of the last incarnation
	LogTail    string `cbor:"18,keyasint,omitempty"` // last log lines of a failed incarnation
	Digest     string `cbor:"19,keyasint,omitempty"` // of the image that runs or ran

	CreatedAt    time.Time          `cbor:"20,keyasint"`
	StartedAt    time.Time          `cbor:"21,keyasint,omitempty"` // of the present or last incarnation; zero before
	EndedAt      time.Time          `cbor:"22,keyasint,omitempty"` // when it left the active statuses
	TerminatedAt time.Time          `cbor:"23,keyasint,omitempty"`
	Steps        map[Step]time.Time `cbor:"24,keyasint,omitempty"` // of the present incarnation

	Mappings []PortMapping `cbor:"25,keyasint,omitempty"` // of its tcp ports; kept while it is bound, free when not Held

	// Moving is set while the pod is taken from a host that is drained: it is stopped there and is to
	// start at Target. What its owner does with it meanwhile ends that.
	Moving bool `cbor:"26,keyasint,omitempty"`

	// Image is the reference of the present or last incarnation's image, to which Digest belongs. The
	// specification may name another by now, for the next start.
	Image string `cbor:"27,keyasint,omitempty"`

	// Overlays are the pod's places in private networks, by the overlay's id.
	Overlays []OverlayPlace `cbor:"28,keyasint,omitempty"`

	// Target is the place that is reserved for a pod while it is Moving; nil when the destination was lost. It is in
	// use on that host like what a pod holds there.
	Target *Reservation `cbor:"29,keyasint,omitempty"`

	// Waiting is since when the image of the present incarnation cannot be had; zero: it can, or was not asked for. From then on the
	// pod is charged like a stopped one, until something else is heard of it.
	Waiting time.Time `cbor:"30,keyasint,omitzero"`

	// Owner is what the pod belongs to besides its account, for ever; the zero value: nothing.
	Owner Owner `cbor:"31,keyasint,omitzero"`

	// Release is the version of its endpoint that a worker was made from, and Ready when its present incarnation first asked for a job:
	// zero before that, and as long it costs nothing.
	Release uint64    `cbor:"32,keyasint,omitempty"`
	Ready   time.Time `cbor:"33,keyasint,omitzero"`
	// Frozen is since when its host runs no process of an idle worker, though it keeps all; zero: it runs them. As long the worker costs
	// nothing, and a pod that needs its place takes it; see state.FreezeWorker.
	Frozen time.Time `cbor:"34,keyasint,omitzero"`
	// Rank is a member's number in its cluster, from 0; it is 0 for every other pod.
	Rank int `cbor:"35,keyasint,omitempty"`

	// Interrupted is when the pod gave its place to another; zero: it did not since its last start. It is stopped with the Notice: so
	// long its container may go on after SIGTERM.
	Interrupted time.Time     `cbor:"36,keyasint,omitzero"`
	Notice      time.Duration `cbor:"37,keyasint,omitempty"`
	// Fabric names the fabric that a member of a cluster has in its present incarnation, as all others of its cluster; empty: none.
	Fabric string `cbor:"38,keyasint,omitempty"`
}

// YieldsTo reports whether a pod that runs gives its place to another that finds no room: as an interruptible one to a pod on demand and
// to a higher bid, unless it is locked.
func (p *Pod) YieldsTo(other *Pod) bool {
	return p.Spec.Spot != nil && !p.Locked && p.Status.Active() && p.Goal == GoalRun &&
		(other.Spec.Spot == nil || other.Spec.Spot.Bid > p.Spec.Spot.Bid)
}

// Returns reports whether an interrupted pod is to start again by itself.
func (p *Pod) Returns() bool {
	return !p.Interrupted.IsZero() && p.Spec.Spot != nil && p.Spec.Spot.Return && (p.Status == StatusExited || p.Status == StatusError)
}

// Reservation is what a host keeps for a pod that is being moved there.
type Reservation struct {
	Host     HostID        `cbor:"1,keyasint"`
	GPUs     []string      `cbor:"2,keyasint,omitempty"` // UUIDs
	Need     Resources     `cbor:"3,keyasint"`
	Mappings []PortMapping `cbor:"4,keyasint,omitempty"`
}

// KeepsData reports whether the pod has data on its host that outlives its container.
func (p *Pod) KeepsData() bool { return p.Spec.Persistent != nil }

// MayMove reports whether a drain may take the pod to another host: its owner allowed it, and nothing ties it to its own.
func (p *Pod) MayMove() bool {
	return p.Spec.Movable && p.Status.Active() && p.Goal == GoalRun && !p.Locked && !p.KeepsData()
}

// Stopping reports whether a stop was accepted that the host has not finished.
func (p *Pod) Stopping() bool { return p.Goal != GoalRun && p.Status.Active() }
