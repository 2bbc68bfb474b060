package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/storage/helper"
	"gantry/storage/provision"
)

// Config says where things are mounted. Zero durations take what is said of them.
type Config struct {
	// RunDir is a folder of root's on a file system that a restart of the host empties.
	RunDir string
	// Caller starts helper processes that have HelperFuncs.
	Caller *helper.Caller
	// Log gets what is worth knowing; nil: nothing.
	Log *slog.Logger

	Idle         time.Duration // a backend that nobody has attached stays mounted; 10 min
	MountTimeout time.Duration // of mounting a backend; 20 s
	CallTimeout  time.Duration // of anything on a mounted backend; 5 s
	ProbeEvery   time.Duration // a mounted backend is asked for a sign of life; 5 s
	ProbeTimeout time.Duration // after which it counts as dead; 3 s
	KillAfter    time.Duration // a dead client in user space is killed for pods that are ending; 10 s
}

func (c *Config) complete() {
	for d, standard := range map[*time.Duration]time.Duration{
		&c.Idle: 10 * time.Minute, &c.MountTimeout: 20 * time.Second, &c.CallTimeout: 5 * time.Second,
		&c.ProbeEvery: 5 * time.Second, &c.ProbeTimeout: 3 * time.Second, &c.KillAfter: 10 * time.Second,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Host mounts the network volumes of a host's pods. Its methods may be called concurrently; none waits for a server for longer
// than Config says. What a server may hold up is done in helper processes alone: this process never looks at
// what is mounted, only at the kernel's list of it.
//
// Below RunDir, backends/<backend>/<name> is a mounted backend, of which the last by name counts, and
// attached/<backend>/<pod> what a pod has.
type Host struct {
	cfg Config
	run string // RunDir as mountinfo has it

	mu       sync.Mutex
	backends map[string]*backend
	ending   map[fleet.PodID]time.Time // since when; guarded by mu
	changed  chan struct{}

	kindsOnce sync.Once
	kinds     []fleet.BackendKind
}

// Folders below Config.RunDir.
const (
	backendsFolder = "backends"
	attachedFolder = "attached"
	adminSuffix    = "@admin" // of backends that are mounted for Root
)

// New returns a Host. What an earlier process has mounted is taken over.
func New(cfg Config) (*Host, error) {
	cfg.complete()
	h := &Host{cfg: cfg, backends: map[string]*backend{}, ending: map[fleet.PodID]time.Time{}, changed: make(chan struct{}, 1)}
	for _, name := range []string{backendsFolder, attachedFolder} {
		if err := os.MkdirAll(filepath.Join(cfg.RunDir, name), 0o700); err != nil {
			return nil, fmt.Errorf("make the folders of network volumes: %w", err)
		}
	}
	run, err := filepath.Abs(cfg.RunDir)
	if err == nil {
		run, err = filepath.EvalSymlinks(run)
	}
	if err != nil {
		return nil, fmt.Errorf("find the folders of network volumes: %w", err)
	}
	h.run = run
	for _, name := range slices.Concat(entries(h.backendsDir()), entries(filepath.Join(h.run, attachedFolder))) {
		h.backend(name)
		for _, file := range entries(filepath.Join(h.backendsDir(), name)) {
			if strings.HasSuffix(file, confSuffix) || strings.HasSuffix(file, keyringSuffix) { // of a mount that was interrupted
				_ = os.Remove(filepath.Join(h.backendsDir(), name, file))
			}
		}
	}
	return h, nil
}

func (h *Host) backendsDir() string { return filepath.Join(h.run, backendsFolder) }

func (h *Host) attachedDir(name string) string { return filepath.Join(h.run, attachedFolder, name) }

// entries lists a folder of the Host's own; one that cannot be read is empty. It looks at none of what is in it.
func entries(dir string) []string {
	list, _ := os.ReadDir(dir)
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.Name()
	}
	return out
}

var (
	backendName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	volumeDir   = regexp.MustCompile(`^[a-z2-7]{26}$`)
)

// checkVolume refuses names that could lead elsewhere.
func checkVolume(v *Volume) error {
	if err := checkBackend(&v.Backend); err != nil {
		return err
	}
	if !volumeDir.MatchString(v.Dir) {
		return &Error{Sentence: sentenceOrder, Err: fmt.Errorf("a directory of the name %.80q", v.Dir)}
	}
	return nil
}

func checkBackend(b *Backend) error {
	switch {
	case !backendName.MatchString(string(b.ID)):
		return &Error{Sentence: sentenceOrder, Err: fmt.Errorf("a backend of the name %.80q", b.ID)}
	case !filepath.IsAbs(b.Path) || filepath.Clean(b.Path) != b.Path:
		return &Error{Sentence: sentenceOrder, Err: errors.New("a backend without a proper path")}
	}
	return nil
}

// placeOf is where the volume is below its backend's root.
func placeOf(v *Volume, root string) place {
	at := provision.Path(provision.Root{Kind: string(v.Backend.Kind), Sized: v.Backend.SizedByHost}, v.Dir)
	return place{Root: root, Backend: v.Backend.ID, Path: at, Sized: v.Backend.SizedByHost}
}

func checkPod(id fleet.PodID) error {
	if id == "" || strings.HasPrefix(string(id), ".") || strings.ContainsAny(string(id), "/\x00") {
		return fmt.Errorf("%q is not a pod's id", id)
	}
	return nil
}

// Attach implements pod.Volumes.
func (h *Host) Attach(ctx context.Context, id fleet.PodID, v Volume) (string, error) {
	if err := errors.Join(checkPod(id), checkVolume(&v)); err != nil {
		return "", err
	}
	if !v.Ready {
		return "", &Error{Sentence: sentenceNotReady}
	}
	h.mu.Lock()
	delete(h.ending, id)
	h.mu.Unlock()
	name := string(v.Backend.ID)
	target := filepath.Join(h.attachedDir(name), string(id))
	if err := os.MkdirAll(h.attachedDir(name), 0o700); err != nil {
		return "", &Error{Sentence: sentenceOther, Err: err}
	}
	// By this folder the backend is in use. Nobody may do anything in it while nothing is mounted there.
	if err := os.Mkdir(target, 0); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", &Error{Sentence: sentenceOther, Err: err}
	}
	err := h.onRoot(ctx, name, v.Backend, func(ctx context.Context, root string) error {
		return h.cfg.Caller.Call(ctx, h.group(name, root), "volume.attach", attachIn{placeOf(&v, root), target, v.ReadOnly}, nil)
	})
	if err != nil {
		return "", err
	}
	return target, nil
}

