package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/backup"
	"gantry/scheduler/entry"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// markRestore is the file that a folder holds while a restore fills it.
const (
	markRestore   = "restore-unfinished"
	scratchFolder = "restore.tmp"
)

type restoreCmd struct {
	File           string `arg:"" type:"path" help:"File of gantry snapshot save."`
	DataDir        string `required:"" type:"path" help:"Folder for the data; it must be empty." placeholder:"DIR"`
	SealKey        string `required:"" type:"path" help:"The cluster's seal key: seal.key of any scheduler's data folder. It is not in the snapshot." placeholder:"FILE"`
	Address        string `required:"" help:"Address under which hosts and other schedulers will reach this one's link port." placeholder:"HOST:PORT"`
	Name           string `help:"Name of this scheduler, for people; by default the machine's."`
	IdentityFile   string `type:"path" help:"File with the age identity that opens the snapshot." placeholder:"FILE"`
	PassphraseFile string `type:"path" help:"File whose first line is the passphrase that opens the snapshot." placeholder:"FILE"`
}

// Run makes a cluster of one scheduler from the snapshot. Everything is checked before the folder counts as
// made; until then it can be tried again.
func (c *restoreCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	if !membership.ValidAddress(c.Address) {
		return errAddress
	}
	newest, err := programLevel()
	if err != nil {
		return err
	}
	sealer, err := pki.LoadSealer(c.SealKey)
	if err != nil {
		return err
	}
	file, err := os.Open(c.File)
	if err != nil {
		return fmt.Errorf("open the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lock, err := c.prepare()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.clear()
		}
		err = errors.Join(err, lock.Close())
	}()
	now := time.Now()
	first := fleet.Member{
		ID: fleet.MemberID(fleet.NewID()), Name: hostName(c.Name), Address: c.Address, Level: newest, Version: version, JoinedAt: now,
	}
	cluster, err := c.fill(file, sealer, first, now)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := c.settle(ctx, sealer, cluster, first, now); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	log.Info("restored: start this scheduler with run", "id", first.ID, "cluster", cluster.ID, "lineage", cluster.Lineage)
	return nil
}

// clear removes what a try that failed made. What it cannot remove the mark tells of: run refuses it, and the next
// try clears it.
func (c *restoreCmd) clear() {
	entries, err := os.ReadDir(c.DataDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() != markRestore && e.Name() != lockFile && os.RemoveAll(filepath.Join(c.DataDir, e.Name())) != nil {
			return
		}
	}
	if removeMark(filepath.Join(c.DataDir, markRestore)) == nil {
		_ = os.Remove(filepath.Join(c.DataDir, lockFile)) // its lock is still held
	}
}

// prepare empties what an earlier try left and refuses a folder with anything else.
func (c *restoreCmd) prepare() (*os.File, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	mark := filepath.Join(c.DataDir, markRestore)
	_, err = os.Stat(mark)
	unfinished := err == nil
	for _, e := range entries {
		if !unfinished && e.Name() != lockFile {
			return nil, fmt.Errorf("%s is not empty: a snapshot is restored into an empty folder", c.DataDir)
		}
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() != lockFile && e.Name() != markRestore {
			err = errors.Join(err, os.RemoveAll(filepath.Join(c.DataDir, e.Name())))
		}
	}
	err = errors.Join(err, atomicfile.Write(mark, nil, 0o600), makeFolders(c.DataDir))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// fill makes the replica's data: the snapshot with the command that makes it a cluster of its own.
func (c *restoreCmd) fill(file io.Reader, sealer *pki.Sealer, first fleet.Member, now time.Time) (cluster state.Cluster, err error) {
	in, err := backup.Open(file, backup.Keys{IdentityFile: c.IdentityFile, PassphraseFile: c.PassphraseFile})
	if err != nil {
		return cluster, err
	}
	scratch := filepath.Join(c.DataDir, scratchFolder)
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return cluster, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	store, err := state.Open(filepath.Join(scratch, replica.StateFile), state.Options{Level: first.Level})
	if err != nil {
		return cluster, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Restore(in); err != nil {
		return cluster, err
	}
	// The state has a sum of its own; this one is over what is around it, too.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return cluster, err
	}
	cluster, err = clusterOf(store)
	if err != nil {
		return cluster, err
	}
	if _, err := scheduler.OpenCA(sealer, cluster); err != nil {
		return cluster, fmt.Errorf("the seal key does not fit the snapshot: %w", err)
	}
	if err := apply(store, newLineage(cluster, first, in.Header.SavedAt, now)); err != nil {
		return cluster, err
	}
	if cluster, err = clusterOf(store); err != nil {
		return cluster, err
	}
	return cluster, c.install(store, first)
}

// newLineage is the command that makes a copy a cluster of its own.
func newLineage(old state.Cluster, first fleet.Member, copied, now time.Time) state.RestoreCluster {
	lineage := old.Lineage + 1
	if seconds := now.Unix(); seconds > 0 {
		lineage = max(lineage, uint64(seconds))
	}
	return state.RestoreCluster{ID: fleet.NewID(), Lineage: lineage, Member: first, SnapshotAt: copied, At: now}
}

// apply puts one command on top of a restored state.
func apply(store *state.Store, cmd state.Command) error {
	data, err := state.Encode(cmd)
	if err != nil {
		return err
	}
	results, err := store.Apply([]entry.Entry{{Index: store.Index() + 1, Term: 1, Data: data}})
	if err != nil {
		return err
	}
	return results[0][0].Err
}

// install hands the state to the replica that will run.
func (c *restoreCmd) install(store *state.Store, first fleet.Member) (err error) {
	snap, err := store.Snapshot()
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends when the reader does
		_, err := snap.WriteTo(w)
		done <- errors.Join(err, w.CloseWithError(err))
	}()
	err = replica.Install(filepath.Join(c.DataDir, raftFolder), replica.Member{ID: string(first.ID), Address: first.Address}, r)
	_ = r.CloseWithError(errors.New("nobody reads on"))
	written := <-done
	if err == nil {
		err = written
	}
	return errors.Join(err, snap.Release())
}

// settle writes the rest of the folder; the mark of the unfinished restore goes last.
func (c *restoreCmd) settle(ctx context.Context, sealer *pki.Sealer, cluster state.Cluster, first fleet.Member, now time.Time) error {
	if err := pki.WriteSealKeyFile(filepath.Join(c.DataDir, sealFile), sealer.KeyText()); err != nil {
		return err
	}
	if err := errors.Join(writeAddress(c.DataDir, first.Address), writeNodeID(c.DataDir, string(first.ID))); err != nil {
		return err
	}
	if err := createJobs(ctx, c.DataDir, &replica.Member{ID: string(first.ID), Address: first.Address}); err != nil {
		return err
	}
	if err := enroll(c.DataDir, sealer, cluster, string(first.ID), now); err != nil {
		return err
	}
	return removeMark(filepath.Join(c.DataDir, markRestore))
}

// removeMark removes the file that keeps run from a folder, for good: after a power cut it must not be back.
func removeMark(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

func clusterOf(store *state.Store) (cluster state.Cluster, err error) {
	err = store.View(func(v *state.View) error {
		var ok bool
		if cluster, ok = v.Cluster(); !ok {
			return errors.New("the state holds no cluster")
		}
		return nil
	})
	return cluster, err
}
