package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Names of the mechanisms, for Config.Mechanism.
const (
	Auto    = "auto"
	Project = "project"
	Loop    = "loop"
	None    = "none"
)

// ErrBusy says that a disk is still in use: something on the host has files of it open or mounted. The
// call may be repeated once that has ended.
var ErrBusy = errors.New("the disk is in use")

// ErrFull says that the host's own file system has no room for another disk.
var ErrFull = errors.New("the host's disk is full")

// Config says where disks are and what enforces their size.
type Config struct {
	// Dir is the pool's folder, made when there is none. Nothing else may write to it.
	Dir string
	// Mechanism is Auto or the name of one; empty: Auto.
	Mechanism string
	// Direct says that containers work on the disks themselves (persistent data), and not through an
	// overlay: disks are journalled and mounted nodev and nosuid.
	Direct bool
	// Shared says that other hosts get the disks through NFS, whose server tells file systems apart by their UUIDs: each
	// has one of its own. What was made without it stays as it is.
	Shared bool
	// Log gets what is worth knowing; nil: nothing.
	Log *slog.Logger
}

// Usage is what a disk holds, in bytes. Size 0: nothing limits it, and nobody counts what it holds.
type Usage struct{ Used, Size int64 }

// Pool keeps the disks below one folder. Its methods may be called concurrently; calls for one disk wait
// for each other. At most one process may use a folder.
type Pool struct {
	dir     string
	chosen  mechanism
	all     []mechanism // by which disks of the folder may have been made; the one of plain folders is last
	refused []Refusal
	names   locks
}

// Refusal says why a mechanism was not chosen.
type Refusal struct {
	Mechanism string
	Reason    error
}

// mechanism makes disks of one kind. Its methods are called for one disk at a time. Each may be repeated
// after it was interrupted at any point.
type mechanism interface {
	name() string
	// offered says why the host does not offer the mechanism for new disks.
	offered() error
	// has reports whether the disk, or a rest of it, is of this kind.
	has(name string) (bool, error)
	// make makes an empty disk. There is none of that name.
	make(ctx context.Context, name string, gb int64) (dir string, err error)
	// keep mounts a disk that is there, and makes it larger when it is too small.
	keep(ctx context.Context, name string, gb int64) (dir string, err error)
	remove(ctx context.Context, name string) error
	rename(ctx context.Context, from, to string) error
	usage(name string) (Usage, error)
	// names returns the disks of this kind, with what is left of interrupted calls.
	names() ([]string, error)
	// release unmounts a disk; it stays.
	release(ctx context.Context, name string) error
}

// Open returns the pool of a folder. With Auto it takes the first mechanism that the host offers of
// Project (on xfs) and Loop, else None. Disks that another mechanism made before stay as they are. It fails when the
// host does not offer the mechanism that was asked for.
func Open(c Config) (*Pool, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(c.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // mounts are listed by such paths
	}
	if err != nil {
		return nil, fmt.Errorf("make the folder of disks: %w", err)
	}
	projects, images := newProjects(dir), newImages(dir, c.Direct, c.Log)
	images.shared = c.Shared
	p := &Pool{dir: dir, all: []mechanism{images, projects, &folders{dir}}}
	if err := strayGone(dir); err != nil {
		c.Log.Warn("release loop devices of removed disks", "err", err)
	}
	return p, p.choose(c.Mechanism)
}

// choose takes the first mechanism that the host offers, or the one that was asked for.
func (p *Pool) choose(asked string) error {
	for _, kind := range []string{Project, Loop, None} {
		if asked != kind && asked != Auto && asked != "" {
			continue
		}
		m := p.all[slices.IndexFunc(p.all, func(m mechanism) bool { return m.name() == kind })]
		err := m.offered()
		if err == nil && kind == Project && asked != kind && !p.onXFS() {
			err = errNoENOSPC
		}
		switch {
		case err == nil:
			p.chosen = m
			return nil
		case asked == kind:
			return fmt.Errorf("disks of the mechanism %s: %w", asked, err)
		default:
			p.refused = append(p.refused, Refusal{kind, err})
		}
	}
	return fmt.Errorf("no mechanism of disks is called %q", asked)
}

// errNoENOSPC keeps Auto from quotas of ext4: programs know what "no space left" means.
var errNoENOSPC = errors.New("a full disk would say EDQUOT on this file system, and not ENOSPC; it can be asked for by name")

func (p *Pool) onXFS() bool {
	var st unix.Statfs_t
	return unix.Statfs(p.dir, &st) == nil && st.Type == unix.XFS_SUPER_MAGIC
}

// Dir returns the pool's folder.
func (p *Pool) Dir() string { return p.dir }

// Mechanism returns the name of the mechanism by which new disks are made.
func (p *Pool) Mechanism() string { return p.chosen.name() }

// Refused returns the mechanisms that Auto looked at and did not take.
func (p *Pool) Refused() []Refusal { return slices.Clone(p.refused) }

// Make makes a disk that holds at least gb·10^9 bytes, new and empty, and returns its folder on the host,
// which root owns. An earlier disk of the name is gone then. It fails with ErrBusy while the earlier one is in use,
// and with ErrFull when the host has no room.
func (p *Pool) Make(ctx context.Context, name string, gb int64) (string, error) {
	if err := valid(name, gb); err != nil {
		return "", err
	}
	done, err := p.names.lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer done()
	if err := p.remove(ctx, name); err != nil {
		return "", fmt.Errorf("remove the earlier disk %s: %w", name, err)
	}
	dir, err := p.chosen.make(ctx, name, gb)
	if err != nil {
		return "", fmt.Errorf("make the disk %s: %w", name, err)
	}
	return dir, nil
}

