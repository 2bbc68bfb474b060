package volume

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/ipc"
	"gantry/storage/helper"
	"gantry/storage/provision"
)

// MarkerName is the file in the root of every backend that holds the backend's id and a line feed. Where it is
// missing, something else is mounted, or nothing.
const MarkerName = provision.Marker

// Kinds of errors of the operations.
const (
	kindMarker    = "marker"    // the root is not the backend's
	kindDirectory = "directory" // the volume's directory is not there
	kindDisk      = "disk"      // the volume's disk is not mounted on its storage host, or this host has not seen it yet
)

// HelperFuncs are the operations that this package does in helper processes.
func HelperFuncs() map[string]helper.Func {
	return map[string]helper.Func{
		"volume.mount":    op(mountBackend),
		"volume.unmount":  op(unmount),
		"volume.attach":   op(attach),
		"volume.probe":    op(probe),
		"volume.readonly": op(setReadOnly),
		"volume.daemons":  op(daemons),
		"volume.open":     op(openVolume),
	}
}

// op makes a helper.Func of a function with a type of its own for what goes in.
func op[In, Out any](f func(context.Context, In) (Out, error)) helper.Func {
	return func(ctx context.Context, text json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(text, &in); err != nil {
			return nil, err
		}
		return f(ctx, in)
	}
}

type none struct{}

// place is a volume's directory.
type place struct {
	Root    string          // of the backend
	Backend fleet.BackendID // that the marker must name; empty: the marker is not looked at
	Path    string          // below the root
	Sized   bool            // Path is in a disk of its own
}

// open checks the marker and opens the directory. It follows no link.
func (p place) open() (dir *os.File, err error) {
	root, err := openRoot(p.Root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // nothing is written to it
	if err := checkMarker(root, p.Backend); err != nil {
		return nil, err
	}
	fd, err := unix.Openat2(int(root.Fd()), p.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		kind := kindDirectory
		if p.Sized { // a client of NFS that looked too early goes on seeing the folder below the disk, in which there is nothing
			kind = kindDisk
		}
		err = ipc.Mark(kind, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the volume's directory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "directory of a volume")
	var st unix.Statx_t // names and attributes may be remembered of what is gone
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st); err != nil {
		_ = f.Close() // only looked at
		return nil, fmt.Errorf("look at the volume's directory: %w", err)
	}
	return f, nil
}

func openRoot(path string) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = ipc.Mark(kindMarker, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the backend's root: %w", err)
	}
	return f, nil
}

// checkMarker says why a root is not the backend's.
func checkMarker(root *os.File, id fleet.BackendID) error {
	if id == "" {
		return nil
	}
	fd, err := unix.Openat(int(root.Fd()), MarkerName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		err = ipc.Mark(kindMarker, err)
	}
	if err != nil {
		return fmt.Errorf("open the backend's marker: %w", err)
	}
	f := os.NewFile(uintptr(fd), MarkerName)
	defer func() { _ = f.Close() }() // read-only
	text, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return fmt.Errorf("read the backend's marker: %w", err)
	}
	if string(text) != string(id)+"\n" {
		return ipc.Mark(kindMarker, errors.New("the backend's marker is that of another one"))
	}
	return nil
}

// clone copies the mount of an open directory, from there on: a mount of its own that is nowhere yet.
func clone(dir *os.File, set, clear uint64) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of the volume's directory: %w", err)
	}
	tree := os.NewFile(uintptr(fd), "mount of a volume")
	attr := &unix.MountAttr{Attr_set: set, Attr_clr: clear, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		_ = tree.Close() // with it the copy goes
		return nil, fmt.Errorf("set up the mount of the volume's directory: %w", err)
	}
	return tree, nil
}

type attachIn struct {
	Place    place
	Target   string // an empty folder, or what an earlier call has mounted
	ReadOnly bool
}

