package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

const (
	loopControl  = "/dev/loop-control"
	loopMajor    = 7
	loopBlock    = 4096 // bytes, as the file systems': smaller ones cost a read for each write
	letGoTimeout = 5 * time.Second
	setCapacity  = 0x4c07 // LOOP_SET_CAPACITY
	clearLoop    = 0x4c01 // LOOP_CLR_FD
)

// attaching guards the choice of a free loop device: the kernel offers one to all who ask.
var attaching sync.Mutex

// loopOffered says why the host has no loop devices.
func loopOffered() error {
	f, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("no loop devices: %w", err)
	}
	return f.Close()
}

// attach returns the loop device of a file. When there is none, it takes a free one, which the kernel frees by itself
// as soon as nobody has it open or mounted. A fresh file is known to have none.
func attach(path string, fresh bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	attaching.Lock()
	defer attaching.Unlock()
	if !fresh {
		if dev, err := attached(f); dev != nil || err != nil {
			return dev, err
		}
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	const tries = 100 // others on the host may take the one that was free
	for range tries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		dev, err := configure(n, f)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
			return dev, err
		}
	}
	return nil, errors.New("no loop device is free")
}

// configure binds a file to a loop device.
func configure(n int, f *os.File) (*os.File, error) {
	dev, err := openLoop(n)
	if err != nil {
		return nil, err
	}
	c := unix.LoopConfig{Fd: uint32(f.Fd()), Size: loopBlock, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}} //nolint:gosec // a descriptor
	copy(c.Info.File_name[:len(c.Info.File_name)-1], f.Name())
	err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
	if errors.Is(err, unix.EINVAL) { // the file system has no direct input and output
		c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &c)
	}
	if err != nil {
		_ = dev.Close()
		return nil, &os.PathError{Op: "bind " + f.Name(), Path: dev.Name(), Err: err}
	}
	return dev, nil
}

// openLoop opens a loop device, whose node it makes where nothing else does.
func openLoop(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, uint32(n)))) //nolint:gosec // small numbers
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
		}
		dev, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	return dev, err
}

// loopDevice is a loop device that is bound to a file.
type loopDevice struct {
	n    int
	file string // the path of the file
	gone bool   // the file was removed
}

// loops returns the loop devices that are bound to a file below a folder.
func loops(dir string) ([]loopDevice, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var out []loopDevice
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Name(), "loop"))
		if err != nil || !strings.HasPrefix(e.Name(), "loop") {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/sys/block", e.Name(), "loop", "backing_file"))
		if err != nil {
			continue // bound to nothing, or not any more
		}
		file, gone := strings.CutSuffix(strings.TrimSuffix(string(b), "\n"), " (deleted)")
		if strings.HasPrefix(file, dir+"/") {
			out = append(out, loopDevice{n, file, gone})
		}
	}
	return out, nil
}

// attached returns the loop device that is bound to a file; nil when there is none. A file with two would be
// two file systems that know nothing of each other.
func attached(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	all, err := loops(filepath.Dir(f.Name()))
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		dev, err := openLoop(l.n)
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Device == uint64(st.Dev) && info.Inode == st.Ino { //nolint:unconvert // differs by platform
			return dev, nil
		}
		_ = dev.Close()
		if err != nil && !errors.Is(err, unix.ENXIO) {
			return nil, &os.PathError{Op: "ask", Path: dev.Name(), Err: err}
		}
	}
	return nil, nil
}

// detached waits until no loop device is bound to a file. One that stays is held by somebody else: the mounts of
// another namespace, or a program that has the device open.
func detached(ctx context.Context, file string) error {
	deadline := time.Now().Add(letGoTimeout)
	for wait := time.Millisecond; ; wait *= 2 {
		all, err := loops(filepath.Dir(file))
		if err != nil {
			return err
		}
		at := -1
		for _, l := range all {
			if l.file == file && !l.gone {
				at = l.n
			}
		}
		if at < 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: something still holds /dev/loop%d", ErrBusy, at)
		}
		if err := sleep.For(ctx, min(wait, 100*time.Millisecond)); err != nil {
			return err
		}
	}
}

// strayGone lets go of loop devices whose files below a pool's folder were removed, and of their mounts.
func strayGone(dir string) error { return stray(dir, true) }

// releaseStray lets go of every loop device that is bound to a file below a pool's folder, and of their mounts.
func releaseStray(dir string) error { return stray(dir, false) }

func stray(dir string, onlyGone bool) error {
	all, err := loops(filepath.Join(dir, imagesFolder))
	faults := []error{err}
	for _, l := range all {
		if onlyGone && !l.gone {
			continue
		}
		faults = append(faults, unmountDevice(l.n), freeLoop(l))
	}
	return errors.Join(faults...)
}

// freeLoop frees a loop device once the last user is gone.
func freeLoop(l loopDevice) error {
	dev, err := openLoop(l.n)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	err = unix.IoctlSetInt(int(dev.Fd()), clearLoop, 0)
	if err == nil || errors.Is(err, unix.ENXIO) {
		return nil
	}
	return busy(&os.PathError{Op: "free", Path: dev.Name(), Err: err})
}

// unmountDevice takes every mount of a loop device away that this namespace has.
func unmountDevice(n int) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var at []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && fields[2] == fmt.Sprintf("%d:%d", loopMajor, n) {
			at = append(at, unescape(fields[4]))
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	for _, path := range at {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return busy(&os.PathError{Op: "unmount", Path: path, Err: err})
		}
	}
	return nil
}

// unescape undoes how the kernel writes blanks and the like in the names of mounts.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
