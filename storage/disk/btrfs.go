package disk

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// subvolumes is the mechanism Btrfs: a subvolume for each disk, with a limit on its qgroup.
type subvolumes struct {
	dir    string
	direct bool
	fsid   string // as below /sys/fs/btrfs
}

// Of linux/btrfs.h.
const (
	btrfsCreate      = 0x5000940e // BTRFS_IOC_SUBVOL_CREATE
	btrfsDestroy     = 0x5000940f // BTRFS_IOC_SNAP_DESTROY
	btrfsInoLookup   = 0xd0009412 // BTRFS_IOC_INO_LOOKUP
	btrfsFSInfo      = 0x8400941f // BTRFS_IOC_FS_INFO
	btrfsQuota       = 0xc0109428 // BTRFS_IOC_QUOTA_CTL
	btrfsQgroup      = 0x4010942a // BTRFS_IOC_QGROUP_CREATE
	btrfsQgroupLimit = 0x8030942b // BTRFS_IOC_QGROUP_LIMIT
	btrfsQuotaEnable = 1
	btrfsMaxRfer     = 1
	firstObject      = 256 // inode of a subvolume's folder
)

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	fd   int64
	name [4088]byte
}

// newSubvolumes leaves fsid empty where the folder is on another file system.
func newSubvolumes(dir string, direct bool) *subvolumes {
	s := &subvolumes{dir: dir, direct: direct}
	var st unix.Statfs_t
	var info [1024]byte
	if unix.Statfs(dir, &st) != nil || st.Type != unix.BTRFS_SUPER_MAGIC || onFolder(dir, btrfsFSInfo, unsafe.Pointer(&info)) != nil {
		return s
	}
	u := hex.EncodeToString(info[16:32])
	s.fsid = strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:]}, "-")
	return s
}

// offered turns quotas on.
func (s *subvolumes) offered() error {
	if s.fsid == "" {
		return errors.New("the file system is not btrfs")
	}
	if s.direct {
		return errors.New("containers would write to the subvolumes themselves, and could make others that no limit counts")
	}
	enable := [2]uint64{btrfsQuotaEnable}
	if err := onFolder(s.dir, btrfsQuota, unsafe.Pointer(&enable)); err != nil {
		return fmt.Errorf("turn quotas on: %w", err)
	}
	if _, err := os.Stat(filepath.Join("/sys/fs/btrfs", s.fsid, "qgroups")); err != nil {
		return fmt.Errorf("read qgroups: %w", err)
	}
	return nil
}

func (s *subvolumes) name() string { return Btrfs }

func (s *subvolumes) has(name string) (bool, error) {
	if s.fsid == "" {
		return false, nil
	}
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(s.dir, name), &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && st.Ino == firstObject && st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

func (s *subvolumes) make(_ context.Context, name string, gb int64) (string, error) {
	if err := room(s.dir); err != nil {
		return "", err
	}
	fresh := filepath.Join(s.dir, half+name)
	if err := s.onEntry(btrfsCreate, half+name); err != nil {
		return "", err
	}
	err := newFolder(fresh)
	if err == nil {
		err = s.limit(fresh, gb)
	}
	if err == nil {
		err = move(s.dir, half+name, name)
	}
	return filepath.Join(s.dir, name), err
}

// onEntry does an ioctl that names an entry of the pool's folder.
func (s *subvolumes) onEntry(request uintptr, name string) error {
	var args volArgs
	copy(args.name[:len(args.name)-1], name)
	return onFolder(s.dir, request, unsafe.Pointer(&args))
}

func subvolumeSize(gb int64) uint64 {
	// What the tree of the subvolume takes, and what the kernel sets aside for writes in flight, counts too.
	return uint64(gb)*1_000_000_000 + uint64(gb)*20_000_000 + 64<<20 //nolint:gosec // valid: not negative
}

func (s *subvolumes) limit(path string, gb int64) error {
	args := [6]uint64{1: btrfsMaxRfer, 2: subvolumeSize(gb)} // qgroup 0: the subvolume's own
	if err := onFolder(path, btrfsQgroupLimit, unsafe.Pointer(&args)); err != nil {
		return fmt.Errorf("set the limit: %w", err)
	}
	return nil
}

func (s *subvolumes) keep(_ context.Context, name string, gb int64) (string, error) {
	path := filepath.Join(s.dir, name)
	u, err := s.usage(name)
	if err == nil && u.Size < int64(subvolumeSize(gb)) { //nolint:gosec // below 2^63
		err = s.limit(path, gb)
	}
	return path, err
}

func (s *subvolumes) remove(_ context.Context, name string) error {
	for _, n := range []string{half + name, name} {
		is, err := s.has(n)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		id, err := subvolumeID(filepath.Join(s.dir, n))
		if err == nil {
			err = s.onEntry(btrfsDestroy, n)
		}
		if err != nil {
			return busy(err)
		}
		// Newer kernels do this themselves when the last extent is gone, and refuse it before.
		drop := [2]uint64{1: id}
		err = onFolder(s.dir, btrfsQgroup, unsafe.Pointer(&drop))
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("remove the qgroup: %w", err)
		}
	}
	return nil
}

// subvolumeID returns the number of the subvolume that a folder is in.
func subvolumeID(path string) (uint64, error) {
	var args [4096]byte
	binary.NativeEndian.PutUint64(args[8:], firstObject)
	err := onFolder(path, btrfsInoLookup, unsafe.Pointer(&args))
	return binary.NativeEndian.Uint64(args[:8]), err
}

func (s *subvolumes) rename(_ context.Context, from, to string) error { return move(s.dir, from, to) }

// usage is as of the file system's last commit, half a minute ago at most.
func (s *subvolumes) usage(name string) (Usage, error) {
	id, err := subvolumeID(filepath.Join(s.dir, name))
	if err != nil {
		return Usage{}, err
	}
	used, err := s.number(id, "referenced")
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, nil
	}
	if err != nil {
		return Usage{}, err
	}
	size, err := s.number(id, "max_referenced")
	return Usage{used, size}, err
}

// number reads a number of a subvolume's qgroup.
func (s *subvolumes) number(id uint64, what string) (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/fs/btrfs", s.fsid, "qgroups", "0_"+strconv.FormatUint(id, 10), what))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func (s *subvolumes) names() ([]string, error) { return nil, nil } // the plain folders are all folders

func (s *subvolumes) release(context.Context, string) error { return nil }
