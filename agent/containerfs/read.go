package containerfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

const (
	maxDepth   = 64       // levels of folders, each of which costs an open file
	readSize   = 64 << 10 // bytes
	entryBatch = 256
)

// Reading is a file or folder of a container that was found.
type Reading struct {
	target *os.File
	ids    IDs
	name   string // of the archive's first entry
}

// Find looks for what Pack is to read. A link at the end of the path is followed; below a folder
// none is.
func (r *Root) Find(p string) (*Reading, error) {
	f, err := r.resolve(p)
	if err != nil {
		return nil, err
	}
	st, err := stat(f)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = fleet.NotAllowed("the path is neither a file nor a folder")
	}
	if err != nil {
		_ = f.Close()
		return nil, refusal(err)
	}
	name := path.Base(path.Clean(p))
	if name == "/" {
		name = "."
	}
	return &Reading{target: f, ids: r.ids, name: name}, nil
}

// Close lets go of the file or folder.
func (x *Reading) Close() error { return x.target.Close() }

// Pack writes the file, or the folder with everything below it, to w as a tar stream. Links are
// written as links, owners as the container has them; devices, pipes, sockets and the kernel's interfaces are left out, and so is what
// disappears meanwhile and what a process holds a lease of. A file that changes its size meanwhile is cut or filled up with zeros. Without
// an error the stream is complete.
func (x *Reading) Pack(ctx context.Context, w io.Writer) error {
	p := &packer{ctx: ctx, ids: x.ids, out: tar.NewWriter(w), buf: make([]byte, readSize)}
	if err := p.entry(x.target, x.name, 0); err != nil {
		return err
	}
	return p.out.Close()
}

type packer struct {
	ctx context.Context
	ids IDs
	out *tar.Writer
	buf []byte
}

// entry writes what a handle holds.
func (p *packer) entry(f *os.File, name string, depth int) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	st, err := stat(f)
	if err != nil {
		return refusal(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.file(f, p.header(name, &st))
	case unix.S_IFDIR:
		return p.folder(f, p.header(name+"/", &st), depth)
	case unix.S_IFLNK:
		return p.link(f, p.header(name, &st))
	}
	return nil
}

// header has whole seconds only, so that every reader of tar understands it.
func (p *packer) header(name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(p.ids.users.toInside(st.Uid)), Gid: int(p.ids.groups.toInside(st.Gid)),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
}

func (p *packer) link(f *os.File, h *tar.Header) error {
	target := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(number(f), "", target)
	if err != nil {
		return refusal(err)
	}
	h.Typeflag, h.Linkname = tar.TypeSymlink, string(target[:n])
	return p.out.WriteHeader(h)
}

func (p *packer) file(f *os.File, h *tar.Header) error {
	data, err := reopen(f, unix.O_RDONLY)
	if errors.Is(err, unix.EAGAIN) {
		return errLease
	}
	if err != nil {
		return refusal(err)
	}
	defer func() { _ = data.Close() }()
	st, err := stat(data)
	if err != nil {
		return refusal(err)
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	left := h.Size
	for left > 0 {
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
		n, err := data.Read(p.buf[:min(left, readSize)])
		if n == 0 && errors.Is(err, io.EOF) {
			clear(p.buf) // it has become shorter: the header's promise is kept with zeros
			n, err = int(min(left, readSize)), nil
		}
		if err != nil {
			return refusal(err)
		}
		if _, err := p.out.Write(p.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func (p *packer) folder(f *os.File, h *tar.Header, depth int) error {
	if depth >= maxDepth {
		return &fleet.Error{Code: fleet.CodeInvalid, Msg: fmt.Sprintf("the folder has more than %d levels", maxDepth)}
	}
	h.Typeflag = tar.TypeDir
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	dir, err := reopen(f, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return refusal(err)
	}
	defer func() { _ = dir.Close() }()
	if depth > 0 { // the first one is the caller's
		_ = f.Close()
	}
	for {
		entries, err := names(dir, p.buf[:entryBatch*32])
		if err != nil {
			return refusal(err)
		}
		if len(entries) == 0 {
			return nil
		}
		for _, name := range entries {
			if err := p.below(dir, name, h.Name+name, depth+1); err != nil {
				return err
			}
		}
	}
}

var errLease = fleet.NotAllowed("a process of the pod holds a lease of the file")

// below writes an entry of a folder, unless it is gone by now, not a file or held by a lease. A folder
// costs one open file while what is in it is written.
func (p *packer) below(dir *os.File, name, full string, depth int) error {
	f, err := child(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return refusal(err)
	}
	defer func() { _ = f.Close() }()
	if err := checkFS(f); err != nil {
		if errors.Is(err, errKernel) {
			return nil
		}
		return err
	}
	if err := p.entry(f, full, depth); !errors.Is(err, errLease) {
		return err
	}
	return nil
}

// names reads the next names of a folder; none are left when it returns none.
func names(dir *os.File, buf []byte) ([]string, error) {
	for {
		n, err := unix.Getdents(number(dir), buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return nil, err
		}
		_, _, out := unix.ParseDirent(buf[:n], -1, nil)
		if len(out) > 0 { // "." and ".." are left out, and may be all that came
			return out, nil
		}
	}
}
