package ctrd

import (
	"bytes"
	"context"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	statBytes    = 16 << 10 // of the longest file of a control group that is read
	diskPatience = 50 * time.Millisecond
)

// Usages reads what many pods use now, from their control groups: a question to each pod's shim costs a
// hundred times as much. A pod that cannot be read, such as one without a process, is left out.
func (r *Runtime) Usages(ctx context.Context, ids []fleet.PodID) map[fleet.PodID]pod.Usage {
	out := make(map[fleet.PodID]pod.Usage, len(ids))
	read := groupReader{fs: r.cgroups, unified: r.cgroups.unified(), buf: make([]byte, statBytes)}
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		u, ok := read.usage(id)
		if !ok {
			continue
		}
		u.Disk, u.DiskSize = r.diskUse(ctx, id)
		out[id] = u
	}
	return out
}

// diskUse reads what a pod's disk holds; zeros when that is not known, or something else works on the disk.
func (r *Runtime) diskUse(ctx context.Context, id fleet.PodID) (used, size int64) {
	ctx, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	u, err := r.cfg.Disks.Usage(ctx, string(id))
	if err != nil {
		return 0, 0
	}
	return u.Used, u.Size
}

// groupReader reads control groups into one buffer. It is not safe for concurrent use.
type groupReader struct {
	fs      cgroupFS
	unified bool
	buf     []byte
}

func (g groupReader) usage(id fleet.PodID) (pod.Usage, bool) {
	if g.unified {
		cpu, ok1 := g.field("", id, "cpu.stat", "usage_usec")
		memory, ok2 := g.number("", id, "memory.current")
		idle, ok3 := g.field("", id, "memory.stat", "inactive_file")
		return load(cpu*uint64(time.Microsecond), memory, idle), ok1 && ok2 && ok3
	}
	cpu, ok1 := g.number("cpuacct", id, "cpuacct.usage")
	memory, ok2 := g.number("memory", id, "memory.usage_in_bytes")
	idle, ok3 := g.field("memory", id, "memory.stat", "total_inactive_file")
	return load(cpu, memory, idle), ok1 && ok2 && ok3
}

// number reads a file that is one number.
func (g groupReader) number(hierarchy string, id fleet.PodID, file string) (uint64, bool) {
	return parse(bytes.TrimSpace(g.read(hierarchy, id, file)))
}

// field reads the number behind a name at the begin of a line.
func (g groupReader) field(hierarchy string, id fleet.PodID, file, name string) (uint64, bool) {
	for line := range bytes.Lines(g.read(hierarchy, id, file)) {
		if rest, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return parse(bytes.TrimSpace(rest))
		}
	}
	return 0, false
}

func parse(text []byte) (uint64, bool) {
	n, err := strconv.ParseUint(string(text), 10, 64)
	return n, err == nil
}

// read returns a file's text until the next call, nil when it cannot be read. It does without os.File, whose
// poller these files do not know.
func (g groupReader) read(hierarchy string, id fleet.PodID, file string) []byte {
	fd, err := unix.Open(filepath.Join(g.fs.root, hierarchy, g.fs.path(id), file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	n := 0
	for n < len(g.buf) {
		got, err := unix.Read(fd, g.buf[n:])
		if err != nil || got <= 0 {
			break
		}
		n += got
	}
	return g.buf[:n]
}
