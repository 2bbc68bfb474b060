package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/atomicfile"
)

// Folders and files of the cache.
const (
	entriesDir  = "models"  // a folder for each revision: its description, and hub, which is what workers see
	partialDir  = "partial" // the same, while they are fetched
	pinsDir     = "used"    // a file for each pod that uses some, with their names
	description = "info.json"
	maxNames    = 100
)

// entry is a revision that is here.
type entry struct {
	Repo      string   `json:"repo"`
	Commit    string   `json:"commit"`
	Revisions []string `json:"revisions"` // branches and tags that were this commit when they were asked for last
	Bytes     int64    `json:"bytes"`
	Open      bool     `json:"open"` // the hub gives it to everybody

	used time.Time // last
}

func entryName(ref fleet.ModelRef, commit string) string { return ref.Folder() + "@" + commit }

func (e *entry) name() string { return entryName(fleet.ModelRef{Repo: e.Repo}, e.Commit) }

func (c *Cache) entry(name string) string   { return filepath.Join(c.Dir, entriesDir, name) }
func (c *Cache) partial(name string) string { return filepath.Join(c.Dir, partialDir, name) }
func (c *Cache) pinned(id fleet.PodID) string {
	return filepath.Join(c.Dir, pinsDir, string(id))
}

// load reads what an earlier agent left. What is not whole is removed.
func (c *Cache) load() error {
	for _, dir := range []string{entriesDir, partialDir, pinsDir} {
		if err := os.MkdirAll(filepath.Join(c.Dir, dir), 0o700); err != nil {
			return fmt.Errorf("make the folder of models: %w", err)
		}
	}
	for _, name := range names(filepath.Join(c.Dir, entriesDir)) {
		e, err := readEntry(c.entry(name))
		if err == nil && e.name() == name {
			c.entries[name] = e
			continue
		}
		c.Log.Warn("removing what is left of a model", "folder", name, "err", err)
		if err := os.RemoveAll(c.entry(name)); err != nil {
			return fmt.Errorf("remove what is left of a model: %w", err)
		}
	}
	for _, id := range names(filepath.Join(c.Dir, pinsDir)) {
		var list []string
		if text, err := os.ReadFile(c.pinned(fleet.PodID(id))); err == nil && json.Unmarshal(text, &list) == nil {
			c.pins[fleet.PodID(id)] = list
		}
	}
	c.tell()
	return nil
}

func readEntry(dir string) (*entry, error) {
	path := filepath.Join(dir, description)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	e := &entry{used: st.ModTime()}
	return e, json.Unmarshal(text, e)
}

// names lists a folder; one that cannot be read is empty.
func names(dir string) (out []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// write writes the description of a revision into its folder.
func (e *entry) write(dir string) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, description), text, 0o600)
}

// adopt makes a flight's folder a revision of the cache.
func (c *Cache) adopt(f *flight) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &entry{Repo: f.ref.Repo, Commit: f.manifest.commit, Bytes: f.manifest.total, Open: f.open, used: time.Now()}
	if c.entries[f.name] != nil {
		return nil
	}
	err := e.write(c.partial(f.name))
	if err == nil {
		err = os.Rename(c.partial(f.name), c.entry(f.name))
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Join(c.Dir, entriesDir))
	}
	if err != nil {
		return fmt.Errorf("keep a model: %w", err)
	}
	c.entries[f.name] = e
	return nil
}

// use returns the folder of a revision, which stays for the pod from here on; false: it is not here.
func (c *Cache) use(id fleet.PodID, ref fleet.ModelRef, m *manifest, open bool) (dir string, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[entryName(ref, m.commit)]
	if e == nil {
		return "", false, nil
	}
	if err := c.point(e, ref); err != nil {
		return "", false, err
	}
	if e.Open != open {
		e.Open = open
		err = e.write(c.entry(e.name()))
	}
	if err == nil {
		dir, err = c.pin(id, e)
	}
	c.tell()
	return dir, err == nil, err
}

