package s3

import (
	"errors"
	"io/fs"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// item is an object or a common prefix of a listing.
type item struct {
	key      string
	prefix   bool
	size     int64
	modified time.Time
	etag     string
}

// maxVisits bounds what one page of a listing looks at; the page is short then, and the next one goes on.
const maxVisits = 50_000

// lister goes through a volume in the order of its keys and makes one page.
type lister struct {
	p           *place
	cache       *nameCache
	mostEntries int

	prefix, delimiter, after string
	most                     int

	out       []item
	truncated bool
	last      string // where the next page goes on
	skip      string // a common prefix that is done
	visits    int
}

// errPageFull ends the walk.
var errPageFull = errors.New("page full")

// page makes the page. It must be called in act.
func (l *lister) page() error {
	if l.most == 0 {
		return nil
	}
	l.last = l.after
	if rest, ok := strings.CutPrefix(l.after, l.prefix); ok && l.delimiter != "" {
		if i := strings.Index(rest, l.delimiter); i >= 0 && i+len(l.delimiter) == len(rest) {
			l.skip = l.after
		}
	}
	base := l.prefix[:strings.LastIndexByte(l.prefix, '/')+1]
	root := l.p.folder.Root
	if base != "" {
		if _, err := parseKey(base); err != nil {
			return nil // no key has such a prefix
		}
		var err error
		if root, err = l.start(base); err != nil {
			if f := faultOf(err); f.code == "NoSuchKey" || f.code == "AccessDenied" {
				return nil
			}
			return err
		}
		defer func() { _ = root.Close() }()
	}
	err := l.folder(root, base)
	if errors.Is(err, errPageFull) {
		l.truncated = true
		// The next page knows by this that all of the prefix is done.
		if l.skip != "" && strings.HasPrefix(l.last, l.skip) {
			l.last = l.skip
		}
		return nil
	}
	return vanished(err)
}

// start opens the folder of a prefix. Links are not followed.
func (l *lister) start(base string) (*os.Root, error) {
	for i := range len(base) {
		if base[i] != '/' {
			continue
		}
		info, err := l.p.folder.Root.Lstat(base[:i])
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, errNotObject
		}
	}
	return openRoot(l.p.folder.Root, base)
}

// openRoot opens a folder without waiting for the other side of a pipe that has taken its name: the dot makes it a folder.
func openRoot(root *os.Root, name string) (*os.Root, error) {
	return root.OpenRoot(strings.TrimSuffix(name, "/") + "/.")
}