// Keep returns the folder of a disk that holds at least gb·10^9 bytes, mounted. It makes a disk that is not
// there, and makes one that is too small larger, with what it holds; it never makes one smaller. What it
// returned survives the death of the process at any time, and a reboot, after which it must be called again.
// A disk that another mechanism made keeps that one.
func (p *Pool) Keep(ctx context.Context, name string, gb int64) (string, error) {
	if err := valid(name, gb); err != nil {
		return "", err
	}
	done, err := p.names.lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer done()
	m, err := p.of(name)
	var dir string
	switch {
	case err != nil:
	case m != nil:
		dir, err = m.keep(ctx, name, gb)
	default:
		if err = p.remove(ctx, name); err == nil { // what an interrupted call left
			dir, err = p.chosen.make(ctx, name, gb)
		}
	}
	if err != nil {
		return "", fmt.Errorf("keep the disk %s: %w", name, err)
	}
	return dir, nil
}

// Remove unmounts and removes a disk and what it holds. It may be repeated, also after an interruption; a
// disk that is not there is removed. It follows no link that a tenant left. ErrBusy: it is still in use.
func (p *Pool) Remove(ctx context.Context, name string) error {
	if err := valid(name, 0); err != nil {
		return err
	}
	done, err := p.names.lock(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	if err := p.remove(ctx, name); err != nil {
		return fmt.Errorf("remove the disk %s: %w", name, err)
	}
	return nil
}

// Rename gives a disk another name and leaves it unmounted where it can be. It finishes interrupted
// removals of either name first. The error is fs.ErrNotExist when there is no such disk, and fs.ErrExist when the other name is taken.
func (p *Pool) Rename(ctx context.Context, from, to string) error {
	if err := errors.Join(valid(from, 0), valid(to, 0)); err != nil {
		return err
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values([]string{from, to}))) {
		done, err := p.names.lock(ctx, name)
		if err != nil {
			return err
		}
		defer done()
		if err := removeTrash(ctx, p.dir, name); err != nil {
			return fmt.Errorf("finish the removal of the disk %s: %w", name, err)
		}
	}
	m, err := p.of(from)
	if err == nil && m == nil {
		err = fs.ErrNotExist
	}
	var taken mechanism
	if err == nil {
		taken, err = p.of(to)
	}
	if err == nil && taken != nil {
		err = fs.ErrExist
	}
	if err == nil {
		err = m.rename(ctx, from, to)
	}
	if err != nil {
		return fmt.Errorf("rename the disk %s to %s: %w", from, to, err)
	}
	return nil
}

// Usage returns what a disk holds and can hold. It is fs.ErrNotExist when there is no such disk.
func (p *Pool) Usage(ctx context.Context, name string) (Usage, error) {
	if err := valid(name, 0); err != nil {
		return Usage{}, err
	}
	done, err := p.names.lock(ctx, name)
	if err != nil {
		return Usage{}, err
	}
	defer done()
	m, err := p.of(name)
	if err == nil && m == nil {
		err = fs.ErrNotExist
	}
	var u Usage
	if err == nil {
		u, err = m.usage(name)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("usage of the disk %s: %w", name, err)
	}
	return u, nil
}

// Names returns the disks of the folder, sorted, and those among them that an interrupted call left half
// made or half removed.
func (p *Pool) Names() ([]string, error) {
	var out []string
	for _, m := range p.all {
		names, err := m.names()
		if err != nil {
			return nil, fmt.Errorf("list disks: %w", err)
		}
		out = append(out, names...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Release unmounts every disk of the pool, and lets go of every loop device of it, also of disks that are not
// there any more. The disks stay. It goes on after an error.
func (p *Pool) Release(ctx context.Context) error {
	names, err := p.Names()
	faults := []error{err}
	for _, name := range names {
		faults = append(faults, p.releaseOne(ctx, name))
	}
	faults = append(faults, releaseStray(p.dir))
	return errors.Join(faults...)
}

func (p *Pool) releaseOne(ctx context.Context, name string) error {
	done, err := p.names.lock(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	for _, m := range p.all {
		if err := m.release(ctx, name); err != nil {
			return fmt.Errorf("unmount the disk %s: %w", name, err)
		}
	}
	return nil
}

// of returns the mechanism that made a disk; nil when there is none.
func (p *Pool) of(name string) (mechanism, error) {
	for _, m := range p.all {
		if has, err := m.has(name); has || err != nil {
			return m, err
		}
	}
	return nil, nil
}

// remove removes a disk by each mechanism that may have left some of it.
func (p *Pool) remove(ctx context.Context, name string) error {
	for _, m := range p.all {
		if err := m.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

const (
	mostName = 200
	mostGB   = 1 << 22 // 4 PB
)

// valid says what is wrong with the name or the size of a disk.
func valid(name string, gb int64) error {
	const first, others = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "-_."
	if name == "" || len(name) > mostName || !strings.Contains(first, name[:1]) || strings.Trim(name, first+others) != "" {
		return fmt.Errorf("%q cannot be the name of a disk", name)
	}
	if gb < 0 || gb > mostGB {
		return fmt.Errorf("a disk of %d GB", gb)
	}
	return nil
}

// room fails when the host's file system has little left.
func room(dir string) error {
	const least, share = 1 << 30, 50
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	size, free := int64(st.Blocks)*int64(st.Bsize), int64(st.Bavail)*int64(st.Bsize) //nolint:gosec,unconvert // below 2^63; differs by platform
	if free < min(least, size/share) {
		return fmt.Errorf("%w: %d MB are free in %s", ErrFull, free/1_000_000, dir)
	}
	return nil
}
