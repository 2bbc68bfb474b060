package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ext4Block   = 4096
	resizeExt4  = 0x40086610 // EXT4_IOC_RESIZE_FS
	journalMB   = 64
	toolTimeout = 10 * time.Minute // of mkfs or of a growth
	// checkTimeout is for the repair of one file system. A large one takes longer than whoever asks for it waits.
	checkTimeout = 6 * time.Hour
	// The features are named so that no configuration of the host changes them.
	ext4Features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
)

// ext4Offered says why the host cannot make ext4 file systems.
func ext4Offered() error {
	for _, program := range []string{"mkfs.ext4", "e2fsck", "resize2fs", "tune2fs"} {
		if _, err := tool(program); err != nil {
			return err
		}
	}
	return nil
}

// tool finds a program that PATH may lack: it is one of the system's.
func tool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no program %s (e2fsprogs)", name)
}

// imageSize is the size of a file whose file system holds gb·10^9 bytes. One file for each 8 KiB takes a 32nd of
// it; superblocks, bitmaps, what ext4 keeps back and the journal come on top.
func imageSize(gb int64, journal bool) int64 {
	const fixed, unit = 48 << 20, 1 << 20
	size := gb*1_000_000_000 + gb*36_000_000 + fixed
	if journal {
		size += 3 * journalMB / 2 << 20 // at most half of a file system may be journal
	}
	return (size + unit - 1) / unit * unit
}

// Footprint is the most that a disk of gb·10^9 bytes takes of the host's file system, whatever limits it: a direct one (see
// Config) may have a journal.
func Footprint(gb int64, direct bool) int64 {
	return max(imageSize(gb, direct), int64(projectSize(gb))) //nolint:gosec // below 2^63
}

// templates keeps an empty file system for each of the sizes that were asked for last, to be copied: that is
// cheaper than to make each anew.
type templates struct {
	dir    string
	direct bool
	turn   locks // of whoever looks for one, or makes it
}

const (
	template      = ".template-"
	mostTemplates = 16
)

// clone makes an empty file system at path. The caller closes the file.
func (t *templates) clone(ctx context.Context, size int64, path string) (*os.File, error) {
	from, err := t.get(ctx, size)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	return newImage(path, from, size)
}

// newImage makes a file of a size that holds what another does. The caller closes it.
func newImage(path string, from *os.File, size int64) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err // a program may still write to the one of an interrupted call
	}
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	noCopyOnWrite(to)
	if err = copySparse(to, from); err == nil {
		err = to.Truncate(size)
	}
	if err != nil {
		_ = to.Close()
		return nil, err
	}
	return to, nil
}

// get returns the template of a size, which it makes when there is none.
func (t *templates) get(ctx context.Context, size int64) (*os.File, error) {
	done, err := t.turn.lock(ctx, template)
	if err != nil {
		return nil, err
	}
	defer done()
	path := filepath.Join(t.dir, template+strconv.FormatInt(size, 10))
	f, err := os.Open(path)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // which was used last
		return f, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := t.forget(); err != nil {
		return nil, err
	}
	fresh := filepath.Join(t.dir, half+strings.Trim(template, ".")+"~")
	if err := t.format(ctx, fresh, size); err != nil {
		return nil, err
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// forget removes the templates that were not used for the longest time.
func (t *templates) forget() error {
	paths, err := filepath.Glob(filepath.Join(t.dir, template+"*"))
	if err != nil || len(paths) < mostTemplates {
		return err
	}
	used := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(paths, func(a, b string) int { return int(used(a)/1e6 - used(b)/1e6) })
	for _, path := range paths[:len(paths)-mostTemplates+1] {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// format makes a file with an empty file system that is on the disk when it returns.
func (t *templates) format(ctx context.Context, path string, size int64) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // the program of a process that died may still write to it
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(size); err != nil {
		return err
	}
	args := []string{
		"-F", "-q", "-m", "0", "-b", strconv.Itoa(ext4Block), "-i", strconv.Itoa(bytesPerFile), "-I", "256",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0",
	}
	if t.direct {
		args = append(args, "-O", ext4Features+",has_journal", "-J", "size="+strconv.Itoa(journalMB))
	} else {
		args = append(args, "-O", ext4Features)
	}
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	if _, err := runTool(ctx, f, "mkfs.ext4", args...); err != nil {
		return err
	}
	return f.Sync()
}

// renewed gives a file system that is not mounted another UUID.
func renewed(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	_, err := runTool(ctx, f, "tune2fs", "-f", "-U", "random")
	return err
}

// runTool runs a program of e2fsprogs on a file and returns its exit status. The program holds the lock of the file
// as long as it runs.
func runTool(ctx context.Context, f *os.File, name string, args ...string) (int, error) {
	path, err := tool(name)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, append(args, f.Name())...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "MKE2FS_CONFIG=/dev/null"}
	cmd.WaitDelay = time.Second
	var said head
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return cmd.ProcessState.ExitCode(), fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(said))
	}
	return 0, nil
}

