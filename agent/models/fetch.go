package models

import (
	"context"
	"crypto/sha1" //nolint:gosec // Git's digest of a blob
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/ctxread"
	"gantry/internal/sleep"
)

const (
	readSize  = 256 << 10
	leastRate = 10_000 // bytes a second, over the time without a byte after which a server counts as stuck
	vainTries = 3      // in a row in which hardly a byte came
	// brokenTries is how often a file is read whole whose digest is wrong: what an earlier agent left of it may be to blame once.
	brokenTries = 2
)

var (
	errDigest  = errors.New("a file is not what its digest promises")
	errStalled = errors.New("no byte received for too long")
	errSlow    = errors.New("bytes received too slowly")
	errShort   = errors.New("a file ended early")
)

// flight is a revision that is being fetched, for all who wait for it.
type flight struct {
	hub      *hub
	ref      fleet.ModelRef
	manifest *manifest
	open     bool // everybody may have it
	name     string
	slots    chan struct{} // files of it that are read at once
	hurry    func()        // lets as many be read as may be

	have   atomic.Int64 // bytes of its files that are here
	cancel context.CancelFunc
	done   chan struct{} // closed once err is set
	err    error

	waiters int // guarded by the cache's mu
}

// join returns the flight of a revision, and whether it is the caller's own. One that pods wait for reads several files at once.
// The caller calls leave.
func (c *Cache) join(h *hub, ref fleet.ModelRef, m *manifest, open, pods bool) (f *flight, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := entryName(ref, m.commit)
	if f = c.flights[name]; f == nil {
		mine = true
		f = &flight{hub: h, ref: ref, manifest: m, open: open, name: name, slots: make(chan struct{}, ofFlight), done: make(chan struct{})}
		for range ofFlight - 1 {
			f.slots <- struct{}{}
		}
		f.hurry = sync.OnceFunc(func() {
			for range ofFlight - 1 {
				<-f.slots
			}
		})
		var ctx context.Context
		ctx, f.cancel = context.WithCancel(c.ctx)
		c.flights[name] = f
		c.work.Go(func() { c.fly(ctx, f) })
	}
	f.waiters++
	if pods {
		f.hurry()
	}
	return f, mine
}

// leave ends a flight that nobody waits for any more; what it has fetched stays for the next.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
	}
}

// fly fetches a revision.
func (c *Cache) fly(ctx context.Context, f *flight) {
	err := c.reserve(f)
	if err == nil {
		err = c.fetch(ctx, f)
	}
	if err == nil {
		err = c.publish(f)
	}
	c.mu.Lock()
	delete(c.flights, f.name)
	c.tell()
	c.mu.Unlock()
	f.cancel()
	if !errors.Is(err, context.Canceled) {
		c.Metrics.ModelFetch(err == nil)
		c.Log.Info("model was fetched", "model", f.ref.Repo, "commit", f.manifest.commit, "bytes", f.manifest.total, "err", err)
	}
	if err == nil {
		c.Changed()
	}
	f.err = err
	close(f.done)
}

