package ctrd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/sleep"
)

const (
	shimProgram = "containerd-shim" // begin of the name of every shim's program
	shimPoll    = 5 * time.Millisecond
	shimEnd     = 10 * time.Second // for one shim and all below it
	// shimGrace is how long the daemon gets to clean up by itself what it does not list.
	shimGrace = time.Second
	// shimSettle is how long a process may be on its way to becoming a shim without looking like one.
	shimSettle   = 25 * time.Millisecond
	procFolder   = "/proc"
	pidFDTimeout = 100 // milliseconds
)

// shim is a process of containerd's shim program, as its command line tells.
type shim struct {
	pid    int
	id     fleet.PodID
	ours   bool   // belongs to our daemon too; otherwise another daemon has a namespace of our name
	eraser bool   // a command by which the daemon cleans up: it ends by itself
	bundle string // folder that the daemon made for it
}

// shims finds the shims of our namespace, whether or not the daemon knows them. It reads the command
// line of every process, so it is for when something is wrong.
func (r *Runtime) shims() ([]shim, error) {
	entries, err := os.ReadDir(procFolder)
	if err != nil {
		return nil, fmt.Errorf("look for shims: %w", err)
	}
	var out []shim
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, ok := r.shimAt(pid); ok {
			r.learnBundles(s)
			out = append(out, s)
		}
	}
	return out, nil
}

// shimAt reports whether a process is a shim of our namespace, or a command by which the daemon
// starts one or cleans up after one.
func (r *Runtime) shimAt(pid int) (shim, bool) {
	dir := filepath.Join(procFolder, strconv.Itoa(pid))
	text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || !strings.Contains(string(text), shimProgram) {
		return shim{}, false
	}
	args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), shimProgram) {
		return shim{}, false
	}
	flags := map[string]string{}
	for i := 1; i+1 < len(args); i++ {
		if name, ok := strings.CutPrefix(args[i], "-"); ok {
			flags[strings.TrimPrefix(name, "-")] = args[i+1]
		}
	}
	if flags["namespace"] != r.cfg.Namespace || flags["id"] == "" {
		return shim{}, false
	}
	s := shim{
		pid: pid, id: fleet.PodID(flags["id"]), ours: sameFile(flags["address"], r.cfg.Socket),
		eraser: args[len(args)-1] == "delete",
	}
	s.bundle, _ = os.Readlink(filepath.Join(dir, "cwd"))
	return s, true
}

func sameFile(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

var errShimLives = errors.New("a shim that the daemon forgot does not end")

// endShim ends everything below a shim and then the shim. It is stopped first, so that it starts
// nothing more; what loses its parent below it becomes its child, so that nothing gets away. The
// logger ends by itself when it has written everything.
func (r *Runtime) endShim(ctx context.Context, s shim) error {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process: %w", err)
	}
	defer unix.Close(fd)
	if now, ok := r.shimAt(s.pid); !ok || now.id != s.id || !now.ours {
		return nil // the id is another process's by now
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0)
	defer func() { _ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) }()
	ctx, cancel := context.WithTimeout(ctx, shimEnd)
	defer cancel()
	for quiet := 0; quiet < 2; {
		below := r.below(s.pid)
		for _, pid := range below {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if quiet++; len(below) > 0 {
			quiet = 0
		}
		if sleep.For(ctx, shimPoll) != nil {
			return errShimLives
		}
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, pidFDTimeout); err == nil && n > 0 {
			return nil
		}
	}
	return errShimLives
}

// below lists the living descendants of a process but for loggers.
func (r *Runtime) below(root int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir(procFolder)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, dead, err := parentOf(pid); err == nil && !dead {
			children[parent] = append(children[parent], pid)
		}
	}
	var out []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		pid := queue[0]
		queue = append(queue, children[pid]...)
		if exe, _ := os.Readlink(filepath.Join(procFolder, strconv.Itoa(pid), "exe")); exe != r.cfg.LoggerPath {
			out = append(out, pid)
		}
	}
	return out
}

