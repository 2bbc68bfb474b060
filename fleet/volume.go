package fleet

import "time"

// VolumeType is the tier of a network volume.
type VolumeType string

// The tiers.
const (
	VolumeStandard VolumeType = "STANDARD"
	VolumeFast     VolumeType = "HIGH_PERFORMANCE"
)

// The bounds of a network volume's size in GB.
const (
	VolumeLeastGB = 10
	VolumeMostGB  = 4096
)

// Where a network volume is mounted by those who need not say it.
const (
	// DefaultVolumePath is that of pods whose client names no path.
	DefaultVolumePath = "/workspace"
	// WorkerVolumePath is that of serverless workers, for which it is fixed (wire-facts.md, 6.8).
	WorkerVolumePath = "/runpod-volume"
	// OwnWorkerVolumePath is where they have it as well.
	OwnWorkerVolumePath = "/gantry-volume"
)

// VolumeState is how far a network volume has come.
type VolumeState string

// The states, in the order in which they follow each other.
const (
	VolumeCreating VolumeState = "creating" // its directory is not made yet; pods that have it wait
	VolumeReady    VolumeState = "ready"
	// VolumeDeleting: its owner does not have it any more, and pays for it no more; its data is being removed.
	VolumeDeleting VolumeState = "deleting"
)

// VolumeIDs is how many ids the files of a volume may have.
const VolumeIDs = 1 << 16

// The bounds of Volume.IDBase, which is a multiple of VolumeIDs.
const (
	VolumeIDsFirst uint32 = 0x8000_0000
	VolumeIDsLast  uint32 = 0xFFFD_0000
)

// Volume is the record of a network volume: a directory below the root of a backend.
type Volume struct {
	ID         VolumeID     `cbor:"1,keyasint"`
	Account    AccountID    `cbor:"2,keyasint"`
	Name       string       `cbor:"3,keyasint"`
	SizeGB     int          `cbor:"4,keyasint"` // that is paid for
	DataCenter DataCenterID `cbor:"5,keyasint"`
	Type       VolumeType   `cbor:"6,keyasint"`
	Rev        uint64       `cbor:"7,keyasint"`
	CreatedAt  time.Time    `cbor:"8,keyasint"`

	Backend BackendID `cbor:"9,keyasint,omitempty"`
	Dir     string    `cbor:"10,keyasint,omitempty"` // name of its directory; nobody can guess it
	// IDBase is the owner of its directory: root of the pods that have it. No two volumes of a data center
	// share one.
	IDBase uint32      `cbor:"11,keyasint,omitempty"`
	State  VolumeState `cbor:"12,keyasint,omitempty"`
	// ProvisionedGB is the size that a host with the storage role last gave it.
	ProvisionedGB int `cbor:"13,keyasint,omitempty"`
	// ReadOnly says that it holds too much, on a backend that only measures: pods may not write to it.
	ReadOnly  bool      `cbor:"14,keyasint,omitempty"`
	DeletedAt time.Time `cbor:"15,keyasint,omitzero"`
}

// VolumeView is a network volume with what is not stored of it.
type VolumeView struct {
	Volume  Volume
	Used    *int64 // bytes in use when they were measured last; nil: not known
	Problem string // why it is not ready, or not whole; one sentence, empty: nothing is wrong
}

// VolumeRequest asks for a network volume. An empty Type takes the tier that the data center has, STANDARD
// before HIGH_PERFORMANCE.
type VolumeRequest struct {
	Name       string
	SizeGB     int
	DataCenter DataCenterID
	Type       VolumeType
	Once       *Once
}

// VolumeUpdate changes a network volume; nil leaves a field as it is.
type VolumeUpdate struct {
	Name   *string
	SizeGB *int
}

// BackendID names a backend of network volumes, as its operator wrote it: 1 to 63 lower-case letters,
// digits and '-', beginning with a letter.
type BackendID string

// BackendKind is how the storage of a backend is reached.
type BackendKind string

// The kinds.
const (
	BackendNFS   BackendKind = "nfs"
	BackendCeph  BackendKind = "cephfs"
	BackendLocal BackendKind = "local" // a directory of every host of the data center, for development
)