// known returns the folder of the revision that a branch or tag was when it was asked for last, if everybody may have it.
func (c *Cache) known(id fleet.PodID, ref fleet.ModelRef) (dir string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		if e.Repo == ref.Repo && e.Open && (e.Commit == ref.Revision || slices.Contains(e.Revisions, ref.Revision)) {
			dir, err := c.pin(id, e)
			return dir, err == nil
		}
	}
	return "", false
}

// closed notes that the hub does not give a model to everybody any more.
func (c *Cache) closed(ref fleet.ModelRef, err error) {
	if !errors.Is(err, errDenied) && !errors.Is(err, errNotThere) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, e := range c.entries {
		if e.Repo == ref.Repo && e.Open {
			e.Open = false
			if err := e.write(c.entry(name)); err != nil {
				c.Log.Warn("note that a model is not public any more", "model", e.Repo, "err", err)
			}
		}
	}
}

// point notes that a branch or tag is this revision, and none other. The caller holds mu.
func (c *Cache) point(e *entry, ref fleet.ModelRef) error {
	if ref.Revision == e.Commit || slices.Contains(e.Revisions, ref.Revision) {
		return nil
	}
	path := filepath.Join(c.entry(e.name()), "hub", "refs", filepath.FromSlash(ref.Revision))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // see finish
		return err
	}
	if err := atomicfile.Write(path, []byte(e.Commit), 0o444); err != nil {
		return err
	}
	if err := finish(filepath.Join(c.entry(e.name()), "hub", "refs")); err != nil {
		return err
	}
	e.Revisions = append(e.Revisions, ref.Revision)
	if err := e.write(c.entry(e.name())); err != nil {
		return err
	}
	for name, other := range c.entries {
		if i := slices.Index(other.Revisions, ref.Revision); other != e && other.Repo == e.Repo && i >= 0 {
			other.Revisions = slices.Delete(other.Revisions, i, i+1)
			if err := other.write(c.entry(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// pin keeps a revision for a pod, before it is said to be here. The caller holds mu.
func (c *Cache) pin(id fleet.PodID, e *entry) (string, error) {
	name := e.name()
	if id != "" && !slices.Contains(c.pins[id], name) {
		list := append(slices.Clone(c.pins[id]), name)
		text, err := json.Marshal(list)
		if err == nil {
			err = atomicfile.Write(c.pinned(id), text, 0o600)
		}
		if err != nil {
			return "", fmt.Errorf("keep a model for a pod: %w", err)
		}
		c.pins[id] = list
	}
	e.used = time.Now()
	if err := os.Chtimes(filepath.Join(c.entry(name), description), time.Time{}, e.used); err != nil {
		c.Log.Warn("note that a model is used", "model", e.Repo, "err", err)
	}
	return filepath.Join(c.entry(name), "hub"), nil
}

// unpin lets go of what is kept for a pod.
func (c *Cache) unpin(id fleet.PodID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.Remove(c.pinned(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("release models of a pod", "pod", id, "err", err)
		return
	}
	delete(c.pins, id)
}

// revisions returns the names of the revisions of a model.
func (c *Cache) revisions(repo string) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, e := range c.entries {
		if e.Repo == repo {
			out = append(out, name)
		}
	}
	return out
}

// tell works out what is told of the cache. The caller holds mu.
func (c *Cache) tell() {
	all := make([]*entry, 0, len(c.entries))
	for _, e := range c.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return b.used.Compare(a.used) })
	list := []string{}
	for _, e := range all {
		for _, revision := range append(slices.Clone(e.Revisions), e.Commit) {
			if len(list) < maxNames {
				list = append(list, fleet.ModelRef{Repo: e.Repo, Revision: revision}.String())
			}
		}
	}
	c.names.Store(&list)
	c.Metrics.Models(c.used(""), c.Size)
}

// finish lets everybody in a container read what is below a folder, nobody write it, and waits until its names are on the disk.
func finish(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return errors.Join(os.Chmod(path, 0o755), atomicfile.SyncDir(path)) //nolint:gosec // the cache's own folder keeps others out
		case d.Type().IsRegular():
			return os.Chmod(path, 0o444) //nolint:gosec // as above
		}
		return nil
	})
}
