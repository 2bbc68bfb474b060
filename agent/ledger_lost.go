package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/netctl"
)

const (
	ledgerFile  = "ledger.db"
	cleanedFile = "cleaned"
	// adoptLimit is how long a new ledger waits for a containerd that is away: without its word what runs would be cut
	// from its network.
	adoptLimit = time.Minute
)

// openLedger opens the ledger of a data folder. A damaged one is set aside, with a new one in its place.
func openLedger(dir string, log *slog.Logger) (*ledger.Ledger, error) {
	path := filepath.Join(dir, ledgerFile)
	book, err := ledger.Open(path)
	if !errors.Is(err, ledger.ErrDamaged) {
		return book, err
	}
	aside := fmt.Sprintf("%s.damaged-%d", path, time.Now().Unix())
	log.Error("the ledger is damaged: it is set aside, and made again from what runs and from what the schedulers say; "+
		"look after the disk of this host", "ledger", path, "aside", aside, "err", err)
	if err := os.Rename(path, aside); err != nil {
		return nil, fmt.Errorf("set the damaged ledger aside: %w", err)
	}
	return ledger.Open(path)
}

// readCleaned returns what tells one cleaning of the host from another; "0" before the first. It is no part of the ledger:
// a boot id that comes back when the ledger is lost looks like a stolen identity.
func readCleaned(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, cleanedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "0", nil
	}
	if err != nil {
		return "", fmt.Errorf("read when the host was cleaned: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// markCleaned notes that every container of the host was removed on purpose, which for its pods is the same as a reboot.
func markCleaned(dir string) error {
	if err := pki.WriteFile(filepath.Join(dir, cleanedFile), []byte(fleet.NewID()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write that the host was cleaned: %w", err)
	}
	return nil
}

// adopt writes what runs into a ledger that was made just now, so that it goes on where an earlier one was lost: with its
// address, ports and GPUs, and without a second start.
func (d *daemon) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	for {
		err := adoptInto(ctx, d.book, d.Containers, d.boot, d.Log)
		if err == nil {
			return nil
		}
		d.Log.Warn("the ledger is new, and the container runtime does not say what runs", "err", err)
		if pause(ctx, time.Second) != nil {
			return fmt.Errorf("the ledger is new, and the container runtime does not say what runs: %w", err)
		}
	}
}

// adoptInto does it once. A ledger that was used before has a subnet and is left as it is.
func adoptInto(ctx context.Context, book *ledger.Ledger, rt Containers, boot string, log *slog.Logger) error {
	if book.Subnet().IsValid() {
		return nil
	}
	ids, err := rt.List(ctx)
	if err != nil {
		return err
	}
	var subnet netip.Prefix
	for _, id := range ids {
		c, err := rt.Look(ctx, id)
		if err != nil {
			return err
		}
		if !c.Exists || c.Kept == "" {
			continue
		}
		rec, err := pod.Adopted(id, c, boot)
		if err != nil {
			log.Warn("a container is not taken into the new ledger", "pod", id, "err", err)
			continue
		}
		if err := book.Adopt(rec); err != nil {
			return err
		}
		log.Info("a container is taken into the new ledger", "pod", id, "incarnation", c.Incarnation)
		subnet = netctl.SubnetOf(rec.Addr)
	}
	if !subnet.IsValid() {
		return nil
	}
	return book.SetSubnet(subnet) // last: from here on the ledger is none that was lost
}
