package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

const (
	// maxStorageReports is how many volumes of a message are looked at; a host tells of more in the next.
	maxStorageReports = 10_000
	// recordPause is between two commands of a session, so that no host fills the log.
	recordPause = 100 * time.Millisecond

	gb = 1_000_000_000 // bytes
	// tooMuch is where a volume that is only measured becomes read-only: bytes for each GB of its size.
	tooMuch = gb + gb/20
)

// notes are what a session is to record of volumes.
type notes struct {
	mu   sync.Mutex // guards the fields below
	next map[fleet.VolumeID]state.VolumeReport
	busy bool // a task of the session records
}

// heardOfStorage keeps what a host says of volumes that it looks after, and has recorded what the state is to know.
func (x *session) heardOfStorage(ctx context.Context, in *link.StorageReports) error {
	reports := in.GetVolumes()[:min(len(in.GetVolumes()), maxStorageReports)]
	var changes []state.VolumeReport
	err := x.server.Store.View(func(v *state.View) error {
		d := x.server.desk
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, r := range reports {
			volume, ok := v.VolumeRecord(fleet.VolumeID(r.GetVolumeId()))
			if !ok || d.hosts[volume.Backend] != x.host {
				continue
			}
			seen := d.seen[volume.ID]
			if seen.problem = sentence(r.GetProblem()); r.GetMeasured() {
				seen.measured, seen.used = true, max(0, r.GetUsedBytes())
			}
			d.seen[volume.ID] = seen
			if backend, ok := v.Backend(volume.Backend); ok {
				if c, changed := changeOf(&volume, &backend, r); changed {
					changes = append(changes, c)
				}
			}
		}
		return nil
	})
	if err == nil && len(changes) > 0 {
		x.note(ctx, changes)
	}
	return err
}

// changeOf is what a report changes of a volume's record; false: nothing.
func changeOf(v *fleet.Volume, b *fleet.Backend, r *link.StorageReport) (state.VolumeReport, bool) {
	out := state.VolumeReport{Volume: v.ID}
	if v.State == fleet.VolumeDeleting {
		out.Gone = r.GetGone()
		return out, out.Gone
	}
	size := r.GetProvisionedGb()
	if size > 0 && size <= int64(v.SizeGB) && (v.State == fleet.VolumeCreating || size > int64(v.ProvisionedGB)) {
		out.ProvisionedGB = int(size)
	}
	if r.GetMeasured() {
		out.ReadOnly = readOnly(v, b, r.GetUsedBytes())
	}
	return out, out.ProvisionedGB > 0 || out.ReadOnly != nil
}

// readOnly says whether a volume that holds so many bytes becomes read-only, or writable again; nil: it stays as it is.
func readOnly(v *fleet.Volume, b *fleet.Backend, used int64) *bool {
	over, size := v.ReadOnly, int64(v.SizeGB)
	switch {
	case !b.Measured():
		over = false
	case used >= size*tooMuch:
		over = true
	case used < size*gb:
		over = false
	}
	if over == v.ReadOnly {
		return nil
	}
	return &over
}

// note has changes of volumes recorded; of several that wait for one volume, the last counts for each thing.
func (x *session) note(ctx context.Context, changes []state.VolumeReport) {
	n := &x.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = map[fleet.VolumeID]state.VolumeReport{}
	}
	for _, c := range changes {
		if old, ok := n.next[c.Volume]; ok {
			c.Gone = c.Gone || old.Gone
			c.ProvisionedGB = max(c.ProvisionedGB, old.ProvisionedGB)
			if c.ReadOnly == nil {
				c.ReadOnly = old.ReadOnly
			}
		}
		n.next[c.Volume] = c
	}
	if !n.busy {
		n.busy = true
		x.tasks.Go(func() {
			if err := x.recordVolumes(ctx); err != nil {
				x.cancel(err)
			}
		})
	}
}

// take returns what is to be recorded; none when there is nothing, and then nobody records.
func (n *notes) take() []state.VolumeReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := slices.Sorted(maps.Keys(n.next))
	ids = ids[:min(len(ids), state.MaxVolumeReports)]
	out := make([]state.VolumeReport, 0, len(ids))
	for _, id := range ids {
		out = append(out, n.next[id])
		delete(n.next, id)
	}
	n.busy = len(out) > 0
	return out
}

// recordVolumes records what became of volumes until a pause brings nothing.
func (x *session) recordVolumes(ctx context.Context) error {
	for next := x.notes.take(); len(next) > 0; next = x.notes.take() {
		if err := x.proposeVolumes(ctx, next); err != nil {
			return fmt.Errorf("record what became of network volumes: %w", err)
		}
		if err := sleep.For(ctx, recordPause); err != nil {
			return err
		}
	}
	return nil
}

func (x *session) proposeVolumes(ctx context.Context, reports []state.VolumeReport) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	err := x.server.propose(ctx, state.ReportVolumes{Host: x.host, Epoch: x.epoch, Volumes: reports, At: time.Now()})
	if err != nil {
		return err
	}
	for _, r := range reports {
		switch {
		case r.Gone:
			x.server.Log.Info("network volume removed", "volume", r.Volume, "host", x.host)
		case r.ProvisionedGB > 0:
			x.server.Log.Info("network volume prepared", "volume", r.Volume, "host", x.host, "size", r.ProvisionedGB)
		}
		if r.ReadOnly != nil {
			x.server.Log.Warn("network volume crossed its limit", "volume", r.Volume, "readOnly", *r.ReadOnly)
		}
	}
	return nil
}
