package dataplane

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tap is an overlay's TAP, which was handed over as a descriptor that does not block.
type tap struct {
	file  *os.File
	raw   syscall.RawConn
	index int // of the link, for who handed it over
	done  chan struct{}
}

// SetTap makes the TAP of an overlay that is known the one given, which has virtio headers of 10 bytes and offloads of TCP over
// IPv4, and takes the file. Index is that of the link.
func (d *Device) SetTap(vni uint32, index int, file *os.File) error {
	raw, err := file.SyscallConn()
	if err == nil {
		var e error
		if err = raw.Control(func(fd uintptr) { e = unix.SetNonblock(int(fd), true) }); err == nil {
			err = e
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("tap: %w", err), file.Close())
	}
	t := &tap{file: file, raw: raw, index: index, done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	o := (*d.overlays.Load())[vni]
	select {
	case <-d.closed:
		o = nil
	default:
	}
	if o == nil {
		return errors.Join(fmt.Errorf("tap: there is no overlay %d", vni), file.Close())
	}
	if old := o.tap.Swap(t); old != nil {
		old.close()
	}
	d.taps.Go(func() { d.drain(o, t) })
	return nil
}

// Taps returns the index of each overlay's link, 0 without one.
func (d *Device) Taps() map[uint32]int {
	out := map[uint32]int{}
	for vni, o := range *d.overlays.Load() {
		out[vni] = 0
		if t := o.tap.Load(); t != nil {
			out[vni] = t.index
		}
	}
	return out
}

// close ends the TAP. Only who took it out of its overlay calls it.
func (t *tap) close() {
	close(t.done)
	_ = t.file.Close() // nothing is buffered
}

// drain hands on what comes from the TAP until it is closed or its link is gone.
func (d *Device) drain(o *overlay, t *tap) {
	for {
		f, err := d.take(t)
		if err != nil {
			if o.tap.CompareAndSwap(t, nil) {
				t.close()
			}
			return
		}
		f.from = o
		select {
		case d.in <- f:
		case <-d.closed:
			return
		}
	}
}

// take reads one frame. While it waits for one it holds no memory for it.
func (d *Device) take(t *tap) (f *frame, err error) {
	wait := t.raw.Read(func(fd uintptr) bool {
		select {
		case f = <-d.free:
		case <-t.done:
			err = os.ErrClosed
			return true
		case <-d.closed:
			err = os.ErrClosed
			return true
		}
		for {
			f.n, err = unix.Read(int(fd), f.data[:])
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err == nil {
			return true
		}
		d.free <- f
		f = nil
		return !errors.Is(err, unix.EAGAIN)
	})
	if wait != nil {
		return nil, wait
	}
	return f, err
}

// write writes one frame of several parts.
func (t *tap) write(parts []unix.Iovec) error {
	var errno syscall.Errno
	err := t.raw.Write(func(fd uintptr) bool {
		_, _, errno = syscall.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&parts[0])), uintptr(len(parts)))
		return errno != unix.EAGAIN
	})
	runtime.KeepAlive(parts)
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
