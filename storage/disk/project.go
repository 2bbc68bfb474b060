package disk

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// projects is the mechanism Project: folders with a project quota. Each has a project id of its own, which is
// written on the folder and inherited by what is made in it.
type projects struct {
	dir   string
	quota quotas
}

// quotas is what the kernel knows of projects on one file system.
type quotas interface {
	// enforced says why project quotas do not limit what is in the pool's folder.
	enforced() error
	// id and setID read and write the project id of a folder, with its inheritance.
	id(path string) (uint32, error)
	setID(path string, id uint32) error
	get(id uint32) (quota, error)
	// limit sets the most that a project may hold; 0: no limit.
	limit(id uint32, bytes, inodes uint64) error
}

// quota is what a project holds and may hold, in bytes and files.
type quota struct{ bytes, inodes, maxBytes, maxInodes uint64 }

const (
	leastProject = 0x4000_0000 // ids below are left to others on the file system
	projectMask  = 0x3fff_ffff
	mostProbes   = 4096
	bytesPerFile = 8192 // one file for so many bytes of a disk's size
)

// given guards the choice of project ids: pools may share a file system.
var given sync.Mutex

func newProjects(dir string) *projects { return &projects{dir, &kernelQuotas{dir: dir}} }

func (p *projects) offered() error { return p.quota.enforced() }

func (p *projects) name() string { return Project }

func (p *projects) has(name string) (bool, error) {
	path := filepath.Join(p.dir, name)
	if is, err := isFolder(path); !is || err != nil {
		return false, err
	}
	id, err := p.quota.id(path)
	for _, none := range []error{unix.ENOTTY, unix.EOPNOTSUPP, unix.ENOSYS, unix.EINVAL} {
		if errors.Is(err, none) {
			return false, nil
		}
	}
	return id >= leastProject, err
}

func (p *projects) make(_ context.Context, name string, gb int64) (string, error) {
	if err := room(p.dir); err != nil {
		return "", err
	}
	fresh, path := filepath.Join(p.dir, half+name), filepath.Join(p.dir, name)
	if err := newFolder(fresh); err != nil {
		return "", err
	}
	given.Lock()
	defer given.Unlock()
	id, err := p.free(name)
	if err == nil {
		err = p.limit(id, gb)
	}
	if err == nil {
		err = p.quota.setID(fresh, id)
	}
	if err == nil {
		err = move(p.dir, half+name, name)
	}
	return path, err
}

// free returns a project id that holds nothing and is not limited.
func (p *projects) free(name string) (uint32, error) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(filepath.Join(p.dir, name)))
	for i := range uint32(mostProbes) {
		id := leastProject | (sum.Sum32()+i)&projectMask
		q, err := p.quota.get(id)
		if err != nil {
			return 0, err
		}
		if q == (quota{}) {
			return id, nil
		}
	}
	return 0, errors.New("no project id is free")
}

func (p *projects) limit(id uint32, gb int64) error {
	bytes := projectSize(gb)
	return p.quota.limit(id, bytes, max(bytes/bytesPerFile, 1024))
}

// projectSize is the limit for a disk: what the file system counts beside the files' bytes comes on top.
func projectSize(gb int64) uint64 {
	return uint64(gb)*1_000_000_000 + uint64(gb)*5_000_000 + 4<<20 //nolint:gosec // valid: not negative
}

func (p *projects) keep(_ context.Context, name string, gb int64) (string, error) {
	path := filepath.Join(p.dir, name)
	id, err := p.quota.id(path)
	if err != nil {
		return "", err
	}
	q, err := p.quota.get(id)
	if err != nil {
		return "", err
	}
	if q.maxBytes < projectSize(gb) {
		err = p.limit(id, gb)
	}
	return path, err
}