// fetch brings all files of a flight into its folder.
func (c *Cache) fetch(ctx context.Context, f *flight) error {
	blobs := filepath.Join(c.partial(f.name), "hub", "blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil { //nolint:gosec // see finish
		return err
	}
	work, each := errgroup.WithContext(ctx)
	seen := map[string]bool{}
	for _, one := range f.manifest.files {
		if seen[one.digest] {
			continue
		}
		seen[one.digest] = true
		if enter(each, f.slots, c.lanes) != nil {
			break
		}
		work.Go(func() error {
			defer func() { <-f.slots; <-c.lanes }()
			return c.blob(each, f, one, blobs)
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// enter takes a place in each of the lanes.
func enter(ctx context.Context, lanes ...chan struct{}) error {
	for i, lane := range lanes {
		select {
		case lane <- struct{}{}:
		case <-ctx.Done():
			for _, had := range lanes[:i] {
				<-had
			}
			return ctx.Err()
		}
	}
	return nil
}

// blob brings one file into a folder, under its digest once it is there and checked. What broke off goes on where it ended, as long
// as bytes come.
func (c *Cache) blob(ctx context.Context, f *flight, one file, dir string) error {
	path := filepath.Join(dir, one.digest)
	if c.linked(f, one, path) {
		f.have.Add(one.size)
		return nil
	}
	for vain, broken := 0, 0; ; {
		got, err := c.read(ctx, f, one, path+".incomplete")
		switch {
		case err == nil:
			return os.Rename(path+".incomplete", path)
		case errors.Is(err, errDigest):
			if broken++; broken == brokenTries {
				return err
			}
			continue
		case ctx.Err() != nil || !again(err):
			return err
		case float64(got) >= leastRate*c.stall.Seconds():
			vain = 0
		}
		if vain++; vain == vainTries {
			return err
		}
		if err := sleep.For(ctx, c.pause); err != nil {
			return err
		}
	}
}

// linked reports whether the file is here already: from an earlier try, or as a file of another revision, whose data it shares then.
func (c *Cache) linked(f *flight, one file, path string) bool {
	if st, err := os.Lstat(path); err == nil && st.Size() == one.size {
		return true
	}
	for _, other := range c.revisions(f.ref.Repo) {
		from := filepath.Join(c.entry(other), "hub", "blobs", one.digest)
		if st, err := os.Lstat(from); err == nil && st.Mode().IsRegular() && st.Size() == one.size && os.Link(from, path) == nil {
			return true
		}
	}
	return false
}

// growing is a file that is being read.
type growing struct {
	file
	to  *os.File
	sum hash.Hash // of what is there
	had int64     // bytes
}

// restart drops what is there.
func (g *growing) restart() error {
	g.sum, g.had = digestOf(g.file), 0
	_, err := g.to.Seek(0, io.SeekStart)
	return errors.Join(err, g.to.Truncate(0))
}

// read reads what is missing of a file, and checks the whole. It returns how many bytes came.
func (c *Cache) read(ctx context.Context, f *flight, one file, path string) (came int64, err error) {
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	g := &growing{file: one, to: to, sum: digestOf(one)}
	if g.had, err = io.Copy(g.sum, ctxread.New(ctx, to)); err == nil && g.had > one.size {
		err = g.restart()
	}
	if err != nil {
		return 0, err
	}
	f.have.Add(g.had)
	defer func() {
		if err != nil {
			f.have.Add(-g.had)
		}
	}()
	if g.had < one.size {
		if came, err = c.readOn(ctx, f, g); err != nil {
			return came, err
		}
	}
	if g.had > one.size || hex.EncodeToString(g.sum.Sum(nil)) != one.digest {
		return came, errors.Join(errDigest, to.Truncate(0))
	}
	return came, to.Sync()
}

// readOn reads a file from where it ends, or the whole where the hub gives out no part.
func (c *Cache) readOn(ctx context.Context, f *flight, g *growing) (came int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(c.stall, func() { cancel(errStalled) })
	defer stuck.Stop()
	body, at, err := f.hub.open(ctx, f.ref.Repo, f.manifest.commit, g.file, g.had)
	if err != nil {
		return 0, why(ctx, err)
	}
	defer func() { _ = body.Close() }()
	if at < g.had {
		f.have.Add(-g.had)
		if err := g.restart(); err != nil {
			return 0, err
		}
	}
	from := &paced{from: body, stuck: stuck, stall: c.stall, since: time.Now()}
	out := io.MultiWriter(g.to, g.sum, counter(func(n int64) {
		came, g.had = came+n, g.had+n
		f.have.Add(n)
		c.Metrics.Fetched(n)
	}))
	_, err = io.CopyBuffer(out, io.LimitReader(from, g.size-g.had+1), make([]byte, readSize))
	var disk *fs.PathError
	switch {
	case errors.As(err, &disk):
		return came, err
	case err != nil:
		return came, why(ctx, transportFault(err))
	case g.had < g.size:
		return came, errShort
	}
	return came, nil
}

// why returns the limit of ours that made an error, if it was one.
func why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// paced gives up when no bytes come, or too few.
type paced struct {
	from  io.Reader
	stuck *time.Timer
	stall time.Duration
	since time.Time
	came  int64
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	p.stuck.Reset(p.stall)
	n, err := p.from.Read(b)
	p.came += int64(n)
	if passed := time.Since(p.since); err == nil && passed >= p.stall {
		if float64(p.came) < leastRate*passed.Seconds() {
			return n, errSlow
		}
		p.since, p.came = time.Now(), 0
	}
	return n, err
}

// counter counts what is written to it.
type counter func(n int64)

// Write implements io.Writer.
func (c counter) Write(b []byte) (int, error) {
	c(int64(len(b)))
	return len(b), nil
}

// digestOf begins the digest of a file.
func digestOf(f file) hash.Hash {
	if len(f.digest) == sha256.Size*2 {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // see the import
	_, _ = io.WriteString(h, "blob "+strconv.FormatInt(f.size, 10)+"\x00")
	return h
}

// publish makes what a flight has fetched one of the cache's revisions: on the disk as a whole, or not at all.
func (c *Cache) publish(f *flight) error {
	dir := c.partial(f.name)
	if err := os.RemoveAll(filepath.Join(dir, "hub", "snapshots")); err != nil { // of an earlier try
		return err
	}
	for _, one := range f.manifest.files {
		link := filepath.Join(dir, "hub", "snapshots", f.manifest.commit, filepath.FromSlash(one.name))
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil { //nolint:gosec // see finish
			return err
		}
		up, err := filepath.Rel(filepath.Dir(link), filepath.Join(dir, "hub", "blobs", one.digest))
		if err == nil {
			err = os.Symlink(up, link)
		}
		if err != nil {
			return fmt.Errorf("lay out a model: %w", err)
		}
	}
	if err := finish(filepath.Join(dir, "hub")); err != nil {
		return err
	}
	return c.adopt(f)
}
