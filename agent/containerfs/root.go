package containerfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// Root is an open handle of a container's root folder.
type Root struct {
	dir   *os.File
	ids   IDs
	ended <-chan struct{}
	close func() error
}

// NewRoot returns a Root on an open folder, which it owns from then on. ended is closed when the
// container's process ends; release, which may be nil, is called by Close.
func NewRoot(dir *os.File, ended <-chan struct{}, release func() error) *Root {
	return &Root{dir: dir, ended: ended, close: release}
}

// WithIDs says whose files are whose, and returns r. It is called before anything is read or written.
func (r *Root) WithIDs(ids IDs) *Root {
	r.ids = ids
	return r
}

// Ended is closed when the container's process has ended.
func (r *Root) Ended() <-chan struct{} { return r.ended }

// Close lets go of the root.
func (r *Root) Close() error {
	err := r.dir.Close()
	if r.close != nil {
		err = errors.Join(err, r.close())
	}
	return err
}

const (
	// A rename elsewhere in the container can make the kernel give up on "..": it is tried again.
	resolveTries = 64
	inRoot       = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	noLinks      = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	maxPath      = 4095 // bytes, the kernel's own bound
	maxName      = 255  // bytes, the kernel's own bound
)

// CheckPath says whether a path may be asked for: absolute, without zero bytes, not too long, and
// not one of the kernel's interfaces.
func CheckPath(p string) error {
	if !path.IsAbs(p) || len(p) > maxPath || strings.ContainsRune(p, 0) {
		return &fleet.Error{Code: fleet.CodeInvalid, Msg: "the path must be absolute and have at most 4095 bytes"}
	}
	for _, dir := range []string{"/proc", "/sys"} {
		if clean := path.Clean(p); clean == dir || strings.HasPrefix(clean, dir+"/") {
			return errKernel
		}
	}
	return nil
}

var (
	errKernel   = fleet.NotAllowed("the path is an interface of the kernel, not a file")
	errNotThere = &fleet.Error{Code: fleet.CodeNotFound, Msg: "no such file or folder in the pod"}
)

// resolve returns a handle of what a path names, as a process in the container would see it.
func (r *Root) resolve(p string) (*os.File, error) {
	if err := CheckPath(p); err != nil {
		return nil, err
	}
	f, err := openAt(r.dir, strings.TrimLeft(p, "/")+"/.", unix.O_PATH|unix.O_DIRECTORY, inRoot)
	if errors.Is(err, unix.ENOTDIR) && !strings.HasSuffix(p, "/") {
		f, err = openAt(r.dir, strings.TrimLeft(p, "/"), unix.O_PATH, inRoot)
	}
	if err != nil {
		return nil, refusal(err)
	}
	if err := checkFS(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// openAt opens a path below a folder. Without O_PATH in flags, the caller knows what it opens.
func openAt(dir *os.File, name string, flags int, resolve uint64) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve} //nolint:gosec // flags are positive
	return openHow(dir, name, how)
}

func openHow(dir *os.File, name string, how *unix.OpenHow) (*os.File, error) {
	for range resolveTries {
		fd, err := unix.Openat2(number(dir), name, how)
		runtime.KeepAlive(dir)
		if err == nil {
			return os.NewFile(uintptr(fd), "in a container"), nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return nil, err
		}
	}
	return nil, unix.EAGAIN
}

// child returns a handle of an entry of a folder, which may be of any type.
func child(dir *os.File, name string) (*os.File, error) {
	return openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW, noLinks)
}

// reopen opens what a handle holds, which the caller has found to be a file or a folder. It names
// the handle, not a path: nobody can swap it.
func reopen(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open(handlePath(f), flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "in a container"), nil
}

// handlePath is a path that names what a handle holds, while it is open.
func handlePath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(number(f)) }

// number returns a file's descriptor without a change of its mode.
func number(f *os.File) int {
	out := -1
	raw, err := f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { out = int(fd) }) //nolint:gosec // a descriptor is small
	}
	return out
}

func stat(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(number(f), &st)
	runtime.KeepAlive(f)
	return st, err
}

// kernelFS are the file systems that are no files but interfaces of the kernel.
func kernelFS() []int64 {
	return []int64{
		unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
		unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.BINFMTFS_MAGIC, unix.NSFS_MAGIC, unix.SOCKFS_MAGIC, unix.ANON_INODE_FS_MAGIC,
		unix.RDTGROUP_SUPER_MAGIC, unix.PIPEFS_MAGIC, mqueueMagic, configMagic, fusectlMagic,
	}
}

const (
	mqueueMagic  = 0x19800202
	configMagic  = 0x62656570
	fusectlMagic = 0x65735543
)

// checkFS refuses a handle on a file system that is an interface of the kernel.
func checkFS(f *os.File) error {
	var st unix.Statfs_t
	err := unix.Fstatfs(number(f), &st)
	runtime.KeepAlive(f)
	if err != nil {
		return refusal(err)
	}
	if slices.Contains(kernelFS(), int64(st.Type)) {
		return errKernel
	}
	return nil
}

var errMemory = fleet.NotAllowed("files in memory cannot be written from outside")

// checkWrite refuses a handle of a folder into which nothing may be written. The kernel counts what is
// written to a file system in memory as memory of who writes.
func checkWrite(f *os.File) error {
	if err := checkFS(f); err != nil {
		return err
	}
	var st unix.Statfs_t
	err := unix.Fstatfs(number(f), &st)
	runtime.KeepAlive(f)
	if err != nil {
		return refusal(err)
	}
	switch int64(st.Type) { //nolint:unconvert // narrower elsewhere
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.HUGETLBFS_MAGIC:
		return errMemory
	}
	return nil
}

// refusal words an error of the kernel for the pod's owner. An error that has words keeps them.
func refusal(err error) error {
	var known *fleet.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	code, words := fleet.CodeNotAllowed, ""
	switch {
	case errors.Is(err, unix.ENOENT):
		return errNotThere
	case errors.Is(err, unix.ENOTDIR):
		code, words = fleet.CodeNotFound, "no such folder in the pod"
	case errors.Is(err, unix.ENAMETOOLONG):
		code, words = fleet.CodeInvalid, "a name or path is too long"
	case errors.Is(err, unix.ELOOP):
		words = "a symbolic link leads nowhere or stands where none may"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		words = "no space is left on the pod's disk"
	case errors.Is(err, unix.EROFS):
		words = "the place is read-only in the pod"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		words = "the pod's file system does not allow it"
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		words = "a folder of the pod stands in the way"
	case errors.Is(err, unix.EXDEV):
		words = "a hard link cannot lead to another file system"
	case errors.Is(err, unix.EBUSY):
		words = "the file is a mount of the pod"
	default:
		return fmt.Errorf("files of the pod: %w", err)
	}
	return &fleet.Error{Code: code, Msg: words, Err: err}
}
