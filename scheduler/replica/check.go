package replica

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// checkFiles refuses a folder without a log, whatever else is there: a member that forgot its votes, and what it
// acknowledged, must not vote.
func checkFiles(dir string) error {
	info, err := os.Stat(filepath.Join(dir, logFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return damaged("%s is missing from %s", logFile, dir)
	case err != nil:
		return err
	case info.Size() == 0:
		return damaged("%s is empty", logFile)
	}
	return nil
}

// checkTogether refuses a log, snapshots and a state that leave something out between them. It reports
// whether the state holds all that the newest good snapshot holds, so that this need not be restored.
func checkTogether(logs *sumLog, snaps *snapStore, machine Machine) (stateIsNewer bool, err error) {
	have := machine.Index()
	good, lost, err := snaps.check()
	if err != nil {
		return false, fmt.Errorf("read snapshots: %w", err)
	}
	first, last := reach(logs.found, good)
	end := max(good, last)
	if lost > end {
		return false, damaged("the newest snapshot is damaged and the log does not go on from the one before")
	}
	if first > good+1 {
		return false, damaged("the log begins at entry %d, but the newest good snapshot ends at %d", first, good)
	}
	if have > end {
		return false, damaged("the state is at index %d, but the log beside it ends at %d: these files do not belong together", have, end)
	}
	if err := snaps.drop(); err != nil {
		return false, fmt.Errorf("remove a damaged snapshot: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return false, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) == 0 {
		return true, nil
	}
	inner, err := innerIndex(machine, snaps, list[0])
	snaps.newest = position{list[0].Index, list[0].Term}
	return have >= inner, err
}

// reach returns the first and the last entry behind a snapshot, between which none is missing.
func reach(indexes []uint64, snapshot uint64) (first, last uint64) {
	if len(indexes) == 0 || indexes[len(indexes)-1] <= snapshot {
		return 0, 0
	}
	at := len(indexes) - 1
	for at > 0 && indexes[at-1] == indexes[at]-1 {
		at--
	}
	return indexes[at], indexes[len(indexes)-1]
}

// innerIndex returns the index of the state in a snapshot, which is not newer than Raft's.
func innerIndex(machine Machine, snaps raft.SnapshotStore, meta *raft.SnapshotMeta) (uint64, error) {
	_, r, err := snaps.Open(meta.ID)
	if err != nil {
		return 0, err
	}
	index, err := machine.SnapshotIndex(r)
	return index, errors.Join(err, r.Close())
}

// testFile is written and read back before Raft starts.
const testFile = "selftest.tmp"

// selfTest shows that the disk under dir takes and gives back data in time.
func selfTest(dir string, limit time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- writeAndRead(filepath.Join(dir, testFile)) }() // a hung disk keeps it; the process ends then
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("the disk under %s failed its test: %w", dir, err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("the disk under %s did not write and read back a small file within %s", dir, limit)
	}
}

func writeAndRead(path string) error {
	want := bytes.Repeat([]byte("gantry "), 512)
	if err := writeSynced(path, want); err != nil {
		return errors.Join(err, os.RemoveAll(path))
	}
	got, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("what was read is not what was written")
	}
	return errors.Join(err, os.Remove(path))
}

// writeSynced writes a file and returns when it is on the disk.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}
