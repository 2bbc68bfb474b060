// Package userns makes and finds the user namespaces in which pods are root.
//
// A user namespace maps the ids 0 to 65535 inside to a range of ids that means nothing on the host
// (user_namespaces(7)). It lives as long as anything holds it: a process, an open file, a mount of its
// file, or a namespace of another kind that it owns. A pod's network namespace is such a one, so that
// the pod's user namespace needs no memory of its own: OfNet finds it (ioctl_ns(2)).
//
// Nothing is durable here, and the calling process is never moved into a user namespace.
package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Size is the number of user ids, and of group ids, that a namespace maps.
const Size = 1 << 16

const (
	maxBase    = 1<<32 - 2*Size // the highest id means "none" to the kernel
	maxUnmount = 16
)

// Held holds a new user namespace, and what was made with it, alive. Close it.
type Held struct {
	User *os.File // the user namespace
	Net  *os.File // the network namespace that it owns; nil unless it was asked for
}

// Close lets go of the namespaces. What else holds them keeps them.
func (h *Held) Close() error {
	err := h.User.Close()
	if h.Net != nil {
		err = errors.Join(err, h.Net.Close())
	}
	return err
}

// CheckBase says whether a namespace's ids can begin at base: it is not 0, and all of them are ids.
func CheckBase(base uint32) error {
	if base == 0 || base > maxBase {
		return errors.New("the first id is out of range")
	}
	return nil
}

// New makes a user namespace in which the ids 0 to Size-1 are the caller's base to base+Size-1
// (CheckBase). flags is 0, or CLONE_NEWNET for a network namespace that the user namespace owns. The caller needs the
// rights of root. It fails with ENOSPC where the host allows no (more) user namespaces (namespaces(7), /proc/sys/user).
// What processes in it take of the kernel's tables (inotify and the like) counts as that of the host's user base, who made it:
// see asUser. Safe for concurrent use; a call takes about a millisecond.
//
// A process with threads cannot make a user namespace for itself (unshare(2)). A child has it made
// instead: it is traced, and so the kernel stops it at the end of its execve, before the first
// instruction of the program (ptrace(2)). It is killed there, and also when the caller dies.
func New(base uint32, flags uintptr) (*Held, error) {
	if err := CheckBase(base); err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	if flags&^unix.CLONE_NEWNET != 0 {
		return nil, errors.New("user namespace: only a network namespace can be made with it")
	}
	held, _, err := made(base, flags)
	return held, err
}

// made makes the namespaces, and returns with CLONE_NEWNS among flags a mount namespace too.
func made(base uint32, flags uintptr) (held *Held, mounts *os.File, err error) {
	done := make(chan struct{})
	go func() { // the thread ends with it, as nobody else is to have what was changed of it
		defer close(done)
		// The kernel takes the end of the thread that started the child for the end of the parent.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // what is to end with the process's parent would not any more
			defer runtime.UnlockOSThread()
			held, mounts, err = made(base, flags)
			return
		}
		held, mounts, err = madeHere(base, flags)
	}()
	<-done
	return held, mounts, err
}

// madeHere is made on a thread that ends afterwards.
func madeHere(base uint32, flags uintptr) (held *Held, mounts *os.File, err error) {
	if err := asUser(base); err != nil {
		return nil, nil, fmt.Errorf("user namespace: %w", err)
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: Size}}
	child, err := os.StartProcess("/proc/self/exe", []string{"gantry-userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | flags, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			Ptrace: true, Pdeathsig: syscall.SIGKILL,
		},
	})
	if errors.Is(err, unix.EACCES) {
		return nil, nil, fmt.Errorf("user namespace: %w (this program must be executable for every user, as with mode 0755)", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("user namespace: %w", err)
	}
	held, err = hold(child.Pid, flags)
	if err == nil && flags&unix.CLONE_NEWNS != 0 {
		mounts, err = os.Open(nsFile(child.Pid, "mnt"))
	}
	killed := child.Kill()
	if errors.Is(killed, os.ErrProcessDone) { // by somebody else; what is open stays
		killed = nil
	}
	_, ended := child.Wait()
	if err = errors.Join(err, killed, ended); err == nil {
		return held, mounts, nil
	}
	if held != nil {
		err = errors.Join(err, held.Close())
	}
	if mounts != nil {
		err = errors.Join(err, mounts.Close())
	}
	return nil, nil, fmt.Errorf("user namespace: %w", err)
}

func nsFile(pid int, kind string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), "ns", kind)
}

// hold opens the namespaces of a process.
func hold(pid int, flags uintptr) (*Held, error) {
	user, err := os.Open(nsFile(pid, "user"))
	if err != nil {
		return nil, err
	}
	held := &Held{User: user}
	if flags&unix.CLONE_NEWNET == 0 {
		return held, nil
	}
	if held.Net, err = os.Open(nsFile(pid, "net")); err != nil {
		return nil, errors.Join(err, user.Close())
	}
	return held, nil
}

// OfNet returns the user namespace that owns the network namespace whose file is at path, and nil
// when that is the caller's own. An error matches fs.ErrNotExist when there is no file. Close it.
func OfNet(path string) (*os.File, error) {
	net, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("user namespace of a network: %w", err)
	}
	defer func() { _ = net.Close() }() // read-only
	kind, err := unix.IoctlRetInt(int(net.Fd()), unix.NS_GET_NSTYPE)
	if err == nil && kind != unix.CLONE_NEWNET {
		err = errors.New("the namespace is none of a network")
	}
	var fd int
	if err == nil {
		fd, err = unix.IoctlRetInt(int(net.Fd()), unix.NS_GET_USERNS) // is closed on exec
	}
	if err != nil {
		return nil, fmt.Errorf("user namespace of a network: %w", err)
	}
	user := os.NewFile(uintptr(fd), "user namespace of "+path)
	own, err := isOwn(user)
	if err == nil && !own {
		return user, nil
	}
	return nil, errors.Join(err, user.Close())
}

// isOwn reports whether the caller is in the user namespace. Two files are of one namespace when
// device and inode are the same (namespaces(7)).
func isOwn(user *os.File) (bool, error) {
	mine, err := os.Stat("/proc/self/ns/user")
	if err != nil {
		return false, fmt.Errorf("own user namespace: %w", err)
	}
	other, err := user.Stat()
	if err != nil {
		return false, fmt.Errorf("user namespace: %w", err)
	}
	return os.SameFile(mine, other), nil
}

// Pin mounts a namespace's file at path, so that others can join it by its name. What was there,
// mounted or not, is replaced. The folder above must exist.
func Pin(ns *os.File, path string) error {
	if err := Unpin(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("pin namespace: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("pin namespace: %w", err)
	}
	source := "/proc/self/fd/" + strconv.Itoa(int(ns.Fd()))
	err = unix.Mount(source, path, "", unix.MS_BIND, "")
	runtime.KeepAlive(ns)
	if err != nil {
		return errors.Join(fmt.Errorf("pin namespace: %w", err), os.Remove(path))
	}
	return nil
}

// Unpin takes away what Pin made at path; an absent one is no error. Processes keep the namespace.
func Unpin(path string) error {
	for range maxUnmount {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("unpin namespace: %w", err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin namespace: %w", err)
	}
	return nil
}
