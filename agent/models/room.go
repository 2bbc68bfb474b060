package models

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// leastFree is the share of the disk, one in so many, that no model takes.
	leastFree   = 50
	sweepEvery  = time.Minute
	keepPartial = 24 * time.Hour // what nobody goes on with
)

var (
	errTooLarge = errors.New("larger than the cache")
	errNoRoom   = errors.New("no room in the cache")
)

// reserve makes room for a flight: the least recently used go that no pod uses, and what nobody goes on with before them.
func (c *Cache) reserve(f *flight) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := f.manifest.total
	if total > c.Size {
		return fmt.Errorf("%w: %d bytes", errTooLarge, total)
	}
	for {
		free, err := c.free()
		if err != nil {
			return err
		}
		missing := total - bytesBelow(c.partial(f.name))
		if c.used(f.name)+total <= c.Size && free >= missing {
			return nil
		}
		if ok, err := c.removeOne(f.name); err != nil || !ok {
			return errors.Join(errNoRoom, err)
		}
	}
}

// used returns the bytes of all but one flight: of what is here, of what is being fetched as a whole, and of what nobody goes on
// with. The caller holds mu.
func (c *Cache) used(but string) (bytes int64) {
	for _, e := range c.entries {
		bytes += e.Bytes
	}
	for name, f := range c.flights {
		if name != but {
			bytes += f.manifest.total
		}
	}
	for _, name := range c.idle(but) {
		bytes += bytesBelow(c.partial(name))
	}
	return bytes
}

// idle lists what nobody goes on with, the oldest first. The caller holds mu.
func (c *Cache) idle(but string) (out []string) {
	for _, name := range names(filepath.Join(c.Dir, partialDir)) {
		if c.flights[name] == nil && name != but {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return changed(c.partial(a)).Compare(changed(c.partial(b))) })
	return out
}

// changed is when a file below a folder was written last.
func changed(dir string) (last time.Time) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if st, err := d.Info(); err == nil && st.ModTime().After(last) {
				last = st.ModTime()
			}
		}
		return nil
	})
	return last
}

// bytesBelow adds up the files below a folder.
func bytesBelow(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				bytes += st.Size()
			}
		}
		return nil
	})
	return bytes
}

// free returns the bytes of the disk that models may take.
func (c *Cache) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(c.Dir, &st); err != nil {
		return 0, err
	}
	free := int64(st.Bavail) - int64(st.Blocks/leastFree) //nolint:gosec // blocks of a disk
	return free * st.Bsize, nil
}

// removeOne removes what is missed the least; false: there is nothing that may go. The caller holds mu.
func (c *Cache) removeOne(but string) (bool, error) {
	if idle := c.idle(but); len(idle) > 0 {
		return true, os.RemoveAll(c.partial(idle[0]))
	}
	c.release()
	kept := map[string]bool{}
	for _, list := range c.pins {
		for _, name := range list {
			kept[name] = true
		}
	}
	var victim string
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		if !kept[name] && (victim == "" || c.entries[name].used.Before(c.entries[victim].used)) {
			victim = name
		}
	}
	if victim == "" {
		return false, nil
	}
	c.Log.Info("removing a model to make room", "model", c.entries[victim].Repo, "commit", c.entries[victim].Commit)
	delete(c.entries, victim)
	c.Metrics.ModelsRemoved(1)
	c.tell()
	// The description goes first: what is left of it after a crash counts as nothing.
	return true, errors.Join(os.Remove(filepath.Join(c.entry(victim), description)), os.RemoveAll(c.entry(victim)))
}

// release lets go of what is kept for pods that have ended. The caller holds mu.
func (c *Cache) release() {
	for id := range c.pins {
		if c.InUse(id) {
			continue
		}
		if err := os.Remove(c.pinned(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.Log.Warn("release models of a pod", "pod", id, "err", err)
			continue
		}
		delete(c.pins, id)
	}
}

// sweepOften removes what nobody goes on with any more, and forgets pods that have ended.
func (c *Cache) sweepOften() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		c.sweep(time.Now())
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
	}
}

func (c *Cache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release()
	for _, name := range c.idle("") {
		if now.Sub(changed(c.partial(name))) < keepPartial {
			break
		}
		if err := os.RemoveAll(c.partial(name)); err != nil {
			c.Log.Warn("remove what nobody goes on with", "folder", name, "err", err)
		}
	}
	c.tell()
}
