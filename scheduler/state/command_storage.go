package state

import (
	"time"

	"gantry/fleet"
)

// CreateVolume creates a network volume, which is charged from CreatedAt on. Of Volume the proposer sets ID,
// Account, Name, SizeGB, DataCenter, Type, Backend, Dir and CreatedAt; its IDBase is the next in turn
// that no volume of the data center has. Value: fleet.Volume, or Replay. Errors: not_found (account, data center), exists, invalid,
// stale (the backend takes no such volumes: pick again), rule (the data center has as many as it can), low_balance.
type CreateVolume struct {
	Volume fleet.Volume `cbor:"1,keyasint"`
	Once   *fleet.Once  `cbor:"2,keyasint,omitempty"`
}

// UpdateVolume changes a volume of the account; nil leaves a field as it is. Value: fleet.Volume.
// Errors: not_found (also when it is being deleted), rule (a size below the present one), invalid (one that is too
// large), low_balance (a prepaid account cannot pay an hour of the larger one).
type UpdateVolume struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Volume  fleet.VolumeID  `cbor:"2,keyasint"`
	Name    *string         `cbor:"3,keyasint,omitempty"`
	SizeGB  *int            `cbor:"4,keyasint,omitempty"`
	At      time.Time       `cbor:"5,keyasint"`
}

// DeleteVolume begins to delete a volume of the account, which is charged up to At and is not its owner's any more.
// Its record stays until a host with the storage role reports that its data is gone. Errors: not_found (also when it
// is being deleted), rule (a pod that is not terminated has it).
type DeleteVolume struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	Volume  fleet.VolumeID  `cbor:"2,keyasint"`
	At      time.Time       `cbor:"3,keyasint"`
}

// PutBackend creates a backend of network volumes or replaces one; when it was created stays. Where its data is, which
// is its kind, data center, tier and root, cannot change while volumes are on it; which server, users and options lead
// there, and which host looks after it, can. A Rev that is not 0 must be that of the one that is replaced. One of kind
// local gets its path as StoragePath. Value: fleet.Backend. Errors: not_found (the backend, data center or host),
// exists, stale, invalid, rule (volumes are on it, or the data center has as many as it may).
type PutBackend struct {
	Backend fleet.Backend `cbor:"1,keyasint"`
	New     bool          `cbor:"2,keyasint,omitempty"` // exists is an error then; else not_found is
}

// DeleteBackend deletes a backend. With Force the volumes on it that are being deleted are forgotten: their storage may be
// lost, and what is left of them there nobody removes any more. Value: the ids of those, []fleet.VolumeID. Errors:
// not_found, rule (volumes are on it, without Force also those that are being deleted).
type DeleteBackend struct {
	ID    fleet.BackendID `cbor:"1,keyasint"`
	Force bool            `cbor:"2,keyasint,omitempty"`
}

// ReportVolumes records what a host with the storage role did for volumes. What is about volumes that are not there,
// or whose storage the host does not look after, is ignored; so is that one is gone which is not being deleted, or
// which a host may still have a pod of, also one that a restored cluster does not know. Errors: not_found (host), stale (another epoch), invalid (more than
// MaxVolumeReports).
type ReportVolumes struct {
	Host    fleet.HostID   `cbor:"1,keyasint"`
	Epoch   uint64         `cbor:"2,keyasint"`
	Volumes []VolumeReport `cbor:"3,keyasint"`
	At      time.Time      `cbor:"4,keyasint"`
}

// VolumeReport is what has become of one volume.
type VolumeReport struct {
	Volume        fleet.VolumeID `cbor:"1,keyasint"`
	ProvisionedGB int            `cbor:"2,keyasint,omitempty"` // its directory is there, for so much; 0: nothing is said of it
	Gone          bool           `cbor:"3,keyasint,omitempty"` // nothing is left of one that is being deleted
	ReadOnly      *bool          `cbor:"4,keyasint,omitempty"` // it holds too much, or does no more; nil: nothing is said of it
}

// SetHostRoles says what a host may do beside running pods. Value: fleet.Host. Errors: not_found, invalid,
// not_allowed (the host is gone).
type SetHostRoles struct {
	Host  fleet.HostID     `cbor:"1,keyasint"`
	Roles []fleet.HostRole `cbor:"2,keyasint,omitempty"`
}
