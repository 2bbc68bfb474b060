// Package volumestest mounts network volumes in memory, for tests.
package volumestest

import (
	"context"
	"slices"
	"sync"

	"gantry/fleet"
	"gantry/storage/volume"
)

// Mounts mounts network volumes in memory. It implements volumes.Mounts; its fields are set before it is used.
type Mounts struct {
	Notify chan struct{} // what Changed returns
	Fail   error         // with which Attach fails

	mu       sync.Mutex
	health   []volume.Health
	attached []fleet.PodID
}

// SetHealth says what Health tells.
func (m *Mounts) SetHealth(h ...volume.Health) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health = h
}

// Attach implements pod.Volumes.
func (m *Mounts) Attach(_ context.Context, id fleet.PodID, _ volume.Volume) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Fail == nil {
		m.attached = append(m.attached, id)
	}
	return "/attached/" + string(id), m.Fail
}

// SetReadOnly implements pod.Volumes.
func (m *Mounts) SetReadOnly(context.Context, fleet.PodID, int, volume.Volume) error { return nil }

// Ending implements pod.Volumes.
func (m *Mounts) Ending(fleet.PodID) {}

// Detach implements pod.Volumes.
func (m *Mounts) Detach(_ context.Context, id fleet.PodID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached = slices.DeleteFunc(m.attached, func(x fleet.PodID) bool { return x == id })
	return nil
}

// Attached implements pod.Volumes.
func (m *Mounts) Attached() ([]fleet.PodID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.attached), nil
}

// Kinds implements volumes.Mounts.
func (m *Mounts) Kinds() []fleet.BackendKind {
	return []fleet.BackendKind{fleet.BackendLocal, fleet.BackendNFS}
}

// Health implements volumes.Mounts.
func (m *Mounts) Health() []volume.Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.health)
}

// Changed implements volumes.Mounts.
func (m *Mounts) Changed() <-chan struct{} { return m.Notify }

// Run implements volumes.Mounts.
func (m *Mounts) Run(ctx context.Context) { <-ctx.Done() }
