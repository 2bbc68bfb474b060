package rest

import (
	"context"

	"gantry/api/v2"

	"gantry/fleet"
)

// rules checks the rules between fields that need no record: CodeConflictRule.
func updateRules(in *v2.UpdatePodRequest) error {
	if m := in.Mounts; m != nil && m.Network != nil && len(m.Network) == 0 {
		return fleet.BreaksRule("mounts.network must not be empty: mounts cannot be cleared")
	}
	return mountRules(in.Mounts)
}

func podUpdate(in *v2.UpdatePodRequest) fleet.PodUpdate {
	out := fleet.PodUpdate{
		Args: in.Args, Registry: wantedRegistry(&in.PodSettings), Locked: in.Locked, GlobalNetworking: in.GlobalNetworking, Movable: in.Movable,
		Template: fleet.TemplateID(in.TemplateID), Name: given(in.Name), Image: given(in.Image), DiskGB: given(in.Disk),
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

// given returns nil for the zero value, which no member of the body may have.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (a *API) updatePod(ctx context.Context, c *call, in *v2.UpdatePodRequest) (*v2.Pod, error) {
	id, err := c.podID()
	if err != nil {
		return nil, err
	}
	if err := updateRules(in); err != nil {
		return nil, err
	}
	return a.shown(a.svc.UpdatePod(ctx, c.who, id, podUpdate(in)))
}
