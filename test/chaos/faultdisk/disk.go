// Package faultdisk is a disk that fails on command: a file system in user space (FUSE) that is slow to sync, hangs, is
// full, lies about its space, or forgets at a power cut whatever no fsync had put down. It needs root.
//
// What is durable follows ext4: fsync of a file puts down its bytes, its size and, for a new file, its name; fsync of a
// folder puts down which names it has. A rename or removal that no fsync of the folder followed is undone by a cut.
package faultdisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Name is the kind of file system that mounts of this package show in /proc/mounts.
const Name = "fuse.faultdisk"

// Disk is a mounted disk. Its methods may be called from any goroutine.
type Disk struct {
	// Dir is where it is mounted.
	Dir string

	store string // folder of this package beside it: what is seen, and what is durable

	delay atomic.Int64 // of each fsync, ns
	full  atomic.Bool
	used  atomic.Int64 // percent that statfs shows; 0: the truth
	syncs atomic.Int64

	mu     sync.Mutex    // guards what follows
	hung   chan struct{} // closed by Release; nil while the disk answers
	server *fuse.Server  // nil while it is not mounted
	cuts   int
	lost   int64 // bytes that the last cut took
	nextID uint64
	seen   map[identity]*object // what the mounted tree holds
	top    *object
}

// Mount mounts an empty disk at dir, which is made. Its content lies in the folder store.
func Mount(dir, store string) (*Disk, error) {
	d := &Disk{Dir: dir, store: store}
	for _, path := range []string{dir, d.durable(), d.work()} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
	}
	d.top = d.newObject(true, 0o755)
	if err := d.mount(); err != nil {
		return nil, err
	}
	return d, nil
}

// work is the folder of what is seen. Each power cut begins another one.
func (d *Disk) work() string { return filepath.Join(d.store, fmt.Sprintf("seen-%d", d.cuts)) }

// durable is the folder of the bytes that survive a power cut, a file for each object.
func (d *Disk) durable() string { return filepath.Join(d.store, "durable") }

func (d *Disk) mount() error {
	root, err := d.root()
	if err != nil {
		return err
	}
	second := time.Second
	server, err := fs.Mount(d.Dir, root, &fs.Options{
		EntryTimeout: &second, AttrTimeout: &second,
		MountOptions: fuse.MountOptions{
			Name: "faultdisk", FsName: "faultdisk", DirectMountStrict: true, DisableXAttrs: true,
			// Nobody else changes the files, and databases map them.
			ExplicitDataCacheControl: true,
		},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", d.Dir, err)
	}
	d.server = server
	return nil
}

// Slow makes each fsync take so much longer.
func (d *Disk) Slow(delay time.Duration) { d.delay.Store(int64(delay)) }

// Full makes every write and every new name fail with ENOSPC.
func (d *Disk) Full(full bool) { d.full.Store(full) }

// Lie makes the disk say that so many percent of it are used; 0 ends the lie.
func (d *Disk) Lie(percent int) { d.used.Store(int64(percent)) }

// Syncs is how many fsyncs it has answered.
func (d *Disk) Syncs() int64 { return d.syncs.Load() }

// Hang makes every call wait until Release. Calls of a process that is being killed end, since else
// nobody could wait for its end.
func (d *Disk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

// Release ends Hang.
func (d *Disk) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// Heal ends every fault.
func (d *Disk) Heal() {
	d.Slow(0)
	d.Full(false)
	d.Lie(0)
	d.Release()
}

// Cut is a power cut: what was not synced is gone. Nobody may have a file of the disk open.
func (d *Disk) Cut() error {
	if err := d.unmount(0); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = 0
	for _, o := range d.seen {
		for _, s := range o.changed { // nobody writes any more
			d.lost += s.to - s.from
		}
	}
	old := d.work()
	d.cuts++
	if err := d.rebuild(); err != nil {
		return fmt.Errorf("after the power cut: %w", err)
	}
	return errors.Join(os.RemoveAll(old), d.mount())
}

// Lost is how many bytes had been written and not synced at the last power cut.
func (d *Disk) Lost() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

// Close unmounts the disk, whoever uses it. Its folders stay.
func (d *Disk) Close() error {
	d.Heal()
	return d.unmount(unix.MNT_DETACH)
}

func (d *Disk) unmount(flags int) error {
	d.mu.Lock()
	server := d.server
	d.mu.Unlock()
	if server == nil {
		return nil
	}
	if err := unix.Unmount(d.Dir, flags); err != nil {
		return fmt.Errorf("unmount %s: %w", d.Dir, err)
	}
	d.mu.Lock()
	d.server = nil
	d.mu.Unlock()
	if flags == 0 {
		server.Wait() // every call has been answered
	}
	return nil
}
