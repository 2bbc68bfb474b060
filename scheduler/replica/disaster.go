package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"gantry/internal/atomicfile"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// The names in Config.Dir, besides StateFile.
const (
	logFile     = "raft.db"
	snapshotDir = "snapshots"
	scratchDir  = "scratch.tmp" // of Install and Recover; thrown away when it is found
)

// Raft's keys in its stable store.
const (
	keyTerm     = "CurrentTerm"
	keyVoteTerm = "LastVoteTerm"
	keyVote     = "LastVoteCand"
)

// Create makes the empty log of a new member in dir, which is on disk when it returns; where there is a log it does
// nothing. A member opens only with its log, so that one that lost it cannot be taken for a new one: make it as
// the last step, and never again for the same ID. Error: matching ErrDamaged when there is a state or a snapshot,
// but no log.
func Create(dir string) error {
	if err := Prepare(dir); err != nil {
		return err
	}
	return Finish(dir)
}

// Prepare makes the log that Finish puts in its place, which is on disk when it returns. Errors are those of Create.
func Prepare(dir string) (err error) {
	fail := func(err error) error { return fmt.Errorf("create replica: %w", err) }
	if _, err := os.Lstat(filepath.Join(dir, logFile)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range []string{snapshotDir, StateFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fail(damaged("%s is missing, but there is %s", logFile, name))
		}
	}
	tmp := filepath.Join(dir, scratchDir)
	if err := freshDir(tmp); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	logs, err := openLog(tmp)
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(logs.Close(), atomicfile.SyncDir(tmp), atomicfile.SyncDir(dir)); err != nil {
		return fail(err)
	}
	return nil
}

// Finish gives a new member the log that Prepare made; where there is a log it does nothing. A crash leaves the whole
// log or none.
func Finish(dir string) error {
	path, tmp := filepath.Join(dir, logFile), filepath.Join(dir, scratchDir)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(filepath.Join(tmp, logFile), path); err != nil {
		return fmt.Errorf("create replica: %w", err)
	}
	return errors.Join(os.RemoveAll(tmp), atomicfile.SyncDir(dir), atomicfile.SyncDir(filepath.Dir(dir)))
}

// Found says whether dir, which may be missing, holds the data of a member, and whether it holds nothing but a log that
// Prepare began.
func Found(dir string) (data, prepared bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, false, nil
	}
	for _, e := range entries {
		data = data || e.Name() != scratchDir
	}
	return data, !data && len(entries) > 0, err
}

// Install makes in dir, which must hold no replica, the data of a cluster whose only member is m and whose
// state is the snapshot (see state.Snapshot) in r. The snapshot is read and checked as a whole. What Install
// made is on disk when it returns; after an error dir is as it was.
func Install(dir string, m Member, r io.Reader) (err error) {
	for _, name := range []string{logFile, snapshotDir, StateFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return errors.Join(fmt.Errorf("install replica: %s holds %s already", dir, name), err)
		}
	}
	tmp := filepath.Join(dir, scratchDir)
	if err := freshDir(tmp); err != nil {
		return fmt.Errorf("install replica: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := fillDir(tmp, m, r); err != nil {
		return fmt.Errorf("install replica: %w", err)
	}
	// The log comes last: snapshots without one are refused by Open.
	if err := os.Rename(filepath.Join(tmp, snapshotDir), filepath.Join(dir, snapshotDir)); err != nil {
		return fmt.Errorf("install replica: %w", err)
	}
	err = errors.Join(os.Rename(filepath.Join(tmp, logFile), filepath.Join(dir, logFile)), atomicfile.SyncDir(dir))
	if err != nil {
		return errors.Join(fmt.Errorf("install replica: %w", err),
			os.RemoveAll(filepath.Join(dir, snapshotDir)), os.RemoveAll(filepath.Join(dir, logFile)))
	}
	return nil
}

// fillDir makes a log without entries and a snapshot of term 1.
func fillDir(dir string, m Member, r io.Reader) error {
	var head bytes.Buffer
	index, err := state.SnapshotIndex(io.TeeReader(r, &head))
	if err != nil {
		return err
	}
	if index == 0 {
		return errors.New("the snapshot is empty")
	}
	snaps, err := openSnapshots(dir, newLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(m.Address))
	sink, err := snaps.Create(raft.SnapshotVersionMax, index, 1, only(m), index, trans)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, io.MultiReader(&head, r)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	if err := tryRestore(snaps, sink.ID(), dir); err != nil {
		return err
	}
	logs, err := openLog(dir)
	if err != nil {
		return err
	}
	err = logs.SetUint64([]byte(keyTerm), 1)
	return errors.Join(err, logs.Close(), atomicfile.SyncDir(filepath.Join(dir, snapshotDir)), atomicfile.SyncDir(dir))
}

