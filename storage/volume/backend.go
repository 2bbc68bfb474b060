package volume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// backend is one that is mounted, or shall be. Host.mu guards what is in it.
type backend struct {
	name string        // its folder
	turn chan struct{} // holds one while somebody mounts or unmounts

	spec    *Backend  // as it was asked for last; nil: not since the start
	used    time.Time // when somebody needed it last
	down    time.Time // since when it does not answer; zero: it does, or nobody has tried
	checked time.Time // when down was found out about last
	cause   error     // of down
	missed  time.Time // since when probes get no answer
	looked  time.Time // when it was looked after last
	asked   time.Time // when a probe was begun last
	probing bool
}

// Suffixes of a backend's name, for helper processes that must not take the places of others.
const (
	probeGroup   = "/probe"
	mountGroup   = "/mount"
	unmountGroup = "/unmount"
)

// group is that of helper processes that ask a mount: those that are stuck with an earlier one say nothing of it.
func (h *Host) group(name, root string) string {
	if filepath.Dir(root) == filepath.Join(h.backendsDir(), name) {
		return name + "/" + filepath.Base(root)
	}
	return name
}

// backend returns the one of a name, which somebody needs.
func (h *Host) backend(name string) *backend {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.backends[name]
	if b == nil {
		b = &backend{name: name, turn: make(chan struct{}, 1)}
		h.backends[name] = b
	}
	b.used = time.Now()
	return b
}

// onRoot does something with the root of a backend, which it mounts where it is not. A mount that proves to be broken is
// made anew, once. Errors are *Error, but for the context's.
func (h *Host) onRoot(ctx context.Context, name string, spec Backend, do func(ctx context.Context, root string) error) error {
	b := h.backend(name)
	h.mu.Lock()
	if b.spec != nil && !sameReach(b.spec, &spec) {
		b.checked = time.Time{} // what was found out was of another way to it
	}
	b.spec = &spec
	h.mu.Unlock()
	at, err := h.mounted(name)
	if err == nil && (at == "" || leads(at, &spec)) {
		err = h.refuse(b)
	}
	if err != nil {
		return &Error{Sentence: sentenceDead, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.MountTimeout+2*h.cfg.CallTimeout)
	defer cancel()
	for range 2 {
		var root string
		if root, err = h.root(ctx, b, spec); err == nil {
			err = h.limited(ctx, root, do)
		}
		if err == nil || root == "" || spec.Kind == fleet.BackendLocal || !broken(err) || ctx.Err() != nil {
			break
		}
		h.cfg.Log.Warn("remounting a backend whose mount is broken", "backend", name, "err", err)
		h.drop(ctx, b, root)
	}
	if err != nil && ctx.Err() != nil {
		return &Error{Sentence: sentenceDead, Err: err} // the caller has waited for long enough; nothing is known
	}
	h.note(b, err)
	if err != nil {
		return &Error{Sentence: sentence(err), Err: err}
	}
	return nil
}

func (h *Host) limited(ctx context.Context, root string, do func(ctx context.Context, root string) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.CallTimeout)
	defer cancel()
	return do(ctx, root)
}

// refuse fails when it was just found out that the backend does not answer.
func (h *Host) refuse(b *backend) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.down.IsZero() || !dead(b.cause) || time.Since(b.checked) > h.cfg.ProbeEvery+h.cfg.ProbeTimeout {
		return nil
	}
	return b.cause
}