// Open returns a mount of a volume's directory that is nowhere but in the file: nodev, nosuid and noexec.
func (h *Host) Open(ctx context.Context, v Volume) (*os.File, error) {
	if err := checkVolume(&v); err != nil {
		return nil, err
	}
	if !v.Ready {
		return nil, &Error{Sentence: sentenceNotReady}
	}
	var f *os.File
	err := h.onRoot(ctx, string(v.Backend.ID), v.Backend, func(ctx context.Context, root string) (err error) {
		f, err = h.cfg.Caller.CallFD(ctx, h.group(string(v.Backend.ID), root), "volume.open", openIn{placeOf(&v, root), v.ReadOnly})
		return err
	})
	return f, err
}

// Root mounts the backend, with the user and key that b names, and returns its root: a mount that no pod has
// anything of. It is only for helper processes to look into, and need not have a marker. It goes away when nobody has asked for it
// for the idle time and nothing uses it.
func (h *Host) Root(ctx context.Context, b Backend) (string, error) {
	if err := checkBackend(&b); err != nil {
		return "", err
	}
	var at string
	name := string(b.ID) + adminSuffix
	err := h.onRoot(ctx, name, b, func(ctx context.Context, root string) error {
		at = root
		return h.cfg.Caller.Call(ctx, h.group(name, root)+probeGroup, "volume.probe", probeIn{place{Root: root}}, nil)
	})
	if err != nil {
		return "", err
	}
	return at, nil
}

// SetReadOnly implements pod.Volumes. Programs that have a file of the volume open for writing, or are in a folder of it, may go
// on there.
func (h *Host) SetReadOnly(ctx context.Context, id fleet.PodID, pid int, v Volume) error {
	if err := errors.Join(checkPod(id), checkVolume(&v)); err != nil {
		return err
	}
	name := string(v.Backend.ID)
	ctx, cancel := context.WithTimeout(ctx, h.cfg.CallTimeout)
	defer cancel()
	in := readOnlyIn{filepath.Join(h.attachedDir(name), string(id)), placeOf(&v, "").Path, pid, v.ReadOnly}
	if err := h.cfg.Caller.Call(ctx, name, "volume.readonly", in, nil); err != nil {
		return fmt.Errorf("make the volume read-only or writable: %w", err)
	}
	return nil
}

// Ending implements pod.Volumes.
func (h *Host) Ending(id fleet.PodID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending[id].IsZero() {
		h.ending[id] = time.Now()
	}
}

// Detach implements pod.Volumes.
func (h *Host) Detach(ctx context.Context, id fleet.PodID) error {
	if err := checkPod(id); err != nil {
		return err
	}
	var errs []error
	for _, name := range entries(filepath.Join(h.run, attachedFolder)) {
		if slices.Contains(entries(h.attachedDir(name)), string(id)) {
			errs = append(errs, h.detach(ctx, name, filepath.Join(h.attachedDir(name), string(id))))
			h.backend(name) // it is idle from now on
		}
	}
	h.mu.Lock()
	delete(h.ending, id)
	h.mu.Unlock()
	return errors.Join(errs...)
}

// detach takes a mount and its folder away. It has done so when nothing is mounted any more, also while the kernel
// still lets go of it.
func (h *Host) detach(ctx context.Context, name, path string) error {
	mounted, err := isMounted(path)
	if err == nil && mounted {
		ctx, cancel := context.WithTimeout(ctx, h.cfg.CallTimeout)
		defer cancel()
		failed := h.cfg.Caller.Call(ctx, name+unmountGroup, "volume.unmount", unmountIn{Path: path}, nil)
		if mounted, err = isMounted(path); err == nil && mounted {
			err = errors.Join(errors.New("it is still mounted"), failed)
		}
	}
	if err == nil {
		// What other mount namespaces have mounted there goes with the folder.
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("take the mount of a network volume away: %w", err)
	}
	return nil
}

func isMounted(path string) (bool, error) {
	all, err := mounts()
	_, ok := topAt(all, path)
	return ok, err
}

// Attached implements pod.Volumes.
func (h *Host) Attached() ([]fleet.PodID, error) {
	var out []fleet.PodID
	for _, name := range entries(filepath.Join(h.run, attachedFolder)) {
		list, err := os.ReadDir(h.attachedDir(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list what pods have of network volumes: %w", err)
		}
		for _, e := range list {
			out = append(out, fleet.PodID(e.Name()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
