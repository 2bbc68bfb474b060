package s3

import (
	"container/list"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// entry is a name in a folder that may be an object or hold some.
type entry struct {
	name string // that of a folder ends with a slash, which gives the order of keys
	link bool
}

func (e entry) folder() bool { return strings.HasSuffix(e.name, "/") }

// folderKey is a folder in one state: each change of its names gives another.
type folderKey struct {
	volume       string
	dev, ino     uint64
	mtime, ctime int64
	top          bool
}

// nameCache keeps the sorted names of folders, the last used ones. It is safe for concurrent use.
type nameCache struct {
	mu    sync.Mutex
	max   int // entries in all
	held  int
	items map[folderKey]*list.Element
	order *list.List // of cached, the last used first
}

type cached struct {
	key   folderKey
	names []entry
}

func newNameCache(most int) *nameCache {
	return &nameCache{max: most, items: map[folderKey]*list.Element{}, order: list.New()}
}

func (c *nameCache) get(key folderKey) ([]entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.items[key]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(at)
	return at.Value.(*cached).names, true //nolint:forcetypeassert // the list's only type
}

func (c *nameCache) put(key folderKey, names []entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.items[key]; ok || len(names) > c.max {
		return
	}
	c.items[key] = c.order.PushFront(&cached{key, names})
	c.held += len(names) + 1
	for c.held > c.max && c.order.Len() > 1 {
		last := c.order.Remove(c.order.Back()).(*cached) //nolint:forcetypeassert // the list's only type
		delete(c.items, last.key)
		c.held -= len(last.names) + 1
	}
}

// settled is how long a folder must have been unchanged before its names are kept: clocks of file systems are coarse, and
// a change in the same tick would not be seen.
const settled = 2 * time.Second

// names returns the sorted names of an open folder.
func (l *lister) names(f *os.File, top bool) ([]entry, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("no stat")
	}
	key := folderKey{l.p.volume.ID, st.Dev, st.Ino, st.Mtim.Nano(), st.Ctim.Nano(), top} //nolint:unconvert // the type differs by machine
	if names, ok := l.cache.get(key); ok {
		return names, nil
	}
	if err := l.p.kept.scans.take(l.p.ctx, l.p.wait); err != nil {
		return nil, slowDown()
	}
	defer l.p.kept.scans.give()
	if names, ok := l.cache.get(key); ok {
		return names, nil
	}
	before := time.Now()
	names, err := scan(f, top, l.mostEntries)
	if err != nil {
		return nil, err
	}
	if before.UnixNano()-max(key.mtime, key.ctime) > int64(settled) {
		l.cache.put(key, names)
	}
	return names, nil
}

// scan reads the names of a folder and sorts them.
func scan(f *os.File, top bool, most int) ([]entry, error) {
	var out []entry
	for {
		some, err := f.ReadDir(4096)
		for _, e := range some {
			switch name := e.Name(); {
			case top && name == hidden:
			case e.IsDir():
				out = append(out, entry{name: name + "/"})
			case e.Type().IsRegular():
				out = append(out, entry{name: name})
			case e.Type() == fs.ModeSymlink:
				out = append(out, entry{name: name, link: true})
			}
		}
		if len(out) > most {
			return nil, refuse(http.StatusBadRequest, "InvalidRequest", "A folder of the volume holds too many names to be listed.")
		}
		if errors.Is(err, io.EOF) || err == nil && len(some) == 0 {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return out, nil
}
