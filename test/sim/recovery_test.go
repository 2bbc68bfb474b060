package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/scheduler/backup"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// stray is a container that a restored state may not know of, or by another incarnation.
type stray struct {
	at  *machine
	pod fleet.PodID
}

// restore stops every scheduler for ever and makes a new one from a copy, as gantry-scheduler restore
// does, at the address of one of them: hosts know it. It returns when the new one leads.
func (w *world) restore(file []byte) error {
	w.picture()
	at := w.stays()[0].name
	for _, m := range w.stays() {
		m.kill(stateOpen)
		w.mu.Lock()
		m.removed = true
		w.mu.Unlock()
	}
	w.mu.Lock()
	w.restored++
	id := fmt.Sprintf("%s-again-%d", at, w.restored)
	w.mu.Unlock()
	m, err := w.memberAt(at, id)
	if err != nil {
		return err
	}
	if err := errors.Join(m.install(file), m.enroll()); err != nil {
		return err
	}
	w.mu.Lock()
	w.members = append(w.members, m)
	w.mu.Unlock()
	w.mu.Lock()
	w.former = w.last
	w.mu.Unlock()
	w.forget()
	w.forgetJobs()
	w.setStrays()
	w.doubtData()
	if err := errors.Join(m.createJobs(), m.start()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if w.serverless {
		if err := w.process(m).jobs.Bootstrap(ctx); err != nil {
			return err
		}
	}
	_, err = awaitLeader(ctx, w.living())
	return err
}

// install fills the member's folder from a copy.
func (m *member) install(file []byte) (err error) {
	in, err := backup.Open(bytes.NewReader(file), backup.Keys{})
	if err != nil {
		return err
	}
	scratch := filepath.Join(m.dir, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return err
	}
	store, err := state.Open(filepath.Join(scratch, replica.StateFile), state.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(), os.RemoveAll(scratch)) }()
	if err := store.Restore(in); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	var old state.Cluster
	if err := store.View(func(v *state.View) error { old, _ = v.Cluster(); return nil }); err != nil {
		return err
	}
	now := time.Now()
	data, err := state.Encode(state.RestoreCluster{
		ID: fleet.NewID(), Lineage: max(old.Lineage+1, uint64(now.Unix())), Member: m.record(), SnapshotAt: in.Header.SavedAt, At: now,
	})
	if err != nil {
		return err
	}
	results, err := store.Apply([]entry.Entry{{Index: store.Index() + 1, Term: 1, Data: data}})
	if err != nil || results[0][0].Err != nil {
		return errors.Join(err, results[0][0].Err)
	}
	snap, err := store.Snapshot()
	if err != nil {
		return err
	}
	var all bytes.Buffer
	if _, err := snap.WriteTo(&all); err != nil {
		return errors.Join(err, snap.Release())
	}
	return errors.Join(snap.Release(), replica.Install(raftDir(m.dir), replica.Member{ID: m.id, Address: m.addr}, &all))
}

