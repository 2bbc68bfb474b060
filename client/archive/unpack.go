// Package archive turns local files into tar streams, and tar streams that a pod sent into local files. What a pod
// sends is not trusted: nothing outside of the folder that is unpacked into is ever written, made, changed or removed,
// whatever the names, links and kinds of the entries are.
package archive

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// ErrHostile is a stream that no honest sender makes: it tries to get out of its place.
var ErrHostile = errors.New("the pod sent a path outside the requested folder")

// Reader reads a tar stream of one file or folder, whose name begins the names of all entries.
type Reader struct {
	tar   whole
	first *tar.Header
	top   string
}

// NewReader reads up to the first entry. An empty stream is io.ErrUnexpectedEOF.
func NewReader(r io.Reader) (*Reader, error) {
	out := &Reader{tar: newWhole(r)}
	h, err := out.next()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	out.first = h
	out.top, _, _ = strings.Cut(h.Name, "/")
	return out, nil
}

// IsDir reports whether the stream is that of a folder, which need not have an entry of its own.
func (r *Reader) IsDir() bool {
	return r.first.Name != r.top || r.first.Typeflag == tar.TypeDir
}

// next returns the next entry that stands for something, its name cleaned.
func (r *Reader) next() (*tar.Header, error) {
	for {
		h, err := r.tar.next()
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if h.Name, err = cleanName(h.Name); err != nil {
			return nil, err
		}
		return h, nil
	}
}

// cleanName returns a relative path without empty, "." and ".." elements; "." alone is the top itself.
func cleanName(name string) (string, error) {
	if path.IsAbs(name) || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: %q", ErrHostile, name)
	}
	for word := range strings.SplitSeq(name, "/") {
		if word == ".." {
			return "", fmt.Errorf("%w: %q", ErrHostile, name)
		}
	}
	return path.Clean(name), nil
}

// Unpack writes what the stream holds below root, its top as the name that is given, which has no slash; "." merges a
// folder's content into root itself. Owners are not taken over; permissions and times are. Files that are there are
// replaced, whole; folders are merged. What cannot be taken over without danger, or at all, is left out and told by
// skipped, once for each: links that lead out of the tree, devices, sockets. The first failure ends it.
func (r *Reader) Unpack(root *os.Root, as string, skipped func(name, why string)) error {
	u := &unpacking{root: root, top: r.top, as: as, skipped: skipped}
	for h := r.first; ; {
		if err := u.entry(h, r.tar.tar); err != nil {
			return err
		}
		var err error
		if h, err = r.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	return u.finish()
}

type unpacking struct {
	root    *os.Root
	top, as string
	skipped func(name, why string)
	folders []folder // made by this, in order
}

// folder is one whose permissions are set when nothing more is made in it.
type folder struct {
	name string
	mode fs.FileMode
	at   time.Time
}

// place returns where an entry goes.
func (u *unpacking) place(name string) (string, error) {
	switch below, ok := strings.CutPrefix(name, u.top+"/"); {
	case name == u.top:
		return u.as, nil
	case u.top == ".":
		return path.Join(u.as, name), nil
	case ok:
		return path.Join(u.as, below), nil
	}
	return "", fmt.Errorf("%w: %q", ErrHostile, name)
}

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	name, err := u.place(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, content)
	case tar.TypeSymlink:
		return u.symlink(name, h)
	case tar.TypeLink:
		return u.link(name, h)
	default:
		u.skipped(name, "neither a file, a folder nor a link")
		return nil
	}
}

// parents makes the folders above name. A link among them would lead elsewhere, so it is refused.
func (u *unpacking) parents(name string) error {
	for at, r := range name {
		if r != '/' {
			continue
		}
		parent := name[:at]
		info, err := u.root.Lstat(parent)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(parent, 0o755); err != nil {
				return fmt.Errorf("make the folder %s: %w", parent, plain(err))
			}
		case err != nil:
			return fmt.Errorf("look at %s: %w", parent, plain(err))
		case !info.IsDir():
			return fmt.Errorf("%s: exists and is not a folder", parent)
		}
	}
	return nil
}

func (u *unpacking) dir(name string, h *tar.Header) error {
	info, err := u.root.Lstat(name)
	switch {
	case err == nil && info.IsDir():
		return nil // merged, with the permissions that it has
	case err == nil:
		return fmt.Errorf("%s: exists and is not a folder", name)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at %s: %w", name, plain(err))
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return fmt.Errorf("make the folder %s: %w", name, plain(err))
	}
	u.folders = append(u.folders, folder{name, permissions(h), h.ModTime})
	return nil
}

