package state

import (
	"bytes"
	"slices"

	"gantry/fleet"
)

// maxBackends is how many backends a data center may have.
const maxBackends = 64

func (c PutBackend) apply(t *txn) (any, error) {
	in := cloneBackend(&c.Backend)
	if err := checkBackend(&in); err != nil {
		return nil, err
	}
	old := get(t, &t.base.backends, in.ID)
	switch {
	case c.New && old != nil:
		return nil, exists("there is a storage backend with this id")
	case !c.New && old == nil:
		return nil, fleet.NotFound("storage backend")
	case !c.New && in.Rev != 0 && in.Rev != old.Rev:
		return nil, fleet.Stale("the storage backend changed")
	case get(t, &t.base.centers, in.DataCenter) == nil:
		return nil, fleet.NotFound("data center")
	}
	if err := t.checkStorageHost(&in); err != nil {
		return nil, err
	}
	in.Rev, in.Used = 1, false
	if old == nil {
		others := count(t, &t.base.backends, func(b *fleet.Backend) bool { return b.DataCenter == in.DataCenter })
		if others >= maxBackends {
			return nil, fleet.BreaksRule("a data center may have at most %d storage backends", maxBackends)
		}
	} else {
		if n := t.base.volumesOn.count(t, in.ID); n > 0 && !samePlace(old, &in) {
			return nil, inUse("where the storage backend's data is", uses{n: n, thing: "network volume"})
		}
		in.Rev, in.CreatedAt = old.Rev+1, old.CreatedAt
		in.Used = old.Used && samePlace(old, &in)
	}
	put(t, &t.base.backends, in.ID, &in)
	t.note(KindStorage, string(in.ID))
	if old != nil && !sameReach(old, &in) {
		for _, id := range t.base.volumesOn.keys(t, in.ID) {
			t.tellHolders(id)
		}
	}
	return cloneBackend(&in), nil
}

// checkStorageHost refuses a host that cannot look after the volumes of a backend.
func (t *txn) checkStorageHost(b *fleet.Backend) error {
	if b.StorageHost == "" {
		return nil
	}
	host := get(t, &t.base.hosts, b.StorageHost)
	switch {
	case host == nil || host.State == fleet.HostGone:
		return fleet.NotFound("host")
	case host.DataCenter != b.DataCenter:
		return fleet.Invalid("$.storageHost", "must be of the backend's data center")
	}
	return nil
}

// samePlace reports whether the data of two backends is at the same place: which server or monitors lead there, and
// which host looks after it, may differ.
func samePlace(a, b *fleet.Backend) bool {
	return a.DataCenter == b.DataCenter && a.Type == b.Type && a.Kind == b.Kind && rootOf(a) == rootOf(b) &&
		a.StoragePath == b.StoragePath
}

// root is where the data of a backend is in its storage.
type root struct{ fileSystem, path string }

func rootOf(b *fleet.Backend) root {
	switch {
	case b.NFS != nil:
		return root{path: b.NFS.Export}
	case b.Ceph != nil:
		return root{b.Ceph.FileSystem, b.Ceph.Path}
	case b.Local != nil:
		return root{path: b.Local.Path}
	}
	return root{}
}

// sameReach reports whether hosts reach two backends in the same way.
func sameReach(a, b *fleet.Backend) bool {
	if a.Ceph != nil && b.Ceph != nil {
		x, y := a.Ceph, b.Ceph
		if !slices.Equal(x.Monitors, y.Monitors) || x.User != y.User || x.AdminUser != y.AdminUser {
			return false
		}
	}
	return samePlace(a, b) && equalPtr(a.NFS, b.NFS) && bytes.Equal(a.Sealed, b.Sealed)
}

func (c DeleteBackend) apply(t *txn) (any, error) {
	if get(t, &t.base.backends, c.ID) == nil {
		return nil, fleet.NotFound("storage backend")
	}
	var live, ending []fleet.VolumeID
	for _, id := range t.base.volumesOn.keys(t, c.ID) {
		if c.Force && get(t, &t.base.volumes, id).State == fleet.VolumeDeleting {
			ending = append(ending, id)
		} else {
			live = append(live, id)
		}
	}
	if err := inUse("the storage backend", uses{n: len(live), thing: "network volume"}); err != nil {
		return nil, err
	}
	for _, id := range ending {
		old := get(t, &t.base.volumes, id)
		drop(t, &t.base.volumes, id)
		t.noteVolume(old)
	}
	drop(t, &t.base.backends, c.ID)
	t.note(KindStorage, string(c.ID))
	return ending, nil
}

// noteBackends says that what is to be done on backends may be another host's now.
func (t *txn) noteBackends(match func(*fleet.Backend) bool) {
	for _, id := range firstKeys(t, &t.base.backends, 0, match) {
		t.note(KindStorage, string(id))
	}
}
