// Package recovery opens a host's ledger and makes good what was lost with an earlier one: a damaged ledger is set aside, the lineage that
// the host follows is kept beside it, and what runs is adopted into a new one.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/internal/sleep"
	"gantry/netctl"
)

const (
	// LedgerFile is the ledger's name in a data folder.
	LedgerFile  = "ledger.db"
	cleanedFile = "cleaned"
	lineageFile = "lineage"
	// adoptLimit is how long a new ledger waits for a containerd that is away: without its word what runs would be cut
	// from its network.
	adoptLimit = time.Minute
)

// Open opens the ledger of a data folder. A damaged one is set aside, with a new one in its place. The lineage that the
// host follows is none of what is lost with it.
func Open(dir string, log *slog.Logger) (*ledger.Ledger, error) {
	book, err := openOrReplace(filepath.Join(dir, LedgerFile), log)
	if err != nil {
		return nil, err
	}
	if err := recallLineage(dir, book); err != nil {
		return nil, errors.Join(err, book.Close())
	}
	return book, nil
}

func openOrReplace(path string, log *slog.Logger) (*ledger.Ledger, error) {
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

// recallLineage has a ledger know the lineage that the host followed, also where the ledger is another one than then: a control
// plane of a lower lineage is an old copy, whose orders a host must not take because its disk had a fault.
func recallLineage(dir string, book *ledger.Ledger) error {
	text, err := os.ReadFile(filepath.Join(dir, lineageFile))
	if errors.Is(err, fs.ErrNotExist) {
		return NoteLineage(dir, book.Lineage())
	}
	if err != nil {
		return fmt.Errorf("read the lineage that the host followed: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s is damaged: write the lineage of the cluster there, as gantry raft members -o json shows it",
			filepath.Join(dir, lineageFile))
	}
	if n < book.Lineage() { // it ended between the two
		return NoteLineage(dir, book.Lineage())
	}
	return book.SetLineage(n)
}

// NoteLineage writes the lineage that the host follows beside the ledger, durably.
func NoteLineage(dir string, n uint64) error {
	if err := atomicfile.Write(filepath.Join(dir, lineageFile), []byte(strconv.FormatUint(n, 10)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the lineage that the host follows: %w", err)
	}
	return nil
}

// Cleaned returns what tells one cleaning of the host from another; "0" before the first. It is no part of the ledger:
// a boot id that comes back when the ledger is lost looks like a stolen identity.
func Cleaned(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, cleanedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "0", nil
	}
	if err != nil {
		return "", fmt.Errorf("read when the host was cleaned: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// MarkCleaned notes that every container of the host was removed on purpose, which for its pods is the same as a reboot.
func MarkCleaned(dir string) error {
	if err := atomicfile.Write(filepath.Join(dir, cleanedFile), []byte(fleet.NewID()+"\n"), 0o600); err != nil {
		return fmt.Errorf("write that the host was cleaned: %w", err)
	}
	return nil
}

// Containers is the container runtime as recovery needs it.
type Containers interface {
	// List returns the pods of which the runtime has anything.
	List(ctx context.Context) ([]fleet.PodID, error)
	// Look is that of pod.Runtime.
	Look(ctx context.Context, id fleet.PodID) (pod.Container, error)
}

// Adopt writes what runs into a ledger that was made just now, so that it goes on where an earlier one was lost: with its address, ports
// and GPUs, and without a second start. It waits for a containerd that is away.
func Adopt(ctx context.Context, book *ledger.Ledger, rt Containers, boot string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, adoptLimit)
	defer cancel()
	for {
		err := AdoptOnce(ctx, book, rt, boot, log)
		if err == nil {
			return nil
		}
		log.Warn("the ledger is new and the container runtime cannot list containers", "err", err)
		if sleep.For(ctx, time.Second) != nil {
			return fmt.Errorf("the ledger is new, and the container runtime does not say what runs: %w", err)
		}
	}
}

// AdoptOnce is Adopt without waiting. A ledger that was used before has a subnet and is left as it is.
func AdoptOnce(ctx context.Context, book *ledger.Ledger, rt Containers, boot string, log *slog.Logger) error {
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
			log.Warn("container not adopted into the new ledger", "pod", id, "err", err)
			continue
		}
		if err := book.Adopt(rec); err != nil {
			return err
		}
		log.Info("container adopted into the new ledger", "pod", id, "incarnation", c.Incarnation)
		subnet = netctl.SubnetOf(rec.Addr)
	}
	if !subnet.IsValid() {
		return nil
	}
	return book.SetSubnet(subnet) // last: from here on the ledger is none that was lost
}