// remove lifts the limit before the last trace of the project's id is gone.
func (p *projects) remove(ctx context.Context, name string) error {
	for _, n := range []string{trash + name, half + name, name} {
		is, err := p.has(n)
		if err != nil || !is {
			if err != nil {
				return err
			}
			continue
		}
		id, err := p.quota.id(filepath.Join(p.dir, n))
		if err == nil {
			err = p.quota.limit(id, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("lift the limit: %w", err)
		}
	}
	if err := discard(ctx, p.dir, half+name); err != nil {
		return err
	}
	return discard(ctx, p.dir, name)
}

func (p *projects) rename(_ context.Context, from, to string) error { return move(p.dir, from, to) }

func (p *projects) usage(name string) (Usage, error) {
	id, err := p.quota.id(filepath.Join(p.dir, name))
	if err != nil {
		return Usage{}, err
	}
	q, err := p.quota.get(id)
	return Usage{Used: int64(q.bytes), Size: int64(q.maxBytes)}, err //nolint:gosec // below 2^63
}

func (p *projects) names() ([]string, error) { return nil, nil } // the plain folders are all folders

func (p *projects) release(context.Context, string) error { return nil }

// kernelQuotas asks the kernel about the file system of a folder. Its numbers and structures are those of linux/fs.h and
// linux/dqblk_xfs.h, which ext4 takes as xfs does.
type kernelQuotas struct{ dir string }

const (
	fsGetXattr      = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr      = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit  = 0x200      // FS_XFLAG_PROJINHERIT
	projectQuota    = 2          // PRJQUOTA
	quotaGetState   = 'X'<<8 + 5 // Q_XGETQSTAT
	quotaGet        = 'X'<<8 + 3 // Q_XGETQUOTA
	quotaSetLimit   = 'X'<<8 + 4 // Q_XSETQLIM
	accounted       = 1 << 4     // FS_QUOTA_PDQ_ACCT
	enforced        = 1 << 5     // FS_QUOTA_PDQ_ENFD
	fieldInodeHard  = 1 << 1     // FS_DQ_IHARD
	fieldBlockHard  = 1 << 3     // FS_DQ_BHARD
	basicBlock      = 512        // bytes; what dqblk counts in
	dqblkVersion    = 1          // FS_DQUOT_VERSION
	dqblkOfProjects = 2          // FS_PROJ_QUOTA
)

// fsxattr is struct fsxattr.
type fsxattr struct {
	xflags, extsize, nextents, projid, cowextsize uint32
	_                                             [8]byte
}

// dqblk is struct fs_disk_quota.
type dqblk struct {
	version, flags                             int8
	fieldmask                                  uint16
	id                                         uint32
	blkHard, blkSoft, inoHard, inoSoft         uint64
	bcount, icount                             uint64
	itimer, btimer                             int32
	iwarns, bwarns                             uint16
	itimerHigh, btimerHigh, rtbtimerHigh, pad2 int8
	rtbHard, rtbSoft, rtbcount                 uint64
	rtbtimer                                   int32
	rtbwarns                                   uint16
	pad3                                       int16
	pad4                                       [8]byte
}

// qstat is struct fs_quota_stat.
type qstat struct {
	version int8
	flags   uint16
	pad     int8
	files   [2]struct {
		ino, nblks uint64
		nextents   uint32
	}
	incoredqs                            uint32
	btimelimit, itimelimit, rtbtimelimit int32
	bwarnlimit, iwarnlimit               uint16
}

func (k *kernelQuotas) enforced() error {
	var st unix.Statfs_t
	if err := unix.Statfs(k.dir, &st); err != nil {
		return err
	}
	if st.Type != unix.EXT4_SUPER_MAGIC && st.Type != unix.XFS_SUPER_MAGIC {
		return errors.New("the file system is neither ext4 nor xfs")
	}
	var state qstat
	switch err := k.call(quotaGetState, 0, unsafe.Pointer(&state)); {
	case errors.Is(err, unix.ENOSYS):
		return errors.New("the kernel has no quotas, or is older than 5.14")
	case errors.Is(err, unix.ESRCH), err == nil && state.flags&(accounted|enforced) != accounted|enforced:
		return errors.New("the file system is not mounted with project quotas (option prjquota)")
	case err != nil:
		return fmt.Errorf("ask for the state of project quotas: %w", err)
	}
	_, err := k.id(k.dir)
	return err
}

// call is quotactl_fd.
func (k *kernelQuotas) call(cmd uint32, id uint32, arg unsafe.Pointer) error {
	fd, err := unix.Open(k.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(cmd<<8|projectQuota), uintptr(id), uintptr(arg), 0, 0) //nolint:gosec // the kernel's way
	if errno != 0 {
		return os.NewSyscallError("quotactl_fd", errno)
	}
	return nil
}

func (k *kernelQuotas) id(path string) (uint32, error) {
	var x fsxattr
	err := onFolder(path, fsGetXattr, unsafe.Pointer(&x))
	return x.projid, err
}

func (k *kernelQuotas) setID(path string, id uint32) error {
	var x fsxattr
	if err := onFolder(path, fsGetXattr, unsafe.Pointer(&x)); err != nil {
		return err
	}
	x.projid = id
	x.xflags |= projectInherit
	return onFolder(path, fsSetXattr, unsafe.Pointer(&x))
}

func (k *kernelQuotas) get(id uint32) (quota, error) {
	var q dqblk
	err := k.call(quotaGet, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return quota{}, nil // never used
	}
	return q.quota(), err
}

func (k *kernelQuotas) limit(id uint32, bytes, inodes uint64) error {
	q := limits(id, bytes, inodes)
	return k.call(quotaSetLimit, id, unsafe.Pointer(&q))
}

func (q *dqblk) quota() quota {
	return quota{q.bcount * basicBlock, q.icount, q.blkHard * basicBlock, q.inoHard}
}

// limits is what sets a project's limits.
func limits(id uint32, bytes, inodes uint64) dqblk {
	return dqblk{
		version: dqblkVersion, flags: dqblkOfProjects, fieldmask: fieldBlockHard | fieldInodeHard, id: id,
		blkHard: (bytes + basicBlock - 1) / basicBlock, inoHard: inodes,
	}
}

// onFolder does an ioctl on a folder that is no symbolic link.
func onFolder(path string, request uintptr, arg unsafe.Pointer) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return &os.PathError{Op: "ioctl", Path: path, Err: errno}
	}
	return nil
}
