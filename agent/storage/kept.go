package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/internal/sleep"
	"gantry/storage/provision"
	"gantry/storage/volume"
)

// kept is what a host with the storage role remembers over restarts, without anything secret.
type kept struct {
	// Roots are in folders of this host.
	Roots []keptRoot `json:"roots,omitempty"`
}

// keptRoot is a root in a folder of this host.
type keptRoot struct {
	Backend fleet.BackendID   `json:"backend"`
	Kind    fleet.BackendKind `json:"kind"`
	Dir     string            `json:"dir"`
}

// File is where an agent with that data folder keeps it.
func File(dir string) string { return filepath.Join(dir, "storage.json") }

func readStorage(file string) (out kept, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return kept{}, fmt.Errorf("read what is known of network volumes: %w", err)
	}
	return out, nil
}

// remember notes which roots are in folders of this host. The caller holds mu.
func (s *Role) remember() {
	var roots []keptRoot
	for _, id := range slices.Sorted(maps.Keys(s.backends)) {
		if r := s.backends[id].root; r.OwnDir != "" {
			roots = append(roots, keptRoot{r.Backend.ID, r.Backend.Kind, r.OwnDir})
		}
	}
	if !slices.Equal(roots, s.kept.Roots) {
		s.kept.Roots = roots
		s.write()
	}
}

// write writes down what is kept. The caller holds mu.
func (s *Role) write() {
	text, err := json.Marshal(s.kept)
	if err == nil {
		err = atomicfile.Write(s.file, text, 0o600)
	}
	if err != nil {
		s.log.Warn("save the network volumes' state for the next start", "err", err)
	}
}

// Restore has the volumes there again that are in folders of this host, before any scheduler was heard: hosts with
// pods wait for them. It tries until ctx ends or all of them are.
func (s *Role) Restore(ctx context.Context) {
	s.mu.Lock()
	roots := slices.Clone(s.kept.Roots)
	s.mu.Unlock()
	if s.does == nil {
		return
	}
	for delay := workAgain; len(roots) > 0 && ctx.Err() == nil; delay = min(2*delay, workAgainMost) {
		roots = slices.DeleteFunc(roots, func(r keptRoot) bool {
			limited, cancel := context.WithTimeout(ctx, makeLimit)
			defer cancel()
			err := s.does.Restore(limited, Root{Backend: volume.Backend{ID: r.Backend, Kind: r.Kind}, OwnDir: r.Dir})
			if err != nil && ctx.Err() == nil {
				s.log.Warn("network volumes are missing from a folder of this host", "backend", r.Backend, "folder", r.Dir, "err", err)
			}
			return err == nil
		})
		if len(roots) > 0 {
			_ = sleep.For(ctx, delay)
		}
	}
}

// Clean unmounts the disks of network volumes that are for this machine alone. What other hosts reach
// through a server here stays: their pods go on with it.
func Clean(ctx context.Context, dir string) error {
	kept, err := readStorage(File(dir))
	for _, r := range kept.Roots {
		if r.Kind != fleet.BackendLocal {
			continue
		}
		if _, serr := os.Stat(r.Dir); errors.Is(serr, fs.ErrNotExist) {
			continue
		}
		root := provision.Root{Kind: string(r.Kind), Backend: string(r.Backend), Dir: r.Dir, Sized: true}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		rerr := provision.Release(limited, root)
		cancel()
		if rerr != nil && !errors.Is(rerr, provision.ErrNoMarker) {
			err = errors.Join(err, fmt.Errorf("unmount the network volumes of %s: %w", r.Backend, rerr))
		}
	}
	return err
}
