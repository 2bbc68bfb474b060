package pod

import "context"

// GPUs is what the host knows of its GPUs. Implementations are safe for concurrent use.
type GPUs interface {
	// Devices returns what a container with these GPUs gets. Errors carry a Class.
	Devices(ctx context.Context, uuids []string) (Devices, error)
	// Busy says which process still holds one of the GPUs, in words for an operator; empty: none does.
	Busy(ctx context.Context, uuids []string) (string, error)
}

// devices returns what the container gets of the host's GPUs.
func (m *machine) devices(ctx context.Context, want Assignment) (Devices, error) {
	if m.GPUs == nil || len(want.GPUs) == 0 {
		return Devices{}, nil
	}
	return m.GPUs.Devices(ctx, want.GPUs)
}
