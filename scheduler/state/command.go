package state

import (
	"time"

	"gantry/fleet"
)

// Level is the newest feature level that this program understands: a level is a set of commands and of
// meanings. A command of a level is proposed only when the level is in force; see RaiseLevel.
const Level uint64 = 1

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

// Bootstrap makes the cluster. Errors: exists.
type Bootstrap struct {
	ClusterID   string        `cbor:"1,keyasint"`
	CA          []byte        `cbor:"2,keyasint"` // certificate
	SealedCAKey []byte        `cbor:"3,keyasint"`
	Catalog     fleet.Catalog `cbor:"4,keyasint"`
	At          time.Time     `cbor:"5,keyasint"`
	Level       uint64        `cbor:"6,keyasint,omitempty"` // in force from the beginning; 0: 1
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

// PutToken creates a join token and deletes the 16 oldest of those that expired before At. Errors: exists, invalid.
type PutToken struct {
	Token fleet.JoinToken `cbor:"1,keyasint"`
	At    time.Time       `cbor:"2,keyasint"`
}

// CreatePods creates the pods of one account and one owner, all of them or none, at one time: that of the first. Each is bound to the
// host and GPUs that its record names, and sees what those before it took. What a host gives may differ from what is named; see Binding.
// Value: []fleet.Pod, with what they really got. Errors, whose details name the pod where there are several: not_found (account),
// exists, invalid, stale (pick again), quota_exceeded, low_balance, rule (a prepaid account and a GPU type without a price),
// no_capacity (a private network has no address left).
type CreatePods struct {
	Pods []NewPod `cbor:"1,keyasint"` // at least 1, at most MaxPods
	// Once, when it is set, makes the account's second command with the same key give the pods of the
	// first (Value: Replay) or, when the fingerprint differs, invalid; exists when one of those is gone.
	Once *fleet.Once `cbor:"2,keyasint,omitempty"`
}

// MaxPods is how many pods one CreatePods creates at most: what the largest cluster has.
const MaxPods = 250

// NewPod is a pod that is to be created. Of Pod the proposer sets ID, Account, Owner, Release, Rank, Spec, Host, GPUs, Mappings, Need, HourlyRate,
// Locked and CreatedAt; the rest is set by Apply. HostEpoch is that of the host's session on which it was picked.
type NewPod struct {
	Pod       fleet.Pod `cbor:"1,keyasint"`
	HostEpoch uint64    `cbor:"2,keyasint"`
	// Evict are the frozen workers and interruptible pods on the host whose place the pod takes; see Binding.
	Evict []fleet.PodID `cbor:"3,keyasint,omitempty"`
}

// Replay is the Value of a create that was done before under the same Once.
type Replay struct{ Value any }

// Binding is where a pod starts. A GPU that another pod holds by then is replaced by a free one of the
// host that is in service and of the same type, if it can be of the NVLink island of the others; a public
// port that is taken by the next free one of the host's range, round its end. When there are not enough, or
// other resources are short, it is stale. The pod's record has what it got.
type Binding struct {
	Host       fleet.HostID `cbor:"1,keyasint"`
	HostEpoch  uint64       `cbor:"2,keyasint"`
	GPUs       []string     `cbor:"3,keyasint,omitempty"`
	HourlyRate fleet.Money  `cbor:"4,keyasint"`
	// Need is what the pod holds there; nil keeps what it held before.
	Need *fleet.Resources `cbor:"5,keyasint,omitempty"`
	// Mappings publish the pod's tcp ports there.
	Mappings []fleet.PortMapping `cbor:"6,keyasint,omitempty"`
	// Evict are frozen workers on the host, at most MaxPods, that are terminated first, and interruptible pods that yield to the one
	// that is bound (fleet.Pod.YieldsTo), which are stopped. What they hold is free at once: the host starts no pod on a GPU that another
	// container still has. One that is not frozen any more, or does not yield, makes the binding stale.
	Evict []fleet.PodID `cbor:"7,keyasint,omitempty"`
}

// ActPod does a public action on a pod of the account and the owner. Bind is set for a start and nil otherwise.
// Value: fleet.Pod. Errors: not_found, not_allowed, invalid, stale (the pod's revision is not Rev,
// or the binding is taken), no_capacity as CreatePods; of a start also low_balance and rule.
type ActPod struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Pod     fleet.PodID     `cbor:"2,keyasint"`
	Rev     uint64          `cbor:"3,keyasint"` // 0: any
	Action  fleet.Trigger   `cbor:"4,keyasint"`
	At      time.Time       `cbor:"5,keyasint"`
	Bind    *Binding        `cbor:"6,keyasint,omitempty"`
	Owner   fleet.Owner     `cbor:"7,keyasint,omitzero"`
	// Bid, when it is set, is from a start on what an interruptible pod bids.
	Bid fleet.Money `cbor:"8,keyasint,omitempty"`
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
	At          time.Time                `cbor:"6,keyasint"` // by the host's clock, put right; zero: when the report came
	Steps       map[fleet.Step]time.Time `cbor:"7,keyasint,omitempty"`
	LogTail     string                   `cbor:"8,keyasint,omitempty"` // of a failed incarnation; the last 16 KiB are kept
	Digest      string                   `cbor:"9,keyasint,omitempty"` // of the image
}