// finish sets the permissions of folders, the innermost first.
func (u *unpacking) finish() error {
	for i := range u.folders {
		f := u.folders[len(u.folders)-1-i]
		if err := u.root.Chmod(f.name, f.mode); err != nil {
			return fmt.Errorf("set the permissions of %s: %w", f.name, plain(err))
		}
		if err := u.root.Chtimes(f.name, f.at, f.at); err != nil {
			return fmt.Errorf("set the time of %s: %w", f.name, plain(err))
		}
	}
	return nil
}

// permissions are those of an entry, without the bits that give a program another user's rights.
func permissions(h *tar.Header) fs.FileMode { return fs.FileMode(h.Mode) & fs.ModePerm }

// clear checks that something may take the place of what is called name: nothing, a file or a link.
func (u *unpacking) clear(name string) (exists bool, err error) {
	if name == "." {
		return true, errors.New("a file cannot replace the target folder")
	}
	info, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", name, plain(err))
	case info.IsDir():
		return true, fmt.Errorf("%s: exists and is a folder", name)
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		return true, fmt.Errorf("%s: exists and is not a regular file", name)
	}
	return true, nil
}

// file writes a file beside its place and then moves it there, so that it is whole or not there.
func (u *unpacking) file(name string, h *tar.Header, content io.Reader) error {
	if _, err := u.clear(name); err != nil {
		return err
	}
	part := path.Join(path.Dir(name), ".gantry-part-"+rand.Text())
	err := u.write(part, name, h, content)
	if err == nil {
		if err = u.root.Rename(part, name); err != nil {
			err = fmt.Errorf("write %s: %w", name, plain(err))
		}
	}
	if err != nil {
		_ = u.root.Remove(part)
	}
	return err
}

func (u *unpacking) write(part, name string, h *tar.Header, content io.Reader) error {
	f, err := u.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write in the folder %s: %w", path.Dir(part), plain(err))
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(permissions(h))
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = u.root.Chtimes(part, h.ModTime, h.ModTime)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, plain(err))
	}
	return nil
}

func (u *unpacking) symlink(name string, h *tar.Header) error {
	if !u.inside(name, h.Linkname) {
		u.skipped(name, "a link that leads out of what is copied")
		return nil
	}
	exists, err := u.clear(name)
	if err != nil {
		return err
	}
	if exists {
		if err := u.root.Remove(name); err != nil {
			return fmt.Errorf("replace %s: %w", name, plain(err))
		}
	}
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return fmt.Errorf("make the link %s: %w", name, plain(err))
	}
	return nil
}

// inside reports whether a link that lies at name stays below the top. Only leading ".." count as such: one that
// follows another word may leave again what that word, itself a link, leads to.
func (u *unpacking) inside(name, target string) bool {
	if target == "" || path.IsAbs(target) || strings.ContainsRune(target, 0) {
		return false
	}
	depth := strings.Count(name, "/")
	if u.as == "." {
		depth++ // the top is root itself
	}
	down := false
	for word := range strings.SplitSeq(target, "/") {
		switch {
		case word == "" || word == ".":
		case word != "..":
			down = true
		case down:
			return false
		default:
			depth--
		}
	}
	return depth > 0
}

// link makes a second name for a file of the stream.
func (u *unpacking) link(name string, h *tar.Header) error {
	old, err := cleanName(h.Linkname)
	if err != nil {
		return err
	}
	if old, err = u.place(old); err != nil {
		return err
	}
	if info, err := u.root.Lstat(old); err != nil || !info.Mode().IsRegular() {
		u.skipped(name, "a second name of something that is no file here")
		return nil
	}
	if old == name {
		return nil
	}
	exists, err := u.clear(name)
	if err != nil {
		return err
	}
	if exists {
		if err := u.root.Remove(name); err != nil {
			return fmt.Errorf("replace %s: %w", name, plain(err))
		}
	}
	if err := u.root.Link(old, name); err != nil {
		return fmt.Errorf("make %s a second name of %s: %w", name, old, plain(err))
	}
	return nil
}

// plain takes off what repeats the name of the file.
func plain(err error) error {
	var inPath *fs.PathError
	var inLink *os.LinkError
	switch {
	case errors.As(err, &inPath):
		return inPath.Err
	case errors.As(err, &inLink):
		return inLink.Err
	}
	return err
}
