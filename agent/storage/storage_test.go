package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

// shelf is storage in memory that takes its time.
type shelf struct {
	mu     sync.Mutex
	did    []string
	fail   map[string]error // by what was called
	takes  map[string]time.Duration
	at     map[string]int // calls that run now
	most   int            // calls of one kind and backend that ran at once
	budget time.Duration  // of the newest call's context
	fresh  bool           // what the newest call was told
	used   int64          // of every volume
}

func newShelf() *shelf {
	return &shelf{fail: map[string]error{}, takes: map[string]time.Duration{}, at: map[string]int{}, used: 7}
}

func (s *shelf) call(ctx context.Context, kind string, root Root, what string) error {
	s.mu.Lock()
	place := kind + " " + string(root.Backend.ID)
	s.at[place]++
	s.fresh = root.Fresh
	s.most = max(s.most, s.at[place])
	if deadline, ok := ctx.Deadline(); ok {
		s.budget = time.Until(deadline)
	}
	took, err := s.takes[kind], s.fail[kind+" "+what]
	s.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[place]--
	said := fmt.Sprintf("%s %s %s", kind, root.Backend.ID, what)
	if err != nil {
		said += " failed"
	}
	s.did = append(s.did, said)
	return err
}

func (s *shelf) Restore(ctx context.Context, root Root) error {
	return s.call(ctx, "restore", root, root.OwnDir)
}

func (s *shelf) Make(ctx context.Context, root Root, v Volume) error {
	return s.call(ctx, workMake, root, fmt.Sprintf("%s/%d", v.ID, v.SizeGB))
}

func (s *shelf) Remove(ctx context.Context, root Root, v Volume) error {
	return s.call(ctx, workRemove, root, string(v.ID))
}

func (s *shelf) Used(ctx context.Context, root Root, v Volume) (int64, error) {
	err := s.call(ctx, workMeasure, root, string(v.ID))
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, err
}

func (s *shelf) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// done returns what was done since it was asked last.
func (s *shelf) done() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.did
	s.did = nil
	return out
}

const someDir = "abcdefghijklmnopqrstuvwxyz"

func work(id string, gb int64) *agentrpc.StorageVolume {
	return &agentrpc.StorageVolume{VolumeId: id, Dir: someDir, IdBase: fleet.VolumeIDsFirst, SizeGb: gb}
}

func rootOf(id, own string, volumes ...*agentrpc.StorageVolume) *agentrpc.StorageRoot {
	return &agentrpc.StorageRoot{Backend: &agentrpc.VolumeBackend{Id: id, Kind: "local", Path: "/srv/" + id}, OwnDir: own, Volumes: volumes}
}

// storageLife runs the work on volumes in virtual time; stop ends it as the agent does.
func storageLife(t *testing.T, does Provisioner, file string) (s *Role, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	s = New(ctx, Config{Does: does, File: file, Count: func(string, bool) {}, Wake: func() {}, Log: slog.New(slog.DiscardHandler)})
	stop = func() { cancel(); s.Wait() }
	t.Cleanup(stop)
	s.Begin()
	return s, stop
}

func wantDone(t *testing.T, s *shelf, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.done()); diff != "" {
		t.Errorf("done (-want +got):\n%s", diff)
	}
}

func wantTold(t *testing.T, s *Role, want ...*agentrpc.StorageReport) {
	t.Helper()
	if diff := cmp.Diff(want, s.unsent().GetVolumes(), protocmp.Transform()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestStorageWorkIsDoneOnceAndToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, _ := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", work("v1", 10))}})
		synctest.Wait()
		wantDone(t, shelf, "make a v1/10")
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", ProvisionedGb: 10})
		wantTold(t, s)
		// The scheduler that leads now has not heard it.
		s.Begin()
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", ProvisionedGb: 10})
		gone := &agentrpc.StorageVolume{VolumeId: "v2", Dir: someDir, IdBase: fleet.VolumeIDsFirst, Gone: true}
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", work("v1", 20), gone)}})
		synctest.Wait()
		got := shelf.done()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"make a v1/20", "remove a v2"}, got); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", ProvisionedGb: 20}, &agentrpc.StorageReport{VolumeId: "v2", Gone: true})
		s.Set(&agentrpc.StorageSet{})
		if wantTold(t, s); len(s.backends) != 0 {
			t.Errorf("there is work left: %v", s.backends)
		}
		s.Wait() // nobody works any more, though the agent goes on
		wantDone(t, shelf)
	})
}

func TestStorageWorkIsTriedUntilItIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		shelf.fail["make v1/10"] = &volume.Error{Sentence: "the file system is full", Err: errors.New("ENOSPC")}
		shelf.fail["make v2/10"] = errors.New("open /secret/place: no such file")
		s, _ := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", work("v1", 10)), rootOf("b", "", work("v2", 10))}})
		synctest.Wait()
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", Problem: "the file system is full"},
			&agentrpc.StorageReport{VolumeId: "v2", Problem: "the volume's storage could not be made yet; its storage host tries again"})
		time.Sleep(time.Hour)
		if n := len(shelf.done()); n < 100 || n > 2*70 {
			t.Errorf("two were tried %d times in an hour", n)
		}
		wantTold(t, s) // the same trouble is told once
		shelf.set(func() { clear(shelf.fail) })
		time.Sleep(workAgainMost + time.Second)
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", ProvisionedGb: 10}, &agentrpc.StorageReport{VolumeId: "v2", ProvisionedGb: 10})
	})
}

// TestBackendsAreWorkedOnBesideEachOther: one volume of a backend after the other, and nobody waits for a removal.
func TestBackendsAreWorkedOnBesideEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		shelf.takes[workMake], shelf.takes[workRemove] = time.Second, 24*time.Hour
		s, stop := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		gone := &agentrpc.StorageVolume{VolumeId: "v0", Dir: someDir, IdBase: fleet.VolumeIDsFirst, Gone: true}
		var roots []*agentrpc.StorageRoot
		for _, b := range []string{"a", "b"} {
			roots = append(roots, rootOf(b, "", gone, work(b+"1", 10), work(b+"2", 10), work(b+"3", 10)))
		}
		s.Set(&agentrpc.StorageSet{Roots: roots})
		time.Sleep(3*time.Second + time.Millisecond)
		got := shelf.done()
		shelf.set(func() {
			if len(got) != 6 || shelf.most != 1 {
				t.Errorf("in 3 s: %q, %d at once", got, shelf.most)
			}
			if shelf.budget <= 0 || shelf.budget > removeLimit {
				t.Errorf("a call has %v", shelf.budget)
			}
		})
		time.Sleep(removeLimit) // its part of the work ends, and goes on
		if got = shelf.done(); !slices.Contains(got, "remove a v0 failed") {
			t.Errorf("the removal: %q", got)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the agent's end waited %v", took)
		}
	})
}

func TestVolumesAreMeasuredAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, _ := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		v := work("v1", 10)
		v.Measure = true
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", v)}})
		synctest.Wait()
		wantDone(t, shelf, "make a v1/10", "measure a v1")
		wantTold(t, s, &agentrpc.StorageReport{VolumeId: "v1", ProvisionedGb: 10, UsedBytes: 7, Measured: true})
		time.Sleep(measureEvery + time.Second)
		wantDone(t, shelf, "measure a v1")
		shelf.set(func() { shelf.takes[workMeasure] = 30 * time.Second })
		time.Sleep(measureEvery + 30*time.Second)
		wantDone(t, shelf, "measure a v1")
		time.Sleep(200 * time.Second)
		wantDone(t, shelf) // it takes at most a tenth of the time
		time.Sleep(200 * time.Second)
		wantDone(t, shelf, "measure a v1")
		s.Next() // what was told is told
		// One that is too large to be seen to its end holds at least what was seen, and all is tried at once when a backend is back.
		shelf.set(func() {
			shelf.used, shelf.fail["measure v1"], shelf.takes = 9, context.DeadlineExceeded, map[string]time.Duration{}
		})
		time.Sleep(400 * time.Second)
		wantTold(t, s, &agentrpc.StorageReport{
			VolumeId: "v1", ProvisionedGb: 10, UsedBytes: 9, Measured: true, Problem: "what the volume holds could not be measured; its storage host tries again",
		})
		shelf.done()
		s.Again()
		synctest.Wait()
		wantDone(t, shelf, "measure a v1 failed")
	})
}