// ReportPods records what a host reports. A report is ignored, without error, when it is of an
// unknown pod, another host's pod or an older incarnation, or when its event is not legal in the
// pod's status. When a process ended is told by the host's clock, put right by the step reported if it is
// there; it counts as at most a day before At and never before the incarnation was made.
// Errors: not_found (host), stale (another epoch).
type ReportPods struct {
	Host    fleet.HostID `cbor:"1,keyasint"`
	Epoch   uint64       `cbor:"2,keyasint"`
	At      time.Time    `cbor:"3,keyasint"`
	Reports []PodReport  `cbor:"4,keyasint"`
}

// PurgePods deletes the records of those of Pods that were terminated before or at Before and hold
// nothing; others are left. Value: int, how many were deleted. Errors: not_allowed (the log's time is held, or At is
// too far from it), invalid (Before is after At).
type PurgePods struct {
	Pods   []fleet.PodID `cbor:"1,keyasint"`
	Before time.Time     `cbor:"2,keyasint"`
	At     time.Time     `cbor:"3,keyasint,omitzero"`
}

// UpdatePod changes what a pod's owner asked for. Spec is the whole new specification; its GPU, CPU,
// Cloud, Centers and kind of mount are the pod's own. Restart begins a new incarnation when the pod is
// active and not being stopped; Need and Mappings are then what it holds, and what is more than it held
// must be free, but for public ports, which are replaced as a Binding's are. A pod that has another owner than its account is not
// found: its owner replaces it. Value: fleet.Pod. Errors: not_found, not_allowed (terminated; locked, with Restart, unless
// Locked unlocks it), invalid, no_capacity, stale.
type UpdatePod struct {
	Account  fleet.AccountID     `cbor:"1,keyasint"`
	Pod      fleet.PodID         `cbor:"2,keyasint"`
	Rev      uint64              `cbor:"3,keyasint"`
	Spec     fleet.PodSpec       `cbor:"4,keyasint"`
	Locked   bool                `cbor:"5,keyasint,omitempty"` // as it shall be
	Restart  bool                `cbor:"6,keyasint,omitempty"`
	Need     fleet.Resources     `cbor:"7,keyasint"`
	Mappings []fleet.PortMapping `cbor:"8,keyasint,omitempty"`
	At       time.Time           `cbor:"9,keyasint"`
	// HourlyRate, when it is set, is what an interruptible pod costs from now on that is locked or unlocked.
	HourlyRate fleet.Money `cbor:"10,keyasint,omitempty"`
}

// SetSSHKeys replaces the SSH public keys of an account. Errors: not_found.
type SetSSHKeys struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Keys    []string        `cbor:"2,keyasint"`
}

// UpdateKey changes a key of the account; nil leaves a field as it is. Value: fleet.Key. Errors: not_found.
type UpdateKey struct {
	Account  fleet.AccountID `cbor:"1,keyasint"`
	Key      fleet.KeyID     `cbor:"2,keyasint"`
	Name     *string         `cbor:"3,keyasint,omitempty"`
	Disabled *bool           `cbor:"4,keyasint,omitempty"`
}

