package provision

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

// place is an open root. Everything below it is reached from its descriptor, so that no link leads elsewhere.
type place struct {
	Root
	top    *os.File
	marker *os.File // open once marked was called without an error
}

// open opens the root of a backend.
func open(r Root) (*place, error) {
	if r.Backend == "" || r.Dir == "" {
		return nil, errors.New("a backend has an id and a folder")
	}
	top, err := os.OpenFile(r.Dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &place{Root: r, top: top}, nil
}

func (p *place) close() {
	_ = p.top.Close() // only read from
	if p.marker != nil {
		_ = p.marker.Close() // the same
	}
}

// marked says whether the root has the backend's marker.
func (p *place) marked() error {
	f, err := openBelow(p.top, Marker, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoMarker
	}
	if err != nil {
		return err
	}
	text := make([]byte, len(p.Backend)+2)
	n, err := io.ReadFull(f, text)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if err == nil && string(text[:n]) != p.Backend+"\n" {
		err = ErrOtherMarker
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	p.marker = f
	return nil
}

// mark writes the marker where no other is, and keeps all but root from listing the root. Below a mount that is missing
// there would be a folder of the host, on which nothing may ever land.
func (p *place) mark() error {
	if !p.Sized && p.Kind != Local {
		is, err := isMount(p.top)
		if err == nil && !is {
			err = fmt.Errorf("%w, and nothing is mounted on %s", ErrNoMarker, p.Dir)
		}
		if err != nil {
			return err
		}
	}
	if err := p.top.Chmod(0o711); err != nil {
		return rooted(err)
	}
	fresh := Marker + "." + rand.Text()
	fd, err := unix.Openat(p.fd(), fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return rooted(&fs.PathError{Op: "make", Path: fresh, Err: err})
	}
	f := os.NewFile(uintptr(fd), fresh)
	_, err = f.WriteString(p.Backend + "\n")
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = unix.Renameat(p.fd(), fresh, p.fd(), Marker)
	}
	if err == nil {
		err = p.sync()
	}
	if err != nil {
		_ = unix.Unlinkat(p.fd(), fresh, 0) // the first error counts
		return fmt.Errorf("write the marker: %w", err)
	}
	return p.marked()
}

func (p *place) fd() int { return int(p.top.Fd()) } //nolint:gosec // a descriptor

// sync waits until the names in the root are on the disk. Not every server knows the call.
func (p *place) sync() error {
	err := p.top.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// locked keeps other processes of this host from the volumes until close.
func (p *place) locked(ctx context.Context) error {
	for {
		err := unix.Flock(int(p.marker.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("another process works on the volumes: %w", err)
		}
	}
}

// exists reports whether there is something of that name, be it a link.
func (p *place) exists(name string) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(p.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return true, nil
}

// openBelow opens a file below a folder and follows no link.
func openBelow(at *os.File, name string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(at.Fd()), name, &unix.OpenHow{ //nolint:gosec // a descriptor
		Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openFolder opens a folder on the same file system that is no link.
func openFolder(at *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(at.Fd()), name, &unix.OpenHow{ //nolint:gosec // a descriptor
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isMount reports whether a folder is the root of a mount.
func isMount(f *os.File) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st) //nolint:gosec // a descriptor
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// rooted explains the error of what only root may do.
func rooted(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (the storage host must be root on the server: no_root_squash)", err)
	}
	return err
}

// budget bounds how many files a call works on, in all and in a second.
type budget struct {
	ctx       context.Context //nolint:containedctx // of one call
	left      int             // below 0: no bound
	perSecond int
	begin     time.Time
	spent     int
}

func newBudget(ctx context.Context, most, perSecond int) *budget {
	if most <= 0 {
		most = -1
	}
	return &budget{ctx: ctx, left: most, perSecond: perSecond, begin: time.Now()}
}

// over reports that the call shall end.
func (b *budget) over() bool { return b.left == 0 || b.ctx.Err() != nil }

// spend waits until the next file's turn and reports false when there is none in this call.
func (b *budget) spend() bool {
	if b.over() {
		return false
	}
	if b.perSecond > 0 {
		due := b.begin.Add(time.Duration(b.spent) * time.Second / time.Duration(b.perSecond))
		const least = 10 * time.Millisecond // shorter waits take longer than asked for
		if wait := time.Until(due); wait > least && sleep.For(b.ctx, wait) != nil {
			return false
		}
	}
	b.spent++
	if b.left > 0 {
		b.left--
	}
	return true
}
