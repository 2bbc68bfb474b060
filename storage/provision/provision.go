// Package provision does what a storage host does for network volumes: it makes, grows, measures and deletes them below
// the root of a backend that is mounted already, or that is a folder of the host's own.
//
// Each call may be made by a process of its own: a server that is gone can hold a call for ever, and such a process is given
// up. So there is no state in memory, and every call may be repeated after it was interrupted at any point. At most one
// host works on a backend. What volumes hold is hostile: no link in them is followed.
package provision

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"gantry/storage/disk"
)

// Kinds of backends.
const (
	CephFS = "cephfs"
	NFS    = "nfs"
	Local  = "local"
)

// Marker is the name of the file in the root of every backend that holds the backend's id and a line feed.
const Marker = ".gantry-backend"

var (
	// ErrNoMarker says that a root has no marker: the backend may not be mounted there.
	ErrNoMarker = errors.New("the marker " + Marker + " of the backend is not there: its storage may not be mounted")
	// ErrOtherMarker says that a root is that of another backend.
	ErrOtherMarker = errors.New("the marker " + Marker + " is that of another backend")
	// ErrRemoved says that a volume was removed. A new one has another name.
	ErrRemoved = errors.New("the network volume was removed")
	// ErrMissing says that there is no such volume.
	ErrMissing = errors.New("there is no such network volume")
)

// Root is a backend's root on this host.
type Root struct {
	// Kind is CephFS, NFS or Local.
	Kind string `json:"kind"`
	// Backend is the backend's id.
	Backend string `json:"backend"`
	// Dir is the folder on which the backend is mounted, or the storage host's own folder.
	Dir string `json:"dir"`
	// Sized says that Dir is a folder of the host's own, where the kernel limits the volumes' sizes. It holds on every
	// host of the backend, also on those that have it mounted.
	Sized bool `json:"sized,omitempty"`
	// Fresh says that no volume of the backend was ever made: only then is a marker written where there is none.
	Fresh bool `json:"fresh,omitempty"`
	// PerSecond is the most files that a call looks at or deletes in a second, so that tenants do not notice; 0: no bound.
	PerSecond int `json:"perSecond,omitempty"`
}

// Volume is what a volume shall be.
type Volume struct {
	// Dir is its name: up to 64 lower-case letters and digits, never given twice.
	Dir string `json:"dir"`
	// SizeGB is its size in GB of 10^9 bytes.
	SizeGB int64 `json:"sizeGB"`
	// IDBase is the user and group id, as the backend has it, of the tenant's root.
	IDBase uint32 `json:"idBase"`
}

// Path returns where the folder that a tenant gets is, relative to the backend's root. It is the same on all hosts.
func Path(r Root, dir string) string {
	if r.Sized {
		return filepath.Join(dir, content)
	}
	return dir
}

// Enforced reports whether something limits the size of the backend's volumes; those of others are measured.
func Enforced(r Root) bool { return r.Sized || r.Kind == CephFS }

// Check says whether the root is the backend's. The error may be ErrNoMarker or ErrOtherMarker.
func Check(_ context.Context, r Root) error {
	at, err := open(r)
	if err == nil {
		err = at.marked()
		at.close()
	}
	return described("check", r, err)
}

// Make makes a volume that is not there, and makes one larger that is too small; it never makes one smaller. The folder of a
// new one belongs to IDBase and has mode 0755; that of one that is there stays as the tenant has it. Where Root.Sized it must be
// called again after the host was down. The error may be ErrRemoved, and that of Check.
func Make(ctx context.Context, r Root, v Volume) error {
	err := valid(v.Dir)
	if err == nil && (v.SizeGB <= 0 || v.SizeGB > mostGB) {
		err = fmt.Errorf("a network volume of %d GB", v.SizeGB)
	}
	if err != nil {
		return described("make", r, err)
	}
	at, err := open(r)
	if err != nil {
		return described("make", r, err)
	}
	defer at.close()
	if err = at.marked(); errors.Is(err, ErrNoMarker) && r.Fresh {
		err = at.mark()
	}
	switch {
	case err != nil:
	case r.Sized:
		err = at.makeSized(ctx, v)
	default:
		err = at.makePlain(v)
	}
	return described("make the network volume "+v.Dir, r, err)
}