// head keeps the beginning of what a program says: a repair can say very much.
type head []byte

func (h *head) Write(p []byte) (int, error) {
	const most = 500
	*h = append(*h, p[:min(len(p), most-len(*h))]...)
	return len(p), nil
}

// checked has a file system repaired that is not mounted. The repair goes on when ctx ends: begun again and again, that of
// a large disk would never be done. Its programs have the lock of the file, so that the next caller waits for them.
func checked(ctx context.Context, f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	own := os.NewFile(uintptr(fd), f.Name()) //nolint:gosec // a descriptor
	end := make(chan error, 1)
	go func() {
		defer func() { _ = own.Close() }()
		life, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		end <- check(life, own)
	}()
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the file system is still being checked: %w", ctx.Err())
	}
}

// check repairs a file system that is not mounted. What can be is saved: a disk that cannot be mounted is of no use.
func check(ctx context.Context, f *os.File) error {
	const repaired, reboot = 1, 2
	for _, how := range []string{"-p", "-y"} {
		status, err := runTool(ctx, f, "e2fsck", how, "-f")
		if err == nil || status > 0 && status&^(repaired|reboot) == 0 {
			return nil
		}
		if how == "-y" || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// superblock is what Gantry reads of an ext4 file system.
type superblock struct {
	blocks uint64
	// clean says that it needs no check. A journal that is not played back yet needs none.
	clean bool
}

func readSuperblock(f *os.File) (superblock, error) {
	const at, magic, valid, faulty = 1024, 0xef53, 1, 2
	var b [1024]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return superblock{}, fmt.Errorf("read the superblock: %w", err)
	}
	state := binary.LittleEndian.Uint16(b[0x3a:])
	return superblock{
		blocks: uint64(binary.LittleEndian.Uint32(b[0x04:])) | uint64(binary.LittleEndian.Uint32(b[0x150:]))<<32,
		clean:  binary.LittleEndian.Uint16(b[0x38:]) == magic && state&valid != 0 && state&faulty == 0,
	}, nil
}

// grow makes the file system that is mounted on a folder as large as its file. It reports false when the kernel
// does that only for processes with a right that this one lacks.
func grow(at string, size int64) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		return false, err
	}
	dev, err := openLoop(int(unix.Minor(uint64(st.Dev)))) //nolint:unconvert // differs by platform
	if err != nil {
		return false, err
	}
	defer func() { _ = dev.Close() }()
	has, err := dev.Seek(0, io.SeekEnd)
	if err == nil && has < size {
		err = unix.IoctlSetInt(int(dev.Fd()), setCapacity, 0)
	}
	if err != nil {
		return false, fmt.Errorf("make the loop device larger: %w", err)
	}
	super, err := readSuperblock(dev) // the kernel's own copy of it
	blocks := uint64(size / ext4Block)
	if err != nil || super.blocks >= blocks {
		return err == nil, err
	}
	err = onFolder(at, resizeExt4, unsafe.Pointer(&blocks))
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make the file system larger: %w", err)
	}
	return true, nil
}

// copySparse copies what a file holds, without its holes.
func copySparse(to, from *os.File) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	for at := int64(0); ; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("seek", err)
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("seek", err)
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, start), io.NewSectionReader(from, start, end-start)); err != nil {
			return err
		}
		at = end
	}
}

// noCopyOnWrite asks btrfs to write in place: random writes would scatter the file. It is a hint.
func noCopyOnWrite(f *os.File) {
	const noCow = 0x00800000 // FS_NOCOW_FL
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&noCow == 0 {
		_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|noCow)
	}
}
