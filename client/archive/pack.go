package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Pack writes the file or folder at src as a tar stream in which it is called name; "." packs the content of a folder
// without the folder. src itself may be a link, which is followed; links below it are packed as links. Everything
// belongs to root in the stream. What can not be packed, such as devices and sockets, is told by skipped and left out.
// The first failure ends it, also one to write.
func Pack(w io.Writer, src, name string, skipped func(name, why string)) error {
	p := &packing{tar: tar.NewWriter(w), skipped: skipped}
	info, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("read %s: %w", src, plain(err))
	}
	if err := p.tree(src, name, info); err != nil {
		return err
	}
	return p.tar.Close()
}

type packing struct {
	tar     *tar.Writer
	skipped func(name, why string)
}

func (p *packing) tree(at, name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return p.dir(at, name, info)
	case info.Mode().IsRegular():
		return p.file(at, name)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(at)
		if err != nil {
			return fmt.Errorf("read the link %s: %w", at, plain(err))
		}
		return p.header(info, name, target)
	default:
		p.skipped(at, "neither a file, a folder nor a link")
		return nil
	}
}

// header writes the entry of a file, and of a folder, whose names end with a slash.
func (p *packing) header(info fs.FileInfo, name, target string) error {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return fmt.Errorf("describe %s: %w", name, err)
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.Mode &= int64(fs.ModePerm)
	return p.tar.WriteHeader(h)
}

func (p *packing) dir(at, name string, info fs.FileInfo) error {
	if name != "." {
		if err := p.header(info, name, ""); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return fmt.Errorf("read the folder %s: %w", at, plain(err))
	}
	for _, e := range entries {
		below := filepath.Join(at, e.Name())
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", below, plain(err))
		}
		if err := p.tree(below, path.Join(name, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

// file writes as many bytes as the file had when it was opened, whatever happens to it meanwhile.
func (p *packing) file(at, name string) error {
	f, err := os.Open(at)
	if err != nil {
		return fmt.Errorf("read %s: %w", at, plain(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read %s: %w", at, plain(err))
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("read %s: the file changed while it was read", at)
	}
	if err := p.header(info, name, ""); err != nil {
		return err
	}
	n, err := io.CopyN(p.tar, f, info.Size())
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: the file was truncated by %d bytes while it was read", at, info.Size()-n)
	}
	return err
}
