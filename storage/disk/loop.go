package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/atomicfile"
	"gantry/internal/sleep"
)

// images is the mechanism Loop: a sparse file with an ext4 file system of its own for each disk. The file is
// <dir>/.loop/<name>, mounted at <dir>/<name>, and what the disk holds is the folder data in there, so that
// nobody sees the file system's lost+found. A mount point is never there without its file.
type images struct {
	dir    string // the pool's folder
	files  string // the folder of the files
	direct bool
	shared bool
	log    *slog.Logger
	forms  templates
}

const (
	imagesFolder = ".loop"
	content      = "data" // of the mounted file system
)

func newImages(dir string, direct bool, log *slog.Logger) *images {
	files := filepath.Join(dir, imagesFolder)
	return &images{dir: dir, files: files, direct: direct, log: log, forms: templates{dir: files, direct: direct}}
}

func (i *images) offered() error {
	if err := loopOffered(); err != nil {
		return err
	}
	if err := ext4Offered(); err != nil {
		return err
	}
	if err := punches(i.dir); err != nil {
		return fmt.Errorf("the file system has no sparse files: %w", err)
	}
	if i.inUse() {
		return nil
	}
	return i.tried()
}

// inUse reports whether a disk of the pool is mounted: what this run of the kernel did it offers, and the pods that
// wait for an agent to come back need not wait for a trial.
func (i *images) inUse() bool {
	names, _ := i.names() // what cannot be listed is not in use
	for _, name := range names {
		if is, err := isMount(i.mount(name)); is && err == nil {
			return true
		}
	}
	return false
}

// tried makes and removes a small disk, under a name that none has: kernels lack this and that, and containers rights. A
// full host offers what it offered before.
func (i *images) tried() error {
	const trial, most = "~trial", time.Minute // the host's pods wait for it
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	err := i.remove(ctx, trial)
	if err == nil {
		_, err = i.make(ctx, trial, 0)
		if errors.Is(err, ErrFull) || errors.Is(err, unix.ENOSPC) {
			err = nil
		}
		err = errors.Join(err, i.remove(ctx, trial))
	}
	if err != nil {
		return fmt.Errorf("a disk that was made to try it: %w", err)
	}
	return nil
}

func (i *images) name() string { return Loop }

func (i *images) file(name string) string  { return filepath.Join(i.files, name) }
func (i *images) mount(name string) string { return filepath.Join(i.dir, name) }

