package s3

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// refusedHeaders ask for what volumes do not have; to take such an object without it would be a lie.
var refusedHeaders = []string{
	"X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Customer-Algorithm", "X-Amz-Copy-Source-Server-Side-Encryption-Customer-Algorithm",
	"X-Amz-Tagging", "X-Amz-Object-Lock-Mode", "X-Amz-Object-Lock-Legal-Hold", "X-Amz-Object-Lock-Retain-Until-Date",
	"X-Amz-Website-Redirect-Location", "X-Amz-Write-Offset-Bytes",
}

func (x *exchange) refuseHeaders() error {
	for _, name := range refusedHeaders {
		if x.r.Header.Get(name) != "" {
			return notImplemented("The header " + strings.ToLower(name))
		}
	}
	return nil
}

// synced is how large a file may be to be synced with others of its volume waiting for the thread.
const synced = 8 << 20

func (x *exchange) putObject() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	if err := x.refuseHeaders(); err != nil {
		return err
	}
	r, err := recordOf(x.r.Header)
	if err != nil {
		return err
	}
	b, err := x.body(maxPut)
	if err != nil {
		return err
	}
	if t.folder {
		return x.putFolder(t, r, b)
	}
	var f *os.File
	var name string
	err = x.place.act(func() error {
		if err := x.place.writable(t, x.r.Header); err != nil {
			return err
		}
		var err error
		f, name, err = x.place.temporary(hidden, "put-")
		return err
	})
	if err != nil {
		return err
	}
	done, err := x.write(f, name, t, r, b)
	if err != nil {
		x.place.discard(f, name)
		return err
	}
	x.w.Header().Set("ETag", quote(done.md5))
	setChecksum(x.w.Header(), done.checksum, done.checksum)
	x.sweep()
	return x.empty(http.StatusOK)
}

// write takes the body into a new file and gives it the key's name. It closes the file unless there is an error.
func (x *exchange) write(f *os.File, name string, t target, r record, b *body) (saved, error) {
	done, err := b.save(f)
	if err != nil {
		return saved{}, err
	}
	if done.size > synced {
		if err := f.Sync(); err != nil {
			return saved{}, err
		}
	}
	r.ETag, r.Checksum = done.md5, done.checksum
	err = x.place.act(func() error {
		if err := seal(f, r); err != nil {
			return err
		}
		return x.place.commit(name, t, x.r.Header)
	})
	if err != nil {
		return saved{}, err
	}
	return done, f.Close()
}

// putFolder makes a folder, or changes the metadata of one.
func (x *exchange) putFolder(t target, r record, b *body) error {
	if b.size != 0 {
		return refuse(http.StatusBadRequest, "DirectoryObjectContainsData", "A key that ends with a slash is a folder and has no content.")
	}
	done, err := b.save(&nothing{})
	if err != nil {
		return err
	}
	err = x.place.act(func() error {
		defer x.place.lock(t.key)()
		if err := x.place.writable(t, x.r.Header); err != nil {
			return err
		}
		return x.place.makeFolder(t, r)
	})
	if err != nil {
		return err
	}
	x.w.Header().Set("ETag", quote(done.md5))
	setChecksum(x.w.Header(), done.checksum, done.checksum)
	return x.empty(http.StatusOK)
}

// nothing is the file of a folder's empty body.
type nothing struct{}

func (*nothing) Write(p []byte) (int, error) { return len(p), nil }

// makeFolder makes the folder of a key, which stays until a client deletes the key. It must be called in act.
func (p *place) makeFolder(t target, r record) error {
	r.Explicit = true
	var err error
	for range 8 {
		err = p.folder.Root.Mkdir(t.path, 0o755)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err = p.makeParents(t.path); err != nil {
			return err
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		return throughFile()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := p.folder.Root.OpenFile(t.path, openFolder, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return throughFile()
	}
	if err != nil {
		return err
	}
	return errors.Join(writeRecord(f, r), f.Close(), p.syncFolders(path.Dir(t.path)))
}
