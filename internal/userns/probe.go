package userns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const probeBase = 0x10000000

// Probe says whether pods can have user namespaces on this host: an error tells which step the kernel
// refuses. It makes a user namespace, gives a folder's files other owners for one mount
// (mount_setattr(2), idmapped mounts), and mounts an overlay on top of it, which kernels before 5.19
// refuse (filesystems/overlayfs in the kernel's documents). The files lie in a temporary folder of dir,
// since it also depends on dir's file system. And it mounts /proc and /sys in a mount namespace of that user
// namespace, which the kernel refuses where something covers a part of the host's own, as in a container
// (mount_namespaces(7)). It needs the rights of root, works in a mount namespace of
// its own and leaves nothing. It takes some milliseconds.
func Probe(dir string) error {
	if err := probe(dir); err != nil {
		return fmt.Errorf("user namespaces with images below %s: %w", dir, err)
	}
	return nil
}

func probe(dir string) (err error) {
	ns, mounts, err := made(probeBase, unix.CLONE_NEWNET|unix.CLONE_NEWNS)
	if err != nil {
		return err
	}
	defer func() { _, _ = ns.Close(), mounts.Close() }() // read-only
	if err := apart(func() error { return probeSystem(mounts) }); err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, ".userns-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	for _, name := range []string{"files", "lower", "upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(work, name), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(work, "files", "file"), nil, 0o644); err != nil {
		return err
	}
	return apart(func() error { return probeMounts(work, ns.User) })
}

// probeSystem makes the file systems that every container has, in a mount namespace of the new user
// namespace: the kernel looks at what is mounted there already. None of them is mounted anywhere.
func probeSystem(mounts *os.File) error {
	err := unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS)
	runtime.KeepAlive(mounts)
	if err != nil {
		return fmt.Errorf("mount namespace of a user namespace: %w", err)
	}
	for _, kind := range []string{"proc", "sysfs"} {
		fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("open %s: %w", kind, err)
		}
		at := -1
		if err = unix.FsconfigCreate(fs); err == nil {
			at, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		}
		_ = unix.Close(fs)
		if err != nil {
			return fmt.Errorf("a container's %s cannot be mounted; is something mounted over a part of the host's: %w", kind, err)
		}
		_ = unix.Close(at)
	}
	return nil
}

// probeMounts does what the probe is about. All of it goes with the thread's mount namespace.
func probeMounts(work string, user *os.File) error {
	at := func(name string) string { return filepath.Join(work, name) }
	tree, err := unix.OpenTree(unix.AT_FDCWD, at("files"), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone a mount: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // nothing is written through it
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(user.Fd())}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr)
	runtime.KeepAlive(user)
	if err != nil {
		return fmt.Errorf("map the owners of a mount: %w", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at("lower"), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach a mount: %w", err)
	}
	options := "lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := unix.Mount("overlay", at("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay on mapped owners: %w", err)
	}
	info, err := os.Stat(filepath.Join(at("root"), "file"))
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != probeBase || st.Gid != probeBase {
		return errors.New("an overlay does not show mapped owners")
	}
	return nil
}

// apart runs f on a thread that has a mount namespace of its own and ends with it. It is never the
// process's first thread: /proc/self shows that one's mounts.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- apart(f)
			return
		}
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			done <- fmt.Errorf("mount namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
