package state

import (
	"time"

	"gantry/fleet"
)

// Command is a change that one log entry may hold. Commands are plain values; they carry every time
// and every random value that they need. A refused command writes nothing and its Result holds a
// *fleet.Error.
type Command interface {
	// number is the command's type on the log. It is fixed for ever, and so is the meaning of
	// the fields' numbers.
	number() uint64
	// apply checks first and writes after. The value is for the proposer.
	apply(t *txn) (any, error)
}

// Result is what became of one command. Value is the proposer's to keep.
type Result struct {
	Value any
	Err   error // a *fleet.Error
}

// Bootstrap makes the cluster. Errors: exists.
type Bootstrap struct {
	ClusterID   string        `cbor:"1,keyasint"`
	CA          []byte        `cbor:"2,keyasint"` // certificate
	SealedCAKey []byte        `cbor:"3,keyasint"`
	Catalog     fleet.Catalog `cbor:"4,keyasint"`
	At          time.Time     `cbor:"5,keyasint"`
}

// PutDataCenter creates or replaces a data center.
type PutDataCenter struct {
	DataCenter fleet.DataCenter `cbor:"1,keyasint"`
}

// PutCatalog replaces the catalog.
type PutCatalog struct {
	Catalog fleet.Catalog `cbor:"1,keyasint"`
}

// PutAccount creates or replaces an account.
type PutAccount struct {
	Account fleet.Account `cbor:"1,keyasint"`
}

// PutKey creates or replaces a key. Errors: not_found (account), exists (the hash or the id is
// another key's).
type PutKey struct {
	Key fleet.Key `cbor:"1,keyasint"`
}

// DeleteKey deletes a key of the account. Errors: not_found.
type DeleteKey struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Key     fleet.KeyID     `cbor:"2,keyasint"`
}

// PutToken creates a join token and deletes those that expired before At. Errors: exists, invalid.
type PutToken struct {
	Token fleet.JoinToken `cbor:"1,keyasint"`
	At    time.Time       `cbor:"2,keyasint"`
}

// JoinHost burns a join token and creates a host, and its data center when that is new. Of Host the
// proposer sets ID, Name, MachineID and JoinedAt; data center and tier are the token's. The machine's
// earlier host record, if there is one that holds no pods, is deleted. Value: fleet.Host.
// Errors: unauthorized (token unknown, expired or wrong), exists, invalid.
type JoinHost struct {
	Token fleet.TokenID `cbor:"1,keyasint"`
	Hash  []byte        `cbor:"2,keyasint"` // of the token's secret
	Host  fleet.Host    `cbor:"3,keyasint"`
	At    time.Time     `cbor:"4,keyasint"`
}

// ConnectHost begins a session of a host: a new epoch, ready, with the inventory that its agent
// reports. Generation is the highest one that the agent's ledger knows; if it is above ours, this
// control plane was restored from an old copy, and ours is raised above it. Value: fleet.Host.
// Errors: not_found, forbidden (another machine), invalid.
type ConnectHost struct {
	Host       fleet.HostID    `cbor:"1,keyasint"`
	MachineID  string          `cbor:"2,keyasint"`
	BootID     string          `cbor:"3,keyasint"`
	Generation uint64          `cbor:"4,keyasint"`
	Inventory  fleet.Inventory `cbor:"5,keyasint"`
	At         time.Time       `cbor:"6,keyasint"`
}

// SetHostState says whether the session of an epoch is alive: ready or unreachable.
// Errors: not_found, stale (another epoch), invalid.
type SetHostState struct {
	Host  fleet.HostID    `cbor:"1,keyasint"`
	Epoch uint64          `cbor:"2,keyasint"`
	State fleet.HostState `cbor:"3,keyasint"`
	At    time.Time       `cbor:"4,keyasint"`
}

// CreatePod creates a pod, bound to the host and GPUs that the record names. Of Pod the proposer sets
// ID, Account, Spec, Host, GPUs, Need, HourlyRate, Locked and CreatedAt; the rest is set here.
// Value: fleet.Pod. Errors: not_found (account), exists, invalid, stale (pick again).
type CreatePod struct {
	Pod       fleet.Pod `cbor:"1,keyasint"`
	HostEpoch uint64    `cbor:"2,keyasint"`
}