// parentOf reads a process's parent, and whether it has ended and only its parent does not know yet.
func parentOf(pid int) (parent int, dead bool, err error) {
	text, err := os.ReadFile(filepath.Join(procFolder, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false, err
	}
	_, rest, ok := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	f := strings.Fields(rest)
	if !ok || len(f) < 2 {
		return 0, false, errors.New("unreadable stat")
	}
	parent, err = strconv.Atoi(f[1])
	return parent, f[0] == "Z" || f[0] == "X", err
}

// endStray ends what the daemon does not list of a pod: its shims with everything below, what is in
// its control group, and the files that containerd and runc keep of it. It changes nothing when
// there is nothing. The daemon may be about to do the same, after a call that was torn: it goes
// first, since both at once would leave something.
func (r *Runtime) endStray(ctx context.Context, id fleet.PodID) error {
	if err := checkID(id); err != nil {
		return err
	}
	found, err := r.firstTraces(ctx, id)
	if err != nil {
		return err
	}
	if found, err = r.untilGone(ctx, id, found); err != nil {
		return err
	}
	for _, s := range found.shims {
		if !s.ours {
			return nil // the pod is another daemon's
		}
	}
	for _, s := range found.shims {
		if s.eraser {
			continue
		}
		r.cfg.Log.Warn("killing a shim that containerd does not know", "pod", id, "pid", s.pid)
		if err := r.endShim(ctx, s); err != nil {
			return err
		}
	}
	if err := r.cgroups.clear(ctx, id); err != nil {
		return err
	}
	if found, err = r.untilGone(ctx, id, found); err != nil {
		return err
	}
	if len(found.shims) > 0 || found.listening {
		return errShimLives
	}
	for _, b := range found.bundles {
		if err := dropBundle(b, r.cfg.Namespace, id); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(r.runcState(), string(id))); err != nil {
		return fmt.Errorf("remove runc's state: %w", err)
	}
	return nil
}

// traces is what the host has of a pod's task.
type traces struct {
	shims     []shim
	bundles   []string
	listening bool // somebody accepts connections where its shim would
}

func (t traces) none() bool { return len(t.shims)+len(t.bundles) == 0 && !t.listening }

// firstTraces looks twice before it finds nothing: a call may have been torn just now.
func (r *Runtime) firstTraces(ctx context.Context, id fleet.PodID) (traces, error) {
	t, err := r.traces(id)
	if err != nil || !t.none() {
		return t, err
	}
	if sleep.For(ctx, shimSettle) != nil {
		return t, ctx.Err()
	}
	return r.traces(id)
}

func (r *Runtime) traces(id fleet.PodID) (traces, error) {
	all, err := r.shims()
	if err != nil {
		return traces{}, err
	}
	t := traces{
		shims:   slices.DeleteFunc(all, func(s shim) bool { return s.id != id }),
		bundles: mountedBundles(r.cfg.Namespace, id), listening: r.dropShimSocket(id),
	}
	for _, s := range t.shims {
		t.bundles = append(t.bundles, s.bundle)
	}
	for _, dir := range r.bundleFolders() {
		t.bundles = append(t.bundles, filepath.Join(dir, string(id)))
	}
	slices.Sort(t.bundles)
	t.bundles = slices.Compact(t.bundles)
	t.bundles = slices.DeleteFunc(t.bundles, func(b string) bool { return !leftBundle(b, r.cfg.Namespace, id) })
	return t, nil
}

// untilGone waits for the end of what was found, but no longer than the daemon may take to clean up.
// It returns what is there then; a bundle that was found is kept in mind as long as it is there.
func (r *Runtime) untilGone(ctx context.Context, id fleet.PodID, found traces) (traces, error) {
	deadline := time.Now().Add(shimGrace)
	for !found.none() && time.Now().Before(deadline) {
		if sleep.For(ctx, shimPoll) != nil {
			return found, ctx.Err()
		}
		now, err := r.traces(id)
		if err != nil {
			return found, err
		}
		for _, b := range found.bundles {
			if !slices.Contains(now.bundles, b) && leftBundle(b, r.cfg.Namespace, id) {
				now.bundles = append(now.bundles, b)
			}
		}
		found = now
	}
	return found, nil
}

// bundleFolders are where the daemon keeps this namespace's bundles: beside its socket, unless its
// configuration parts the two, and where they were seen.
func (r *Runtime) bundleFolders() []string {
	dirs := []string{filepath.Join(filepath.Dir(r.cfg.Socket), bundleOwner, r.cfg.Namespace)}
	if seen := r.bundles.Load(); seen != nil {
		dirs = append(dirs, *seen)
	}
	return dirs
}

// learnBundles notes where the daemon keeps its bundles, which it tells nobody.
func (r *Runtime) learnBundles(s shim) {
	if r.bundles.Load() == nil && s.ours && isBundle(s.bundle, r.cfg.Namespace, s.id) {
		dir := filepath.Dir(s.bundle)
		r.bundles.Store(&dir)
	}
}

// learnBundlesOf does so from a container's process, which is its shim's child.
func (r *Runtime) learnBundlesOf(pid int) {
	if r.bundles.Load() != nil {
		return
	}
	if parent, _, err := parentOf(pid); err == nil {
		if s, ok := r.shimAt(parent); ok {
			r.learnBundles(s)
		}
	}
}

// defaultRuncRoot is where containerd's shims keep runc's state.
const defaultRuncRoot = "/run/containerd/runc"

// runcState is the folder of runc's state of our namespace.
func (r *Runtime) runcState() string {
	root := r.cfg.RuncRoot
	if root == "" {
		root = defaultRuncRoot
	}
	return filepath.Join(root, r.cfg.Namespace)
}

// inherited reports whether a pod has a shim that was there before this Runtime first asked. A call
// that this Runtime made needs no such question: the container's record outlives its shim.
func (r *Runtime) inherited(id fleet.PodID) (bool, error) {
	r.mu.Lock()
	early := r.early
	r.mu.Unlock()
	if early == nil {
		all, err := r.shims()
		if err != nil {
			return false, err
		}
		early = map[fleet.PodID]bool{}
		for _, s := range all {
			early[s.id] = early[s.id] || s.ours && !s.eraser
		}
		r.mu.Lock()
		r.early = early
		r.mu.Unlock()
	}
	if !early[id] {
		return false, nil
	}
	all, err := r.shims()
	return slices.ContainsFunc(all, func(s shim) bool { return s.ours && !s.eraser && s.id == id }), err
}
