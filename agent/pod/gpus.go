package pod

import (
	"context"
	"time"

	"gantry/internal/sleep"
)

// busyAgain is how long a start waits before it looks again whether its GPUs are free.
const busyAgain = time.Second

// held tells an owner why a pod waits. Whose process it is, is nothing to them.
const held = "waits for its GPU to be free: a process still has it open"

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

// busy waits a while when a process holds a GPU of the order, whoever started it, and reports whether it had to. It
// looks once for each container, before that is made.
func (m *machine) busy(ctx context.Context, s Step, want Assignment) (bool, error) {
	if m.GPUs == nil || len(want.GPUs) == 0 || s != StepDefine {
		return false, nil
	}
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	who, err := m.GPUs.Busy(look, want.GPUs)
	if err != nil {
		return false, err
	}
	if who == "" {
		if m.trouble == held {
			m.trouble = ""
		}
		return false, nil
	}
	if m.hopeless(want) {
		return false, &Error{Class: Fatal, Sentence: "the pod's GPU was not free within an hour: a process had it open"}
	}
	if m.trouble != held {
		m.trouble = held
		m.Log.Warn("pod start waits: a process still uses its GPU", "incarnation", want.Incarnation, "holder", who)
	}
	m.Reports.Activity(m.id, held, 0, 0)
	_, _ = sleep.Or(ctx, busyAgain, m.wake)
	return true, nil
}