// note keeps what a call has shown of the backend.
func (h *Host) note(b *backend, err error) {
	if err != nil && !dead(err) && !broken(err) {
		return // of one volume
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	b.checked, b.cause = time.Now(), err
	switch was := !b.down.IsZero(); {
	case err == nil && was:
		b.down = time.Time{}
		h.cfg.Log.Info("backend of network volumes is available again", "backend", b.name)
	case err != nil && !was:
		if b.down = b.checked; !b.missed.IsZero() {
			b.down = b.missed
		}
		h.cfg.Log.Warn("backend of network volumes is unavailable", "backend", b.name, "err", err)
	default:
		return
	}
	h.tell()
}

// tell says that Health has become another.
func (h *Host) tell() {
	select {
	case h.changed <- struct{}{}:
	default: // one is waiting
	}
}

// root returns where the backend is mounted.
func (h *Host) root(ctx context.Context, b *backend, spec Backend) (string, error) {
	if spec.Kind == fleet.BackendLocal {
		return spec.Path, nil
	}
	done, err := b.lock(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	at, err := h.mounted(b.name)
	if err == nil && (at == "" || leads(at, &spec)) {
		err = h.refuse(b) // found out while we waited
	}
	switch {
	case err != nil:
		return "", err
	case at != "" && leads(at, &spec):
		return at, nil
	case keyless(&spec):
		return "", errors.New("the key is not known yet")
	}
	at, err = h.mount(ctx, b, spec)
	if err != nil && ctx.Err() == nil {
		h.note(b, err)
	}
	return at, err
}

// lock waits until nobody else mounts or unmounts the backend.
func (b *backend) lock(ctx context.Context) (done func(), err error) {
	select {
	case b.turn <- struct{}{}:
		return func() { <-b.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the mount of the backend: %w", ctx.Err())
	}
}

// mounted returns where the backend is mounted, empty when it is not.
func (h *Host) mounted(name string) (string, error) {
	all, err := mounts()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(h.backendsDir(), name)
	if list := mountedIn(all, dir); len(list) > 0 {
		return filepath.Join(dir, slices.MaxFunc(list, cmp.Compare[string])), nil
	}
	return "", nil
}

// keyless reports whether a backend is of an order from before a restart.
func keyless(b *Backend) bool { return b.Kind == fleet.BackendCeph && b.Key == "" }

// leads reports whether a mount was made as the backend is reached now.
func leads(at string, b *Backend) bool {
	return keyless(b) || b.Kind == fleet.BackendLocal || strings.HasSuffix(at, "-"+fingerprint(b))
}

// sameReach reports whether backends are reached in the same way, as far as is known.
func sameReach(a, b *Backend) bool {
	return keyless(a) || keyless(b) || fingerprint(a) == fingerprint(b)
}

// fingerprint tells backends apart that are reached in other ways. No more can be learned from it of a key.
func fingerprint(b *Backend) string {
	text, _ := json.Marshal([]any{ // plain types
		b.Kind, b.Server, b.Options, b.Monitors, b.FileSystem, b.User, b.Key.Reveal(), b.Path,
	})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4])
}

// mount mounts the backend at a name of its own, and lets go of other mounts of it. The caller has the turn.
func (h *Host) mount(ctx context.Context, b *backend, spec Backend) (string, error) {
	dir := filepath.Join(h.backendsDir(), b.name)
	at := filepath.Join(dir, fmt.Sprintf("%020d-%s", time.Now().UnixNano(), fingerprint(&spec)))
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", err
	}
	in := mountIn{
		Kind: spec.Kind, Server: spec.Server, Options: spec.Options, Monitors: spec.Monitors, FileSystem: spec.FileSystem,
		User: spec.User, Key: spec.Key.Reveal(), Path: spec.Path, At: at,
	}
	limited, cancel := context.WithTimeout(ctx, h.cfg.MountTimeout)
	defer cancel()
	err := h.cfg.Caller.Call(limited, b.name+mountGroup, "volume.mount", in, nil)
	if err == nil {
		var ok bool
		if ok, err = isMounted(at); err == nil && !ok {
			err = errors.New("mount the backend: nothing is mounted")
		}
	}
	if err != nil {
		h.sweep(ctx, b, "")
		return "", err
	}
	h.cfg.Log.Info("mounted a backend", "backend", b.name)
	h.sweep(ctx, b, filepath.Base(at))
	return at, nil
}

// sweep lets go of all mounts of the backend but one, and of what failed attempts left. Who has something of them keeps it.
func (h *Host) sweep(ctx context.Context, b *backend, keep string) {
	dir := filepath.Join(h.backendsDir(), b.name)
	for _, name := range entries(dir) {
		path := filepath.Join(dir, name)
		var err error
		switch {
		case name == keep:
		case strings.HasSuffix(name, confSuffix), strings.HasSuffix(name, keyringSuffix):
			err = os.Remove(path)
		default:
			err = h.detach(context.WithoutCancel(ctx), b.name, path)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			h.cfg.Log.Warn("a backend's mount was not removed completely", "backend", b.name, "err", err)
		}
	}
}

// drop lets go of a broken mount, unless another one has taken its place.
func (h *Host) drop(ctx context.Context, b *backend, root string) {
	done, err := b.lock(ctx)
	if err != nil {
		return
	}
	defer done()
	if at, err := h.mounted(b.name); err == nil && at == root {
		h.sweep(ctx, b, "")
	}
}
