package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/agent/recovery"
	"gantry/agent/storage"
	"gantry/fleet"
	"gantry/netctl"
)

// Results is the folder, below the agent's, of results of jobs that no scheduler has committed.
const Results = "results"

// Cleanable is the container runtime as Clean needs it.
type Cleanable interface {
	recovery.Containers
	// Clean removes every container of the agent and what belongs to them, and with images also those.
	Clean(ctx context.Context, images bool) error
}

// Cleaner takes away what it has mounted.
type Cleaner interface {
	Clean(ctx context.Context) error
}

// cleanVolumes lets go of all network volumes, after all containers.
func cleanVolumes(ctx context.Context, dir string, volumes Cleaner) error {
	if volumes == nil {
		return nil
	}
	err := volumes.Clean(ctx)
	if err != nil {
		err = fmt.Errorf("unmount network volumes: %w", err)
	}
	return errors.Join(err, storage.Clean(ctx, dir))
}

// Clean removes every container, namespace, link and rule of the agent whose data folder is dir, and the disks of
// containers, and unmounts the others and network volumes (nil: there are none).
// The ledger stays and remembers: pods that ran are started again, as new incarnations, when the
// agent runs next, and find their persistent data. Data of pods that a scheduler ordered to go goes
// too, as do results of jobs that no scheduler has committed: these jobs are given out again. It fails while an agent runs on the folder.
func Clean(ctx context.Context, dir string, rt Cleanable, network netctl.Controller, volumes Cleaner) error {
	path := filepath.Join(dir, recovery.LedgerFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return errors.Join(rt.Clean(ctx, false), network.Clean(ctx), cleanVolumes(ctx, dir, volumes), cleanDisks(ctx, dir))
	}
	book, err := recovery.Open(dir, slog.Default())
	if err != nil {
		return err
	}
	// The note comes first: if this ends half-way, pods whose container is left are still found
	// running, and the others count as rebooted.
	err = errors.Join(recovery.AdoptOnce(ctx, book, rt, "", slog.Default()), recovery.MarkCleaned(dir))
	if err == nil {
		err = errors.Join(rt.Clean(ctx, false), network.Clean(ctx))
	}
	if err == nil {
		err = errors.Join(cleanVolumes(ctx, dir, volumes), cleanDisks(ctx, dir))
	}
	if err == nil {
		err = errors.Join(cleanData(ctx, dir, book), os.RemoveAll(filepath.Join(dir, Results)))
	}
	if closeErr := book.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close ledger: %w", closeErr)
	}
	return err
}

// CleanLost removes the persistent data below dir that was set aside, but none of a pod that a scheduler
// listed last. It fails while an agent runs on the folder.
func CleanLost(ctx context.Context, dir string) error {
	book, err := ledger.Open(filepath.Join(dir, recovery.LedgerFile))
	if err != nil {
		return err
	}
	data, err := foundData(dir)
	var all []pod.Lost
	if err == nil {
		all, err = data.Lost()
	}
	for _, l := range all {
		if rec, known := book.Record(l.Pod); !mayReturn(rec, known) {
			err = errors.Join(err, data.RemoveLost(ctx, l))
		}
	}
	if closeErr := book.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close ledger: %w", closeErr)
	}
	return err
}

// cleanData removes persistent data that nobody will ask for, after all containers. What a scheduler did
// not order to go is left to the next agent, which sets it aside once a scheduler was heard: the ledger
// itself may be new.
func cleanData(ctx context.Context, dir string, book *ledger.Ledger) error {
	data, err := foundData(dir)
	if err != nil {
		return err
	}
	ids, err := data.Pods()
	if err != nil {
		return err
	}
	for _, id := range ids {
		rec, _ := book.Record(id)
		if !rec.Orphan && rec.Assignment.Goal == fleet.GoalGone {
			err = errors.Join(err, data.Remove(ctx, id))
		}
	}
	return err
}
