package sweep

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
	"gantry/storage/disk"
)

// openDisks opens real disks below an agent's data folder, and sees that nothing stays mounted.
func openDisks(t *testing.T, dir string) (containers, persistent *disk.Pool) {
	t.Helper()
	at, kept := DisksOf(dir)
	containers, err := disk.Open(disk.Config{Dir: at, Mechanism: disk.Loop})
	if err == nil {
		persistent, err = disk.Open(disk.Config{Dir: kept, Mechanism: disk.Loop, Direct: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(containers.Release(context.Background()), persistent.Release(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return containers, persistent
}

func makeDisks(t *testing.T, containers, persistent *disk.Pool, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := containers.Make(t.Context(), name, 1)
		if err != nil {
			t.Fatal(err)
		}
		dir, err := persistent.Keep(t.Context(), name, 1)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "note"), []byte(name), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func wantDisks(t *testing.T, p *disk.Pool, want ...string) {
	t.Helper()
	if got, err := p.Names(); err != nil || !slices.Equal(got, want) {
		t.Errorf("disks %v, %v; want %v", got, err, want)
	}
}

func TestSweepRemovesTheDisksOfUnknownPods(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "known", Goal: fleet.GoalRun})
	disks, persistent := openDisks(t, dir)
	makeDisks(t, disks, persistent, "known", "unknown")
	rt := &containers{err: errors.New("away")}
	d := New(Config{
		Dir: dir, Containers: rt, RemovePod: nothing, Ledger: book, Log: slog.New(slog.DiscardHandler), Disks: Disks{disks, persistent},
	})
	if d.swept(t.Context()) {
		t.Error("swept though a container is left")
	}
	wantDisks(t, disks, "known", "unknown")
	rt.err = nil
	if !d.swept(t.Context()) {
		t.Error("not swept")
	}
	wantDisks(t, disks, "known")
	all, err := d.data().Lost()
	if err != nil || len(all) != 1 || all[0].Pod != "unknown" {
		t.Fatalf("set aside: %+v, %v", all, err)
	}
	if has, err := HasData(dir); !has || err != nil {
		t.Errorf("has data: %v, %v", has, err)
	}
	d.sweptLost(t.Context(), time.Now().Add(30*24*time.Hour))
	wantDisks(t, persistent, "known")
}

func TestCleanLeavesNoMountAndNoLoopDevice(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "stop", Goal: fleet.GoalStop}, pod.Assignment{Pod: "gone", Goal: fleet.GoalGone})
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	made, persistent := openDisks(t, dir)
	makeDisks(t, made, persistent, "gone", "stop", "unknown")
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	for range 2 {
		if err := Clean(t.Context(), dir, &containers{}, control, nil); err != nil {
			t.Fatal(err)
		}
		wantDisks(t, made)
		wantDisks(t, persistent, "stop", "unknown")
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil || bytes.Contains(mounts, []byte(dir)) {
			t.Errorf("mounts are left: %s, %v", mounts, err)
		}
		devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range devices {
			if file, err := os.ReadFile(path); err == nil && bytes.HasPrefix(file, []byte(dir)) {
				t.Errorf("%s is bound to %s", path, file)
			}
		}
	}
	if has, err := HasData(dir); !has || err != nil {
		t.Errorf("has data: %v, %v", has, err)
	}
	if back, err := persistent.Keep(t.Context(), "stop", 1); err != nil {
		t.Error(err)
	} else if b, err := os.ReadFile(filepath.Join(back, "note")); string(b) != "stop" {
		t.Errorf("note %q, %v", b, err)
	}
}

// TestDataIsFoundInItsPlaceAndSetAside.
func TestDataIsFoundInItsPlaceAndSetAside(t *testing.T) {
	dir := t.TempDir()
	has := func(want bool) {
		t.Helper()
		if got, err := HasData(dir); err != nil || got != want {
			t.Errorf("data: %v, %v", got, err)
		}
	}
	has(false)
	makeData(t, dir, "p1")
	has(true)
	loseData(t, dir, time.Now(), "p1")
	has(true)
	all, err := pod.LostData(DataDir(dir))
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	if err := pod.RemoveLost(t.Context(), DataDir(dir), all[0]); err != nil {
		t.Fatal(err)
	}
	has(false)
}
