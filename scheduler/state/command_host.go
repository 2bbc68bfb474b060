package state

import (
	"time"

	"gantry/fleet"
)

// JoinHost burns a join token and creates a host, and its data center when that is new. Of Host the
// proposer sets ID, Name, MachineID and JoinedAt; data center and tier are the token's. The machine's
// earlier host record, if there is one that holds no pods, is deleted. Value: fleet.Host.
// Errors: unauthorized (token unknown, expired or wrong), exists (also: a host with the machine's id, which may be another machine), invalid.
type JoinHost struct {
	Token fleet.TokenID `cbor:"1,keyasint"`
	Hash  []byte        `cbor:"2,keyasint"` // of the token's secret
	Host  fleet.Host    `cbor:"3,keyasint"`
	At    time.Time     `cbor:"4,keyasint"`
	// Request is the id of the request (pki.RequestID), for which alone the token is good from then on; empty: for none.
	Request []byte `cbor:"5,keyasint,omitempty"`
}

// ConnectHost begins a session of a host: a new epoch, ready, with the inventory that its agent
// reports. Generation is the highest one that the agent's ledger knows; if it is above ours, this
// control plane was restored from an old copy, and ours is raised above it. The first one gives the host
// its address in the tunnel to other hosts. Of its own end of it what cannot be meant is left out, and so is a key that
// another host has: a condition says so then. Value: fleet.Host. Errors: not_found, forbidden (another machine), invalid.
type ConnectHost struct {
	Host       fleet.HostID    `cbor:"1,keyasint"`
	MachineID  string          `cbor:"2,keyasint"`
	BootID     string          `cbor:"3,keyasint"`
	Generation uint64          `cbor:"4,keyasint"`
	Inventory  fleet.Inventory `cbor:"5,keyasint"`
	At         time.Time       `cbor:"6,keyasint"`
	// Pods is all that the host's ledger holds. It counts when the control plane was restored since the
	// host was last compared with it.
	Pods     []HostPod `cbor:"7,keyasint,omitempty"`
	Hardware string    `cbor:"8,keyasint,omitempty"`
	// Lineage is the highest that the agent ever followed. Above the cluster's: stale, the agent must not
	// be ordered by this control plane.
	Lineage uint64 `cbor:"9,keyasint,omitempty"`
	// Brief says that of the inventory only the digest is here, and none of the pods: the record has the inventory of that
	// digest, and there is nothing to compare. Where that is not so: ErrBrief.
	Brief bool `cbor:"10,keyasint,omitempty"`
}

// HostPod is what a host's ledger holds of one pod.
type HostPod struct {
	Pod         fleet.PodID         `cbor:"1,keyasint"`
	Incarnation uint64              `cbor:"2,keyasint"`
	Goal        fleet.Goal          `cbor:"3,keyasint"`           // as it was last ordered
	Ended       bool                `cbor:"4,keyasint,omitempty"` // nothing of this incarnation runs any more
	GPUs        []string            `cbor:"5,keyasint,omitempty"`
	Need        fleet.Resources     `cbor:"6,keyasint"`
	Mappings    []fleet.PortMapping `cbor:"7,keyasint,omitempty"`
}

// SetHostState says whether the session of an epoch is alive: ready or unreachable.
// Errors: not_found, stale (another epoch), invalid.
type SetHostState struct {
	Host  fleet.HostID    `cbor:"1,keyasint"`
	Epoch uint64          `cbor:"2,keyasint"`
	State fleet.HostState `cbor:"3,keyasint"`
	At    time.Time       `cbor:"4,keyasint"`
}

// SetHostCloud moves a host to another tier; pods that are on it stay. Value: fleet.Host. Errors: not_found.
type SetHostCloud struct {
	Host  fleet.HostID `cbor:"1,keyasint"`
	Cloud fleet.Cloud  `cbor:"2,keyasint"`
}

// SetHostEligibility cordons a host, drains it, or opens it again. Value: fleet.Host. Errors: not_found, invalid,
// not_allowed (the host is gone; it is to be opened and is fenced, or something that the fence freed may
// still be there).
type SetHostEligibility struct {
	Host        fleet.HostID      `cbor:"1,keyasint"`
	Eligibility fleet.Eligibility `cbor:"2,keyasint"`
	KeepRunning bool              `cbor:"3,keyasint,omitempty"` // see fleet.Host
	At          time.Time         `cbor:"4,keyasint"`
	Reason      string            `cbor:"5,keyasint,omitempty"` // see fleet.Drain; of a drain alone, as the deadline
	Deadline    time.Time         `cbor:"6,keyasint,omitzero"`
}

// SetHostLabels sets and removes labels of a host; those that it does not name stay. Value: fleet.Host.
// Errors: not_found, invalid, not_allowed (the host is gone).
type SetHostLabels struct {
	Host  fleet.HostID      `cbor:"1,keyasint"`
	Set   map[string]string `cbor:"2,keyasint,omitempty"`
	Unset []string          `cbor:"3,keyasint,omitempty"`
}

// FenceHost records an operator's word that nothing runs on a host any more: its pods end in ERROR and all
// that they held is free. The host is cordoned, its session's epoch is over, and when it connects again
// whatever it still has of those pods is removed before it can be opened. Value: fleet.Host. Errors:
// not_found, not_allowed (it is connected: ready).
type FenceHost struct {
	Host fleet.HostID `cbor:"1,keyasint"`
	At   time.Time    `cbor:"2,keyasint"`
}

// RemoveHost makes a host gone, which has no roles then. Value: fleet.Host. Errors: not_found, rule (pods hold
// something or keep data there, or a backend of network volumes names it).
type RemoveHost struct {
	Host fleet.HostID `cbor:"1,keyasint"`
	At   time.Time    `cbor:"2,keyasint"`
}

// PurgeHosts deletes the records of hosts that are gone since before Before. Value: int, how many. Errors: as of
// PurgePods.
type PurgeHosts struct {
	Before time.Time `cbor:"1,keyasint"`
	At     time.Time `cbor:"2,keyasint,omitzero"`
}

// AlarmHost sets or, with no text, ends the alarm of a host. Errors: not_found.
type AlarmHost struct {
	Host fleet.HostID `cbor:"1,keyasint"`
	Text string       `cbor:"2,keyasint,omitempty"`
	At   time.Time    `cbor:"3,keyasint"`
}

// UpdateInventory says what a connected host has now. One that is equal to what its record holds writes nothing.
// Errors: not_found, stale (another epoch), invalid.
type UpdateInventory struct {
	Host      fleet.HostID    `cbor:"1,keyasint"`
	Epoch     uint64          `cbor:"2,keyasint"`
	Inventory fleet.Inventory `cbor:"3,keyasint"`
	At        time.Time       `cbor:"4,keyasint"`
}
