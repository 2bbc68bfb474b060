package recovery

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// running is a container runtime that may be away for some calls.
type running struct {
	pods  []fleet.PodID
	looks map[fleet.PodID]pod.Container
	away  int // so many calls fail
	asked int
	fault error // of Look
}

func (r *running) List(context.Context) ([]fleet.PodID, error) {
	if r.asked++; r.asked <= r.away {
		return nil, errors.New("away")
	}
	return r.pods, nil
}

func (r *running) Look(_ context.Context, id fleet.PodID) (pod.Container, error) {
	return r.looks[id], r.fault
}

func kept(addr string) string {
	return `{"account":"a","addr":"` + addr + `","held":{"gpus":["GPU-1"]}}`
}

// TestWhatRunsIsAdoptedIntoANewLedger once containerd answers, each container with what goes with it. One that has nothing with it, or
// what cannot be read, is left to the sweep.
func TestWhatRunsIsAdoptedIntoANewLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := ledgertest.Open(t, t.TempDir())
		r := &running{away: 3, pods: []fleet.PodID{"runs", "gone", "old", "broken", "stopped"}, looks: map[fleet.PodID]pod.Container{
			"runs":    {Exists: true, Task: pod.TaskRunning, Incarnation: 4, Kept: kept("10.88.16.5")},
			"gone":    {Exists: false, Kept: kept("10.88.16.6")},
			"old":     {Exists: true, Task: pod.TaskRunning, Incarnation: 1},
			"broken":  {Exists: true, Task: pod.TaskRunning, Incarnation: 1, Kept: "{"},
			"stopped": {Exists: true, Task: pod.TaskStopped, Incarnation: 2, Kept: kept("10.88.16.7")},
		}}
		began := time.Now()
		if err := Adopt(t.Context(), book, r, "boot", slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := len(book.Records()); n != 2 {
			t.Errorf("%d are adopted", n)
		}
		for id, incarnation := range map[fleet.PodID]uint64{"runs": 4, "stopped": 2} {
			rec, known := book.Record(id)
			if !known || rec.Begun != incarnation || rec.BegunBoot != "boot" || rec.Held == nil || len(rec.Held.GPUs) != 1 || rec.Assignment.Account != "a" {
				t.Errorf("%s: %+v", id, rec)
			}
		}
		if got := book.Subnet(); got != netip.MustParsePrefix("10.88.16.0/20") {
			t.Errorf("the subnet is %s", got)
		}
		// A ledger that was used before is left as it is.
		asked := r.asked
		r.pods, r.looks["more"] = append(r.pods, "more"), pod.Container{Exists: true, Task: pod.TaskRunning, Incarnation: 1, Kept: kept("10.88.16.8")}
		if err := Adopt(t.Context(), book, r, "boot", slog.New(slog.DiscardHandler)); err != nil || r.asked != asked || len(book.Records()) != 2 {
			t.Errorf("the second time: %v, asked %d times more, %d records", err, r.asked-asked, len(book.Records()))
		}
	})
}

// TestANewLedgerWaitsForAMinute for a containerd that is away: an agent that goes on would cut what runs from its network.
func TestANewLedgerWaitsForAMinute(t *testing.T) {
	for what, r := range map[string]*running{
		"it does not list":            {away: 1 << 30},
		"it does not say what one is": {pods: []fleet.PodID{"p"}, fault: errors.New("away")},
	} {
		synctest.Test(t, func(t *testing.T) {
			book := ledgertest.Open(t, t.TempDir())
			began := time.Now()
			err := Adopt(t.Context(), book, r, "boot", slog.New(slog.DiscardHandler))
			if took := time.Since(began); err == nil || took != adoptLimit {
				t.Errorf("%s: after %s: %v", what, took, err)
			}
			if book.Subnet().IsValid() || len(book.Records()) != 0 {
				t.Errorf("%s: the ledger is one that was used", what)
			}
			if r.asked > 61 {
				t.Errorf("%s: it was asked %d times", what, r.asked)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the agent ends
			if err := Adopt(ctx, book, r, "boot", slog.New(slog.DiscardHandler)); err == nil {
				t.Errorf("%s: no error of an agent that ends", what)
			}
		})
	}
}

// TestAHostWithoutContainersIsNew: its subnet is yet to be chosen.
func TestAHostWithoutContainersIsNew(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	if err := AdoptOnce(t.Context(), book, &running{}, "boot", slog.New(slog.DiscardHandler)); err != nil || book.Subnet().IsValid() {
		t.Errorf("%v, the subnet is %s", err, book.Subnet())
	}
}

func TestEachCleaningIsAnother(t *testing.T) {
	dir := t.TempDir()
	seen := map[string]bool{}
	for i := range 3 {
		id, err := Cleaned(dir)
		if err != nil || id == "" || seen[id] || (i == 0) != (id == "0") || strings.TrimSpace(id) != id {
			t.Errorf("cleaned %d times: %q, %v", i, id, err)
		}
		if again, err := Cleaned(dir); err != nil || again != id {
			t.Errorf("the same cleaning is %q and %q: %v", id, again, err)
		}
		seen[id] = true
		if err := MarkCleaned(dir); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, cleanedFile)
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	if id, err := Cleaned(dir); err == nil {
		t.Errorf("what cannot be read is %q", id) // as "0", the boot would be one that is past
	}
	if err := MarkCleaned(filepath.Join(dir, "none")); err == nil {
		t.Error("a note that was not written is none")
	}
}

// TestADamagedLedgerIsSetAside whole, for who looks into it.
func TestADamagedLedgerIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, LedgerFile)
	if err := os.WriteFile(path, []byte("no ledger"), 0o600); err != nil {
		t.Fatal(err)
	}
	book, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = book.Close() }()
	aside, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("%v, %v", aside, err)
	}
	if text, err := os.ReadFile(aside[0]); err != nil || string(text) != "no ledger" {
		t.Errorf("%q, %v", text, err)
	}
	lineage := filepath.Join(dir, lineageFile)
	if err := errors.Join(os.Remove(lineage), os.Mkdir(lineage, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := NoteLineage(dir, 5); err == nil {
		t.Error("a lineage that was not written down is none")
	}
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a lineage that cannot be read is taken for none")
	}
}
