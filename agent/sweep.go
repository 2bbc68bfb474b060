package agent

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	sweepTimeout = time.Minute // of one round
	keepLost     = 7 * 24 * time.Hour
	lostEvery    = time.Hour
)

// sweep removes containers and sets data aside that the ledger does not know, once a scheduler was heard:
// leftovers of a ledger that was lost or of a crash in the middle of a removal. It tries until it has
// succeeded once: the runtime may be away when the agent starts. From then on it looks after what was
// set aside.
func (d *daemon) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for swept := false; ; {
		if d.heard.Load() {
			swept = swept || d.swept(ctx)
			d.sweptOnce.Store(swept)
			if swept && d.sweptLost(ctx, time.Now()) {
				tick.Reset(lostEvery)
			} else {
				tick.Reset(repairEvery)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// swept removes what the ledger does not know, and reports whether nothing of it is left.
func (d *daemon) swept(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	ids, err := d.Containers.List(ctx)
	if err != nil {
		d.Log.Warn("list containers", "err", err)
		return false
	}
	clean := true
	for _, id := range ids {
		if _, known := d.book.Record(id); known {
			continue
		}
		d.Log.Warn("removing the container of an unknown pod", "pod", id)
		if err := errors.Join(d.Containers.Remove(ctx, id), d.Network.RemovePod(ctx, string(id))); err != nil {
			d.Log.Warn("remove the container of an unknown pod", "pod", id, "err", err)
			clean = false
		}
	}
	return d.sweptDisks(ctx) && d.sweptData(ctx) && clean
}

// sweptData sets persistent data of pods that the ledger does not know aside, each after its container.
func (d *daemon) sweptData(ctx context.Context) bool {
	ids, err := d.data().Pods()
	if err != nil {
		d.Log.Warn("list persistent data", "err", err)
		return false
	}
	clean := true
	for _, id := range ids {
		if _, known := d.book.Record(id); known {
			continue
		}
		err := d.Containers.Remove(ctx, id)
		path := ""
		if err == nil {
			path, err = d.data().SetAside(ctx, id, time.Now())
		}
		if err != nil {
			d.Log.Warn("move the persistent data of an unknown pod aside", "pod", id, "err", err)
			clean = false
		}
		if path != "" {
			d.Log.Warn("persistent data of an unknown pod was set aside; it is restored when the pod is listed again, "+
				"and is removed after --keep-lost-data", "pod", id, "folder", path)
		}
	}
	return clean
}

// sweptLost removes data that was set aside long enough ago, but none of a pod that is listed again: its
// next start brings it back. It reports whether there is no more to do for now.
func (d *daemon) sweptLost(ctx context.Context, now time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	all, err := d.data().Lost()
	if err != nil {
		d.Log.Warn("clean up set-aside data", "err", err)
		return false
	}
	keep := d.KeepLost
	if keep <= 0 {
		keep = keepLost
	}
	for _, l := range all {
		rec, known := d.book.Record(l.Pod)
		if mayReturn(rec, known) || now.Sub(l.At) < keep {
			continue
		}
		d.Log.Warn("removing set-aside persistent data after its retention", "pod", l.Pod, "folder", l.Path)
		if err := d.data().RemoveLost(ctx, l); err != nil {
			d.Log.Warn("remove data that was set aside", "pod", l.Pod, "err", err)
			return false
		}
	}
	return d.sweptData(ctx) // with what an interrupted removal left
}

// mayReturn reports whether a scheduler lists the pod, so that it may ask for its data.
func mayReturn(rec pod.Record, known bool) bool {
	return known && !rec.Orphan && rec.Assignment.Goal != fleet.GoalGone
}

// dataDir is the folder of the pods' persistent data.
func dataDir(dir string) string { return filepath.Join(dir, "persistent") }
