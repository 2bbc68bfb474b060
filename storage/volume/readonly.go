package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

type readOnlyIn struct {
	Target   string // where the volume is attached on the host
	Dir      string // last name of the volume's directory
	Pid      int    // a process of the container; 0: only what is on the host
	ReadOnly bool
}

// setReadOnly changes the volume's mounts of a pod.
//
// In the container two things keep a mount from being changed: open files keep it writable, and a
// mount that was read-only when the container's user namespace got it stays so (mount_namespaces(7)). Then a copy
// that is as wanted is mounted on top, and taken away when what is below is as wanted again. Who has a file open, or is in
// a folder, goes on with what is below.
func setReadOnly(ctx context.Context, in readOnlyIn) (none, error) {
	all, err := mounts()
	if err != nil {
		return none{}, err
	}
	here, ok := topAt(all, in.Target)
	if !ok {
		return none{}, errors.New("the volume is not attached")
	}
	dir, err := os.OpenFile(in.Target, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return none{}, err
	}
	defer func() { _ = dir.Close() }() // nothing is written to it
	set, cleared := readOnlyAttr(in.ReadOnly)
	if err := setAttr(in.Target, set, cleared); err != nil || in.Pid == 0 {
		return none{}, err
	}
	var spares []*os.File
	for range mostPlaces { // the host's mount cannot be copied from within the container
		spare, err := clone(dir, set|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID, cleared)
		if err != nil {
			return none{}, err
		}
		defer func() { _ = spare.Close() }() // it is mounted, or goes
		spares = append(spares, spare)
	}
	c := &container{ctx: ctx, spares: spares, readOnly: in.ReadOnly, ours: func(m mountEntry) bool {
		return strings.HasSuffix(m.root, "/"+in.Dir) || m.dev == here.dev && m.root == here.root
	}}
	return none{}, c.enter(in.Pid)
}

// mostPlaces is at how many paths a container has its volume, at most.
const mostPlaces = 4

// container is the mount namespace of a container whose programs are hostile: they rename the folders on the way to the
// volume, and may be in a root of their own.
type container struct {
	ctx      context.Context
	spares   []*os.File // as wanted, each to be mounted once
	readOnly bool
	ours     func(mountEntry) bool
	self     int // /proc/thread-self of the host
}

// enter works in the namespace of a process, on a thread that ends with it.
func (c *container) enter(pid int) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return fmt.Errorf("the container's mounts: %w", err)
	}
	defer func() { _ = ns.Close() }() // read-only
	own, err := os.Stat("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if other, err := ns.Stat(); err != nil || os.SameFile(own, other) {
		return errors.Join(errors.New("the process is in no container"), err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- c.inside(ns)
	}()
	return <-done
}

func (c *container) inside(ns *os.File) (err error) {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	// The container's own /proc is not to be trusted.
	if c.self, err = unix.Open("/proc/thread-self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("the container's mounts: %w", os.NewSyscallError("setns", err))
	}
	for {
		err := c.change()
		if err == nil || !errors.Is(err, errMoved) {
			return err
		}
		if cerr := c.ctx.Err(); cerr != nil {
			return errors.Join(err, cerr)
		}
		runtime.Gosched()
	}
}

// errMoved says that something else was at the volume's path than mountinfo said.
var errMoved = errors.New("the volume was moved meanwhile")

// change does one attempt.
func (c *container) change() error {
	fd, err := unix.Openat(c.self, "mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the container's mounts: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	all, err := readMounts(f)
	_ = f.Close() // read-only
	if err != nil {
		return err
	}
	stacks := map[string][]mountEntry{}
	for _, m := range all {
		if c.ours(m) {
			stacks[m.at] = append(stacks[m.at], m)
		}
	}
	if len(stacks) == 0 {
		return errors.New("the container does not have the volume")
	}
	for at, stack := range stacks {
		if err := c.stack(at, stack); err != nil {
			return err
		}
	}
	return nil
}

// stack changes what is mounted at one path, the lowest first.
func (c *container) stack(at string, stack []mountEntry) error {
	top, err := openMount(at, stack[len(stack)-1])
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }() // nothing is written to it
	if !c.readOnly {
		for i := len(stack) - 1; i >= 0; i-- {
			if stack[i].readOnly {
				continue
			}
			return c.pop(at, stack[i+1:], top)
		}
	}
	set, cleared := readOnlyAttr(c.readOnly)
	err = c.settle(top, &unix.MountAttr{Attr_set: set, Attr_clr: cleared})
	if errors.Is(err, unix.EBUSY) && c.readOnly || errors.Is(err, unix.EPERM) && !c.readOnly {
		if len(c.spares) == 0 {
			return errors.New("the container has the volume at too many places")
		}
		spare := c.spares[0]
		c.spares = c.spares[1:]
		err = mountTree(spare, int(top.Fd()), "", unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("change the container's mount: %w", err)
	}
	return nil
}

// settle changes a mount. Whoever writes in this moment is waited for a little.
func (c *container) settle(top *os.File, attr *unix.MountAttr) error {
	var err error
	for range 5 {
		if err = unix.MountSetattr(int(top.Fd()), "", unix.AT_EMPTY_PATH, attr); !errors.Is(err, unix.EBUSY) {
			return err
		}
		if sleep.For(c.ctx, 10*time.Millisecond) != nil {
			return err
		}
	}
	return err
}

// pop takes away the copies that earlier calls have mounted, the topmost first.
func (c *container) pop(at string, copies []mountEntry, top *os.File) error {
	for i := len(copies) - 1; i >= 0; i-- {
		if err := unix.Fchdir(int(top.Fd())); err != nil {
			return err
		}
		if err := unix.Unmount(".", unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("take a copy of the container's mount away: %w", err)
		}
		if i == 0 {
			break
		}
		next, err := openMount(at, copies[i-1])
		if err != nil {
			return err
		}
		defer func() { _ = next.Close() }() // nothing is written to it
		top = next
	}
	return unix.Chdir("/")
}

// openMount opens the root of a mount, and makes sure that it is that one.
func openMount(at string, m mountEntry) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, at, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w: %w", errMoved, err)
	case err != nil:
		return nil, fmt.Errorf("open the container's mount: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mount of a container")
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && (st.Mask&unix.STATX_MNT_ID == 0 || st.Mnt_id != m.id || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0) {
		err = errMoved
	}
	if err != nil {
		_ = f.Close() // nothing was written to it
		return nil, err
	}
	return f, nil
}
