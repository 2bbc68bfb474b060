package podlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// Logs of pods that left stay until there is no room for them, the newest the longest; those of pods that are here are left alone.
func TestLogsOfPodsThatLeftAreBounded(t *testing.T) {
	root := t.TempDir()
	here := func(id fleet.PodID) bool { return strings.HasPrefix(string(id), "here") }
	said := &bytes.Buffer{}
	l := New(root, here, slog.New(slog.NewTextHandler(said, nil)))
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	for i := range 6 {
		for _, id := range []fleet.PodID{fleet.PodID(fmt.Sprint("here", i)), fleet.PodID(fmt.Sprint("left", i))} {
			if err := l.Prepare(id); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(l.Dir(id), "container.log")
			if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
				t.Fatal(err)
			}
			at := began.Add(time.Duration(i-10) * time.Minute)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
			at = began.Add(time.Duration(-i-20) * time.Minute) // the older of two files, and the later by name, says nothing
			path = filepath.Join(l.Dir(id), "system.log")
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chtimes(path, at, at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	left := func() (out []string) {
		entries, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "left") {
				out = append(out, e.Name())
			}
		}
		if len(entries)-len(out) != 6 {
			t.Errorf("of pods that are here %d logs are left", len(entries)-len(out))
		}
		return out
	}
	if err := errors.Join(l.Prepare("huge"), os.WriteFile(filepath.Join(l.Dir("huge"), "container.log"), nil, 0o600),
		os.Truncate(filepath.Join(l.Dir("huge"), "container.log"), keptLogBytes)); err != nil { // of zeros that take no room
		t.Fatal(err)
	}
	old := began.Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(l.Dir("huge"), "container.log"), old, old); err != nil {
		t.Fatal(err)
	}
	if l.Leave("left5"); l.Has("huge") || said.Len() != 0 {
		t.Errorf("a log that is too large for the rest is left, said %q", said)
	}
	if got := left(); len(got) != 6 {
		t.Errorf("there is room, and left are %v", got)
	}
	l.prune(5, 1<<20)
	if got := left(); !slices.Equal(got, []string{"left1", "left2", "left3", "left4", "left5"}) {
		t.Errorf("by number: %v", got)
	}
	l.prune(5, 250)
	if got := left(); !slices.Equal(got, []string{"left4", "left5"}) {
		t.Errorf("by bytes: %v", got)
	}
	if err := os.Mkdir(filepath.Join(l.Dir("here0"), "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[fleet.PodID]bool{
		"left5": true, "here0": true, "left0": false, "..": false, ".": false, "": false, "here0/sub": false, "here0/container.log": false,
	} {
		if got := l.Has(id); got != want {
			t.Errorf("a log of %q: %v", id, got)
		}
	}
}
