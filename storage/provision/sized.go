package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/storage/disk"
)

const (
	content = "data"     // the folder of a disk that the tenant gets: beside it there may be what the file system needs
	owned   = ".given"   // beside it: the folder was made the tenant's
	removed = "removed-" // begins the names of the disks of removed volumes
)

// disks opens the disks of a folder of this host, which no other process of it has then.
func (p *place) disks(ctx context.Context) (*disk.Pool, error) {
	if err := p.locked(ctx); err != nil {
		return nil, err
	}
	return disk.Open(disk.Config{Dir: p.Dir, Direct: true, Shared: true})
}

// pool is disks where others can be made.
func (p *place) pool(ctx context.Context) (*disk.Pool, error) {
	pool, err := p.disks(ctx)
	if err != nil {
		return nil, err
	}
	if pool.Mechanism() != disk.None {
		return pool, nil
	}
	err = errors.New("this host cannot limit the size of network volumes")
	for _, r := range pool.Refused() {
		err = fmt.Errorf("%w; %s: %w", err, r.Mechanism, r.Reason)
	}
	return nil, err
}

func (p *place) makeSized(ctx context.Context, v Volume) error {
	pool, err := p.pool(ctx)
	if err != nil {
		return err
	}
	names, err := pool.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == removed+v.Dir {
			return ErrRemoved
		}
	}
	if _, err := pool.Keep(ctx, v.Dir, v.SizeGB); err != nil {
		return err
	}
	return p.handOver(v)
}

// handOver makes the folder of a disk the tenant's, unless that was done: the tenant may have changed it.
func (p *place) handOver(v Volume) error {
	around, err := openBelow(p.top, v.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = around.Close() }() // only its names change
	at := int(around.Fd())                //nolint:gosec // a descriptor
	var st unix.Stat_t
	if err := unix.Fstatat(at, owned, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := unix.Mkdirat(at, content, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "mkdir", Path: content, Err: err}
	}
	f, err := openFolder(around, content)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	if err := given(f, v.IDBase); err != nil {
		return err
	}
	if err := around.Chmod(0o755); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fd, err := unix.Openat(at, owned, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "make", Path: owned, Err: err}
	}
	if err := unix.Close(fd); err != nil {
		return err
	}
	return around.Sync()
}

func (p *place) usedSized(ctx context.Context, dir string) (int64, error) {
	pool, err := p.pool(ctx)
	if err != nil {
		return 0, err
	}
	u, err := pool.Usage(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrMissing
	}
	return u.Used, err
}

// removeSized gives the disk another name. The kernel's own NFS server holds what it serves until it is told to look again.
func (p *place) removeSized(ctx context.Context, dir string) error {
	pool, err := p.pool(ctx)
	if err != nil {
		return err
	}
	err = pool.Rename(ctx, dir, removed+dir)
	if errors.Is(err, disk.ErrBusy) && exportsForgotten() {
		err = pool.Rename(ctx, dir, removed+dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return pool.Remove(ctx, dir) // what an interrupted call left
	}
	return err
}

// exportsForgotten makes the kernel's NFS server ask anew what it exports, and reports false when there is no such server.
// Clients do not notice.
func exportsForgotten() bool {
	var any bool
	for _, cache := range []string{"auth.unix.ip", "auth.unix.gid", "nfsd.fh", "nfsd.export"} {
		f, err := os.OpenFile("/proc/net/rpc/"+cache+"/flush", os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_, err = fmt.Fprintf(f, "%d\n", time.Now().Unix()+1) // all that was learned before that second
		any = err == nil || any
		_ = f.Close() // the write said all
	}
	return any
}

func (p *place) goneSized(ctx context.Context, dir string) (bool, error) {
	pool, err := p.pool(ctx)
	if err != nil {
		return false, err
	}
	names, err := pool.Names()
	for _, name := range names {
		if name == dir || name == removed+dir {
			return false, err
		}
	}
	return err == nil, err
}

// deleteSized deletes some of the disks of removed volumes. Where disks are folders their files are deleted here, because the
// pool knows no bound in rate.
func (p *place) deleteSized(ctx context.Context, b *budget) (left bool, err error) {
	pool, err := p.pool(ctx)
	if err != nil {
		return true, err
	}
	disks, err := pool.Names()
	faults := []error{err}
	for _, name := range disks {
		if !strings.HasPrefix(name, removed) {
			continue
		}
		gone, err := p.emptiedDisk(b, name)
		if err == nil && gone && b.spend() {
			err = pool.Remove(ctx, name)
		} else {
			left = true
		}
		if b.over() {
			err = nil // the next call goes on
			left = true
		}
		faults = append(faults, err)
	}
	return left, errors.Join(faults...)
}

// emptiedDisk deletes the files of a disk that is a folder.
func (p *place) emptiedDisk(b *budget, name string) (bool, error) {
	folder, err := openFolder(p.top, name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = folder.Close() }() // only its names change
	return emptied(b, folder, func(sub string) (bool, error) { return removeTree(b, folder, sub) })
}