// Backend is where network volumes of one data center and tier are. Exactly the one of NFS, Ceph and Local
// is set that Kind names.
type Backend struct {
	ID         BackendID     `cbor:"1,keyasint"`
	DataCenter DataCenterID  `cbor:"2,keyasint"`
	Type       VolumeType    `cbor:"3,keyasint"`
	Kind       BackendKind   `cbor:"4,keyasint"`
	NFS        *NFSBackend   `cbor:"5,keyasint,omitempty"`
	Ceph       *CephBackend  `cbor:"6,keyasint,omitempty"`
	Local      *LocalBackend `cbor:"7,keyasint,omitempty"`
	// StorageHost is the one host that makes and deletes its volumes; empty: any host of the data center that
	// has RoleStorage does.
	StorageHost HostID `cbor:"8,keyasint,omitempty"`
	// StoragePath is the backend's root as a directory of StorageHost, which limits the size of the volumes
	// in it; empty: StorageHost mounts the backend as all others do.
	StoragePath string    `cbor:"9,keyasint,omitempty"`
	Closed      bool      `cbor:"10,keyasint,omitempty"` // it gets no new volumes
	Sealed      []byte    `cbor:"11,keyasint,omitempty"` // BackendSecrets; nil: it needs none
	Rev         uint64    `cbor:"12,keyasint"`
	CreatedAt   time.Time `cbor:"13,keyasint"`
	// Used says that a volume was made on it at some time: its root has a marker since then, and gets no other.
	Used bool `cbor:"14,keyasint,omitempty"`
}

// Measured reports whether nothing enforces the size of the backend's volumes: what they hold is measured.
func (b *Backend) Measured() bool { return b.Kind == BackendNFS && b.StoragePath == "" }

// NFSBackend is a directory that an NFSv4 server exports.
type NFSBackend struct {
	Server  string `cbor:"1,keyasint"` // host name or address
	Export  string `cbor:"2,keyasint"` // absolute path
	Options string `cbor:"3,keyasint,omitempty"`
}

// CephBackend is a directory of a Ceph file system.
type CephBackend struct {
	Monitors   []string `cbor:"1,keyasint"` // host:port, at most 16
	FileSystem string   `cbor:"2,keyasint"`
	Path       string   `cbor:"3,keyasint"`           // absolute, in the file system
	User       string   `cbor:"4,keyasint"`           // without "client.": what every host mounts with; it may not change quotas
	AdminUser  string   `cbor:"5,keyasint,omitempty"` // the same of hosts with the storage role, which set quotas
}

// LocalBackend is a directory that every host of the data center has.
type LocalBackend struct {
	Path string `cbor:"1,keyasint"` // absolute
}

// BackendSecrets are the keys of a Ceph backend's users.
type BackendSecrets struct {
	Key      Secret
	AdminKey Secret
}

// BackendView is a backend with what is not stored in it.
type BackendView struct {
	Backend Backend
	Volumes int    // that are on it, with those that are being deleted
	SizeGB  int64  // the sum of what was asked for
	Host    HostID // that looks after its volumes now; empty: none is connected
	Problem string // one sentence; empty: nothing is wrong
}

// HostRole is what an operator lets a host do beside running pods.
type HostRole string

// The roles.
const (
	RoleStorage HostRole = "storage" // makes, measures and deletes network volumes, with the backends' keys
	RoleS3      HostRole = "s3"      // serves the files of network volumes over S3
)

// S3Key is the record of a key pair of the S3 interface.
type S3Key struct {
	ID        string    `cbor:"1,keyasint"` // the access key: "user_" and 27 letters and digits
	Account   AccountID `cbor:"2,keyasint"`
	Name      string    `cbor:"3,keyasint"`
	Sealed    []byte    `cbor:"4,keyasint"` // the secret: signatures are checked with it
	ReadOnly  bool      `cbor:"5,keyasint,omitempty"`
	CreatedAt time.Time `cbor:"6,keyasint"`
	ExpiresAt time.Time `cbor:"7,keyasint,omitzero"` // zero: never
}

// S3KeyRequest asks for a key pair.
type S3KeyRequest struct {
	Name      string
	ReadOnly  bool
	ExpiresAt time.Time
}
