package pod

import (
	"context"
	"io/fs"
	"net/netip"
	"time"

	"gantry/fleet"
	"gantry/storage"
)

// Assignment is what the scheduler wants of one pod on this host.
type Assignment struct {
	Pod         fleet.PodID        `cbor:"pod"`
	Account     fleet.AccountID    `cbor:"account"`
	Incarnation uint64             `cbor:"incarnation"`
	Goal        fleet.Goal         `cbor:"goal"`
	Generation  uint64             `cbor:"generation"`
	Name        string             `cbor:"name"`
	Image       string             `cbor:"image"`
	Args        string             `cbor:"args,omitempty"`
	Env         map[string]string  `cbor:"env,omitempty"`
	DiskGB      int64              `cbor:"disk"`
	Ports       []fleet.Port       `cbor:"ports,omitempty"`
	GPUs        []string           `cbor:"gpus,omitempty"`
	Limits      fleet.Resources    `cbor:"limits"`
	DataCenter  fleet.DataCenterID `cbor:"data_center"`
	Grace       time.Duration      `cbor:"grace"` // between SIGTERM and SIGKILL

	Mappings   []fleet.PortMapping    `cbor:"mappings,omitempty"`
	Digest     string                 `cbor:"digest,omitempty"` // of the image, once one was pinned
	Persistent *fleet.PersistentMount `cbor:"persistent,omitempty"`
	// Volume is the pod's network volume, and VolumePath where it is in the container; nil: it has none.
	Volume     *storage.Volume `cbor:"volume,omitempty"`
	VolumePath string          `cbor:"volume_path,omitempty"`
	// Overlays are the incarnation's places in private networks, by VNI.
	Overlays []Place `cbor:"overlays,omitempty"`
	// Member is what a member of a cluster finds in its container; nil: the pod is none.
	Member *MemberSetup `cbor:"member,omitempty"`
	// Endpoint is the serverless endpoint that the pod is a worker of; empty: it is of none.
	Endpoint fleet.EndpointID `cbor:"endpoint,omitempty"`
	// Frozen says that the processes of the worker are to stand still.
	Frozen bool `cbor:"frozen,omitempty"`
	// Interruptible says that the container sees notices, and Notice, of a stop, why it is interrupted; empty: it is told nothing.
	Interruptible bool   `cbor:"interruptible,omitempty"`
	Notice        string `cbor:"notice,omitempty"`
	// Models are those of ModelHub that the container finds, each one once.
	Models   []fleet.ModelRef `cbor:"models,omitempty"`
	ModelHub string           `cbor:"model_hub,omitempty"`
	// Refused says why the order cannot be carried out, as a sentence; empty: it can. What runs goes on.
	Refused string `cbor:"refused,omitempty"`
	// Registry opens a private image. It is never on disk: after its start an agent has none until a
	// scheduler was heard, and until then it pulls nothing.
	Registry *fleet.Credential `cbor:"-"`
}

// MemberSetup is what a member of a cluster finds in its container, beside the image's files and its environment.
type MemberSetup struct {
	Hostname string `cbor:"hostname"`
	Hosts    string `cbor:"hosts,omitempty"` // lines that /etc/hosts ends with
	Files    []File `cbor:"files,omitempty"`
	Fabric   bool   `cbor:"fabric,omitempty"` // it gets the host's fabric
}

// File is written into a container's own file system before its process begins. It belongs to the container's root.
type File struct {
	Path string      `cbor:"path"` // clean, absolute
	Text []byte      `cbor:"text"` // may be secret
	Mode fs.FileMode `cbor:"mode"` // permission bits
}

// Place is a pod's place in a private network.
type Place struct {
	Overlay fleet.OverlayID `cbor:"overlay"`
	VNI     uint32          `cbor:"vni"`  // of the overlay
	CIDR    netip.Prefix    `cbor:"cidr"` // of the overlay
	Addr    netip.Addr      `cbor:"addr"`
	Link    string          `cbor:"link"` // name of the interface in the pod
}

// Ended tells how one incarnation ended. It is final.
type Ended struct {
	Incarnation uint64        `cbor:"incarnation"`
	Event       fleet.Trigger `cbor:"event"` // exited, failed or reboot
	Reason      string        `cbor:"reason,omitempty"`
	ExitCode    *int          `cbor:"exit_code,omitempty"`
	At          time.Time     `cbor:"at"`
	LogFrom     time.Time     `cbor:"log_from"` // when the incarnation's log began
}

// Record is all that the host's ledger holds of a pod.
type Record struct {
	Assignment Assignment `cbor:"assignment"`
	Addr       netip.Addr `cbor:"addr"`                 // host-local address; kept until the pod is gone
	Begun      uint64     `cbor:"begun,omitempty"`      // newest incarnation whose process may have run
	BegunBoot  string     `cbor:"begun_boot,omitempty"` // boot id of the host at that moment
	// Held is what the begun incarnation has, whatever is ordered since; nil in a ledger of before.
	Held  *Holding `cbor:"held,omitempty"`
	Ended *Ended   `cbor:"ended,omitempty"`
	// Orphan marks a pod that the scheduler does not list any more: it is removed, then forgotten.
	Orphan bool `cbor:"orphan,omitempty"`
	// KeepLog marks an orphan that had stopped, or was to: it may be started again anywhere, so its log stays.
	KeepLog bool `cbor:"keep_log,omitempty"`
}

// Holding is what only one pod of a host can have at a time.
type Holding struct {
	GPUs     []string            `cbor:"gpus,omitempty"`
	Mappings []fleet.PortMapping `cbor:"mappings,omitempty"`
	Overlays []Place             `cbor:"overlays,omitempty"`
}

