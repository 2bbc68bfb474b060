package volume

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/storage/helper"
)

// Health is how a backend is.
type Health struct {
	Backend fleet.BackendID
	Down    time.Time // since when it cannot be used; zero: it can
	Text    string    // why, for operators; empty: it can
}

// Health returns how each backend is that is mounted, that a pod has attached, or that was asked for in the idle time.
func (h *Host) Health() []Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Health
	for name, b := range h.backends {
		if strings.HasSuffix(name, adminSuffix) {
			continue
		}
		health := Health{Backend: fleet.BackendID(name), Down: b.down}
		if !b.down.IsZero() && b.cause != nil {
			health.Text = b.cause.Error()
		}
		out = append(out, health)
	}
	slices.SortFunc(out, func(a, b Health) int { return cmp.Compare(a.Backend, b.Backend) })
	return out
}

// Changed receives when a backend has gone down or come back.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// askAgain is after how many times its deadline a probe that got no answer is followed by another one.
const askAgain = 3

// downEvery is how often a backend is looked at that does not answer: pods wait for it.
const downEvery = time.Second

// Run looks after the backends until ctx ends: whether they answer, and whether anybody needs them.
func (h *Host) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	tick := time.NewTicker(min(h.cfg.ProbeEvery, downEvery))
	defer tick.Stop()
	for {
		h.mu.Lock()
		for _, b := range h.backends {
			troubled := !b.missed.IsZero() || !b.down.IsZero() && dead(b.cause)
			if !b.probing && (troubled || time.Since(b.looked) >= h.cfg.ProbeEvery-downEvery/2) {
				b.probing, b.looked = true, time.Now()
				probes.Go(func() { h.look(ctx, b) })
			}
		}
		h.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look does what a backend needs now.
func (h *Host) look(ctx context.Context, b *backend) {
	defer func() {
		h.mu.Lock()
		b.probing = false
		h.mu.Unlock()
	}()
	pods := entries(h.attachedDir(b.name))
	h.mu.Lock()
	spec, idle, again := b.spec, len(pods) == 0 && time.Since(b.used) > h.cfg.Idle, time.Since(b.checked) > remountEvery
	h.mu.Unlock()
	root, err := h.mounted(b.name)
	if err != nil {
		h.cfg.Log.Warn("reconcile backends", "err", err)
		return
	}
	if local(spec) {
		root = spec.Path
	}
	switch {
	case len(pods) == 0 && (local(spec) || root == ""):
		h.forget(b)
	case idle:
		h.release(ctx, b, root)
	case root != "":
		h.probe(ctx, b, root, spec, len(pods) > 0)
		h.killDead(ctx, b)
	case spec != nil && again:
		h.remount(ctx, b, *spec)
	}
}

// local reports whether a backend needs no mount.
func local(spec *Backend) bool { return spec != nil && spec.Kind == fleet.BackendLocal }

// first reports whether a probe without an answer is the first in a row. It may only have been slow.
func (h *Host) first(b *backend, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil || !dead(err) {
		b.missed = time.Time{}
		return false
	}
	if b.missed.IsZero() {
		b.missed = time.Now()
		return b.down.IsZero()
	}
	return false
}

// probe finds out whether a mounted backend answers.
func (h *Host) probe(ctx context.Context, b *backend, root string, spec *Backend, needed bool) {
	group := h.group(b.name, root) + probeGroup
	err := helper.ErrStuck
	h.mu.Lock()
	// The last one may still have no answer, and may never have one: clients forget what they were asked.
	ask := h.cfg.Caller.Stuck(group) < helper.MostInGroup-1 && time.Since(b.asked) >= askAgain*h.cfg.ProbeTimeout
	if ask = ask || h.cfg.Caller.Stuck(group) == 0; ask {
		b.asked = time.Now()
	}
	h.mu.Unlock()
	if ask {
		in := probeIn{place{Root: root}}
		if id, admin := strings.CutSuffix(b.name, adminSuffix); !admin {
			in.Place.Backend = fleet.BackendID(id)
		}
		limited, cancel := context.WithTimeout(ctx, h.cfg.ProbeTimeout)
		err = h.cfg.Caller.Call(limited, group, "volume.probe", in, nil)
		cancel()
	}
	if now, merr := h.mounted(b.name); ctx.Err() != nil || !local(spec) && (merr != nil || now != root) {
		return // somebody has replaced it meanwhile
	}
	if h.first(b, err) {
		return
	}
	if err != nil && !dead(err) && !broken(err) {
		h.cfg.Log.Warn("query a backend", "backend", b.name, "err", err)
	}
	h.note(b, err)
	if !broken(err) || local(spec) {
		return
	}
	h.drop(ctx, b, root)
	if needed && spec != nil {
		h.remount(ctx, b, *spec)
	}
}

// remount mounts a backend that pods have, so that it is known when it is there again.
func (h *Host) remount(ctx context.Context, b *backend, spec Backend) {
	root, err := h.root(ctx, b, spec)
	if err == nil {
		h.probe(ctx, b, root, &spec, false)
	}
}

// release unmounts a backend that nobody needs.
func (h *Host) release(ctx context.Context, b *backend, root string) {
	done, err := b.lock(ctx)
	if err != nil {
		return
	}
	defer done()
	h.mu.Lock()
	idle := time.Since(b.used) > h.cfg.Idle
	h.mu.Unlock()
	if !idle {
		return
	}
	limited, cancel := context.WithTimeout(ctx, h.cfg.CallTimeout)
	defer cancel()
	err = h.cfg.Caller.Call(limited, b.name+unmountGroup, "volume.unmount", unmountIn{Path: root, Busy: true}, nil)
	if err != nil {
		h.backend(b.name) // something of it is open: once more after the idle time
		return
	}
	h.sweep(ctx, b, "")
	h.cfg.Log.Info("unmounted an unused backend", "backend", b.name)
}

// unasked is how long a backend that is not mounted counts as down after somebody wanted it.
const unasked = time.Minute

// remountEvery is how often a backend is mounted anew for pods that run, with a mount that is broken.
const remountEvery = time.Minute

// forget drops what is known of a backend that is not mounted, and that nobody needs.
func (h *Host) forget(b *backend) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := time.Since(b.used)
	if since > unasked && !b.down.IsZero() {
		b.down, b.cause = time.Time{}, nil
		h.tell()
	}
	if since > h.cfg.Idle {
		delete(h.backends, b.name)
	}
}

