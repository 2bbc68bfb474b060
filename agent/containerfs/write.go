package containerfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// tempPrefix begins the name that an entry has until it is complete.
const tempPrefix = ".gantry-"

// Writing is a folder of a container into which an archive is unpacked.
type Writing struct {
	dest *os.File
	ids  IDs
}

// Into looks for the folder into which Unpack unpacks. A link at the end of the path is followed.
func (r *Root) Into(p string) (*Writing, error) {
	f, err := r.resolve(p)
	if err != nil {
		return nil, err
	}
	st, err := stat(f)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = fleet.NotAllowed("the path is not a folder")
	}
	if err == nil {
		err = checkWrite(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, refusal(err)
	}
	return &Writing{dest: f, ids: r.ids}, nil
}

// Close lets go of the folder.
func (x *Writing) Close() error { return x.dest.Close() }

// Unpack unpacks a tar stream below the folder: files, folders, symbolic links, and hard links to
// what the folder holds. Each file and link appears complete or not at all, in place of what had its
// name; a folder that exists stays as it is. Owner and mode are the archive's, but for set-user-id and
// set-group-id; an owner that the container does not have becomes nobody. Sparse files, which are larger than what arrives of them, are refused, and so is what
// would lie in memory. Nothing below the destination is reached through a symbolic link. It stops at the first
// entry that cannot be unpacked; what came before stays. r is read to its end.
func (x *Writing) Unpack(ctx context.Context, r io.Reader) error {
	return x.ids.asRoot(func() error { return x.unpack(ctx, r) })
}

func (x *Writing) unpack(ctx context.Context, r io.Reader) error {
	u := &unpacker{ctx: ctx, dest: x.dest, ids: x.ids, buf: make([]byte, readSize)}
	u.read(r)
	defer u.leave()
	for n := 1; ; n++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h, err := u.in.Next()
		if ended(err) {
			_, err = io.CopyBuffer(io.Discard, onlyReader{r}, u.buf) // padding after the archive's end
			return err
		}
		if err != nil {
			return badArchive(err)
		}
		e, err := checkEntry(h, n)
		if err != nil {
			return err
		}
		if err := u.entry(e, h.ModTime); err != nil {
			return at(n, err)
		}
	}
}

// ended reports whether the archive, or an entry of it, is whole. A stream that broke off may say so with an error
// that holds the end of another stream: that is no end.
func ended(err error) bool { return err == io.EOF } //nolint:errorlint // as said

type onlyReader struct{ io.Reader }

// badArchive says that the stream is not a tar stream; an error of the stream itself stays what it is.
func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &fleet.Error{Code: fleet.CodeInvalid, Msg: "the body is not a complete tar archive", Err: err}
	}
	return err
}

func ordinal(n int) string { return strconv.Itoa(n) }

// at names the entry at which something failed.
func at(n int, err error) error {
	var known *fleet.Error
	if err = refusal(err); errors.As(err, &known) && known.Code != fleet.CodeInvalid {
		return &fleet.Error{Code: known.Code, Msg: "entry " + ordinal(n) + " of the archive: " + known.Msg, Err: known.Err}
	}
	return err
}

type unpacker struct {
	ctx  context.Context
	dest *os.File
	ids  IDs
	from *counted
	in   *tar.Reader
	buf  []byte

	last     *os.File // folder of the last entry, since archives go folder by folder; nil: none
	lastName string
}

func (u *unpacker) read(r io.Reader) {
	u.from = &counted{r: r}
	u.in = tar.NewReader(u.from)
}

// counted counts what was read.
type counted struct {
	r io.Reader
	n int64 // bytes
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func (u *unpacker) leave() {
	if u.last != nil {
		_ = u.last.Close()
	}
	u.last, u.lastName = nil, ""
}

func (u *unpacker) entry(e entry, at time.Time) error {
	if e.kind == kindSkip || e.name == "" {
		return nil
	}
	dir, err := u.folder(e.folder)
	if err != nil {
		return err
	}
	switch e.kind {
	case kindFolder:
		return u.makeFolder(dir, e)
	case kindFile:
		return u.file(dir, e, at)
	case kindLink:
		return u.placeLink(dir, e)
	}
	return u.hardLink(dir, e)
}

// folder opens the folder of an entry and makes what is missing of it.
func (u *unpacker) folder(name string) (*os.File, error) {
	if name == "" {
		return u.dest, nil
	}
	if u.last != nil && u.lastName == name {
		return u.last, nil
	}
	u.leave()
	f, err := below(u.dest, name)
	if errors.Is(err, unix.ENOENT) {
		parent, last := split(name)
		var dir *os.File
		if dir, err = u.folder(parent); err != nil {
			return nil, err
		}
		if err := u.makeFolder(dir, entry{name: last, mode: 0o755}); err != nil {
			return nil, err
		}
		u.leave()
		f, err = below(u.dest, name)
	}
	if err != nil {
		return nil, err
	}
	u.last, u.lastName = f, name
	return f, nil
}

// below opens a folder below another, not through links, not among the kernel's interfaces and not in
// memory.
func below(dir *os.File, name string) (*os.File, error) {
	f, err := openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, noLinks)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fleet.NotAllowed("something that is not a folder stands in the way")
	}
	if err != nil {
		return nil, err
	}
	if err := checkWrite(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// makeFolder makes a folder; one that is there already stays as it is.
func (u *unpacker) makeFolder(dir *os.File, e entry) error {
	err := unix.Mkdirat(number(dir), e.name, 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	f, err := below(dir, e.name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if !made {
		return nil
	}
	open, err := reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = open.Close() }()
	return u.own(open, e)
}

// owner returns the host's ids of an entry's owner.
func (u *unpacker) owner(e entry) (uid, gid int, err error) {
	user, err1 := u.ids.users.own(uint32(e.uid))   //nolint:gosec // at most maxOwner
	group, err2 := u.ids.groups.own(uint32(e.gid)) //nolint:gosec // the same
	return int(user), int(group), errors.Join(err1, err2)
}

// own sets owner, then mode, which the kernel changes with the owner.
func (u *unpacker) own(f *os.File, e entry) error {
	defer runtime.KeepAlive(f)
	uid, gid, err := u.owner(e)
	if err != nil {
		return err
	}
	if err := unix.Fchown(number(f), uid, gid); err != nil {
		return err
	}
	return unix.Fchmod(number(f), e.mode)
}

// file writes a file without a name and then puts it in its place: an agent that is killed meanwhile
// leaves nothing. What has the place is not opened.
func (u *unpacker) file(dir *os.File, e entry, at time.Time) (err error) {
	how := &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_TMPFILE | unix.O_CLOEXEC, Mode: 0o600, Resolve: noLinks}
	f, err := openHow(dir, ".", how)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EISDIR) {
		return u.namedFile(dir, e, at)
	}
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := u.complete(f, e, at); err != nil {
		return err
	}
	return put(dir, e.name, func(name string) error {
		defer runtime.KeepAlive(f)
		return unix.Linkat(unix.AT_FDCWD, handlePath(f), number(dir), name, unix.AT_SYMLINK_FOLLOW)
	})
}

