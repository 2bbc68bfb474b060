package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/storage/disk/tree"
)

// lost is the folder, below that of all persistent data, of what was set aside. No pod's id is so.
const lost = ".lost"

// Lost is persistent data that was set aside: no scheduler lists its pod any more, and none ordered
// that it goes. A control plane that was restored from an older copy forgets pods in this way.
type Lost struct {
	Pod  fleet.PodID
	At   time.Time // when it was set aside, to the second
	Path string
	disk string // its name; empty: a plain folder
}

// SetAside moves a pod's data out of the way, as the function does.
func (d Data) SetAside(ctx context.Context, id fleet.PodID, now time.Time) (string, error) {
	if d.Disks == nil {
		return SetAside(ctx, d.Dir, id, now)
	}
	for at := now.Unix(); ; at++ {
		to := string(id) + "." + strconv.FormatInt(at, 10)
		err := d.Disks.Rename(ctx, string(id), to)
		switch {
		case err == nil:
			return filepath.Join(d.Dir, to), nil
		case errors.Is(err, fs.ErrNotExist):
			return "", d.Disks.Remove(ctx, string(id)) // what an interrupted call left
		case !errors.Is(err, fs.ErrExist):
			return "", fmt.Errorf("set the pod's persistent data aside: %w", err)
		}
	}
}

// Lost returns what was set aside, as LostData does, also in plain folders.
func (d Data) Lost() ([]Lost, error) {
	out, err := LostData(d.Dir)
	if err != nil || d.Disks == nil {
		return out, err
	}
	names, err := d.Disks.Names()
	if err != nil {
		return nil, fmt.Errorf("list persistent data that was set aside: %w", err)
	}
	for _, name := range names {
		id, at, found := strings.Cut(name, ".")
		since, err := strconv.ParseInt(at, 10, 64)
		if found && err == nil && since >= 0 && mayBePod(id) {
			out = append(out, Lost{fleet.PodID(id), time.Unix(since, 0), filepath.Join(d.Dir, name), name})
		}
	}
	sortLost(out)
	return out, nil
}

// RemoveLost removes what was set aside.
func (d Data) RemoveLost(ctx context.Context, l Lost) error {
	if l.disk == "" {
		return RemoveLost(ctx, d.Dir, l)
	}
	return d.Disks.Remove(ctx, l.disk)
}

// bringBack gives the newest data of the pod that was set aside its name again, unless there is some.
func (d Data) bringBack(ctx context.Context, id fleet.PodID) error {
	all, err := d.Lost()
	all = slices.DeleteFunc(all, func(l Lost) bool { return l.Pod != id })
	if err != nil || len(all) == 0 {
		return err
	}
	newest := all[len(all)-1]
	if newest.disk != "" {
		err = d.Disks.Rename(ctx, newest.disk, string(id))
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	names, err := d.Disks.Names()
	if err != nil || slices.Contains(names, string(id)) {
		return err
	}
	return bringBack(d.Dir, id)
}

// SetAside moves a pod's persistent data out of the way and returns where it is; "" when there is none.
// It finishes what an interrupted RemoveData left. It may be repeated. The caller has made sure that no
// container uses the data.
func SetAside(ctx context.Context, dir string, id fleet.PodID, now time.Time) (string, error) {
	if err := tree.Remove(ctx, filepath.Join(dir, removed+string(id))); err != nil {
		return "", fmt.Errorf("remove the pod's persistent data: %w", err)
	}
	from := filepath.Join(dir, string(id))
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	err := os.MkdirAll(filepath.Join(dir, lost), 0o700)
	for at := now.Unix(); err == nil; at++ {
		to := filepath.Join(dir, lost, string(id)+"-"+strconv.FormatInt(at, 10))
		if err = rename(from, to); err == nil {
			return to, nil
		}
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return "", fmt.Errorf("set the pod's persistent data aside: %w", err)
}

// LostData returns what was set aside below dir, the oldest first.
func LostData(dir string) ([]Lost, error) {
	entries, err := os.ReadDir(filepath.Join(dir, lost))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list persistent data that was set aside: %w", err)
	}
	var out []Lost
	for _, e := range entries {
		cut := strings.LastIndexByte(e.Name(), '-')
		if cut < 0 || !mayBePod(e.Name()[:cut]) {
			continue
		}
		at, err := strconv.ParseInt(e.Name()[cut+1:], 10, 64)
		if err != nil || at < 0 {
			continue
		}
		out = append(out, Lost{Pod: fleet.PodID(e.Name()[:cut]), At: time.Unix(at, 0), Path: filepath.Join(dir, lost, e.Name())})
	}
	sortLost(out)
	return out, nil
}

func sortLost(all []Lost) {
	slices.SortFunc(all, func(a, b Lost) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Pod, b.Pod)) })
}

// RemoveLost removes what was set aside, as RemoveData does.
func RemoveLost(ctx context.Context, dir string, l Lost) error {
	if err := discard(ctx, dir, l.Pod, l.Path); err != nil {
		return fmt.Errorf("remove persistent data that was set aside: %w", err)
	}
	return nil
}

func lostOf(dir string, id fleet.PodID) ([]Lost, error) {
	all, err := LostData(dir)
	return slices.DeleteFunc(all, func(l Lost) bool { return l.Pod != id }), err
}

// bringBack moves the newest data of the pod that was set aside to its place, unless there is some.
func bringBack(dir string, id fleet.PodID) error {
	aside, err := lostOf(dir, id)
	if err != nil || len(aside) == 0 {
		return err
	}
	err = rename(aside[len(aside)-1].Path, filepath.Join(dir, string(id)))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// rename moves a folder to a name that nothing has, else the error is fs.ErrExist.
func rename(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// mayBePod says whether a folder's name may be a pod's id: letters, digits and, not first, - and _.
func mayBePod(name string) bool {
	const first, others = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "-_"
	return name != "" && strings.Contains(first, name[:1]) && strings.Trim(name, first+others) == ""
}

// dropData removes the pod's persistent data when a scheduler ordered that, for a pod that it lists. A pod
// that is only not listed any more may be one that the control plane has forgotten: its data is set aside.
func (m *machine) dropData(ctx context.Context) error {
	rec, known := m.Ledger.Record(m.id)
	switch {
	case known && !rec.Orphan && rec.Assignment.Goal == fleet.GoalGone:
		return m.data().Remove(ctx, m.id)
	case known && !rec.Orphan:
		return errSuperseded // it is wanted again
	}
	path, err := m.data().SetAside(ctx, m.id, time.Now())
	if path != "" {
		m.Log.Warn("the scheduler does not list the pod any more and never ordered that its data goes: the data was set aside; "+
			"it comes back when the pod is listed again (restore a newer copy of the control plane), and is removed after --keep-lost-data",
			"folder", path)
	}
	return err
}
