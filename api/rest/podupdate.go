package rest

import (
	"context"

	"gantry/api/v2"
	"gantry/fleet"
)

// updateRules checks the rules between fields that need no record: CodeConflictRule.
func updateRules(in *v2.UpdatePodRequest) error {
	if m := in.Mounts; m != nil && m.Network != nil && len(m.Network) == 0 {
		return fleet.BreaksRule("mounts.network must not be empty: mounts cannot be cleared")
	}
	return nil
}

func podUpdate(in *v2.UpdatePodRequest) fleet.PodUpdate {
	out := fleet.PodUpdate{
		Args: in.Args, Registry: wantedRegistry(in.Registry), Locked: in.Locked, GlobalNetworking: in.GlobalNetworking, Movable: in.Movable,
		Template: fleet.TemplateID(in.TemplateID), Name: in.Name, Image: in.Image, DiskGB: in.Disk,
	}
	if in.Ports != nil {
		ports := parsePorts(in.Ports)
		out.Ports = &ports
	}
	if in.Env != nil {
		out.Env = &in.Env
	}
	out.Persistent, out.Network = mountParts(in.Mounts)
	return out
}

// given returns what a member that may be left out was set to; the zero value for one that was left out.
func given[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}

func (a *API) updatePod(ctx context.Context, svc PodService, c *call, in *v2.UpdatePodRequest) (*v2.Pod, error) {
	id, err := c.podID()
	if err != nil {
		return nil, err
	}
	if err := updateRules(in); err != nil {
		return nil, err
	}
	return a.shown(svc.UpdatePod(ctx, c.who, id, podUpdate(in)))
}