// Remove takes a volume out of sight. What it holds is deleted by RemoveSome. A volume that is not there is removed. Where
// Root.Sized it fails with disk.ErrBusy while something of the host has files of the volume open or mounted.
func Remove(ctx context.Context, r Root, dir string) error {
	return below(r, dir, "remove", func(at *place) error {
		if r.Sized {
			return at.removeSized(ctx, dir)
		}
		return at.removePlain(dir)
	})
}

// RemoveSome deletes at most so many of the files that removed volumes hold, and says whether something is left. It ends
// early with ctx, without an error. One volume that cannot be deleted does not hinder the others.
func RemoveSome(ctx context.Context, r Root, most int) (left bool, err error) {
	at, err := open(r)
	if err != nil {
		return true, described("delete", r, err)
	}
	defer at.close()
	if err = at.marked(); err == nil {
		b := newBudget(ctx, most, r.PerSecond)
		if r.Sized {
			left, err = at.deleteSized(ctx, b)
		} else {
			left, err = at.deletePlain(b)
		}
	}
	return left || err != nil, described("delete removed network volumes", r, err)
}

// Gone reports whether nothing of a volume is left.
func Gone(ctx context.Context, r Root, dir string) (gone bool, err error) {
	err = below(r, dir, "look for", func(at *place) error {
		if r.Sized {
			gone, err = at.goneSized(ctx, dir)
		} else {
			gone, err = at.gonePlain(dir)
		}
		return err
	})
	return gone && err == nil, err
}

// Used returns how many bytes a volume holds. Where nothing counts them it looks at every file: see Measure, which
// does that in slices. The error is ErrMissing when there is no such volume.
func Used(ctx context.Context, r Root, dir string) (bytes int64, err error) {
	if !Enforced(r) {
		p, done, err := Measure(ctx, r, dir, Progress{}, 0)
		if err == nil && !done {
			err = ctx.Err()
		}
		return p.Bytes, err
	}
	err = below(r, dir, "measure", func(at *place) error {
		if r.Sized {
			bytes, err = at.usedSized(ctx, dir)
		} else {
			bytes, err = at.usedCeph(dir)
		}
		return err
	})
	return bytes, err
}

// Release unmounts the volumes of a folder of the host's own (Root.Sized). They stay, and Restore mounts them again.
func Release(ctx context.Context, r Root) error {
	return withDisks(ctx, r, "release", func(pool *disk.Pool) error { return pool.Release(ctx) })
}

// Restore mounts the volumes of a folder of the host's own (Root.Sized), each as large as it is, as after a boot. Those
// that were removed are left out. One that cannot be mounted does not keep the others.
func Restore(ctx context.Context, r Root) error {
	return withDisks(ctx, r, "restore", func(pool *disk.Pool) error {
		names, err := pool.Names()
		errs := []error{err}
		for _, name := range names {
			if valid(name) == nil {
				_, err := pool.Keep(ctx, name, 1)
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// withDisks does something with the disks of a root that has its marker, where they are this host's.
func withDisks(ctx context.Context, r Root, what string, do func(pool *disk.Pool) error) error {
	at, err := open(r)
	if err != nil {
		return described(what, r, err)
	}
	defer at.close()
	if err = at.marked(); err == nil && r.Sized {
		var pool *disk.Pool
		if pool, err = at.disks(ctx); err == nil {
			err = do(pool)
		}
	}
	return described(what, r, err)
}

// below does something with a volume below a root that has its marker.
func below(r Root, dir, what string, f func(*place) error) error {
	err := valid(dir)
	var at *place
	if err == nil {
		at, err = open(r)
	}
	if err == nil {
		defer at.close()
		if err = at.marked(); err == nil {
			err = f(at)
		}
	}
	return described(what+" the network volume "+dir, r, err)
}

func described(what string, r Root, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s on the backend %s: %w", what, r.Backend, err)
}

const (
	mostName = 64
	mostGB   = 1 << 22 // 4 PB
)

// valid says what is wrong with the name of a volume.
func valid(dir string) error {
	if dir == "" || len(dir) > mostName || strings.Trim(dir, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("%q cannot be the folder of a network volume", dir)
	}
	return nil
}