func (i *images) has(name string) (bool, error) {
	_, err := os.Lstat(i.file(name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// make writes the file under another name first: one that has its name is whole.
func (i *images) make(ctx context.Context, name string, gb int64) (string, error) {
	if err := room(i.dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(i.files, 0o700); err != nil {
		return "", err
	}
	fresh := i.file(half + name)
	f, err := i.forms.clone(ctx, imageSize(gb, i.direct), fresh)
	if err != nil {
		return "", err
	}
	if i.shared { // the template's is that of others, too
		err = renewed(ctx, f)
	}
	if err == nil && i.direct { // others are made anew after the host was down
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(fresh, i.file(name))
	}
	if err == nil && i.direct {
		err = atomicfile.SyncDir(i.files)
	}
	if err == nil {
		err = i.mounted(name, true)
	}
	if err != nil {
		return "", err
	}
	return i.opened(name)
}

// opened returns the folder of what a mounted disk holds.
func (i *images) opened(name string) (string, error) {
	path := filepath.Join(i.mount(name), content)
	if is, err := isFolder(path); is || err != nil {
		return path, err // the tenant may have given it another mode
	}
	return path, newFolder(path)
}

// mounted mounts a disk that is not.
func (i *images) mounted(name string, fresh bool) error {
	at := i.mount(name)
	if err := newMountPoint(at); err != nil {
		return err
	}
	if is, err := isMount(at); is || err != nil {
		return err
	}
	dev, err := attach(i.file(name), fresh)
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }() // the mount holds it from here on, and the kernel lets go of it with the mount
	flags, options := uintptr(0), "discard,noinit_itable,errors=remount-ro,nobarrier"
	if i.direct {
		flags, options = unix.MS_NODEV|unix.MS_NOSUID, "discard,noinit_itable,errors=remount-ro"
	}
	if err := unix.Mount(dev.Name(), at, "ext4", flags, options); err != nil {
		return &os.PathError{Op: "mount " + dev.Name(), Path: at, Err: err}
	}
	return nil
}

// newMountPoint makes the folder that a disk is mounted on.
func newMountPoint(path string) error {
	err := os.Mkdir(path, 0o755) //nolint:gosec // the pool's folder keeps others out
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (i *images) keep(ctx context.Context, name string, gb int64) (string, error) {
	f, err := i.held(ctx, name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	is, err := isMount(i.mount(name))
	if err == nil && is && readOnly(i.mount(name)) { // the kernel met an error
		is, err = false, i.release(ctx, name)
	}
	if err == nil && !is {
		err = i.repair(ctx, f)
	}
	var size int64
	if err == nil {
		size, err = i.enlarge(f, imageSize(gb, i.direct))
	}
	if err == nil {
		err = i.mounted(name, false)
	}
	if err != nil {
		return "", err
	}
	// Also when the file is as large as it should be: the last time may have ended here.
	grown, err := grow(i.mount(name), size)
	if err == nil && !grown {
		err = i.growUnmounted(ctx, name, f, size)
	}
	if err != nil {
		return "", err
	}
	return i.opened(name)
}

// held opens the file of a disk and locks it. The programs that work on it have the lock, too, so that those of
// an agent that died have ended when it is taken.
func (i *images) held(ctx context.Context, name string) (*os.File, error) {
	f, err := os.OpenFile(i.file(name), os.O_RDWR, 0)
	for err == nil {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = sleep.For(ctx, 20*time.Millisecond)
		}
	}
	if f != nil {
		_ = f.Close()
	}
	return nil, err
}

// enlarge makes a file larger that is too small, and returns its size.
func (i *images) enlarge(f *os.File, want int64) (int64, error) {
	info, err := f.Stat()
	if err != nil || info.Size() >= want {
		return max(want, info.Size()), err
	}
	if err = room(i.dir); err == nil {
		err = f.Truncate(want)
	}
	if err == nil {
		err = f.Sync()
	}
	return want, err
}

// growUnmounted makes a disk as large as its file without the kernel's help. It works on a copy: what the
// program leaves when it is interrupted is of no use.
func (i *images) growUnmounted(ctx context.Context, name string, f *os.File, size int64) error {
	err := i.release(ctx, name)
	if err != nil { // copies of its mount hold it: whoever opens it anew has to find it
		err = errors.Join(err, i.mounted(name, false))
	}
	if err == nil {
		err = checked(ctx, f)
	}
	if err == nil {
		err = i.growCopy(ctx, name, f, size)
	}
	if err != nil {
		return fmt.Errorf("make the file system larger: %w", err)
	}
	return i.mounted(name, true)
}

func (i *images) growCopy(ctx context.Context, name string, f *os.File, size int64) error {
	fresh := i.file(half + name)
	to, err := newImage(fresh, f, size)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	if _, err := runTool(ctx, to, "resize2fs"); err != nil {
		return err
	}
	if err := to.Sync(); err != nil {
		return err
	}
	if err := os.Rename(fresh, i.file(name)); err != nil {
		return err
	}
	return atomicfile.SyncDir(i.files)
}

// repair checks a file system that was not unmounted, unless it is in use somewhere.
func (i *images) repair(ctx context.Context, f *os.File) error {
	super, err := readSuperblock(f)
	if err != nil || super.clean {
		return err
	}
	dev, err := attached(f)
	if err != nil {
		return err
	}
	if dev != nil {
		return dev.Close()
	}
	i.log.Warn("checking the file system of a disk that was not unmounted or has errors", "file", f.Name())
	return checked(ctx, f)
}

// remove takes the file away last: as long as it is there, the disk has its name.
func (i *images) remove(ctx context.Context, name string) error {
	has, err := i.has(name)
	if err != nil {
		return err
	}
	if has {
		if err := i.release(ctx, name); err != nil {
			return err
		}
		if err := os.Remove(i.file(name)); err != nil {
			return err
		}
	}
	err = os.Remove(i.file(half + name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

func (i *images) rename(ctx context.Context, from, to string) error {
	if err := i.release(ctx, from); err != nil {
		return err
	}
	return move(i.files, from, to)
}

func (i *images) usage(name string) (Usage, error) {
	at := i.mount(name)
	is, err := isMount(at)
	if err != nil {
		return Usage{}, err
	}
	if !is {
		var st unix.Stat_t
		err := unix.Stat(i.file(name), &st)
		return Usage{Used: st.Blocks * 512, Size: st.Size}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return Usage{}, err
	}
	block := int64(st.Bsize)                               //nolint:unconvert // differs by platform
	used := int64(st.Blocks-st.Bfree) * block              //nolint:gosec // below 2^63
	return Usage{used, used + int64(st.Bavail)*block}, nil //nolint:gosec // the same
}

func (i *images) names() ([]string, error) {
	out, err := namesIn(i.files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, err
}

// release unmounts a disk and waits until its loop device has let go of the file. The mount point goes.
func (i *images) release(ctx context.Context, name string) error {
	has, err := i.has(name)
	if err != nil || !has {
		return err
	}
	at := i.mount(name)
	if err := unmount(at); err != nil {
		return err
	}
	// Before the device is waited for: without their mount point, copies in other mount namespaces go, too.
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return busy(err)
	}
	return detached(ctx, i.file(name))
}

// unmount takes every mount off a folder.
func unmount(at string) error {
	for {
		is, err := isMount(at)
		if err != nil || !is {
			return err
		}
		if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return busy(&os.PathError{Op: "unmount", Path: at, Err: err})
		}
	}
}

// isMount reports whether something is mounted on a folder.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

func readOnly(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// punches says why a file of the folder cannot give space back.
func punches(dir string) error {
	f, err := os.CreateTemp(dir, strings.TrimSuffix(half, "-")+".*")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	if err := f.Truncate(8192); err != nil {
		return err
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
}