// TouchKeys records when keys were last used; unknown keys are ignored, and a time never goes back.
type TouchKeys struct {
	Used map[fleet.KeyID]time.Time `cbor:"1,keyasint"`
}

// UpdateAccount changes an account; nil leaves a field as it is, the zero Quotas remove its own.
// Value: fleet.Account. Errors: not_found, invalid, rule (more webhooks than all accounts may have).
type UpdateAccount struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Name    *string         `cbor:"2,keyasint,omitempty"`
	Prepaid *bool           `cbor:"3,keyasint,omitempty"`
	Quotas  *fleet.Quotas   `cbor:"4,keyasint,omitempty"`
	Egress  *fleet.Egress   `cbor:"5,keyasint,omitempty"`
	// Limits sets limits by their names, and with nil those of all accounts again; see SetLimits.
	Limits map[string]*int64 `cbor:"6,keyasint,omitempty"`
	// SpendLimit and LowBalance below 0 are none of its own again.
	SpendLimit *fleet.Money `cbor:"7,keyasint,omitempty"`
	LowBalance *fleet.Money `cbor:"8,keyasint,omitempty"`
	// Webhook without URL is none again.
	Webhook *fleet.AccountWebhook `cbor:"9,keyasint,omitempty"`
}

// SetLimits sets limits, by their names, of all accounts that have none of their own, and with nil those that hold where nobody
// set another. Value: fleet.Limits, all that are set. Errors: invalid (an unknown name; a value below 0 or above
// fleet.MaxLimit).
type SetLimits struct {
	Limits map[string]*int64 `cbor:"1,keyasint"`
}

// AddCredit adds to the balance of an account, or takes from it when Amount is negative. An account's
// second command with the same Once is answered as the first. Value: fleet.Money, the balance at At, or
// Replay. Errors: not_found, invalid (more than 10^9 dollars), rule (a balance beyond four times that).
type AddCredit struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Amount  fleet.Money     `cbor:"2,keyasint"`
	At      time.Time       `cbor:"3,keyasint"`
	Once    *fleet.Once     `cbor:"4,keyasint,omitempty"`
}

// PutGPUType creates or replaces a GPU type of the catalog.
type PutGPUType struct {
	Type fleet.GPUType `cbor:"1,keyasint"`
}

// DeleteGPUType deletes a GPU type. Errors: not_found, rule (a host has such GPUs).
type DeleteGPUType struct {
	ID string `cbor:"1,keyasint"`
}

// PutCPUFlavor creates or replaces a CPU flavor of the catalog.
type PutCPUFlavor struct {
	Flavor fleet.CPUFlavor `cbor:"1,keyasint"`
}

// DeleteCPUFlavor deletes a CPU flavor; pods that have it keep it. Errors: not_found.
type DeleteCPUFlavor struct {
	ID string `cbor:"1,keyasint"`
}

// PutStoragePrices replaces the prices of storage, for charges that begin from now on.
type PutStoragePrices struct {
	Prices fleet.StoragePrices `cbor:"1,keyasint"`
}

// DeleteDataCenter deletes a data center. Errors: not_found, rule (hosts, volumes or backends are there).
type DeleteDataCenter struct {
	ID fleet.DataCenterID `cbor:"1,keyasint"`
}

// SettleMeters moves what open meters have run up to At into usage and balances. It changes no sum:
// views count what is not settled yet all the same. Meters that do not exist, and those that are settled
// further, are ignored; what would be more than 16,384 hourly records is left for the next. Errors: not_allowed (the
// log's time is held, or At is too far ahead of it).
type SettleMeters struct {
	Meters []MeterID `cbor:"1,keyasint"`
	At     time.Time `cbor:"2,keyasint"`
}

// ExhaustAccounts ends what prepaid accounts without credit at At have running: pods with a volume or a
// host-local mount are stopped, others terminated. An account that has credit by then is left alone.
// What is more than 2,000 pods is left for the next. Value: int, how many pods were ended. Errors: as of PurgePods.
type ExhaustAccounts struct {
	Accounts []fleet.AccountID `cbor:"1,keyasint"`
	At       time.Time         `cbor:"2,keyasint"`
}

