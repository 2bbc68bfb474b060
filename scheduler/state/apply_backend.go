package state

import (
	"bytes"
	"reflect"

	"gantry/fleet"
)

// maxBackends is how many backends a data center may have.
const maxBackends = 64

func (c PutBackend) apply(t *txn) (any, error) {
	in := cloneBackend(&c.Backend)
	if err := checkBackend(&in); err != nil {
		return nil, err
	}
	old := t.base.backends.Get(t.Txn, in.ID)
	switch {
	case c.New && old != nil:
		return nil, exists("there is a storage backend with this id")
	case !c.New && old == nil:
		return nil, fleet.NotFound("storage backend")
	case !c.New && in.Rev != 0 && in.Rev != old.Rev:
		return nil, fleet.Stale("the storage backend changed")
	case t.base.centers.Get(t.Txn, in.DataCenter) == nil:
		return nil, fleet.NotFound("data center")
	}
	if err := t.checkStorageHost(&in); err != nil {
		return nil, err
	}
	in.Rev, in.Used = 1, false
	if old == nil {
		others := t.base.backends.Count(t.Txn, func(b *fleet.Backend) bool { return b.DataCenter == in.DataCenter })
		if others >= maxBackends {
			return nil, fleet.BreaksRule("a data center may have at most %d storage backends", maxBackends)
		}
	} else {
		if n := t.base.volumesOn.Count(t.Txn, in.ID); n > 0 && !samePlace(old, &in) {
			return nil, inUse("where the storage backend's data is", uses{n: n, thing: "network volume"})
		}
		in.Rev, in.CreatedAt = old.Rev+1, old.CreatedAt
		in.Used = old.Used && samePlace(old, &in)
	}
	t.base.backends.Put(t.Txn, in.ID, &in)
	t.Note(KindStorage, string(in.ID))
	if old != nil && !sameReach(old, &in) {
		for _, id := range t.base.volumesOn.Keys(t.Txn, in.ID) {
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
	host := t.base.hosts.Get(t.Txn, b.StorageHost)
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
	return samePlace(a, b) && equalPtr(a.NFS, b.NFS) && reflect.DeepEqual(a.Ceph, b.Ceph) && bytes.Equal(a.Sealed, b.Sealed)
}

func (c DeleteBackend) apply(t *txn) (any, error) {
	if t.base.backends.Get(t.Txn, c.ID) == nil {
		return nil, fleet.NotFound("storage backend")
	}
	var live, ending []fleet.VolumeID
	for _, id := range t.base.volumesOn.Keys(t.Txn, c.ID) {
		if c.Force && t.base.volumes.Get(t.Txn, id).State == fleet.VolumeDeleting {
			ending = append(ending, id)
		} else {
			live = append(live, id)
		}
	}
	if err := inUse("the storage backend", uses{n: len(live), thing: "network volume"}); err != nil {
		return nil, err
	}
	for _, id := range ending {
		old := t.base.volumes.Get(t.Txn, id)
		t.base.volumes.Drop(t.Txn, id)
		t.noteVolume(old)
	}
	t.base.backends.Drop(t.Txn, c.ID)
	t.Note(KindStorage, string(c.ID))
	return ending, nil
}

// noteBackends says that what is to be done on backends may be another host's now.
func (t *txn) noteBackends(match func(*fleet.Backend) bool) {
	for _, id := range t.base.backends.Keys(t.Txn, 0, match) {
		t.Note(KindStorage, string(id))
	}
}