// namedFile writes a file beside its place, where the file system has no files without a name.
func (u *unpacker) namedFile(dir *os.File, e entry, at time.Time) (err error) {
	temp := tempPrefix + fleet.NewID()
	how := &unix.OpenHow{
		Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC, Mode: 0o600, Resolve: noLinks,
	}
	f, err := openHow(dir, temp, how)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(number(dir), temp, 0)
		}
	}()
	err = u.complete(f, e, at)
	if closeErr := f.Close(); err == nil {
		err = closeErr // where a disk quota may be met first
	}
	if err != nil {
		return err
	}
	return place(dir, temp, e.name)
}

// complete gives a file everything but its name.
func (u *unpacker) complete(f *os.File, e entry, at time.Time) error {
	if err := u.fill(f); err != nil {
		return err
	}
	if err := u.own(f, e); err != nil {
		return err
	}
	setTime(f, at)
	return nil
}

// put gives a file the name that link makes: at once where it is free, otherwise in place of what has it.
func put(dir *os.File, name string, link func(name string) error) error {
	if err := link(name); !errors.Is(err, unix.EEXIST) {
		return err
	}
	temp := tempPrefix + fleet.NewID()
	if err := link(temp); err != nil {
		return err
	}
	err := place(dir, temp, name)
	// A rename between two names of one file does nothing, and the temporary one would stay.
	if gone := unix.Unlinkat(number(dir), temp, 0); err == nil && !errors.Is(gone, unix.ENOENT) {
		err = gone
	}
	return err
}

// place gives what was made beside its place its name. The kernel would take a file that is mounted in
// the pod away from there, since it is no mount of ours.
func place(dir *os.File, temp, name string) error {
	old, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW, noLinks|unix.RESOLVE_NO_XDEV)
	if err == nil {
		_ = old.Close()
	}
	if errors.Is(err, unix.EXDEV) {
		return unix.EBUSY
	}
	return unix.Renameat(number(dir), temp, number(dir), name)
}

// fill copies the entry's content, which is never more than what arrives of it.
func (u *unpacker) fill(f *os.File) error {
	before, wrote := u.from.n, int64(0)
	for {
		if err := context.Cause(u.ctx); err != nil {
			return err
		}
		n, err := u.in.Read(u.buf)
		if wrote += int64(n); wrote > u.from.n-before {
			return &fleet.Error{Code: fleet.CodeInvalid, Msg: "a file of the archive is larger than what the archive holds of it"}
		}
		if n > 0 {
			if _, err := f.Write(u.buf[:n]); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		if ended(err) {
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
	}
}

// setTime sets the time of the last change, as far as the file system knows such times.
func setTime(f *os.File, at time.Time) {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return
	}
	_ = unix.UtimesNanoAt(number(f), "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	runtime.KeepAlive(f)
}

// placeLink makes a symbolic link beside its place and then puts it there. Where it leads matters
// only to who follows it, in the container.
func (u *unpacker) placeLink(dir *os.File, e entry) (err error) {
	temp := tempPrefix + fleet.NewID()
	if err := unix.Symlinkat(e.target, number(dir), temp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(number(dir), temp, 0)
		}
	}()
	f, err := child(dir, temp)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if st, err := stat(f); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return errors.Join(errSwapped, err)
	}
	uid, gid, err := u.owner(e)
	if err != nil {
		return err
	}
	if err := unix.Fchownat(number(f), "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return place(dir, temp, e.name)
}

var errSwapped = fleet.NotAllowed("something in the pod changes the same files")

// hardLink gives a file that lies below the destination one more name.
func (u *unpacker) hardLink(dir *os.File, e entry) (err error) {
	folder, name := split(e.source)
	from := u.dest
	if folder != "" {
		if from, err = below(u.dest, folder); err != nil {
			return err
		}
		defer func() { _ = from.Close() }()
	}
	f, err := child(from, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if st, err := stat(f); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(fleet.NotAllowed("its link does not lead to a file"), err)
	}
	return put(dir, e.name, func(name string) error {
		return unix.Linkat(number(f), "", number(dir), name, unix.AT_EMPTY_PATH)
	})
}
