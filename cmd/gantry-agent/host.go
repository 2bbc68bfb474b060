package main

import (
	"context"
	"log/slog"

	"gantry/agent"
	"gantry/agent/gpu"
	"gantry/agent/sweep"
	"gantry/fleet"
	"gantry/storage/disk"
)

// hostParts are what the agent has of its machine.
type hostParts struct {
	containers, persistent *disk.Pool
	gpus                   *gpu.Host // nil: none are offered
	isolation              isolation
	volumes                *networkVolumes
	conditions             []fleet.Condition
}

// host opens what the flags ask for of the machine.
func (c *runCmd) host(ctx context.Context, log *slog.Logger) (*hostParts, error) {
	h := &hostParts{}
	var err error
	if h.containers, h.persistent, h.conditions, err = c.diskFlags.open(c.DataDir, log); err != nil {
		return nil, err
	}
	if h.gpus, err = c.gpuFlags.open(ctx, c.DataDir, log); err != nil {
		return nil, err
	}
	if h.volumes, err = c.networkVolumes(log); err != nil {
		h.close()
		return nil, err
	}
	h.isolation = c.isolation(c.instance(), c.DataDir, log)
	h.conditions = append(h.conditions, h.isolation.conditions...)
	return h, nil
}

// configure tells the agent of them.
func (h *hostParts) configure(c *agent.Config) {
	c.Disks = sweep.Disks{Containers: h.containers, Persistent: h.persistent}
	c.RuntimeClass, c.IDBase = h.isolation.class, h.isolation.idBase
	c.Conditions = func() []fleet.Condition { return h.conditions }
	h.volumes.configure(c)
	if h.gpus != nil {
		c.Accelerators, c.Meter = h.gpus, h.gpus
	}
}

func (h *hostParts) close() {
	if h.volumes != nil {
		h.volumes.close()
	}
	if h.gpus != nil {
		h.gpus.Close()
	}
}
