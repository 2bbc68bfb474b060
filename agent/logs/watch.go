package logs

import (
	"context"
	"encoding/binary"
	"os"
	"syscall"
	"time"

	"gantry/internal/sleep"
)

const (
	pollEvery = 40 * time.Millisecond
	// watchFor bounds one wait for an event, in case the kernel lost it.
	watchFor = time.Second
)

// watch waits for changes in a folder: by inotify, or, where the kernel has no
// instance left, by looking every 40 ms.
type watch struct {
	dir  string
	file *os.File // nil: poll
	stop func() bool
	buf  []byte
}

func newWatch(ctx context.Context, dir string) (*watch, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	w := &watch{dir: dir, stop: func() bool { return true }}
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return w, nil //nolint:nilerr // polls
	}
	const mask = syscall.IN_MODIFY | syscall.IN_CREATE | syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR
	if _, err := syscall.InotifyAddWatch(fd, dir, mask); err != nil {
		syscall.Close(fd)
		return w, nil //nolint:nilerr // polls
	}
	f := os.NewFile(uintptr(fd), "inotify")
	w.file, w.buf = f, make([]byte, 4096)
	w.stop = context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	return w, nil
}

func (w *watch) close() {
	w.stop()
	if w.file != nil {
		w.file.Close()
	}
}

// wait returns after a change, at the end of d (of a second when d is 0) or of
// ctx. It returns true when the folder is gone.
func (w *watch) wait(ctx context.Context, d time.Duration) bool {
	if w.file == nil {
		if d == 0 || d > pollEvery {
			d = pollEvery
		}
		_ = sleep.For(ctx, d)
		return w.gone()
	}
	if d == 0 || d > watchFor {
		d = watchFor
	}
	if err := w.file.SetReadDeadline(time.Now().Add(d)); err != nil || ctx.Err() != nil {
		return false
	}
	n, err := w.file.Read(w.buf)
	if err != nil {
		return d == watchFor && w.gone()
	}
	return selfGone(w.buf[:n])
}

func (w *watch) gone() bool {
	_, err := os.Stat(w.dir)
	return os.IsNotExist(err)
}

// selfGone looks for the end of the watched folder in inotify events: watch
// id, mask, cookie and length of the name, 4 bytes each, then the name.
func selfGone(b []byte) bool {
	for len(b) >= syscall.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(b[4:])
		if mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_IGNORED) != 0 {
			return true
		}
		size := syscall.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}
