package pod

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"gantry/fleet"
)

// terminate sends SIGTERM once, waits for the grace period and then kills. What SIGTERM does nothing to is killed at once.
func (m *machine) terminate(effect context.Context, want Assignment, see Seen) error {
	running := see.Container.Incarnation
	m.ending(want)
	m.drain(want, running)
	grace := want.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	frozen := see.Container.Frozen
	deaf := frozen || m.Runtime.Deaf(m.id, see.Container.PID)
	if m.termFor != running {
		m.give(want, grace)
		m.Logs.System(m.id, "stop container "+string(m.id))
		if frozen {
			m.Logs.System(m.id, "the container is frozen: it is killed")
		} else if deaf {
			m.Logs.System(m.id, "the container's process does not catch SIGTERM: it is killed")
		} else if err := m.Runtime.Signal(effect, m.id, int(syscall.SIGTERM)); err != nil {
			return err
		}
		m.termFor, m.termAt = running, time.Now()
	}
	m.Reports.Activity(m.id, "stopping the container", 0, 0)
	if left := time.Until(m.termAt.Add(grace)); left > 0 && !deaf {
		ctx, cancel := context.WithTimeout(effect, left)
		err := m.Runtime.Wait(ctx, m.id)
		expired := ctx.Err() != nil
		cancel()
		if !expired {
			return err
		}
		if effect.Err() != nil {
			return effect.Err()
		}
	}
	if err := m.Runtime.Signal(effect, m.id, int(syscall.SIGKILL)); err != nil {
		return err
	}
	if frozen { // a freezer of cgroup v1 holds back even SIGKILL
		if err := m.Runtime.Freeze(effect, m.id, false); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(effect, killTimeout)
	defer cancel()
	return m.Runtime.Wait(ctx, m.id)
}

// end writes down how the incarnation ended.
func (m *machine) end(want Assignment, see Seen) error {
	ended := Ended{Incarnation: want.Incarnation, Event: fleet.EventExited, At: time.Now(), LogFrom: see.Container.StartedAt}
	c := see.Container
	if c.Task == TaskStopped {
		ended.Event, ended.Reason = verdict(c, want.Limits.MemoryMB)
		if code := c.ExitCode; !c.Lost {
			ended.ExitCode = &code
		}
		if !c.ExitedAt.IsZero() {
			ended.At = c.ExitedAt
		}
	}
	if want.Goal != fleet.GoalRun {
		ended.Event, ended.Reason = fleet.EventExited, ""
	}
	if ended.ExitCode != nil {
		m.Logs.System(m.id, fmt.Sprintf("container ended with exit code %d", *ended.ExitCode))
	}
	return m.ended(ended)
}

// verdict says in one sentence why a process that ended by itself did. limitMB is what memory it had.
func verdict(c Container, limitMB int64) (fleet.Trigger, string) {
	const signalBase, killed = 128, 128 + int(syscall.SIGKILL)
	switch {
	case c.OOMKilled && c.ExitCode == killed:
		return fleet.EventFailed, "the container was " + killedForMemory(c, limitMB)
	case c.OOMKilled:
		return fleet.EventFailed, fmt.Sprintf("a process of the container was %s; the container ended with exit code %d", killedForMemory(c, limitMB), c.ExitCode)
	case c.Lost:
		return fleet.EventFailed, "the container's process was lost together with its runtime"
	case c.ExitCode == 0:
		return fleet.EventExited, ""
	case c.ExitCode > signalBase && c.ExitCode < signalBase+65:
		return fleet.EventFailed, fmt.Sprintf("the container was ended by signal %d (exit code %d)", c.ExitCode-signalBase, c.ExitCode)
	default:
		return fleet.EventFailed, fmt.Sprintf("the container ended with exit code %d", c.ExitCode)
	}
}

func killedForMemory(c Container, limitMB int64) string {
	out := fmt.Sprintf("killed for lack of memory (limit %d MB", limitMB)
	if c.MemoryPeak > 0 {
		out += fmt.Sprintf(", peak %d MB", (c.MemoryPeak+500_000)/1_000_000)
	}
	return out + ")"
}