// unusedFactor is how much longer a dead client lives that no pod has anything of: others may have.
const unusedFactor = 6

// killDead kills the clients in user space of a backend that is dead, when all pods that have it are ending: what they
// have asked such a client they wait for and cannot be killed (fuse(4)). One that nobody has may be what is dead itself; the next
// pod gets another.
func (h *Host) killDead(ctx context.Context, b *backend) {
	all, err := mounts()
	if err != nil {
		return
	}
	pods := mountedIn(all, h.attachedDir(b.name))
	wait := h.cfg.KillAfter
	if len(pods) == 0 {
		wait *= unusedFactor
	}
	h.mu.Lock()
	kill := !b.down.IsZero() && dead(b.cause) && time.Since(b.down) >= wait
	for _, pod := range pods {
		since := h.ending[fleet.PodID(pod)]
		kill = kill && !since.IsZero() && time.Since(since) >= wait
	}
	h.mu.Unlock()
	if !kill {
		return
	}
	folder := filepath.Join(h.backendsDir(), b.name)
	pids, err := h.daemons(ctx, daemonsIn{folder, true, connections(all, folder, h.attachedDir(b.name))})
	if err != nil || len(pids) > 0 {
		h.cfg.Log.Warn("killing the hung client of a backend so that its pods can stop", "backend", b.name, "pids", pids, "err", err)
	}
}

// connections returns those to clients in user space by which something below some folders is mounted.
func connections(all []mountEntry, folders ...string) []string {
	var out []string
	for _, m := range all {
		below := func(folder string) bool { return strings.HasPrefix(m.at, folder+"/") }
		if _, minor, _ := strings.Cut(m.dev, ":"); m.fsType == "fuse.ceph-fuse" && slices.ContainsFunc(folders, below) {
			out = append(out, minor)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// daemons returns, and kills, the clients in user space whose mount points are below a folder.
func (h *Host) daemons(ctx context.Context, in daemonsIn) (pids []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.CallTimeout)
	defer cancel()
	err = h.cfg.Caller.Call(ctx, "daemons", "volume.daemons", in, &pids)
	return pids, err
}

// Clean takes away all that is mounted, and the folders. No pod may have a volume any more, and Run has ended.
func (h *Host) Clean(ctx context.Context) error {
	pods, err := h.Attached()
	errs := []error{err}
	for _, id := range pods {
		errs = append(errs, h.Detach(ctx, id))
	}
	h.mu.Lock()
	var all []*backend
	for _, b := range h.backends {
		all = append(all, b)
	}
	h.mu.Unlock()
	for _, b := range all {
		done, err := b.lock(ctx)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		h.sweep(ctx, b, "")
		done()
	}
	errs = append(errs, h.endDaemons(ctx))
	for _, folder := range []string{backendsFolder, attachedFolder} {
		dir := filepath.Join(h.run, folder)
		for _, name := range entries(dir) {
			errs = append(errs, removeAll(filepath.Join(dir, name)))
		}
		errs = append(errs, removeAll(dir))
	}
	return errors.Join(errs...)
}

// endDaemons waits until the clients in user space have ended, as each does with its last mount, and kills those
// that have not after a while.
func (h *Host) endDaemons(ctx context.Context) error {
	for begin := time.Now(); ; {
		late := time.Since(begin) > 3*time.Second
		pids, err := h.daemons(ctx, daemonsIn{Folder: h.backendsDir(), Kill: late})
		if err != nil || len(pids) == 0 {
			return err
		}
		if sleep.For(ctx, 50*time.Millisecond) != nil {
			return ctx.Err()
		}
	}
}
