package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// identity names a process for ever: a pid comes again, but not with the same start within one boot.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the boot
	Boot  string `json:"boot"`
	Exe   string `json:"exe"`
}

// identify reads who a pid is now; the error is fs.ErrNotExist when it is nobody, or only waits to be collected.
func identify(pid int) (identity, error) {
	id := identity{PID: pid}
	stat, err := readStat(pid)
	if err != nil {
		return id, err
	}
	if stat.state == "Z" || stat.state == "X" {
		return id, fs.ErrNotExist
	}
	id.Start = stat.start
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, err
	}
	id.Boot = strings.TrimSpace(string(boot))
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return id, err
	}
	id.Exe = strings.TrimSuffix(exe, " (deleted)")
	return id, nil
}

// alive reports whether this very process still runs.
func (id identity) alive() bool {
	now, err := identify(id.PID)
	return err == nil && now == id
}

const killWait = 10 * time.Second // for a killed process to be gone

// end stops the process: SIGTERM, and SIGKILL after the grace period. It returns once the process is gone.
func (id identity) end(ctx context.Context, grace time.Duration) error {
	// Opened before the check: from here on the handle means one process, whatever becomes of the pid.
	proc, err := os.FindProcess(id.PID)
	if err != nil {
		return err
	}
	defer func() { _ = proc.Release() }()
	if !id.alive() {
		return nil
	}
	if err := proc.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", id.PID, err)
	}
	if waitFor(ctx, grace, func() bool { return !id.alive() }) == nil {
		return nil
	}
	return id.kill(ctx)
}

// procStat is what we read of /proc/PID/stat.
type procStat struct {
	state  string
	parent int
	start  uint64
}

func readStat(pid int) (procStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(err, syscall.ESRCH) {
			err = fs.ErrNotExist
		}
		return procStat{}, err
	}
	// The second field is a name in parentheses and may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	start, err2 := strconv.ParseUint(string(fields[19]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return procStat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return procStat{state: string(fields[0]), parent: parent, start: start}, nil
}

// commandLine returns the words a process was started with; none when it is gone or is the kernel's.
func commandLine(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// part is one of the programs of a dev. The first of each role is number 1.
type part struct {
	role   string
	number int
}

// name is that of the part's own folder, log and pid file. Of the first it is the role.
func (p part) name() string {
	if p.number == 1 {
		return p.role
	}
	return p.role + "-" + strconv.Itoa(p.number)
}

const (
	roleScheduler  = "scheduler"
	roleGateway    = "gateway"
	roleAgent      = "agent"
	roleContainerd = "containerd"
	roleS3         = "s3"
)

// stale finds children of a dev that was killed: by their pid files, and, for one that was killed before it wrote the
// file, by a command line that names the child's own part of the folder.
func (f *folder) stale(p part) []identity {
	var out []identity
	var id identity
	if readJSON(f.pidFile(p), &id) == nil && id.alive() {
		out = append(out, id)
	}
	own, program := f.path(p.name()), "gantry-"+p.role
	switch p.role {
	case roleGateway:
		program = "gantry-" + roleScheduler
	case roleContainerd:
		own, program = f.path("containerd", "config.toml"), p.role
	case roleS3:
		own = f.path(roleAgent) // it has no folder
	}
	for _, pid := range processes() {
		words := commandLine(pid)
		if len(words) < 2 || filepath.Base(words[0]) != program || !slices.Contains(words[1:], own) {
			continue
		}
		if id, err := identify(pid); err == nil && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func (f *folder) pidFile(p part) string { return f.path("run", p.name()+".pid") }

// waitFor looks at a condition until it holds; the error is that of ctx or of the deadline.
func waitFor(ctx context.Context, within time.Duration, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
	return nil
}

// kill kills the process and waits until it is gone.
func (id identity) kill(ctx context.Context) error {
	proc, err := os.FindProcess(id.PID)
	if err != nil {
		return err
	}
	defer func() { _ = proc.Release() }()
	if !id.alive() {
		return nil
	}
	if err := proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	if waitFor(ctx, killWait, func() bool { return !id.alive() }) != nil {
		return fmt.Errorf("process %d (%s) does not end", id.PID, id.Exe)
	}
	return nil
}