// setStrays takes down which containers there are when the state is replaced by an older one.
func (w *world) setStrays() {
	strays := map[stray]uint64{}
	for _, h := range w.allHosts() {
		h.mu.Lock()
		for id, b := range h.boxes {
			strays[stray{h.machine, id}] = b.Incarnation
		}
		h.mu.Unlock()
		kept, err := pod.DataOf(filepath.Join(h.dir, "persistent"))
		w.check(err)
		for _, id := range kept {
			if _, there := strays[stray{h.machine, id}]; !there {
				strays[stray{h.machine, id}] = 0
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strays = strays
}

// doubtData takes down what became of the data of pods that were terminated, which the copy may not know: it is gone, or its host, which was
// away or has not come to it, may remove it yet.
func (w *world) doubtData() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, left := range w.written {
		if w.former.pods[id].Status != fleet.StatusTerminated {
			continue
		}
		if _, there := w.strays[stray{left.at, id}]; !there {
			delete(w.written, id)
			continue
		}
		left.gone = true
		w.written[id] = left
	}
}

// leaves takes down of which pods a dead host has data: when it is back, what its fence freed goes.
func (w *world) leaves(h *host) {
	kept, err := pod.DataOf(filepath.Join(h.dir, "persistent"))
	w.check(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.strays == nil {
		w.strays = map[stray]uint64{}
	}
	for _, id := range kept {
		if _, there := w.strays[stray{h.machine, id}]; !there {
			w.strays[stray{h.machine, id}] = 0
		}
	}
}

// isStray reports whether a container was there when an older state was restored: until its host is
// compared with the state, and it is ended, the state may say something else.
func (w *world) isStray(at *machine, id fleet.PodID, incarnation uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, there := w.strays[stray{at, id}]
	return there && was == incarnation
}

// wasThere reports whether a host had anything of a pod when an older state was restored.
func (w *world) wasThere(at *machine, id fleet.PodID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, there := w.strays[stray{at, id}]
	if rec, known := w.former.pods[id]; known && w.byHost[rec.Host] != nil && w.byHost[rec.Host].machine == at {
		there = true // it was being made
	}
	return there
}

// wasRestored reports whether an older state was ever restored.
func (w *world) wasRestored() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restored > 0
}

// orderedBefore reports whether a host was ordered to start something by the state before a restore: it
// goes on with that until it hears of the new one.
func (w *world) orderedBefore(m *machine, spec pod.ContainerSpec) bool {
	w.mu.Lock()
	rec, known := w.former.pods[spec.Pod]
	h := w.byHost[rec.Host]
	w.mu.Unlock()
	if !known || !rec.Held || rec.Incarnation < spec.Incarnation || h == nil || h.machine != m {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strays[stray{m, spec.Pod}] = spec.Incarnation
	return true
}

// apartGPUs checks I4 on a machine, whatever the state says: processes were not given more GPUs than it
// has. The machine's lock is held.
func (w *world) apartGPUs(m *machine, spec pod.ContainerSpec) {
	given := 0
	for id, b := range m.boxes {
		if id == spec.Pod || b.Task == pod.TaskRunning {
			n, _ := strconv.Atoi(b.spec.Env["GANTRY_GPU_COUNT"])
			given += n
		}
	}
	w.mu.Lock()
	has := w.gpus[m]
	w.mu.Unlock()
	if given > has {
		w.broke("I4: processes on %s have %d GPUs, there are %d", m.name, given, has)
	}
}

// restoredInRun is the restore of a seeded run: between two times of load, with users and faults at rest.
func (d *driver) restoredInRun(file []byte) {
	before := d.picture()
	d.log.Info("FAULT begins", "fault", "restored from a copy")
	n := len(d.stays())
	if err := d.restore(file); err != nil {
		d.broke("restore: %v", err)
		return
	}
	d.note("restored from a copy")
	d.rebase(before)
	for range n - 1 {
		m, err := d.newMember()
		if err == nil {
			err = d.join(m)
		}
		if err != nil {
			d.broke("a scheduler does not join after the restore: %v", err)
			return
		}
	}
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end) && len(d.broken()) == 0; time.Sleep(time.Second) {
		d.looksQuietly()
	}
	d.mu.Lock()
	d.over, d.former = nil, picture{}
	d.mu.Unlock()
}

// rebase makes what the restored state says the facts that later ones are compared with. What was over
// before the restore must not begin again by itself.
func (d *driver) rebase(before picture) {
	now := d.picture()
	d.tally.Lock()
	defer d.tally.Unlock()
	d.tookPart(before) // of pods that the restored state does not know, and nobody may have looked since they were made
	over := map[fleet.PodID]fleet.PodStatus{}
	for id, p := range before.pods {
		// A host that holds one may be cut off, and not know that it is over.
		if !p.Status.Active() && !p.Held && !restartsItself(now, &p) {
			over[id] = p.Status
		}
	}
	d.mu.Lock()
	d.over = over
	d.mu.Unlock()
	d.before, d.hashes, d.hashed = now, map[uint64]string{}, map[*process]uint64{}
	for id := range d.acked {
		if old, there := now.pods[id]; there {
			d.acked[id] = old // a revision of the state before says nothing of one of this state
		} else {
			delete(d.acked, id)
		}
	}
	kept := d.ids[:0]
	for _, id := range d.ids {
		if _, there := now.pods[id]; there {
			kept = append(kept, id)
		}
	}
	d.ids = kept
	d.templates = nil
	for _, t := range now.templates {
		d.templates = append(d.templates, t.ID)
	}
	d.only = map[string]string{}
	d.relearnVolumes(now)
	for _, id := range d.accounts {
		d.credit[id] = now.books.balance[id] + now.books.of[id]
	}
	d.rejoin(now)
	d.unsure, d.unsureKey, d.crediting = 0, nil, false
}

// restartsItself reports whether a pod that ended may start again without its owner: with its whole cluster, when another member fails,
// or since its host was fenced.
func restartsItself(now picture, p *fleet.Pod) bool {
	return p.Status != fleet.StatusTerminated && slices.ContainsFunc(now.clusters, func(c fleet.Cluster) bool {
		return c.ID.Owner() == p.Owner && (c.OnFailure == fleet.OnFailureRestart || state.LostHost(p))
	})
}
