// Package sweep removes what the ledger of a host does not know: containers, their networks and disks. Persistent data it sets aside, and
// removes it after a while. Clean removes everything of an agent that does not run.
package sweep

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	sweepTimeout = time.Minute // of one round
	keepLost     = 7 * 24 * time.Hour
	lostEvery    = time.Hour
	againEvery   = 30 * time.Second // while something is left
)

// Config is what a Sweeper is made from.
type Config struct {
	Dir        string // data folder
	Ledger     *ledger.Ledger
	Containers Containers
	// RemovePod removes a pod's network.
	RemovePod func(ctx context.Context, id string) error
	Disks     Disks
	KeepLost  time.Duration // how long data is kept that was set aside; zero: 7 days
	// Heard reports whether a scheduler was heard: before, nothing is removed.
	Heard func() bool
	Log   *slog.Logger
}

// Containers is the container runtime as sweeping needs it.
type Containers interface {
	// List returns the pods of which the runtime has anything.
	List(ctx context.Context) ([]fleet.PodID, error)
	// Remove is that of pod.Runtime.
	Remove(ctx context.Context, id fleet.PodID) error
}

// Sweeper removes what the ledger does not know.
type Sweeper struct {
	Config
	once atomic.Bool
}

// New makes a Sweeper.
func New(c Config) *Sweeper { return &Sweeper{Config: c} }

// Swept reports whether the containers that the ledger did not know are gone.
func (s *Sweeper) Swept() bool { return s.once.Load() }

// Run removes containers and sets data aside that the ledger does not know, once a scheduler was heard:
// leftovers of a ledger that was lost or of a crash in the middle of a removal. It tries until it has
// succeeded once: the runtime may be away when the agent starts. From then on it looks after what was
// set aside.
func (s *Sweeper) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for swept := false; ; {
		if s.Heard() {
			swept = swept || s.swept(ctx)
			s.once.Store(swept)
			if swept && s.sweptLost(ctx, time.Now()) {
				tick.Reset(lostEvery)
			} else {
				tick.Reset(againEvery)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Sweeper) known(id fleet.PodID) bool {
	_, known := s.Ledger.Record(id)
	return known
}

// swept removes what the ledger does not know, and reports whether nothing of it is left.
func (s *Sweeper) swept(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	ids, err := s.Containers.List(ctx)
	if err != nil {
		s.Log.Warn("list containers", "err", err)
		return false
	}
	clean := true
	for _, id := range ids {
		if s.known(id) {
			continue
		}
		s.Log.Warn("removing the container of an unknown pod", "pod", id)
		if err := errors.Join(s.Containers.Remove(ctx, id), s.RemovePod(ctx, string(id))); err != nil {
			s.Log.Warn("remove the container of an unknown pod", "pod", id, "err", err)
			clean = false
		}
	}
	return s.sweptDisks(ctx) && s.sweptData(ctx) && clean
}

// sweptData sets persistent data of pods that the ledger does not know aside, each after its container.
func (s *Sweeper) sweptData(ctx context.Context) bool {
	ids, err := s.data().Pods()
	if err != nil {
		s.Log.Warn("list persistent data", "err", err)
		return false
	}
	clean := true
	for _, id := range ids {
		if s.known(id) {
			continue
		}
		err := s.Containers.Remove(ctx, id)
		path := ""
		if err == nil {
			path, err = s.data().SetAside(ctx, id, time.Now())
		}
		if err != nil {
			s.Log.Warn("move the persistent data of an unknown pod aside", "pod", id, "err", err)
			clean = false
		}
		if path != "" {
			s.Log.Warn("persistent data of an unknown pod was set aside; it is restored when the pod is listed again, "+
				"and is removed after --keep-lost-data", "pod", id, "folder", path)
		}
	}
	return clean
}

// sweptLost removes data that was set aside long enough ago, but none of a pod that is listed again: its
// next start brings it back. It reports whether there is no more to do for now.
func (s *Sweeper) sweptLost(ctx context.Context, now time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	all, err := s.data().Lost()
	if err != nil {
		s.Log.Warn("clean up set-aside data", "err", err)
		return false
	}
	keep := s.KeepLost
	if keep <= 0 {
		keep = keepLost
	}
	for _, l := range all {
		rec, known := s.Ledger.Record(l.Pod)
		if mayReturn(rec, known) || now.Sub(l.At) < keep {
			continue
		}
		s.Log.Warn("removing set-aside persistent data after its retention", "pod", l.Pod, "folder", l.Path)
		if err := s.data().RemoveLost(ctx, l); err != nil {
			s.Log.Warn("remove data that was set aside", "pod", l.Pod, "err", err)
			return false
		}
	}
	return s.sweptData(ctx) // with what an interrupted removal left
}

// mayReturn reports whether a scheduler lists the pod, so that it may ask for its data.
func mayReturn(rec pod.Record, known bool) bool {
	return known && !rec.Orphan && rec.Assignment.Goal != fleet.GoalGone
}

// DataDir is the folder of the pods' persistent data.
func DataDir(dir string) string { return filepath.Join(dir, "persistent") }