// Holds returns what the pod has as long as its begun incarnation has not ended, which need not be what its newest
// order names.
func (r Record) Holds() (Holding, bool) {
	switch {
	case r.Begun == 0 || r.ended(r.Begun):
		return Holding{}, false
	case r.Held == nil:
		return Holding{r.Assignment.GPUs, r.Assignment.Mappings, r.Assignment.Overlays}, true
	}
	return *r.Held, true
}

// Ledger is the host's durable memory of its pods. Every call is on disk when it returns.
type Ledger interface {
	Record(id fleet.PodID) (Record, bool)
	// Records returns everything, in no order.
	Records() []Record
	// Begin notes that the incarnation may run from now on, with what the order names. An error says that it may not.
	Begin(order Assignment, boot string) error
	End(id fleet.PodID, ended Ended) error
	// Forget removes the record of an orphan; one that was wanted again meanwhile stays.
	Forget(id fleet.PodID) error
}

// Network gives a pod its network namespace. Calls may be repeated.
type Network interface {
	// Ready reports whether anything of the pod's network is there, also what a failed removal left, and
	// whether it is whole: complete, in the user namespace that is wanted, and with exactly the published ports and places.
	Ready(ctx context.Context, id fleet.PodID, want Link) (some, whole bool, err error)
	// Ensure makes the network whole, or fails.
	Ensure(ctx context.Context, id fleet.PodID, want Link) error
	Release(ctx context.Context, id fleet.PodID) error
	Namespace(id fleet.PodID) string // path
}

// Gate answers workers of serverless endpoints in their network namespaces. Calls may be repeated.
type Gate interface {
	// Open listens in the pod's namespace for the worker of one incarnation; begins says that its process did not run before.
	Open(id fleet.PodID, incarnation uint64, begins bool) error
	// Drain answers all polls of the worker at once from here on, so that it can end.
	Drain(id fleet.PodID)
	// Freeze gives the worker no job from here on; Thaw has its polls answered, since it may not have read them, and gives it jobs with the
	// next.
	Freeze(id fleet.PodID)
	Thaw(id fleet.PodID)
	// Close ends what Open began. The pod may be unknown.
	Close(id fleet.PodID)
	// Forget is Close, and drops what is kept of the worker.
	Forget(id fleet.PodID)
}

// Link is how a pod is connected to its host.
type Link struct {
	Addr     netip.Addr
	IDBase   uint32 // see ContainerSpec
	Ports    []fleet.PortMapping
	Account  fleet.AccountID
	Overlays []Place // by VNI
}

// Volumes mounts network volumes for pods. Calls may be repeated; none of them waits for a dead server for longer than
// its own deadline. Errors of Attach are *storage.Error with a sentence for the pod's owner.
type Volumes interface {
	// Attach mounts the volume's directory for the pod, and returns where: a mount of its own, nodev and nosuid, with the
	// ids of its files as they are.
	Attach(ctx context.Context, id fleet.PodID, v storage.Volume) (dir string, err error)
	// SetReadOnly makes what a running pod has of its volume read-only, or writable again, also in the container of the
	// process pid.
	SetReadOnly(ctx context.Context, id fleet.PodID, pid int, v storage.Volume) error
	// Ending says that the pod is being ended: nothing has to be kept for it.
	Ending(id fleet.PodID)
	// Detach lets go of what the pod has attached.
	Detach(ctx context.Context, id fleet.PodID) error
	// Attached returns the pods that have anything attached.
	Attached() ([]fleet.PodID, error)
}

// Models gets models for pods. Implementations are safe for concurrent use.
type Models interface {
	// Get returns the models once they are on the host, where they stay for the pod until it has ended. progress is called now and
	// then with the one that comes, and its bytes. Errors are of *Error.
	Get(ctx context.Context, id fleet.PodID, want ModelOrder, progress func(model string, done, total int64)) ([]Model, error)
}

// ModelOrder are the models that a pod is to have.
type ModelOrder struct {
	Hub    string // address
	Models []fleet.ModelRef
	Token  fleet.Secret // shows the hub who wants them, where not everybody may have them; empty: there is none
}

// Model is a model on the host.
type Model struct {
	Folder string // its name in a cache of the hub's clients
	Dir    string // on the host; nobody writes to it
}

// Report is the newest observed state of one pod.
type Report struct {
	Pod         fleet.PodID
	Incarnation uint64
	Event       fleet.Trigger // waiting, starting, running, exited, failed, reboot or EventGone
	Reason      string
	ExitCode    *int
	At          time.Time
	Steps       map[fleet.Step]time.Time
	LogTail     string
	Digest      string
}

// EventGone reports that nothing of a pod is left on the host.
const EventGone fleet.Trigger = "gone"

// Reporter takes reports. It keeps the newest per pod until a scheduler has recorded it; a call
// never blocks.
type Reporter interface {
	Report(r Report)
	// Activity says in words what is being done for the pod; done and total are bytes of a pull.
	Activity(id fleet.PodID, words string, done, total int64)
	// Forget drops what is kept of a pod that the host knows no more.
	Forget(id fleet.PodID)
}

// SystemLog takes the lines that tell a pod's owner what the host did.
type SystemLog interface {
	System(id fleet.PodID, line string)
	// Begin marks that the lines from here on are of this incarnation. It may be called more than once for each.
	Begin(id fleet.PodID, incarnation uint64)
	// Tail returns the last lines that the container wrote since a time. They are complete once the
	// runtime has removed the container.
	Tail(id fleet.PodID, lines int, since time.Time) string
	// Dir is the folder that the container's logger writes to; it exists after Prepare.
	Dir(id fleet.PodID) string
	Prepare(id fleet.PodID) error
	Remove(id fleet.PodID) error
	// Leave keeps the log of a pod that leaves the host, for as long as there is room for such.
	Leave(id fleet.PodID)
}
