package provision

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"gantry/storage/disk/tree"
)

const (
	half  = ".new-"  // begins the names of volumes that are being made
	trash = ".trash" // the folder of removed volumes

	quotaAttr = "ceph.quota.max_bytes"
	usedAttr  = "ceph.dir.rbytes"
	quotaUnit = 4 << 20 // bytes; newer releases of Ceph take no other quotas
)

// makePlain makes a volume's folder under another name first: one that has its name is whole.
func (p *place) makePlain(v Volume) error {
	has, err := p.exists(v.Dir)
	if err != nil {
		return err
	}
	name := v.Dir
	if !has {
		if removed, err := p.exists(trash + "/" + v.Dir); removed || err != nil {
			return errors.Join(err, ErrRemoved)
		}
		name = half + v.Dir
		if err := unix.Mkdirat(p.fd(), name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return rooted(&fs.PathError{Op: "mkdir", Path: name, Err: err})
		}
	}
	f, err := openFolder(p.top, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	if p.Kind == CephFS {
		if err := limited(f, v.SizeGB); err != nil {
			return err
		}
	}
	if has {
		return nil
	}
	if err := given(f, v.IDBase); err != nil {
		return err
	}
	if err := unix.Renameat(p.fd(), name, p.fd(), v.Dir); err != nil {
		return &os.LinkError{Op: "rename", Old: name, New: v.Dir, Err: err}
	}
	return p.sync()
}

// given makes a folder that of a tenant's root.
func given(f *os.File, id uint32) error {
	if err := unix.Fchown(int(f.Fd()), int(id), int(id)); err != nil { //nolint:gosec // a descriptor
		return rooted(&fs.PathError{Op: "chown", Path: f.Name(), Err: err})
	}
	return rooted(f.Chmod(0o755))
}

// limited sets the quota of a folder of CephFS when it has a smaller one or none.
func limited(f *os.File, gb int64) error {
	want := (gb*1_000_000_000 + quotaUnit - 1) / quotaUnit * quotaUnit
	has, err := number(f, quotaAttr)
	if err != nil || has >= want {
		return err
	}
	err = unix.Fsetxattr(int(f.Fd()), quotaAttr, strconv.AppendInt(nil, want, 10), 0) //nolint:gosec // a descriptor
	if err != nil {
		return fmt.Errorf("set the quota, for which the key needs the right p of the metadata server: %w", err)
	}
	if has, err = number(f, quotaAttr); err == nil && has < want {
		err = fmt.Errorf("the file system keeps a quota of %d bytes, and not of %d", has, want)
	}
	return err
}

// number reads an extended attribute that is a number; 0 when the folder has it not.
func number(f *os.File, attr string) (int64, error) {
	var text [32]byte
	n, err := unix.Fgetxattr(int(f.Fd()), attr, text[:]) //nolint:gosec // a descriptor
	if errors.Is(err, unix.ENODATA) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", attr, err)
	}
	return strconv.ParseInt(string(text[:n]), 10, 64)
}

func (p *place) usedCeph(dir string) (int64, error) {
	f, err := p.volume(dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read from
	return number(f, usedAttr)
}

// volume opens the folder of a volume.
func (p *place) volume(dir string) (*os.File, error) {
	f, err := openFolder(p.top, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	return f, err
}

func (p *place) removePlain(dir string) error {
	if err := unix.Mkdirat(p.fd(), trash, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return rooted(&fs.PathError{Op: "mkdir", Path: trash, Err: err})
	}
	to, err := openFolder(p.top, trash)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }() // only its names change
	for _, name := range []string{half + dir, dir} {
		err := unix.Renameat(p.fd(), name, int(to.Fd()), name) //nolint:gosec // a descriptor
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.LinkError{Op: "rename", Old: name, New: trash + "/" + name, Err: err}
		}
	}
	return p.sync()
}

func (p *place) gonePlain(dir string) (bool, error) {
	for _, name := range []string{dir, half + dir, trash + "/" + dir, trash + "/" + half + dir} {
		if has, err := p.exists(name); has || err != nil {
			return false, err
		}
	}
	return true, nil
}

// deletePlain deletes some of what is in the trash.
func (p *place) deletePlain(b *budget) (left bool, err error) {
	from, err := openFolder(p.top, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer func() { _ = from.Close() }() // only its names change
	var faults []error
	failed := map[string]bool{}
	for {
		names, err := tree.SomeNames(from)
		if err != nil {
			return true, err
		}
		var tried bool
		for _, name := range names {
			if failed[name] {
				continue
			}
			tried = true
			gone, err := removeTree(b, from, name)
			if err != nil {
				faults, failed[name] = append(faults, err), true
			} else if !gone {
				return true, errors.Join(faults...)
			}
		}
		if !tried {
			return len(names) > 0, errors.Join(faults...)
		}
	}
}
