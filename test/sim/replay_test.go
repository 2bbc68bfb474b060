package sim

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// story is what a log tells.
type story struct {
	commands int
	updates  int // of inventories while a session stood
	// interruptions are of pods that gave their place to another.
	interruptions int
	returns       int // of those, by themselves or by their owners
	charges       charges
	workforce     workforce
}

// replay applies the log in dir up to an index anew, command by command, to an empty state. It checks that every
// command moves statuses only along the table of package fleet (I5) and returns the state at the
// end and what there was. A log whose beginning a snapshot replaced is not replayed: then there are no
// commands.
func replay(w *world, dir string, last uint64) (end picture, told story, err error) {
	told.charges.bills, told.workforce = map[fleet.PodID]*bill{}, newWorkforce()
	logs, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		return picture{}, told, err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	first, err := logs.FirstIndex()
	if err != nil || first > 1 {
		return picture{}, told, err
	}
	again := filepath.Join(w.dir, "again")
	if err := os.MkdirAll(again, 0o700); err != nil {
		return picture{}, told, err
	}
	store, err := state.Open(filepath.Join(again, "state.db"), state.Options{})
	if err != nil {
		return picture{}, told, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := logs.GetLog(index, &entry); err != nil {
			return picture{}, told, err
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		if err := told.entry(w, store, entry); err != nil {
			return picture{}, told, err
		}
	}
	end, err = take(store)
	return end, told, err
}

// entry applies an entry's commands one by one, under indexes that leave room for them.
func (s *story) entry(w *world, store *state.Store, l raft.Log) error {
	const room = 1 << 10
	cmds, err := state.Decode(l.Data)
	if err != nil {
		return err
	}
	for i, cmd := range cmds {
		data, err := state.Encode(cmd)
		if err != nil {
			return err
		}
		var at time.Time
		var touched []fleet.PodID
		before := map[fleet.PodID]fleet.Pod{}
		err = store.View(func(v *state.View) error {
			at, touched = commandTime(v, cmd)
			s.workforce.lowers(v, cmd, at)
			for _, id := range touched {
				if rec, known := v.Pod(id); known {
					before[id] = rec
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := store.Apply([]entry.Entry{{Index: l.Index*room + uint64(i), Term: l.Term, Data: data}}); err != nil {
			return err
		}
		if _, ok := cmd.(state.UpdateInventory); ok {
			s.updates++
		}
		for _, id := range touched {
			old, was := before[id]
			rec, known, err := find(store, id)
			switch {
			case err != nil || was && !known:
				w.broke("entry %d loses pod %s (%T): %v", l.Index, id, cmd, err)
			case !known: // a create or a report that was refused
			case !was:
				s.charges.change(nil, &rec, at)
			default:
				moved(w, l.Index, cmd, old, rec)
				if s.interrupted(old, rec) && !yields(store, cmd, old) {
					w.broke("entry %d interrupts pod %s, which does not yield to what comes (%T): %+v", l.Index, id, cmd, old)
				}
				s.workforce.leaves(w, l.Index, cmd, old, rec)
				s.charges.change(&old, &rec, at)
			}
			if known {
				if err := errors.Join(bound(w, store, l.Index, old, rec), leaves(w, store, l.Index, old, rec)); err != nil {
					return err
				}
			}
		}
		if err := store.View(func(v *state.View) error { s.workforce.grows(w, v, l.Index, cmd); return nil }); err != nil {
			return err
		}
	}
	s.commands += len(cmds)
	return nil
}

// interrupted reports whether a command had a pod give its place to another.
func (s *story) interrupted(old, rec fleet.Pod) bool {
	now := old.Interrupted.IsZero() && !rec.Interrupted.IsZero()
	if now {
		s.interruptions++
	} else if old.Returns() && rec.Incarnation > old.Incarnation {
		s.returns++
	}
	return now
}

// yields reports whether a pod, as it was before a command, gives its place to the one that the command binds.
func yields(store *state.Store, cmd state.Command, was fleet.Pod) bool {
	var comes fleet.Pod
	switch c := cmd.(type) {
	case state.CreateCluster:
		return yields(store, state.CreatePods{Pods: c.Pods}, was)
	case state.RestartCluster:
		for i := range c.Starts {
			if slices.Contains(c.Starts[i].Bind.Evict, was.ID) {
				comes, _, _ = find(store, c.Starts[i].Pod)
			}
		}
	case state.CreatePods:
		for _, p := range c.Pods {
			if slices.Contains(p.Evict, was.ID) {
				comes = p.Pod
			}
		}
	case state.ActPod:
		comes, _, _ = find(store, c.Pod)
	case state.MovePod:
		comes, _, _ = find(store, c.Pod)
	}
	return comes.ID != "" && was.YieldsTo(&comes)
}

// moved checks what a command did to a pod.
func moved(w *world, index uint64, cmd state.Command, old, rec fleet.Pod) {
	switch {
	case !legal(old, rec):
		w.broke("I5: entry %d moves pod %s from %s to %s (%T)", index, rec.ID, old.Status, rec.Status, cmd)
	case old.Host != rec.Host && (old.Held && rec.Held || old.KeepsData()):
		w.broke("I1: entry %d moves pod %s from host %s to %s while it has something there (%T)", index, rec.ID, old.Host, rec.Host, cmd)
	case old.Incarnation == rec.Incarnation && old.Image == rec.Image && old.Digest != "" && rec.Digest != old.Digest:
		w.broke("entry %d has pod %s run %s where %s is pinned (%T)", index, rec.ID, rec.Digest, old.Digest, cmd)
	}
}

// legal reports whether one trigger leads from one status to the other.
func legal(from, to fleet.Pod) bool {
	if from.Status == to.Status {
		return true
	}
	for _, t := range slices.Concat(fleet.Actions(), fleet.Events(), []fleet.Trigger{fleet.ActionUpdate}) {
		if next, ok := from.Status.Next(t); ok && next == to.Status {
			return true
		}
	}
	return false
}
