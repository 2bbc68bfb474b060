package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gantry/agent/ledger"
	"gantry/netctl"
)

// Clean removes every container, namespace, link and rule of the agent whose data folder is dir.
// The ledger stays and remembers: pods that ran are started again, as new incarnations, when the
// agent runs next. It fails while an agent runs on the folder.
func Clean(ctx context.Context, dir string, rt Containers, network netctl.Controller) error {
	path := filepath.Join(dir, "ledger.db")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return errors.Join(rt.Clean(ctx, false), network.Clean(ctx))
	}
	book, err := ledger.Open(path)
	if err != nil {
		return err
	}
	// The note comes first: if this ends half-way, pods whose container is left are still found
	// running, and the others count as rebooted.
	err = book.MarkCleaned()
	if err == nil {
		err = errors.Join(rt.Clean(ctx, false), network.Clean(ctx))
	}
	if closeErr := book.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("close ledger: %w", closeErr)
	}
	return err
}
