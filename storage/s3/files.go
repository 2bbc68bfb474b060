package s3

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An open never waits for the other side of a pipe.
const (
	openFile   = os.O_RDONLY | unix.O_NONBLOCK
	openFolder = os.O_RDONLY | unix.O_NONBLOCK | unix.O_DIRECTORY
)

// random returns 26 characters of names that nobody guesses.
func random() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw[:]))
}

// open opens an object for reading. It must be called in act.
func (p *place) open(t target) (*os.File, object, error) {
	how := openFile
	if t.folder {
		how = openFolder
	}
	f, err := p.folder.Root.OpenFile(t.path, how, 0)
	if err != nil {
		return nil, object{}, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case t.folder != info.IsDir(), !t.folder && !info.Mode().IsRegular():
		err = errNotObject
	default:
		return f, describe(f, info), nil
	}
	return nil, object{}, errors.Join(err, f.Close())
}

// look returns what there is to say about the object of the request.
func (x *exchange) look() (object, error) {
	t, err := parseKey(x.key)
	if err != nil {
		return object{}, err
	}
	var o object
	err = x.place.act(func() error {
		f, found, err := x.place.open(t)
		if err == nil {
			o = found
			err = f.Close()
		}
		return err
	})
	return o, err
}

// temporary makes a file in a folder below the hidden one, which a pod may have removed. It must be called in act.
func (p *place) temporary(dir, prefix string) (*os.File, string, error) {
	name := path.Join(dir, prefix+random())
	f, err := p.folder.Root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrNotExist) && dir == hidden {
		if err = p.makeHidden(); err == nil {
			f, err = p.folder.Root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		return nil, "", accessDenied("The name " + hidden + " in the volume must be a folder.")
	}
	return f, name, err
}

func (p *place) makeHidden() error {
	err := p.folder.Root.Mkdir(hidden, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// seal sets a file's time, keeps its record and waits until all of it is on the disk. It must be called in act.
func seal(f *os.File, r record) error {
	// A time that is set stays: one from a write may change when a network's file system sends the write on.
	now := unix.NsecToTimespec(time.Now().UnixNano())
	_ = control(f, func(fd int) error {
		return unix.UtimesNanoAt(fd, "", []unix.Timespec{now, now}, unix.AT_EMPTY_PATH)
	})
	info, err := f.Stat()
	if err != nil {
		return err
	}
	r.Size, r.Modified = info.Size(), info.ModTime().UnixNano()
	if err := writeRecord(f, r); err != nil {
		return err
	}
	return f.Sync()
}

// commit gives a written file the name of its key. It must be called in act.
func (p *place) commit(from string, t target, header http.Header) error {
	defer p.lock(t.key)()
	if err := p.writable(t, header); err != nil {
		return err
	}
	fresh := strings.TrimSpace(header.Get("If-None-Match")) == "*"
	move := p.folder.Root.Rename
	if fresh {
		move = p.folder.Root.Link
	}
	var err error
	// The folder on the way may go away again with its last object.
	for range 8 {
		if err = move(from, t.path); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err = p.makeParents(t.path); err != nil {
			break
		}
		if _, gone := p.folder.Root.Lstat(from); gone != nil {
			return unavailable(fmt.Errorf("the file being written: %w", gone))
		}
	}
	switch {
	case err == nil && fresh:
		_ = p.unlink(from)
		return p.syncFolders(t.parent())
	case err == nil:
		return p.syncFolders(t.parent())
	case fresh && errors.Is(err, fs.ErrExist):
		return preconditionFailed()
	case errors.Is(err, unix.ENOTDIR):
		return throughFile()
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.EISDIR):
		return isFolderFault()
	case errors.Is(err, fs.ErrNotExist):
		return slowDown()
	}
	return err
}

// syncFolders waits until the names in a folder, and those of the folders on the way to it, are on the disk: what was
// answered survives a power cut. It must be called in act.
func (p *place) syncFolders(name string) error {
	for {
		f, err := p.folder.Root.OpenFile(name, openFolder, 0)
		switch {
		case err == nil:
			err = f.Sync()
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
				err = nil // a file system that keeps folders without being asked
			}
			err = errors.Join(err, f.Close())
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			err = nil // it went with its last object
		}
		if err != nil || name == "." {
			return err
		}
		name = path.Dir(name)
	}
}