// TestFoldersOfThisHostAreRestored: before a scheduler is heard, and without anything secret on the disk.
func TestFoldersOfThisHostAreRestored(t *testing.T) {
	file := filepath.Join(t.TempDir(), "storage.json")
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, stop := storageLife(t, shelf, file)
		root := rootOf("a", "/export", work("v1", 10))
		root.Backend.Key, root.Fresh = "AQB-secret", true
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{root, rootOf("b", "")}})
		synctest.Wait()
		wantDone(t, shelf, "make a v1/10")
		if !shelf.fresh {
			t.Error("the first volume of a backend is not known to be that")
		}
		root.Volumes = append(root.Volumes, work("v2", 10))
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{root, rootOf("b", "")}}) // of before it was heard of the first
		synctest.Wait()
		wantDone(t, shelf, "restore a /export", "make a v2/10")
		if shelf.fresh {
			t.Error("the marker may be written again")
		}
		stop()
		if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "secret") {
			t.Errorf("%s, %v", text, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		shelf.fail["restore /export"] = errors.New("busy")
		s, _ := storageLife(t, shelf, file)
		ended := make(chan struct{})
		go func() { s.Restore(t.Context()); close(ended) }()
		synctest.Wait()
		wantDone(t, shelf, "restore a /export failed")
		shelf.set(func() { clear(shelf.fail) })
		<-ended
		wantDone(t, shelf, "restore a /export")
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "/export", work("v1", 10))}})
		synctest.Wait()
		if shelf.fresh {
			t.Error("the marker may be written again")
		}
	})
}

// TestARoleThatWasTakenAwayEndsTheWork: the scheduler of the next session says nothing of storage.
func TestARoleThatWasTakenAwayEndsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		shelf.fail["make v1/10"] = errors.New("full")
		s, _ := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		set := &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", work("v1", 10))}}
		s.Set(set)
		s.ended()
		time.Sleep(time.Hour)
		if len(shelf.done()) < 50 {
			t.Error("without a session nothing is tried")
		}
		s.Begin()
		s.Set(set)
		time.Sleep(2 * setWithin)
		shelf.done()
		time.Sleep(time.Hour)
		if len(shelf.done()) < 50 {
			t.Error("the set of a session that stands does not count")
		}
		s.ended()
		s.Begin()
		time.Sleep(2 * setWithin)
		shelf.done()
		time.Sleep(time.Hour)
		wantDone(t, shelf)
	})
}

func TestStorageWorkThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := newShelf()
		s, _ := storageLife(t, shelf, filepath.Join(t.TempDir(), "storage.json"))
		bad := []*agentrpc.StorageVolume{nil, work("", 10), work("v1", 0), work("v2", 10), work("v3", 10)}
		bad[3].Dir, bad[4].IdBase = "../up", 0
		s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{
			nil, rootOf("a", "", bad...), rootOf("../b", "", work("v4", 10)), rootOf("c", "export", work("v5", 10)), rootOf("d", "", work("good", 10)),
		}})
		synctest.Wait()
		wantDone(t, shelf, "make d good/10")
	})
	s := New(t.Context(), Config{File: filepath.Join(t.TempDir(), "storage.json"), Wake: func() {}, Log: slog.New(slog.DiscardHandler)})
	s.Set(&agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{rootOf("a", "", work("v1", 10))}})
	if s.unsent() != nil || len(s.backends) != 0 {
		t.Error("a host that makes no volumes has work")
	}
}
