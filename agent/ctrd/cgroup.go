package ctrd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
)

const (
	cgroupMount   = "/sys/fs/cgroup"
	pagesFolder   = "/sys/kernel/mm/hugepages"
	cgroupTimeout = 10 * time.Second
)

// cgroupFS reads and clears the pods' control groups, version 1 or 2.
type cgroupFS struct {
	root   string // mount point
	parent string // folder of the pods' groups below each hierarchy
	pages  string // has a folder for each size of large pages
}

// path returns a pod's group below a hierarchy.
func (c cgroupFS) path(id fleet.PodID) string { return filepath.Join(c.parent, string(id)) }

func (c cgroupFS) unified() bool {
	_, err := os.Stat(filepath.Join(c.root, "cgroup.controllers"))
	return err == nil
}

// hierarchies returns the roots below which groups live.
func (c cgroupFS) hierarchies() []string {
	if c.unified() {
		return []string{c.root}
	}
	entries, _ := os.ReadDir(c.root)
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, filepath.Join(c.root, e.Name()))
		}
	}
	return out
}

// limitsSwap reports whether the kernel can limit a group's swap.
func (c cgroupFS) limitsSwap() bool {
	probe := filepath.Join(c.root, "memory", "memory.memsw.limit_in_bytes")
	if c.unified() {
		probe = "/proc/swaps"
	}
	_, err := os.Stat(probe)
	return err == nil
}

// hugepages returns the sizes of large pages whose use the kernel can limit, as "2MB" and "1GB".
func (c cgroupFS) hugepages() []string {
	if c.unified() {
		text, _ := os.ReadFile(filepath.Join(c.root, "cgroup.controllers"))
		if !slices.Contains(strings.Fields(string(text)), "hugetlb") {
			return nil
		}
	} else if _, err := os.Stat(filepath.Join(c.root, "hugetlb")); err != nil {
		return nil
	}
	var out []string
	for _, name := range entries(c.pages) {
		if size, ok := pageSize(name); ok {
			out = append(out, size)
		}
	}
	return out
}

// pageSize turns the kernel's "hugepages-2048kB" into "2MB".
func pageSize(name string) (string, bool) {
	size, ok1 := strings.CutPrefix(name, "hugepages-")
	size, ok2 := strings.CutSuffix(size, "kB")
	n, err := strconv.ParseUint(size, 10, 32)
	if !ok1 || !ok2 || err != nil {
		return "", false
	}
	unit := 0
	for ; n >= 1024 && n%1024 == 0; unit++ {
		n /= 1024
	}
	return strconv.FormatUint(n, 10) + []string{"KB", "MB", "GB", "TB"}[unit], true
}

// oomKills returns how many processes of a pod the kernel has killed for memory, 0 when the group is
// gone.
func (c cgroupFS) oomKills(id fleet.PodID) int64 {
	file := filepath.Join(c.root, "memory", c.path(id), "memory.oom_control")
	if c.unified() {
		file = filepath.Join(c.root, c.path(id), "memory.events")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// memoryPeak returns how many bytes a pod has had at most, 0 when that is not known.
func (c cgroupFS) memoryPeak(id fleet.PodID) int64 {
	file := filepath.Join(c.root, "memory", c.path(id), "memory.max_usage_in_bytes")
	if c.unified() {
		file = filepath.Join(c.root, c.path(id), "memory.peak")
	}
	text, _ := os.ReadFile(file) // kernels before 5.19 have none in version 2
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// freeze has the processes of a pod's group stand still, or go on, and waits until they do. Without a group, or a freezer, the error is
// fs.ErrNotExist.
func (c cgroupFS) freeze(ctx context.Context, id fleet.PodID, still bool) error {
	file, value := filepath.Join(c.root, "freezer", c.path(id), "freezer.state"), map[bool]string{true: "FROZEN", false: "THAWED"}
	if c.unified() {
		file, value = filepath.Join(c.root, c.path(id), "cgroup.freeze"), map[bool]string{true: "1", false: "0"}
	}
	for deadline := time.Now().Add(cgroupTimeout); ; {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		// Again each time: in version 1 a process that begins meanwhile can keep a group from being frozen.
		_, err = f.WriteString(value[still])
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if now, err := c.frozen(id); err != nil || now == still {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("processes of the control group do not stand still, or do not go on")
		}
		if err := sleep.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// frozen reports whether all processes of a pod's group stand still; fs.ErrNotExist as for freeze.
func (c cgroupFS) frozen(id fleet.PodID) (bool, error) {
	file, line := filepath.Join(c.root, "freezer", c.path(id), "freezer.state"), "FROZEN\n"
	if c.unified() {
		file, line = filepath.Join(c.root, c.path(id), "cgroup.events"), "frozen 1\n"
	}
	text, err := os.ReadFile(file)
	return slices.Contains(slices.Collect(strings.Lines(string(text))), line), err
}

// clear kills what is left in a pod's group and removes it. runc does so itself; what is left is
// from a runtime that died.
func (c cgroupFS) clear(ctx context.Context, id fleet.PodID) error {
	deadline := time.Now().Add(cgroupTimeout)
	for {
		left := false
		for _, h := range c.hierarchies() {
			gone, err := clearGroup(filepath.Join(h, c.path(id)))
			if err != nil {
				return err
			}
			left = left || !gone
		}
		if !left {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("control group is still in use")
		}
		if sleep.For(ctx, 10*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}

// clearGroup does one round and reports whether the group is gone.
func clearGroup(dir string) (gone bool, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		text, _ := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return nil
	})
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		err = syscall.Rmdir(dirs[i])
		if err != nil && err != syscall.EBUSY && err != syscall.ENOENT {
			return false, &os.PathError{Op: "rmdir", Path: dirs[i], Err: err}
		}
	}
	return err == nil || err == syscall.ENOENT, nil
}

// pods lists the names of the groups below the parent.
func (c cgroupFS) pods() []string {
	var out []string
	for _, h := range c.hierarchies() {
		entries, _ := os.ReadDir(filepath.Join(h, c.parent))
		for _, e := range entries {
			if e.IsDir() {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

// removeParents removes the folders above the pods' groups where they are empty.
func (c cgroupFS) removeParents() {
	for _, h := range c.hierarchies() {
		for p := c.parent; p != "."; p = filepath.Dir(p) {
			if err := syscall.Rmdir(filepath.Join(h, p)); err != nil && err != syscall.ENOENT {
				break
			}
		}
	}
}