// attach mounts a copy of the volume's directory. One that is there already stays, unless it is of another mount.
func attach(_ context.Context, in attachIn) (none, error) {
	dir, err := in.Place.open()
	if err != nil {
		return none{}, err
	}
	defer func() { _ = dir.Close() }() // nothing is written to it
	set, cleared := readOnlyAttr(in.ReadOnly)
	if keeps, err := isAttached(in.Target, dir); keeps || err != nil {
		if err == nil {
			err = setAttr(in.Target, set, cleared)
		}
		return none{}, err
	}
	tree, err := clone(dir, set|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID, cleared)
	if err != nil {
		return none{}, err
	}
	defer func() { _ = tree.Close() }() // it is mounted, or goes
	if err := unmountAll(in.Target, unix.MNT_DETACH); err != nil {
		return none{}, err
	}
	return none{}, mountTree(tree, unix.AT_FDCWD, in.Target, 0)
}

// mountTree mounts a copy, so that nothing of it is seen in other namespaces.
func mountTree(tree *os.File, dir int, target string, flags int) error {
	if err := unix.MoveMount(int(tree.Fd()), "", dir, target, unix.MOVE_MOUNT_F_EMPTY_PATH|flags); err != nil {
		return fmt.Errorf("mount the volume's directory: %w", err)
	}
	attr := &unix.MountAttr{Propagation: unix.MS_PRIVATE} // it may have become what its parent is
	if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("keep the volume's mount private: %w", err)
	}
	return nil
}

func readOnlyAttr(yes bool) (set, cleared uint64) {
	if yes {
		return unix.MOUNT_ATTR_RDONLY, 0
	}
	return 0, unix.MOUNT_ATTR_RDONLY
}

// isAttached reports whether a directory is mounted at target. It asks nothing of another file system that is
// mounted there, which may be dead.
func isAttached(target string, dir *os.File) (bool, error) {
	all, err := mounts()
	if err != nil {
		return false, err
	}
	m, ok := topAt(all, target)
	if !ok {
		return false, nil
	}
	var want, got unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &want); err != nil {
		return false, fmt.Errorf("look at the volume's directory: %w", err)
	}
	if m.dev != fmt.Sprintf("%d:%d", unix.Major(want.Dev), unix.Minor(want.Dev)) {
		return false, nil
	}
	if err := unix.Lstat(target, &got); err != nil {
		return false, nil //nolint:nilerr // what cannot be looked at is mounted anew
	}
	return want.Dev == got.Dev && want.Ino == got.Ino, nil
}

func setAttr(target string, set, cleared uint64) error {
	attr := &unix.MountAttr{Attr_set: set, Attr_clr: cleared}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW, attr); err != nil {
		return fmt.Errorf("change the volume's mount: %w", err)
	}
	return nil
}

type unmountIn struct {
	Path string
	Busy bool // fail with EBUSY while it is in use, rather than let it go when it no longer is
}

// unmount takes away all that is mounted at a path. The file system may have to be written out.
func unmount(_ context.Context, in unmountIn) (none, error) {
	if in.Busy {
		return none{}, unmountAll(in.Path, 0)
	}
	return none{}, unmountAll(in.Path, unix.MNT_DETACH)
}

func unmountAll(path string, flags int) error {
	for {
		switch err := unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW); err {
		case nil, unix.EINTR:
		case unix.EINVAL, unix.ENOENT: // nothing is mounted there
			return nil
		default:
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

type probeIn struct{ Place place }

// probe asks the server for something that no cache can know.
func probe(_ context.Context, in probeIn) (none, error) {
	root, err := openRoot(in.Place.Root)
	if err != nil {
		return none{}, err
	}
	defer func() { _ = root.Close() }() // nothing is written to it
	if err := checkMarker(root, in.Place.Backend); err != nil {
		return none{}, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &fs); err != nil {
		return none{}, fmt.Errorf("ask for the backend's space: %w", err)
	}
	var st unix.Stat_t
	name := MarkerName + "-" + strings.ToLower(rand.Text())
	err = unix.Fstatat(int(root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return none{}, fmt.Errorf("look for a name in the backend's root: %w", err)
	}
	return none{}, nil
}

type openIn struct {
	Place    place
	ReadOnly bool
}

// openVolume returns a mount of the volume's directory that is nowhere but in the descriptor.
func openVolume(_ context.Context, in openIn) (*os.File, error) {
	dir, err := in.Place.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // nothing is written to it
	set, cleared := readOnlyAttr(in.ReadOnly)
	return clone(dir, set|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, cleared)
}