// Binding is where a pod starts.
type Binding struct {
	Host       fleet.HostID `cbor:"1,keyasint"`
	HostEpoch  uint64       `cbor:"2,keyasint"`
	GPUs       []string     `cbor:"3,keyasint,omitempty"`
	HourlyRate fleet.Money  `cbor:"4,keyasint"`
	// Need is what the pod holds there; nil keeps what it held before.
	Need *fleet.Resources `cbor:"5,keyasint,omitempty"`
}

// ActPod does a public action on a pod of the account. Bind is set for a start and nil otherwise.
// Value: fleet.Pod. Errors: not_found, not_allowed, invalid, stale (the pod's revision is not Rev,
// or the binding is taken).
type ActPod struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Pod     fleet.PodID     `cbor:"2,keyasint"`
	Rev     uint64          `cbor:"3,keyasint"` // 0: any
	Action  fleet.Trigger   `cbor:"4,keyasint"`
	At      time.Time       `cbor:"5,keyasint"`
	Bind    *Binding        `cbor:"6,keyasint,omitempty"`
}

// ReportGone is what a host reports of a terminated pod of which nothing is left.
const ReportGone fleet.Trigger = "gone"

// PodReport is what a host says of one pod: one of fleet.Events, or ReportGone.
type PodReport struct {
	Pod         fleet.PodID              `cbor:"1,keyasint"`
	Incarnation uint64                   `cbor:"2,keyasint"`
	Event       fleet.Trigger            `cbor:"3,keyasint"`
	Reason      string                   `cbor:"4,keyasint,omitempty"`
	ExitCode    *int                     `cbor:"5,keyasint,omitempty"`
	At          time.Time                `cbor:"6,keyasint"` // by the host's clock; zero: when the report came
	Steps       map[fleet.Step]time.Time `cbor:"7,keyasint,omitempty"`
	LogTail     string                   `cbor:"8,keyasint,omitempty"` // of a failed incarnation; the last 16 KiB are kept
	Digest      string                   `cbor:"9,keyasint,omitempty"` // of the image
}

// ReportPods records what a host reports. A report is ignored, without error, when it is of an
// unknown pod, another host's pod or an older incarnation, or when its event is not legal in the
// pod's status. Errors: not_found (host), stale (another epoch).
type ReportPods struct {
	Host    fleet.HostID `cbor:"1,keyasint"`
	Epoch   uint64       `cbor:"2,keyasint"`
	At      time.Time    `cbor:"3,keyasint"`
	Reports []PodReport  `cbor:"4,keyasint"`
}

// PurgePods deletes the records of those of Pods that were terminated before or at Before and hold
// nothing; others are left. Value: int, how many were deleted.
type PurgePods struct {
	Pods   []fleet.PodID `cbor:"1,keyasint"`
	Before time.Time     `cbor:"2,keyasint"`
}

// The type numbers on the log. A number is never used again.
const (
	numBootstrap uint64 = iota + 1
	numPutDataCenter
	numPutCatalog
	numPutAccount
	numPutKey
	numDeleteKey
	numPutToken
	numJoinHost
	numConnectHost
	numSetHostState
	numCreatePod
	numActPod
	numReportPods
	numPurgePods
)

func (Bootstrap) number() uint64     { return numBootstrap }
func (PutDataCenter) number() uint64 { return numPutDataCenter }
func (PutCatalog) number() uint64    { return numPutCatalog }
func (PutAccount) number() uint64    { return numPutAccount }
func (PutKey) number() uint64        { return numPutKey }
func (DeleteKey) number() uint64     { return numDeleteKey }
func (PutToken) number() uint64      { return numPutToken }
func (JoinHost) number() uint64      { return numJoinHost }
func (ConnectHost) number() uint64   { return numConnectHost }
func (SetHostState) number() uint64  { return numSetHostState }
func (CreatePod) number() uint64     { return numCreatePod }
func (ActPod) number() uint64        { return numActPod }
func (ReportPods) number() uint64    { return numReportPods }
func (PurgePods) number() uint64     { return numPurgePods }
