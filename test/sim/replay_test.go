package sim

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// replay applies the log in dir anew, command by command, to an empty state. It checks that every
// command moves statuses only along the table of package fleet (I5) and returns the state at the
// end and how many commands there were. A log whose beginning a snapshot replaced is not replayed:
// then commands is 0.
func replay(w *world, dir string) (end picture, commands int, err error) {
	logs, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		return picture{}, 0, err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	first, err := logs.FirstIndex()
	if err != nil || first > 1 {
		return picture{}, 0, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return picture{}, 0, err
	}
	again := filepath.Join(w.dir, "again")
	if err := os.MkdirAll(again, 0o700); err != nil {
		return picture{}, 0, err
	}
	store, err := state.Open(filepath.Join(again, "state.db"), state.Options{})
	if err != nil {
		return picture{}, 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := logs.GetLog(index, &entry); err != nil {
			return picture{}, 0, err
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		n, err := replayEntry(w, store, entry)
		if err != nil {
			return picture{}, 0, err
		}
		commands += n
	}
	end, err = take(store)
	return end, commands, err
}

// replayEntry applies an entry's commands one by one, under indexes that leave room for them.
func replayEntry(w *world, store *state.Store, entry raft.Log) (int, error) {
	const room = 1 << 10
	cmds, err := state.Decode(entry.Data)
	if err != nil {
		return 0, err
	}
	for i, cmd := range cmds {
		data, err := state.Encode(cmd)
		if err != nil {
			return 0, err
		}
		touched := touchedBy(cmd)
		before := map[fleet.PodID]fleet.Pod{}
		for _, id := range touched {
			if rec, known, err := find(store, id); err == nil && known {
				before[id] = rec
			}
		}
		if _, err := store.Apply([]state.Entry{{Index: entry.Index*room + uint64(i), Term: entry.Term, Data: data}}); err != nil {
			return 0, err
		}
		for id, old := range before {
			rec, known, err := find(store, id)
			switch {
			case err != nil || !known:
				w.broke("entry %d loses pod %s (%T): %v", entry.Index, id, cmd, err)
			case !legal(old, rec):
				w.broke("I5: entry %d moves pod %s from %s to %s (%T)", entry.Index, id, old.Status, rec.Status, cmd)
			case old.Held && rec.Held && old.Host != rec.Host:
				w.broke("I1: entry %d moves pod %s from host %s to %s while it is held (%T)", entry.Index, id, old.Host, rec.Host, cmd)
			}
		}
	}
	return len(cmds), nil
}

// touchedBy returns the pods whose status a command may change.
func touchedBy(cmd state.Command) []fleet.PodID {
	switch c := cmd.(type) {
	case state.ActPod:
		return []fleet.PodID{c.Pod}
	case state.ReportPods:
		var out []fleet.PodID
		seen := map[fleet.PodID]bool{}
		for _, r := range c.Reports {
			if !seen[r.Pod] {
				out = append(out, r.Pod)
			}
			seen[r.Pod] = true
		}
		return out
	}
	return nil
}

// legal reports whether one trigger leads from one status to the other.
func legal(from, to fleet.Pod) bool {
	if from.Status == to.Status {
		return true
	}
	for _, t := range append(fleet.Actions(), fleet.Events()...) {
		if next, ok := from.Status.Next(t); ok && next == to.Status {
			return true
		}
	}
	return false
}
