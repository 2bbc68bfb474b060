package ctrd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// overlay is the root of a container: the image's folders, and one for what the container changes.
type overlay struct {
	lower       []string // the topmost first
	upper, work string
	target      string
	users       *os.File // shows the files of lower with the ids of this user namespace; nil: as they are
}

// Options of every overlay. What a container changes is gone when it is, so nothing has to reach the
// disk before that: without volatile, its end would wait for everything that the host has to write.
const overlayOptions = "index=off,metacopy=off,volatile"

// errOldKernel says that the kernel takes no folders of an overlay by descriptor.
var errOldKernel = errors.New("an overlay cannot be made of open folders")

// mountOverlay mounts a root. It is private: nothing that is mounted there is seen elsewhere. Its programs
// start with no_new_privs, so that none needs set-user-id bits, and its devices are those of the spec.
func (r *Runtime) mountOverlay(o overlay) error {
	err := errOldKernel
	if !r.oldKernel.Load() {
		err = o.mountOpen()
	}
	if errors.Is(err, errOldKernel) {
		r.oldKernel.Store(true)
		err = o.mountNamed(filepath.Join(r.cfg.RunDir, lowerFolder))
	}
	if err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	return unix.Mount("", o.target, "", unix.MS_PRIVATE, "")
}

// mountOpen mounts the overlay from open folders, which kernels since 6.15 take. Nothing of it can be
// left behind: a mount that was never attached goes with its descriptor.
func (o overlay) mountOpen() error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return errOldKernel
	}
	defer unix.Close(fs)
	for i, dir := range o.lower {
		tree, err := openTree(dir, mountAttr(o.users, unix.MOUNT_ATTR_RDONLY))
		if err != nil {
			return err
		}
		defer unix.Close(tree) // with it the copy goes: not before the overlay has its own
		err = unix.FsconfigSetFd(fs, "lowerdir+", tree)
		if err != nil && i == 0 {
			return errOldKernel
		}
		if err != nil {
			return fmt.Errorf("folder %d: %w", i, withSaid(fs, err))
		}
	}
	// Those of the container's own are named in a copy, too: it reads their names, and in a copy that is attached nowhere
	// they do not say where they are on the host.
	disk, err := openTree(filepath.Dir(o.upper), mountAttr(nil, 0))
	if err != nil {
		return err
	}
	defer unix.Close(disk)
	if err := o.setUpper(fs, disk); err != nil {
		return err
	}
	for option := range strings.SplitSeq(overlayOptions, ",") {
		if key, value, ok := strings.Cut(option, "="); ok {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, option)
		}
		if err != nil {
			return fmt.Errorf("option %s: %w", option, withSaid(fs, err))
		}
	}
	_ = unix.FsconfigSetString(fs, "source", "overlay")
	if err := unix.FsconfigCreate(fs); err != nil {
		return withSaid(fs, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return withSaid(fs, err)
	}
	defer unix.Close(fd)
	return unix.MoveMount(fd, "", unix.AT_FDCWD, o.target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// setUpper names the folders for what the container changes, which are in the folder disk.
func (o overlay) setUpper(fs, disk int) error {
	for key, dir := range map[string]string{"upperdir": o.upper, "workdir": o.work} {
		fd, err := unix.Openat(disk, filepath.Base(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.FsconfigSetFd(fs, key, fd)
			_ = unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, withSaid(fs, err))
		}
	}
	return nil
}

// withSaid adds to an error what the kernel says about it in words.
func withSaid(fs int, err error) error {
	text := make([]byte, 512)
	n, rerr := unix.Read(fs, text)
	if rerr != nil || n <= 0 {
		return err
	}
	return fmt.Errorf("%s: %w", strings.TrimSpace(strings.ToValidUTF8(string(text[:n]), "?")), err)
}

// mountNamed does the same on older kernels, which know an overlay's folders by name: in a folder for
// the moment, so that all names together stay below a page. What a dead agent left of it is below runs.
func (o overlay) mountNamed(runs string) (err error) {
	dir, err := os.MkdirTemp(runs, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach(dir)) }()
	// One mount above all others: with it they go at once.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	names := make([]string, len(o.lower))
	for i, folder := range o.lower {
		names[i] = strconv.Itoa(i)
		at := filepath.Join(dir, names[i])
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		if err := attachTree(folder, at, mountAttr(o.users, unix.MOUNT_ATTR_RDONLY)); err != nil {
			return err
		}
	}
	for name, folder := range map[string]string{"u": o.upper, "w": o.work} {
		if err := os.Symlink(folder, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	data := "lowerdir=" + strings.Join(names, ":") + ",upperdir=u,workdir=w," + overlayOptions
	return inFolder(dir, func() error { return unix.Mount("overlay", o.target, "overlay", unix.MS_NODEV|unix.MS_NOSUID, data) })
}

// inFolder runs f on a thread whose working folder is dir, and which ends with it.
func inFolder(dir string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the process's first thread is needed for longer
			defer runtime.UnlockOSThread()
			done <- inFolder(dir, f)
			return
		}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chdir(dir)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// mountAttr describes a copy of a mount, with the ids of a user namespace when there is one.
func mountAttr(users *os.File, set uint64) unix.MountAttr {
	attr := unix.MountAttr{Attr_set: set, Propagation: unix.MS_PRIVATE}
	if users != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users.Fd())
	}
	return attr
}

// openTree copies the mount at path, from there on and without what is mounted below.
func openTree(path string, attr unix.MountAttr) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("copy the mount of %s: %w", path, err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd)
		if attr.Attr_set&unix.MOUNT_ATTR_IDMAP != 0 {
			return -1, fmt.Errorf("%w: %s: %w", errNoIDs, path, err)
		}
		return -1, fmt.Errorf("set up the mount of %s: %w", path, err)
	}
	return fd, nil
}

// errNoIDs says that a file system does not show its files with other ids.
var errNoIDs = errors.New("the file system cannot be given to a user namespace")

// attachTree mounts such a copy at target.
func attachTree(path, target string, attr unix.MountAttr) error {
	fd, err := openTree(path, attr)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// unmountAll takes away whatever is mounted at path, also what is still in use.
func unmountAll(path string) error {
	for {
		switch err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err {
		case nil, unix.EINTR:
		case unix.EINVAL, unix.ENOENT: // nothing is mounted there
			return nil
		default:
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// detach takes away a mount and the place for it.
func detach(path string) error {
	if err := unmountAll(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// freshFolder puts an empty folder in the place of an empty one, at once. The old one may be a mount
// point in other mount namespaces, such as that of a program that was started in one while a pod ran: what
// they have mounted there goes with it (rename(2) detaches it), where a mere unmount leaves them a copy that
// keeps the disk below in use.
func freshFolder(path string) error {
	if _, err := os.Lstat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	next := filepath.Join(filepath.Dir(path), freshPrefix+filepath.Base(path))
	if err := os.Mkdir(next, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil //nolint:nilerr // a full disk is no reason not to go on: who empties it is what comes next
	}
	if err := unix.Rename(next, path); err != nil {
		return &os.PathError{Op: "renew", Path: path, Err: err}
	}
	return nil
}

// freshPrefix begins the names of folders that take the place of another in a moment.
const freshPrefix = ".fresh-"

// isMounted reports whether a file system of its own is mounted at path.
func isMounted(path string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(path, &here) == nil && unix.Lstat(filepath.Dir(path), &above) == nil && here.Dev != above.Dev
}
