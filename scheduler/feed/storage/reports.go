package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

const (
	proposeTimeout = 10 * time.Second
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

// Heard implements feed.Line: it keeps what a host says of volumes that it looks after, and has recorded what the state is to know.
func (l *line) Heard(ctx context.Context, msg *agentrpc.Up) error {
	in := msg.GetStorage()
	if in == nil {
		return nil
	}
	reports := in.GetVolumes()[:min(len(in.GetVolumes()), maxStorageReports)]
	var changes []state.VolumeReport
	err := l.of.store.View(func(v *state.View) error {
		changes = l.of.hear(v, l.session.Host(), reports)
		return nil
	})
	if err == nil && len(changes) > 0 {
		l.note(ctx, changes)
	}
	return err
}

// hear keeps what a host says of volumes, and returns what that changes of their records.
func (s *Storage) hear(v *state.View, host fleet.HostID, reports []*agentrpc.StorageReport) (changes []state.VolumeReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range reports {
		volume, ok := v.VolumeRecord(fleet.VolumeID(r.GetVolumeId()))
		if !ok || s.hosts[volume.Backend] != host {
			continue
		}
		seen := s.seen[volume.ID]
		if seen.problem = agentrpc.Sentence(r.GetProblem()); r.GetMeasured() {
			seen.measured, seen.used = true, max(0, r.GetUsedBytes())
		}
		s.seen[volume.ID] = seen
		if backend, ok := v.Backend(volume.Backend); ok {
			if c, changed := changeOf(&volume, &backend, r); changed {
				changes = append(changes, c)
			}
		}
	}
	return changes
}

// changeOf is what a report changes of a volume's record; false: nothing.
func changeOf(v *fleet.Volume, b *fleet.Backend, r *agentrpc.StorageReport) (state.VolumeReport, bool) {
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
func (l *line) note(ctx context.Context, changes []state.VolumeReport) {
	n := &l.notes
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
		l.session.Go(func() error { return l.record(ctx) })
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

// record records what became of volumes until a pause brings nothing.
func (l *line) record(ctx context.Context) error {
	for next := l.notes.take(); len(next) > 0; next = l.notes.take() {
		if err := l.propose(ctx, next); err != nil {
			return fmt.Errorf("record what became of network volumes: %w", err)
		}
		if err := sleep.For(ctx, recordPause); err != nil {
			return err
		}
	}
	return nil
}

func (l *line) propose(ctx context.Context, reports []state.VolumeReport) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	_, err := l.session.Propose(ctx, state.ReportVolumes{Host: l.session.Host(), Epoch: l.session.Epoch(), Volumes: reports, At: time.Now()})
	if err != nil {
		return err
	}
	for _, r := range reports {
		switch {
		case r.Gone:
			l.of.log.Info("network volume removed", "volume", r.Volume, "host", l.session.Host())
		case r.ProvisionedGB > 0:
			l.of.log.Info("network volume prepared", "volume", r.Volume, "host", l.session.Host(), "size", r.ProvisionedGB)
		}
		if r.ReadOnly != nil {
			l.of.log.Warn("network volume crossed its limit", "volume", r.Volume, "readOnly", *r.ReadOnly)
		}
	}
	return nil
}
