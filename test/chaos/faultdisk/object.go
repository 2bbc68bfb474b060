package faultdisk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// identity tells the files of the mounted tree apart, also where the kernel uses an inode number again.
type identity struct{ ino, born uint64 }

// object is a file or folder as the disk has it after a power cut.
type object struct {
	id     uint64
	dir    bool
	linked bool // some durable folder has its name

	mu      sync.Mutex // guards what follows
	mode    os.FileMode
	names   map[string]*object // of a folder
	changed []span             // of a file: bytes that are seen and not durable
}

// span is a part of a file.
type span struct{ from, to int64 }

// newObject needs d.mu, but in Mount.
func (d *Disk) newObject(dir bool, mode os.FileMode) *object {
	d.nextID++
	o := &object{id: d.nextID, dir: dir, mode: mode.Perm()}
	if dir {
		o.names = map[string]*object{}
	}
	return o
}

// objectOf returns the object of a file of the mounted tree.
func (d *Disk) objectOf(id identity, dir bool, mode os.FileMode) *object {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.seen[id]
	if o == nil {
		o = d.newObject(dir, mode)
		d.seen[id] = o
	}
	return o
}

// objectAt returns the object of a path of the mounted tree; nil for what is neither file nor folder.
func (d *Disk) objectAt(path string) (*object, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, nil //nolint:nilnil // there is nothing to keep
	}
	id, err := identify(path)
	if err != nil {
		return nil, err
	}
	return d.objectOf(id, info.IsDir(), info.Mode()), nil
}

// identify makes the same identity as the loopback makes for its inodes.
func identify(path string) (identity, error) {
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &x)
	if err != nil {
		return identity{}, err
	}
	id := identity{ino: x.Ino, born: 1}
	if x.Mask&unix.STATX_BTIME != 0 && (x.Btime.Sec != 0 || x.Btime.Nsec != 0) {
		id.born = uint64(x.Btime.Sec)*1e9 + uint64(x.Btime.Nsec)
	}
	return id, nil
}

func (d *Disk) bytesOf(o *object) string { return filepath.Join(d.durable(), fmt.Sprint(o.id)) }

// wrote notes that a part of a file is not durable.
func (o *object) wrote(from, to int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.changed); n > 0 && o.changed[n-1].to == from {
		o.changed[n-1].to = to
		return
	}
	o.changed = append(o.changed, span{from, to})
}

// keep makes a file's bytes and size durable; path leads to the file.
func (d *Disk) keep(o *object, path string) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(d.bytesOf(o), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for _, s := range o.changed {
		part := io.NewSectionReader(from, s.from, s.to-s.from) // may end beyond the file
		if _, err := io.Copy(io.NewOffsetWriter(to, s.from), part); err != nil {
			return err
		}
	}
	if err := to.Truncate(st.Size()); err != nil {
		return err
	}
	o.mode, o.changed = st.Mode().Perm(), nil
	return nil
}

// keepNames makes durable which names a folder of the mounted tree has.
func (d *Disk) keepNames(o *object, path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	names := map[string]*object{}
	for _, e := range entries {
		child, err := d.objectAt(filepath.Join(path, e.Name()))
		if err != nil {
			return err
		}
		if child != nil {
			names[e.Name()] = child
			d.link(child)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = names
	return nil
}

func (d *Disk) link(o *object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o.linked = true
}

// keepWay makes the names durable that lead to a new file or folder, as the journal of ext4 does with the file's fsync.
func (d *Disk) keepWay(way []string) error {
	at, dir := d.top, d.workNow()
	for _, name := range way {
		dir = filepath.Join(dir, name)
		child, err := d.objectAt(dir)
		if errors.Is(err, os.ErrNotExist) || child == nil && err == nil {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		d.mu.Lock()
		isNew := !child.linked
		child.linked = true
		d.mu.Unlock()
		if isNew {
			at.mu.Lock()
			at.names[name] = child
			at.mu.Unlock()
		}
		at = child
	}
	return nil
}

func (d *Disk) workNow() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.work()
}

// rebuild makes the tree of what is durable; d.mu is held and nothing is mounted.
func (d *Disk) rebuild() error {
	d.seen = map[identity]*object{}
	return d.rebuildAt(d.top, d.work())
}

func (d *Disk) rebuildAt(o *object, path string) error {
	var err error
	if o.dir {
		err = os.Mkdir(path, o.mode)
	} else {
		err = copyFile(path, d.bytesOf(o), o.mode)
	}
	if err != nil {
		return err
	}
	id, err := identify(path)
	if err != nil {
		return err
	}
	d.seen[id] = o
	o.changed = nil
	for name, child := range o.names {
		if err := d.rebuildAt(child, filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file whose bytes may never have become durable: then the copy is empty.
func copyFile(to, from string, mode os.FileMode) (err error) {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, in.Close())
}
