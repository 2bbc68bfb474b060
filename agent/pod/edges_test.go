package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// TestDataIsSetAsideUnderANameOfItsOwn, also twice within a second, and comes back only to an empty place.
func TestDataIsSetAsideUnderANameOfItsOwn(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0)
	if path, err := SetAside(t.Context(), dir, "p", now); path != "" || err != nil {
		t.Fatalf("no data was set aside to %q: %v", path, err)
	}
	make1 := func(content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "p"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "p", "file"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, content := range []string{"one", "two", "three"} {
		make1(content)
		path, err := SetAside(t.Context(), dir, "p", now)
		got, read := os.ReadFile(filepath.Join(path, "file"))
		if err != nil || read != nil || string(got) != content || seen[path] {
			t.Fatalf("%q has %q: %v, %v", path, got, err, read)
		}
		seen[path] = true
	}
	make1("new")
	if err := bringBack(dir, "p"); err != nil {
		t.Fatalf("the place is taken: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "p", "file")); err != nil || string(got) != "new" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "p")); err != nil {
		t.Fatal(err)
	}
	if err := bringBack(dir, "p"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "p", "file")); err != nil || string(got) != "three" {
		t.Fatalf("the newest is %q, %v", got, err)
	}
	if err := bringBack(dir, "another"); err != nil {
		t.Fatalf("nothing to bring back: %v", err)
	}
}

// TestDataThatCannotBeSetAsideIsNoMissingData: an error that is not about its absence is told.
func TestDataThatCannotBeSetAsideIsNoMissingData(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, lost), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := SetAside(context.Background(), dir, "p", time.Unix(1, 0)); err == nil || !strings.Contains(err.Error(), "set the pod's persistent data aside") {
		t.Errorf("%q, %v", path, err)
	}
}

func TestOnlyAMissingPinnedImageIsExplained(t *testing.T) {
	gone := &Error{Class: Retry, Sentence: "not found", Err: ErrNotInRegistry}
	pinned := Assignment{Image: "busybox", Digest: "sha256:1"}
	if err := pinLost(gone, pinned); !strings.Contains(err.Error(), "sha256:1") && !strings.Contains(sentenceOfError(err), "sha256:1") {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		err  error
		want Assignment
	}{{gone, Assignment{Image: "busybox"}}, {ErrNotInRegistry, pinned}, {&Error{Class: Retry, Sentence: "no network"}, pinned}} {
		if err := pinLost(c.err, c.want); !errors.Is(err, c.err) || strings.Contains(sentenceOfError(err), "no longer has") {
			t.Errorf("%v became %v", c.err, err)
		}
	}
}

// sentenceOfError is what the owner reads of an error.
func sentenceOfError(err error) string {
	if e := new(Error); errors.As(err, &e) {
		return e.Sentence
	}
	return ""
}

// TestWhatRunsIsLeftAlone: the host is not asked again and again for a pod whose process runs.
func TestWhatRunsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Minute)
		looks := f.asked["look"]
		if settle(time.Hour); !f.runs("p1") || f.asked["look"] != looks {
			t.Errorf("it was looked at %d times in an hour", f.asked["look"]-looks)
		}
	})
}

// TestNothingBeginsBeforeTheLastEndIsWritten: an incarnation that is gone with its container, by the time that a newer one is ordered.
func TestNothingBeginsBeforeTheLastEndIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, stop := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		stop()
		f.mu.Lock()
		delete(f.boxes, "p1")
		f.unended = errors.New("the disk is full")
		f.mu.Unlock()
		pods, _, _ = agentLife(t, f, boot1)
		pods.Set(f.order(assignment(2, fleet.GoalRun)))
		settle(time.Minute)
		if f.starts[2] != 0 {
			t.Error("the next incarnation runs, and how the last one ended is not written")
		}
		f.mu.Lock()
		f.unended = nil
		f.mu.Unlock()
		settle(time.Minute)
		if f.starts[2] != 1 {
			t.Errorf("starts %v", f.starts)
		}
	})
}
