// Package storage has the nouns of network volumes on a host: where their storage is, and what a pod has of it. How they
// are mounted is storage/volume's.
package storage

import "gantry/fleet"

// Backend says how a backend's storage is reached. Key is never written to the host's disk.
type Backend struct {
	ID      fleet.BackendID   `cbor:"id"`
	Kind    fleet.BackendKind `cbor:"kind"`
	Server  string            `cbor:"server,omitempty"`  // nfs
	Options string            `cbor:"options,omitempty"` // nfs, beside the defaults
	// Monitors, FileSystem, User and Key are for cephfs; User without "client.".
	Monitors   []string     `cbor:"monitors,omitempty"`
	FileSystem string       `cbor:"file_system,omitempty"`
	User       string       `cbor:"user,omitempty"`
	Key        fleet.Secret `cbor:"-"`
	Path       string       `cbor:"path"` // nfs: the export; cephfs: in the file system; local: on the host
	// SizedByHost says that each volume is a disk that one host made in a directory of its own.
	SizedByHost bool `cbor:"sized_by_host,omitempty"`
}

// Volume is a network volume of a pod.
type Volume struct {
	ID       fleet.VolumeID `cbor:"id"`
	Backend  Backend        `cbor:"backend"`
	Dir      string         `cbor:"dir"`     // below the backend's root
	IDBase   uint32         `cbor:"id_base"` // owner of its files
	ReadOnly bool           `cbor:"read_only,omitempty"`
	Ready    bool           `cbor:"ready,omitempty"` // its directory was made
}

// Error is why a volume could not be mounted.
type Error struct {
	Sentence string // for the pod's owner
	Err      error
}

// Error returns the sentence and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Sentence
	}
	return e.Sentence + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
