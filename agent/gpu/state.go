package gpu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gantry/agent/gpu/wire"
	"gantry/internal/atomicfile"
)

// state is what of the GPUs outlives the agent, for as long as the kernel runs: a GPU with a bad error must not
// come back because the agent was upgraded.
type state struct {
	Boot   string            `json:"boot"`
	Driver string            `json:"driver"`
	CUDA   string            `json:"cuda"`
	GPUs   []wire.GPU        `json:"gpus"`
	NUMA   map[string]int    `json:"numa"`
	Sick   map[string]string `json:"sick"`
}

func (h *Host) statePath() string { return filepath.Join(h.Data, "gpus.json") }
func (h *Host) specDir() string   { return filepath.Join(h.Data, "cdi") }
func (h *Host) specPath() string  { return filepath.Join(h.specDir(), "nvidia.com-gpu.json") }

// save writes down what is known, when it is something else than what stands there.
func (h *Host) save() error {
	h.mu.Lock()
	s := state{Boot: h.Boot, Driver: h.driver, CUDA: h.cuda, NUMA: maps.Clone(h.numa), Sick: maps.Clone(h.sick)}
	for _, uuid := range slices.Sorted(maps.Keys(h.gpus)) {
		s.GPUs = append(s.GPUs, h.gpus[uuid])
	}
	h.mu.Unlock()
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(h.statePath(), b, 0o600); err != nil {
		return fmt.Errorf("write what is known of the GPUs: %w", err)
	}
	return nil
}

// load takes what an earlier agent wrote down in the present run of the kernel.
func (h *Host) load() error {
	b, err := os.ReadFile(h.statePath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s.Boot != h.Boot || s.Boot == "" {
		return nil
	}
	for _, g := range s.GPUs {
		h.gpus[g.UUID] = g
	}
	maps.Copy(h.numa, s.NUMA)
	maps.Copy(h.sick, s.Sick)
	h.driver, h.cuda, h.heard = s.Driver, s.CUDA, time.Now()
	spec, err := cdi.ReadSpec(h.specPath(), 0)
	if err != nil {
		return nil //nolint:nilerr // it is made anew
	}
	h.adopt(spec)
	return nil
}

// writeFile replaces a file as a whole, unless its content is that already.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return nil
	}
	return atomicfile.Write(path, b, mode)
}