// PurgeUsage deletes up to Limit hourly records of hours that ended before or at Before, oldest first
// within an account. Value: int, how many. Errors: as of PurgePods.
type PurgeUsage struct {
	Before time.Time `cbor:"1,keyasint"`
	Limit  int       `cbor:"2,keyasint"`
	At     time.Time `cbor:"3,keyasint,omitzero"`
}

// PurgeOnce forgets up to Limit keys of creates that were made before or at Before. Value: int, how many. Errors: as
// of PurgePods.
type PurgeOnce struct {
	Before time.Time `cbor:"1,keyasint"`
	Limit  int       `cbor:"2,keyasint,omitempty"` // 0: all
	At     time.Time `cbor:"3,keyasint,omitzero"`
}

// SetTemplateSource says in which slice of the public catalog a template is. Value: fleet.Template.
// Errors: not_found, rule (it is not public).
type SetTemplateSource struct {
	Template fleet.TemplateID     `cbor:"1,keyasint"`
	Source   fleet.TemplateSource `cbor:"2,keyasint"`
}

// PutMember creates or replaces the record of a member of the control plane. Errors: invalid,
// not_allowed (the member was removed).
type PutMember struct {
	Member fleet.Member `cbor:"1,keyasint"`
}

// JoinMember burns a scheduler's join token and creates the member. Of Member the proposer sets ID, Name,
// Address, Level, Version and JoinedAt; the rest is the token's. Value: fleet.Member. Errors: unauthorized
// (token unknown, expired, wrong or a host's), exists, invalid, rule (Level is below the cluster's).
type JoinMember struct {
	Token  fleet.TokenID `cbor:"1,keyasint"`
	Hash   []byte        `cbor:"2,keyasint"` // of the token's secret
	Member fleet.Member  `cbor:"3,keyasint"`
	At     time.Time     `cbor:"4,keyasint"`

	Request []byte `cbor:"5,keyasint,omitempty"` // as JoinHost's
}

// RemoveMember says that a member is none any more, for ever. Errors: not_found.
type RemoveMember struct {
	Member fleet.MemberID `cbor:"1,keyasint"`
	At     time.Time      `cbor:"2,keyasint"`
}

// RaiseLevel puts a feature level in force; it never falls. It is proposed when every member has announced
// that it understands it. A replica whose program does not understand it stops.
type RaiseLevel struct {
	Level uint64 `cbor:"1,keyasint"`
}

// RestoreCluster makes a restored copy a cluster of its own: a new id, a higher lineage, every member of
// before removed, Member the only one, and no pod on the move. It is the first command after a snapshot was restored. Every host
// takes no pods until it has connected and its pods were compared with the copy; the sizes of network volumes
// are to be applied again. Errors: stale (the lineage is not above the copy's).
type RestoreCluster struct {
	ID         string       `cbor:"1,keyasint"`
	Lineage    uint64       `cbor:"2,keyasint"`
	Member     fleet.Member `cbor:"3,keyasint"`
	SnapshotAt time.Time    `cbor:"4,keyasint"`
	At         time.Time    `cbor:"5,keyasint"`
}

// MovePod begins to take a pod from its host, which is being drained, to another: its place there is reserved, and it is
// stopped where it is. What starts it there is an ActPod of action start once it has ended, which ends the reservation,
// as does whatever ends the move. Value: fleet.Pod. Errors: not_found, stale (also: the place is taken), not_allowed (its
// owner did not allow it, it is locked, keeps data on the host, is not active or is being stopped; its host is not draining, its
// drain keeps what runs, or it was not compared since a restore), low_balance and those of a start.
type MovePod struct {
	Pod fleet.PodID `cbor:"1,keyasint"`
	Rev uint64      `cbor:"2,keyasint"`
	At  time.Time   `cbor:"3,keyasint"`
	To  *Binding    `cbor:"4,keyasint,omitempty"` // with Need; of nil, or the pod's own host, nothing comes but invalid
}

// EvictPod stops a pod on a host whose drain has come to its deadline. Value: fleet.Pod. Errors: not_found, stale,
// not_allowed (before the deadline; it is not active or is being stopped; its host is not draining or was not compared
// since a restore).
type EvictPod struct {
	Pod fleet.PodID `cbor:"1,keyasint"`
	Rev uint64      `cbor:"2,keyasint"`
	At  time.Time   `cbor:"3,keyasint"`
}
