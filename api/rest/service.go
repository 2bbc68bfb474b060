package rest

import (
	"context"
	"io"
	"time"

	"gantry/fleet"
)

// Service is what the REST face needs of the control plane. Every call takes the principal: what is
// not the caller's is not there. Errors carry a fleet.Code.
type Service interface {
	// Authenticate returns who holds the key; CodeUnauthorized when nobody does.
	Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error)
	// KnownKey is Authenticate as far as this scheduler knows by itself. It answers at once.
	KnownKey(key fleet.Secret) (fleet.Principal, bool)

	CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	// PlanPod answers as CreatePod would, and creates nothing.
	PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	// Pods lists the account's pods, terminated ones too, oldest first.
	Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error)
	Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error)
	ActPod(ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error)
	UpdatePod(ctx context.Context, who fleet.Principal, id fleet.PodID, change fleet.PodUpdate) (fleet.PodView, error)
	// ExecPod starts a process in a running pod's container.
	ExecPod(ctx context.Context, who fleet.Principal, id fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error)
	// ReadPodFiles returns a file or folder of a running pod's container as a tar stream.
	ReadPodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string) (io.ReadCloser, error)
	// WritePodFiles unpacks a tar stream below a folder of a running pod's container.
	WritePodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string, tar io.Reader) error
	PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error

	Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error)

	// CreateTemplate makes a template of ID, Account, Rev and CreatedAt of its own; replayed tells that
	// once was seen before.
	CreateTemplate(ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once) (made fleet.Template, replayed bool, err error)
	// Templates lists the account's templates, oldest first; PublicTemplates those of a source.
	Templates(ctx context.Context, who fleet.Principal) ([]fleet.Template, error)
	PublicTemplates(ctx context.Context, source fleet.TemplateSource) ([]fleet.Template, error)
	// Template returns a template of the account, or a public one; of another account's, without its
	// registry credential.
	Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (fleet.Template, error)
	UpdateTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID, change fleet.TemplateUpdate) (fleet.Template, error)
	DeleteTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID) error

	CreateRegistry(ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once) (made fleet.Registry, replayed bool, err error)
	Registries(ctx context.Context, who fleet.Principal) ([]fleet.Registry, error)
	Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (fleet.Registry, error)
	DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) error

	// CreateVolume makes a network volume; replayed tells that its Once was seen before.
	CreateVolume(ctx context.Context, who fleet.Principal, req fleet.VolumeRequest) (made fleet.VolumeView, replayed bool, err error)
	// Volumes lists the account's network volumes, oldest first.
	Volumes(ctx context.Context, who fleet.Principal) ([]fleet.VolumeView, error)
	Volume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) (fleet.VolumeView, error)
	UpdateVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID, change fleet.VolumeUpdate) (fleet.VolumeView, error)
	DeleteVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) error
	// CreateS3Key makes a key pair and returns its secret, which is shown nowhere else.
	CreateS3Key(ctx context.Context, who fleet.Principal, req fleet.S3KeyRequest) (fleet.S3Key, fleet.Secret, error)
	S3Keys(ctx context.Context, who fleet.Principal) ([]fleet.S3Key, error)
	DeleteS3Key(ctx context.Context, who fleet.Principal, id string) error

	// Networks lists the account's private networks with the pods in them.
	Networks(ctx context.Context, who fleet.Principal) ([]fleet.NetworkView, error)
	// CheckNetwork has the account's running pods reach for each other.
	CheckNetwork(ctx context.Context, account fleet.AccountID) ([]fleet.Probe, error)

	// Account returns the caller's account with its money.
	Account(ctx context.Context, who fleet.Principal) (fleet.AccountView, error)
	SSHKeys(ctx context.Context, who fleet.Principal) ([]string, error)
	SetSSHKeys(ctx context.Context, who fleet.Principal, keys []string) error
	Secrets(ctx context.Context, who fleet.Principal) ([]fleet.AccountSecret, error)
	// PutSecret makes a secret of the account or gives it another value.
	PutSecret(ctx context.Context, who fleet.Principal, name string, value fleet.Secret) (fleet.AccountSecret, error)
	DeleteSecret(ctx context.Context, who fleet.Principal, name string) error
	Billing(ctx context.Context, who fleet.Principal, q fleet.BillingQuery) (fleet.BillingView, error)

	CreateKey(ctx context.Context, who fleet.Principal, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error)
	Keys(ctx context.Context, who fleet.Principal) ([]fleet.Key, error)
	Key(ctx context.Context, who fleet.Principal, id fleet.KeyID) (fleet.Key, error)
	UpdateKey(ctx context.Context, who fleet.Principal, id fleet.KeyID, change fleet.KeyUpdate) (fleet.Key, error)
	DeleteKey(ctx context.Context, who fleet.Principal, id fleet.KeyID) error

	// The rest is for operators.

	Hosts(ctx context.Context) ([]fleet.HostView, error)
	Host(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	// Images tells which images each host has; with a reference, which hosts have that one.
	Images(ctx context.Context, image string) ([]fleet.HostImages, error)
	// PrefetchImage asks connected hosts to get an image and returns its full name and those that were asked.
	PrefetchImage(ctx context.Context, q fleet.PrefetchRequest) (image string, hosts []fleet.HostImages, err error)
	// CreateJoinToken returns the text of a one-use token for a host of the data center, which is
	// made when it is new.
	CreateJoinToken(ctx context.Context, dc fleet.DataCenterID, cloud fleet.Cloud, ttl time.Duration) (fleet.Secret, time.Time, error)
	CreateAccount(ctx context.Context, name string) (fleet.Account, error)
	Accounts(ctx context.Context) ([]fleet.AccountView, error)
	AccountByID(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error)
	SuspendAccount(ctx context.Context, id fleet.AccountID, reason string, stopPods bool) (fleet.AccountView, error)
	ResumeAccount(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error)
	UpdateAccount(ctx context.Context, id fleet.AccountID, change fleet.AccountUpdate) (fleet.AccountView, error)
	// Limits returns the limits that were set for accounts that have none of their own; SetLimits changes them, and nil takes one back.
	Limits(ctx context.Context) (fleet.Limits, error)
	SetLimits(ctx context.Context, change map[string]*int64) (fleet.Limits, error)
	// AddCredit adds to an account's balance and returns what it is then; replayed tells that once was seen
	// before.
	AddCredit(ctx context.Context, id fleet.AccountID, amount fleet.Money, once *fleet.Once) (balance fleet.Money, replayed bool, err error)
	// CreateAccountKey makes a key of an account; the preset admin is allowed.
	CreateAccountKey(ctx context.Context, account fleet.AccountID, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error)

	SetHostCloud(ctx context.Context, id fleet.HostID, cloud fleet.Cloud) (fleet.HostView, error)
	SetHostDuty(ctx context.Context, id fleet.HostID, duty fleet.Duty) (fleet.HostView, error)
	DrainHost(ctx context.Context, id fleet.HostID, req fleet.DrainRequest) (fleet.HostView, error)
	PlanDrain(ctx context.Context, id fleet.HostID, keepRunning bool) ([]fleet.HeldPod, error)
	// SetHostRoles replaces what the host may do beside running pods.
	SetHostRoles(ctx context.Context, id fleet.HostID, roles []fleet.HostRole) (fleet.HostView, error)
	SetHostLabels(ctx context.Context, id fleet.HostID, set map[string]string, unset []string) (fleet.HostView, error)
	// CordonGPU takes a GPU of a host, by UUID or place, out of service; OpenGPU ends that, with forget also of one that is gone.
	CordonGPU(ctx context.Context, id fleet.HostID, gpu, reason string) (fleet.HostView, error)
	OpenGPU(ctx context.Context, id fleet.HostID, gpu string, forget bool) (fleet.HostView, error)
	FenceHost(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	RemoveHost(ctx context.Context, id fleet.HostID) error
	ClearHostAlarm(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	HostPods(ctx context.Context, id fleet.HostID) ([]fleet.HeldPod, error)

	// Cluster returns the schedulers of the cluster.
	Cluster(ctx context.Context) (fleet.ClusterView, error)
	// CreateMemberToken returns the text of a one-use token for a new scheduler; replaces may be empty.
	CreateMemberToken(ctx context.Context, nonVoter bool, replaces fleet.MemberID, ttl time.Duration) (fleet.Secret, time.Time, error)
	PromoteMember(ctx context.Context, id fleet.MemberID) error
	DemoteMember(ctx context.Context, id fleet.MemberID) error
	RemoveMember(ctx context.Context, id fleet.MemberID, force bool) error
	// TransferLeadership hands leadership to a voter; an empty id: to the most up-to-date one.
	TransferLeadership(ctx context.Context, id fleet.MemberID) error
	// ConfirmClock sets the log's time to the leader's, which was seen at a time and found right.
	ConfirmClock(ctx context.Context, at time.Time) error
	// CAStatus returns the cluster's CA and how far its replacement has come.
	CAStatus(ctx context.Context) (fleet.CAView, error)
	// RotateCA begins to replace the CA.
	RotateCA(ctx context.Context) error
	// FinishCAStep ends the present step, which the caller names, without the hosts that it waits for.
	FinishCAStep(ctx context.Context, step fleet.RotationStep) error
	// NoteBackup remembers of when a back-up is that is whole where it is kept.
	NoteBackup(ctx context.Context, savedAt time.Time) (time.Time, error)
	// SaveSnapshot writes a copy of the whole state.
	SaveSnapshot(ctx context.Context, w io.Writer) error
	Backends(ctx context.Context) ([]fleet.BackendView, error)
	Backend(ctx context.Context, id fleet.BackendID) (fleet.BackendView, error)
	// CreateBackend makes a backend of network volumes. Of b the caller leaves out Sealed, Rev and CreatedAt.
	CreateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (fleet.BackendView, error)
	// UpdateBackend changes a backend; an empty secret stays as it is.
	UpdateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (fleet.BackendView, error)
	DeleteBackend(ctx context.Context, id fleet.BackendID) error
	// ForceDeleteBackend deletes one whose storage is lost, and forgets the volumes that are being deleted on it.
	ForceDeleteBackend(ctx context.Context, id fleet.BackendID) error
	Placement(ctx context.Context) (fleet.Placement, error)
	PutPlacement(ctx context.Context, placement fleet.Placement) (fleet.Placement, error)
	// Capacity returns what the hosts have room for.
	Capacity(ctx context.Context) (fleet.Capacity, error)
	NetworkSettings(ctx context.Context) (fleet.NetworkSettings, error)
	PutNetworkSettings(ctx context.Context, s fleet.NetworkSettings) error
	// HostNetwork asks a connected host about its network.
	HostNetwork(ctx context.Context, id fleet.HostID) (fleet.HostNetwork, error)
	PutDataCenter(ctx context.Context, dc fleet.DataCenter) error
	DeleteDataCenter(ctx context.Context, id fleet.DataCenterID) error
	PutGPUType(ctx context.Context, t fleet.GPUType) error
	DeleteGPUType(ctx context.Context, id string) error
	PutCPUFlavor(ctx context.Context, f fleet.CPUFlavor) error
	DeleteCPUFlavor(ctx context.Context, id string) error
	StoragePrices(ctx context.Context) (fleet.StoragePrices, error)
	PutStoragePrices(ctx context.Context, p fleet.StoragePrices) error
	SetTemplateSource(ctx context.Context, id fleet.TemplateID, source fleet.TemplateSource) (fleet.Template, error)
}

// Health is one known condition of the daemon.
type Health struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"`
}

// HealthSource tells the daemon's conditions; it answers at once.
type HealthSource func() []Health