// folder goes through a folder. Base is its key, or empty.
func (l *lister) folder(root *os.Root, base string) error {
	if l.after > base && !strings.HasPrefix(l.after, base) {
		return nil
	}
	f, err := root.OpenFile(".", openFolder, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	names, err := l.names(f, base == "")
	if err != nil {
		return err
	}
	if err := l.self(f, base, len(names) == 0); err != nil {
		return err
	}
	for i := l.first(names, base); i < len(names); {
		n, err := l.some(root, base, names[i:])
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// self takes the folder's own key, when it is one.
func (l *lister) self(f *os.File, base string, empty bool) error {
	if base <= l.after || !strings.HasPrefix(base, l.prefix) || !empty && !readRecord(f).Explicit {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return l.take(item{key: base, modified: info.ModTime(), etag: emptyMD5})
}

const emptyMD5 = "d41d8cd98f00b204e9800998ecf8427e"

// first returns where in a folder the page begins.
func (l *lister) first(names []entry, base string) int {
	i := 0
	if rest, ok := strings.CutPrefix(l.after, base); ok {
		i = sort.Search(len(names), func(i int) bool { return names[i].name > rest })
		if i > 0 && names[i-1].folder() && strings.HasPrefix(rest, names[i-1].name) {
			i--
		}
	}
	if rest, ok := strings.CutPrefix(l.prefix, base); ok {
		i = max(i, sort.Search(len(names), func(i int) bool { return names[i].name >= rest }))
	}
	return i
}

// some takes a folder, or several files in a row, and returns how many names that were.
func (l *lister) some(root *os.Root, base string, names []entry) (int, error) {
	key := base + names[0].name
	switch {
	case !strings.HasPrefix(key, l.prefix):
		return len(names), nil // behind the last one with the prefix
	case len(key) > maxKey, l.skip != "" && strings.HasPrefix(key, l.skip):
		return 1, nil
	case l.visits >= maxVisits:
		return 0, errPageFull
	case names[0].folder():
		l.visits++
		if err := l.below(root, key, names[0].name); err != nil {
			return 0, err
		}
		l.last = max(l.last, key+"\xff")
		return 1, nil
	}
	n := 1
	for most := l.most - len(l.out) + 1; n < len(names) && n < most; n++ {
		k := base + names[n].name
		if names[n].folder() || len(k) > maxKey || !strings.HasPrefix(k, l.prefix) || l.delimiter != "" && strings.Contains(k[len(l.prefix):], l.delimiter) {
			break
		}
	}
	l.visits += n
	return n, l.files(root, base, names[:n])
}

// below goes on in a folder, or takes it as a common prefix.
func (l *lister) below(root *os.Root, key, name string) error {
	if l.delimiter == "/" {
		if key <= l.after {
			rest := &lister{p: l.p, cache: l.cache, mostEntries: l.mostEntries, prefix: key, after: l.after, most: 1}
			if err := rest.page(); err != nil || len(rest.out) == 0 {
				return err
			}
		}
		return l.take(item{key: key})
	}
	sub, err := openRoot(root, name)
	if err != nil {
		return vanished(err)
	}
	defer func() { _ = sub.Close() }()
	return vanished(l.folder(sub, key))
}

// vanished leaves out what was removed or replaced while the listing went on, or what nobody may read.
func vanished(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, fs.ErrPermission) || escapes(err) {
		return nil
	}
	return err
}

// readers is how many goroutines look at the files of a page: on a network's file system each look takes a round trip.
const readers = 4

// files takes several files of one folder.
func (l *lister) files(root *os.Root, base string, names []entry) error {
	found := make([]item, len(names))
	errs := make([]error, readers)
	look := func(worker, workers int) error {
		for i := worker; i < len(names); i += workers {
			it, err := l.file(root, base, names[i])
			if err != nil {
				return err
			}
			found[i] = it
		}
		return nil
	}
	if len(names) < 8*readers {
		errs[0] = look(0, 1)
	} else {
		var all sync.WaitGroup
		for w := range readers {
			all.Go(func() {
				errs[w] = as(l.p.folder.Owner, func() error { return look(w, readers) })
			})
		}
		all.Wait()
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, it := range found {
		if it.key != "" {
			if err := l.take(it); err != nil {
				return err
			}
		}
		l.last = max(l.last, base+names[i].name)
	}
	return nil
}

// file looks at a file; the item has no key when it is no object.
func (l *lister) file(root *os.Root, base string, e entry) (item, error) {
	name := e.name
	if e.link {
		// A link may lead out of its folder, but not out of the volume.
		root, name = l.p.folder.Root, base+e.name
	}
	f, err := root.OpenFile(name, openFile, 0)
	if err != nil {
		return item{}, oddity(vanished(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return item{}, err
	}
	o := describe(f, info)
	return item{key: base + e.name, size: info.Size(), modified: info.ModTime(), etag: o.etag}, nil
}

// oddity leaves out what cannot be opened for a reason of its own: a socket, a device without a driver, a lease.
func oddity(err error) error {
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// take adds to the page. The error is errPageFull when it was full before.
func (l *lister) take(it item) error {
	if rest := it.key[len(l.prefix):]; l.delimiter != "" {
		if i := strings.Index(rest, l.delimiter); i >= 0 {
			it = item{key: l.prefix + rest[:i+len(l.delimiter)], prefix: true}
		}
	}
	if len(l.out) == l.most {
		return errPageFull
	}
	if it.prefix {
		l.skip = it.key
	}
	l.out = append(l.out, it)
	l.last = it.key
	return nil
}
