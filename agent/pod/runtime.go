package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gantry/fleet"
)

// Runtime is the container runtime as a pod's machine needs it. Every call may be repeated: what is
// already so counts as success. Errors carry a Class. Implementations are safe for concurrent use.
type Runtime interface {
	// Look returns what exists of the pod; the zero Container when nothing does.
	Look(ctx context.Context, id fleet.PodID) (Container, error)
	// Image returns the digest of a reference that is on the host and unpacked, or "".
	Image(ctx context.Context, ref string) (digest string, err error)
	// Pull fetches and unpacks ref, calling progress with bytes now and then. total is 0 while unknown.
	// auth, when it is not nil, is for the registry that ref names and for no other host.
	Pull(ctx context.Context, ref string, auth *fleet.Credential, progress func(done, total int64)) (digest string, err error)
	// Define makes the container's snapshot and record, labelled with pod and incarnation, from the
	// image of the spec's digest. One that is not on the host any more is an error of class Retry.
	Define(ctx context.Context, spec ContainerSpec) error
	// Task makes the container's process, not yet running the image's command. When ctx ends with the cause ErrUnwanted,
	// what works on it is broken off within seconds, and so it is with Start.
	Task(ctx context.Context, id fleet.PodID) error
	// Start lets the process run; the time is the moment at which it began.
	Start(ctx context.Context, id fleet.PodID) (time.Time, error)
	// Wait returns when the process has ended, with the error set when that could not be learned.
	Wait(ctx context.Context, id fleet.PodID) error
	// Signal sends a signal by its Linux number to the process; a process that is gone is success.
	Signal(ctx context.Context, id fleet.PodID, signal int) error
	// Freeze has all processes of the container stand still, or go on (still is false). They keep what they have. One whose process is gone
	// is success.
	Freeze(ctx context.Context, id fleet.PodID, still bool) error
	// Deaf reports whether a running container is one process, with that id on the host, which SIGTERM does nothing to.
	Deaf(id fleet.PodID, pid int) bool
	// Remove kills what still runs and deletes task, container and snapshot.
	Remove(ctx context.Context, id fleet.PodID) error
	// Usage reads what the pod uses now.
	Usage(ctx context.Context, id fleet.PodID) (Usage, error)
}

// ErrUnwanted is why the context of a start ends when its order does not hold any more.
var ErrUnwanted = errors.New("the start is not wanted any more")

// TaskState is how far a container's process has come.
type TaskState string

// The states of a task.
const (
	TaskNone    TaskState = ""
	TaskCreated TaskState = "created"
	TaskRunning TaskState = "running"
	TaskStopped TaskState = "stopped"
)

// Container is what the runtime has of a pod.
type Container struct {
	Exists      bool
	Incarnation uint64
	Task        TaskState
	Frozen      bool // with TaskRunning
	PID         int
	StartedAt   time.Time // when the process began; zero when unknown
	ExitCode    int       // with TaskStopped
	ExitedAt    time.Time // with TaskStopped
	OOMKilled   bool      // with TaskStopped, and an exit code that is not 0: the kernel killed it, or a process of it, for memory
	MemoryPeak  int64     // with OOMKilled: bytes that it had at most; 0: unknown
	Lost        bool      // with TaskStopped: the runtime lost it, so ExitCode tells nothing
	Kept        string    // ContainerSpec.Kept
}

// Usage is a reading of a pod's counters.
type Usage struct {
	CPU      time.Duration // processor time since the start
	Memory   int64         // bytes in use without reclaimable cache
	Disk     int64         // bytes that the container wrote and keeps
	DiskSize int64         // bytes that it may; 0: unknown
}

// ContainerSpec is everything that a container is made from. Nothing in the image or the
// environment can widen it.
type ContainerSpec struct {
	Pod         fleet.PodID
	Account     fleet.AccountID
	Incarnation uint64
	Image       string            // the reference, for people
	Digest      string            // of the image, as Image or Pull gave it: this alone decides what runs
	Args        string            // see fleet.ParseArgs
	Env         map[string]string // complete, reserved names already stripped
	Hostname    string
	NetNS       string // path of the network namespace
	ResolvConf  string // paths on the host of files mounted read-only at their usual places
	Hosts       string
	HostnameTxt string
	LogDir      string          // where the logger writes
	Limits      fleet.Resources // of the disk, Assignment.DiskGB is enforced: see DiskGB below
	DiskGB      int64           // of the container's own files, wiped at each Define
	PIDs        int64
	ShmMB       int64
	Mounts      []Mount
	// Files are written into the container's own file system.
	Files []File
	// Profile is a file of the host that login shells of the container read; empty: none. See wire-facts 6.1.
	Profile string
	// Notices is a folder of the host that the container sees read-only at /run/gantry; empty: it does not.
	Notices string
	// IDBase is the host's id of the container's root: the container has 65,536 ids of its own from there on.
	// 0: no user namespace, its ids are the host's.
	IDBase uint32
	// Kept goes with the container for an agent whose ledger was lost; see Adopted.
	Kept    string
	CPUs    string // processors that it may run on, as the kernel writes lists ("0-3,8"); empty: all
	Devices Devices
}

// Mount binds a folder of the host, which we made, into the container: nodev, nosuid, private.
type Mount struct {
	Source string // on the host
	Target string // absolute, in the container; never a system path
	// AsIs says that Source is a mount made for the container: its files have the ids of the container's user
	// namespace already, and no file system call on it is made outside of the container.
	AsIs bool
	// ReadOnly says that nobody in the container can write to it.
	ReadOnly bool
}

// Devices is what a container gets of the host's GPUs. The zero value is none. It comes from the host's own
// inventory, never from image or owner.
type Devices struct {
	Nodes []DeviceNode
	Files []Mount  // of the driver, bound read-only; Target is below the driver's folder in the container
	Env   []string // "NAME=value", over those of image and owner; PATH and LD_LIBRARY_PATH are put before theirs
	NUMA  string   // processors near all of them, as ContainerSpec.CPUs; empty: they have none in common
	// Adapters are the RDMA devices that some of Nodes are of. The container sees no others in /sys, and may lock all of its memory.
	Adapters []Adapter
}

// Adapter is an RDMA device, by its names in /sys.
type Adapter struct {
	Device, Verbs string // "mlx5_0", "uverbs0"
}

// With adds what another kind of devices gives a container. It has no opinion on processors.
func (d Devices) With(o Devices) Devices {
	d.Nodes, d.Files, d.Env = slices.Concat(d.Nodes, o.Nodes), slices.Concat(d.Files, o.Files), slices.Concat(d.Env, o.Env)
	d.Adapters = slices.Concat(d.Adapters, o.Adapters)
	return d
}

// DeviceNode is a character device that the container may read and write.
type DeviceNode struct {
	Host, Path   string // on the host, and in the container
	Major, Minor int64
}

// Class decides what an error means for a pod, whoever met it.
type Class int

// The classes.
const (
	Retry Class = iota // try again with back-off: the runtime is away, a server is busy, a deadline passed
	Fatal              // the pod cannot run: ERROR with the sentence
)

// Error is an error of an effect. Sentence is for the pod's owner.
type Error struct {
	Class    Class
	Sentence string
	Err      error
}

// Error returns the sentence and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Sentence
	}
	return fmt.Sprintf("%s: %v", e.Sentence, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