// tryRestore checks a snapshot by restoring it into a store that is thrown away.
func tryRestore(snaps raft.SnapshotStore, id, dir string) error {
	_, r, err := snaps.Open(id)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	machine, err := OpenState(dir)
	if err != nil {
		return err
	}
	return errors.Join(machine.Restore(r), machine.Close())
}

func only(m Member) raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)}}}
}

// freshDir makes an empty folder, also where one was left behind.
func freshDir(path string) error {
	return errors.Join(os.RemoveAll(path), os.MkdirAll(path, 0o700))
}

// Holding is how far a member's data goes. Of the members that are left of a cluster, the one with the highest
// Term, and among those the highest Index, has everything that any of them has.
type Holding struct {
	Term  uint64
	Index uint64
	At    time.Time // the newest entry was written by its leader; zero: not known
}

// Inspect returns what the data in dir, which no node may have open, goes up to, and changes nothing of it.
func Inspect(dir string) (h Holding, err error) {
	fail := func(err error) (Holding, error) { return h, fmt.Errorf("inspect replica: %w", err) }
	if err := checkFiles(dir); err != nil {
		return fail(err)
	}
	logs, err := openLog(dir)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	snaps, err := openSnapshots(dir, newLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fail(err)
	}
	list, err := snaps.List()
	if err != nil {
		return fail(err)
	}
	if len(list) > 0 {
		h.Term, h.Index = list[0].Term, list[0].Index
	}
	last, err := logs.LastIndex()
	if err != nil {
		return fail(err)
	}
	if last > h.Index {
		var entry raft.Log
		if err := logs.GetLog(last, &entry); err != nil {
			return fail(err)
		}
		h = Holding{Term: entry.Term, Index: last, At: entry.AppendedAt}
	}
	return h, nil
}

// Recover makes m the only member of the cluster whose data is in dir, for when a majority is lost for good.
// Everything on this member's log counts as committed. m may have another ID than the member had: what the
// old one voted for is void. open opens a state machine of the group's kind in a folder of its own. No node may have dir open. What the lost majority acknowledged and this member
// never received is gone, and members that are left of it must never be started again with their old data.
// Repeating it after an error is safe.
func Recover(dir string, m Member, open func(dir string) (Machine, error)) (err error) {
	fail := func(err error) error { return fmt.Errorf("recover replica: %w", err) }
	if err := checkFiles(dir); err != nil {
		return fail(err)
	}
	tmp := filepath.Join(dir, scratchDir)
	if err := freshDir(tmp); err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	machine, err := open(tmp)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	logs, err := openLog(dir)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	if _, err := recovered(func() (struct{}, error) { return struct{}{}, recoverLog(dir, m, logs, machine) }); err != nil {
		return fail(err)
	}
	return nil
}

// recoverLog turns snapshot and log into one snapshot with the configuration that has only m.
func recoverLog(dir string, m Member, logs *sumLog, machine Machine) error {
	hlog := newLogger(slog.New(slog.DiscardHandler))
	snaps, err := openSnapshots(dir, hlog)
	if err != nil {
		return err
	}
	if _, err := checkTogether(logs, snaps, machine); err != nil {
		return err
	}
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger, conf.NoLegacyTelemetry = raft.ServerID(m.ID), hlog, true
	_, trans := raft.NewInmemTransport(raft.ServerAddress(m.Address))
	replay := &replayFSM{machine: machine}
	defer replay.release()
	if err := raft.RecoverCluster(conf, replay, logs, logs, snaps, trans, only(m)); err != nil {
		return err
	}
	// A vote belongs to its term: in the next one nobody has voted yet.
	term, err := logs.GetUint64([]byte(keyTerm))
	if err != nil {
		return err
	}
	if err := logs.SetUint64([]byte(keyTerm), term+1); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(filepath.Join(dir, snapshotDir)), atomicfile.SyncDir(dir))
}

// replayFSM applies a log to a state machine. Raft's recovery looks at no result of Apply, so that an error shows
// when the snapshot is to be taken.
type replayFSM struct {
	machine Machine
	snap    *fsmSnapshot
	err     error
}

// Apply applies one entry.
func (f *replayFSM) Apply(l *raft.Log) any {
	if f.err == nil {
		_, f.err = f.machine.Apply([]entry.Entry{{Index: l.Index, Term: l.Term, Data: l.Data}})
	}
	return nil
}

// Restore replaces the state by a snapshot's.
func (f *replayFSM) Restore(r io.ReadCloser) error { return f.machine.Restore(r) }

// Snapshot takes the state as it is.
func (f *replayFSM) Snapshot() (raft.FSMSnapshot, error) {
	if f.err != nil {
		return nil, f.err
	}
	snap, err := f.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	f.snap = &fsmSnapshot{snap: snap, log: slog.New(slog.DiscardHandler)}
	return f.snap, nil
}

// release lets the snapshot go, which Raft's recovery does not.
func (f *replayFSM) release() {
	if f.snap != nil {
		f.snap.Release()
	}
}