// writable checks the conditions of a write or a deletion.
func (p *place) writable(t target, header http.Header) error {
	match, none := header.Get("If-Match"), strings.TrimSpace(header.Get("If-None-Match"))
	if match == "" && none == "" {
		return nil
	}
	o, there, err := p.present(t)
	switch {
	case err != nil:
		return err
	case there && matches(none, o.etag):
		return preconditionFailed()
	case match != "" && !there:
		return noSuchKey()
	case match != "" && !matches(match, o.etag):
		return preconditionFailed()
	}
	return nil
}

// present returns the object of a key, and whether there is one. It must be called in act.
func (p *place) present(t target) (object, bool, error) {
	f, o, err := p.open(t)
	if err != nil {
		if faultOf(err).code == "NoSuchKey" {
			err = nil
		}
		return object{}, false, err
	}
	return o, true, f.Close()
}

// condition is what must hold of an object for its deletion; what is "" need not. That there is none is fine.
type condition struct{ etag, modified, size string }

// deletable checks the condition of a deletion. It must be called in act.
func (p *place) deletable(t target, c condition) error {
	if c == (condition{}) {
		return nil
	}
	o, there, err := p.present(t)
	if err != nil || !there {
		return err
	}
	at := o.info.ModTime().UTC()
	modified, bad := http.ParseTime(c.modified)
	if bad != nil {
		modified, bad = time.Parse(time.RFC3339, c.modified)
	}
	switch {
	case c.modified != "" && bad != nil:
		return invalid("The last modified time of a deletion's condition is none.")
	case c.etag != "" && !matches(c.etag, o.etag),
		c.modified != "" && !modified.Truncate(time.Second).Equal(at.Truncate(time.Second)),
		c.size != "" && c.size != strconv.FormatInt(o.size(), 10):
		return preconditionFailed()
	}
	return nil
}

// makeParents makes the folders on the way to a file and marks them as made on the way.
func (p *place) makeParents(name string) error {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		err := p.folder.Root.Mkdir(name[:i], 0o755)
		switch {
		case err == nil:
			p.mark(name[:i], func(*record) record { return record{Implied: true} })
		case errors.Is(err, fs.ErrExist):
		case errors.Is(err, unix.ENOTDIR):
			return throughFile()
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone with its last object just now: the caller tries again
		default:
			return err
		}
	}
	return nil
}

// mark changes the record of a folder. Where it cannot, the folder stays when it is empty.
func (p *place) mark(name string, change func(*record) record) {
	f, err := p.folder.Root.OpenFile(name, openFolder, 0)
	if err != nil {
		return
	}
	r := readRecord(f)
	_ = writeRecord(f, change(&r))
	_ = f.Close()
}

// unlink removes a name that is no folder.
func (p *place) unlink(name string) error { return p.unlinkat(name, 0) }

// removeFolder removes an empty folder.
func (p *place) removeFolder(name string) error { return p.unlinkat(name, unix.AT_REMOVEDIR) }

// unlinkat is used because os.Root.Remove takes either kind, and the name may have changed its kind just now.
func (p *place) unlinkat(name string, flags int) error {
	parent, err := p.folder.Root.OpenFile(path.Dir(name), openFolder, 0)
	if err != nil {
		return err
	}
	err = control(parent, func(fd int) error { return unix.Unlinkat(fd, path.Base(name), flags) })
	return errors.Join(err, parent.Close())
}

// remove deletes the object of a key. That there is none is no error. It must be called in act.
func (p *place) remove(t target) error {
	var err error
	if t.folder {
		err = p.removeFolder(t.path)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			p.mark(t.path, func(*record) record { return record{Implied: true} })
			return nil
		}
	} else {
		err = p.unlink(t.path)
	}
	switch {
	case err == nil:
		p.prune(t.parent())
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return nil
	}
	return err
}

// prune removes folders that are empty now and were made on the way to an object.
func (p *place) prune(name string) {
	for ; name != "." && name != "/"; name = path.Dir(name) {
		f, err := p.folder.Root.OpenFile(name, openFolder, 0)
		if err != nil {
			return
		}
		implied := readRecord(f).Implied
		_ = f.Close()
		if !implied || p.removeFolder(name) != nil {
			return
		}
	}
}

// discard removes what an upload that failed left.
func (p *place) discard(f *os.File, name string) {
	_ = f.Close()
	_ = as(p.folder.Owner, func() error { return p.unlink(name) })
}
