package dev

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sweep looks for what the private containerd should not have left, and takes it away. It returns an error that names
// what was there: it must never be needed.
func (d *dev) sweep(ctx context.Context) error {
	var faults []error
	// A shim whose container was just removed still ends by itself.
	_ = waitFor(ctx, d.cfg.tune.shims, func() bool { return len(shims(d.containerdSocket())) == 0 })
	for _, s := range shims(d.containerdSocket()) {
		inside := descendants(s.PID)
		if len(inside) > 0 {
			faults = append(faults, fmt.Errorf("container %s was left running under process %d and was killed", s.container, s.PID))
		} else {
			// containerd 1.6 forgets a shim when the call that deletes its task is cut off.
			d.cfg.Log.Warn("killing a shim without a container", "pid", s.PID, "container", s.container)
		}
		for _, p := range append(inside, s.identity) {
			faults = append(faults, p.kill(ctx))
		}
		faults = append(faults, removeIfThere(s.socket))
	}
	dirs := []string{d.runtimeDir(), d.folder.path("containerd")}
	mounts, err := mountsBelow(dirs)
	faults = append(faults, err)
	for _, at := range mounts {
		faults = append(faults, fmt.Errorf("an unused mount at %s was removed", at))
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			faults = append(faults, fmt.Errorf("unmount %s: %w", at, err))
		}
	}
	// Nothing is deleted through a mount that would not go.
	if mounts, err := mountsBelow(dirs); err != nil || len(mounts) > 0 {
		return errors.Join(append(faults, err)...)
	}
	return errors.Join(append(faults, os.RemoveAll(d.runtimeDir()))...)
}

// shim is a containerd-shim.
type shim struct {
	identity
	container string
	socket    string // that it listens on
}

// shimSockets is where the shims of every containerd listen.
const shimSockets = "/run/containerd/s"

// shims returns the shims that serve the containerd at a socket.
func shims(socket string) []shim {
	var out []shim
	for _, pid := range processes() {
		words := commandLine(pid)
		if len(words) == 0 || !strings.HasPrefix(filepath.Base(words[0]), "containerd-shim") {
			continue
		}
		value := func(flag string) string {
			if at := slices.Index(words, flag); at >= 0 && at+1 < len(words) {
				return words[at+1]
			}
			return ""
		}
		if value("-address") != socket {
			continue
		}
		if id, err := identify(pid); err == nil {
			sum := sha256.Sum256([]byte(filepath.Join(socket, value("-namespace"), value("-id"))))
			out = append(out, shim{id, value("-id"), filepath.Join(shimSockets, hex.EncodeToString(sum[:]))})
		}
	}
	return out
}

// descendants returns the processes below pid, children before their parents.
func descendants(pid int) []identity {
	children := map[int][]int{}
	for _, p := range processes() {
		if stat, err := readStat(p); err == nil {
			children[stat.parent] = append(children[stat.parent], p)
		}
	}
	var out []identity
	var walk func(pid, depth int)
	walk = func(pid, depth int) {
		for _, p := range children[pid] {
			if depth < 64 {
				walk(p, depth+1)
			}
			if id, err := identify(p); err == nil {
				out = append(out, id)
			}
		}
	}
	walk(pid, 0)
	return out
}

// mountsBelow returns the mount points in some folders, the innermost first.
func mountsBelow(dirs []string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		at := unescapeMount(fields[4])
		for _, dir := range dirs {
			if strings.HasPrefix(at, dir+"/") {
				out = append(out, at)
			}
		}
	}
	slices.Reverse(out)
	return out, nil
}

// unescapeMount undoes the kernel's octal escapes in the path of a mount.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
