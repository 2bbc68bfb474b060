// Package volumes says what hosts need to know of network volumes and of the backends that hold them. It keeps nothing.
package volumes

import (
	"cmp"
	"log/slog"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Backends says how hosts reach backends. Its zero value has no keys. It is safe for concurrent use.
type Backends struct {
	// Secrets opens the keys of a backend; nil: there are none.
	Secrets func(*fleet.Backend) (fleet.BackendSecrets, error)
	Log     *slog.Logger // needed with Secrets
}

// Open encodes a backend with the keys that its hosts need. Without them it is of no use, and nil.
func (b Backends) Open(of *fleet.Backend, admin bool) *agentrpc.VolumeBackend {
	var secrets fleet.BackendSecrets
	if b.Secrets != nil {
		var err error
		if secrets, err = b.Secrets(of); err != nil {
			b.Log.Error("open the keys of a backend of network volumes", "backend", of.ID, "err", err)
			return nil
		}
	}
	return EncodeBackend(of, secrets, admin)
}

// EncodeBackend says how a host reaches a backend: as the user that every host is, or with admin as the one that may
// set quotas. The key goes nowhere but into this message.
func EncodeBackend(b *fleet.Backend, secrets fleet.BackendSecrets, admin bool) *agentrpc.VolumeBackend {
	out := &agentrpc.VolumeBackend{Id: string(b.ID), Kind: string(b.Kind), SizedByHost: b.StoragePath != ""}
	switch {
	case b.NFS != nil:
		out.Server, out.Path, out.Options = b.NFS.Server, b.NFS.Export, b.NFS.Options
	case b.Ceph != nil:
		out.Monitors, out.FileSystem, out.Path = b.Ceph.Monitors, b.Ceph.FileSystem, b.Ceph.Path
		if out.User, out.Key = b.Ceph.User, secrets.Key.Reveal(); admin {
			out.User, out.Key = cmp.Or(b.Ceph.AdminUser, b.Ceph.User), secrets.AdminKey.Reveal()
		}
	case b.Local != nil:
		out.Path = b.Local.Path
	}
	return out
}

// EncodeVolume is a network volume as hosts that mount it need it.
func EncodeVolume(v *fleet.Volume, backend *agentrpc.VolumeBackend) *agentrpc.NetworkVolume {
	return &agentrpc.NetworkVolume{
		VolumeId: string(v.ID), Backend: backend, Dir: v.Dir, IdBase: v.IDBase, ReadOnly: v.ReadOnly, Ready: v.State == fleet.VolumeReady,
	}
}
