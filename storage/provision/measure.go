package provision

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// mostDeep is how many folders may lie in each other in a volume that is measured.
const mostDeep = 10_000

// Progress is how far a measurement came. The zero value is the beginning.
type Progress struct {
	// Bytes and Files are what was counted so far.
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"`
	// At are the folders in which the measurement is, the outermost first.
	At []Step `json:"at,omitempty"`
}

// Step is one folder on the way to where a measurement is.
type Step struct {
	Name   string `json:"name,omitempty"`
	Inode  uint64 `json:"inode"`
	Offset int64  `json:"offset"` // of the next entry, as the file system counts
}

// Measure counts the bytes that a volume's files take on the server, beginning where another call ended. It
// stops after so many files (0: no bound), or with ctx; done says that it has seen all. It follows no link, stays on
// one file system, and counts a file with several names once. What changes meanwhile may be counted or not.
func Measure(ctx context.Context, r Root, dir string, p Progress, most int) (_ Progress, done bool, err error) {
	err = below(r, dir, "measure", func(at *place) error {
		top, err := at.volume(dir)
		if err != nil {
			return err
		}
		defer func() { _ = top.Close() }() // only read from
		w := &walk{top: top, p: p, b: newBudget(ctx, most, r.PerSecond)}
		done, err = w.run()
		p = w.p
		return err
	})
	return p, done && err == nil, err
}

// walk is a measurement. One folder is open at a time, and the way back up leads through "..", so that neither many nor
// deep folders take many descriptors or much memory.
type walk struct {
	top *os.File
	p   Progress
	b   *budget

	fd int // of the folder that the last step names
}

func (w *walk) run() (done bool, err error) {
	if len(w.p.At) == 0 {
		st, err := stat(int(w.top.Fd())) //nolint:gosec // a descriptor
		if err != nil {
			return false, err
		}
		w.p = Progress{At: []Step{{Inode: st.Ino}}}
	}
	w.fd = -1
	if err := w.reopen(); err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(w.fd) }() // only read from
	buf := make([]byte, 8192)
	for {
		step := &w.p.At[len(w.p.At)-1]
		if _, err := unix.Seek(w.fd, step.Offset, unix.SEEK_SET); err != nil {
			return false, fmt.Errorf("go on in a folder: %w", err)
		}
		n, err := unix.Getdents(w.fd, buf)
		if err != nil && !errors.Is(err, unix.ENOENT) { // a folder that was removed
			return false, fmt.Errorf("read a folder: %w", err)
		}
		if n > 0 && err == nil {
			if goOn, err := w.entries(buf[:n]); !goOn {
				return false, err
			}
			continue
		}
		if len(w.p.At) == 1 {
			return true, nil
		}
		if err := w.up(); err != nil {
			return false, err
		}
	}
}

// entries counts entries of a folder up to the first folder among them, which it enters.
func (w *walk) entries(buf []byte) (goOn bool, err error) {
	const head = 19 // bytes of struct linux_dirent64 before the name
	for len(buf) >= head {
		size := int(binary.NativeEndian.Uint16(buf[16:]))
		if size < head || size > len(buf) {
			return false, errors.New("a folder cannot be read")
		}
		name, _, _ := bytes.Cut(buf[head:size], []byte{0})
		after := int64(binary.NativeEndian.Uint64(buf[8:])) //nolint:gosec // the kernel's
		if string(name) != "." && string(name) != ".." {
			if !w.b.spend() {
				return false, nil
			}
			entered, err := w.entry(string(name), after)
			if err != nil {
				return false, err
			}
			if entered {
				return true, nil
			}
		}
		w.p.At[len(w.p.At)-1].Offset = after
		buf = buf[size:]
	}
	return true, nil
}

// entry counts one entry, and enters it when it is a folder.
func (w *walk) entry(name string, after int64) (entered bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(w.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	const block = 512
	bytes, links := st.Blocks*block, int64(st.Nlink) //nolint:gosec,unconvert // differs by platform
	folder := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !folder && links > 1 {
		bytes = (bytes + links - 1) / links // each of its names counts a share
	}
	if folder {
		if len(w.p.At) >= mostDeep {
			return false, fmt.Errorf("more than %d folders lie in each other", mostDeep)
		}
		fd, err := openStep(w.fd, name)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
			return false, nil // it is another by now, or another file system
		}
		if err != nil {
			return false, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		_ = unix.Close(w.fd) // only read from
		w.fd = fd
		w.p.At[len(w.p.At)-1].Offset = after
		w.p.At = append(w.p.At, Step{Name: name, Inode: st.Ino})
	}
	w.p.Bytes += bytes
	w.p.Files++
	return folder, nil
}

// up goes back to the folder around the one that is done. When the tenant moved it away, it goes on where the way
// down still leads.
func (w *walk) up() error {
	w.p.At = w.p.At[:len(w.p.At)-1]
	around := w.p.At[len(w.p.At)-1]
	fd, err := unix.Openat(w.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return w.reopen()
	}
	if st, err := stat(fd); err != nil || st.Ino != around.Inode {
		_ = unix.Close(fd) // only looked at
		return w.reopen()
	}
	_ = unix.Close(w.fd) // only read from
	w.fd = fd
	return nil
}

// reopen opens the last folder of the way down, and forgets those that are not there any more.
func (w *walk) reopen() error {
	fd, err := unix.FcntlInt(w.top.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	st, err := stat(fd)
	if err != nil || st.Ino != w.p.At[0].Inode {
		_ = unix.Close(fd) // only looked at
		return errors.Join(err, errors.New("the volume is another than the one that was measured"))
	}
	depth := 1
	for ; depth < len(w.p.At); depth++ {
		next, err := openStep(fd, w.p.At[depth].Name)
		if err != nil {
			break
		}
		if st, err := stat(next); err != nil || st.Ino != w.p.At[depth].Inode {
			_ = unix.Close(next) // only looked at
			break
		}
		_ = unix.Close(fd) // only read from
		fd = next
	}
	w.p.At = w.p.At[:depth]
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // only read from
	}
	w.fd = fd
	return nil
}

func openStep(at int, name string) (int, error) {
	return unix.Openat2(at, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

func stat(fd int) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st, os.NewSyscallError("fstat", err)
}
