package rest

import (
	"context"

	"gantry/api/v2"
	"gantry/fleet"
)

func podUpdate(in *v2.UpdatePodRequest) fleet.PodUpdate {
	out := fleet.PodUpdate{
		Args: in.Args, Registry: wantedRegistry(in.Registry), Locked: in.Locked, GlobalNetworking: in.GlobalNetworking, Movable: in.Movable,
		Template: fleet.TemplateID(in.TemplateID), Name: in.Name, Image: in.Image, DiskGB: in.Disk,
	}
	out.Return, out.StopAfter, out.TerminateAfter = in.Return, moment(in.StopAfter), moment(in.TerminateAfter)
	if in.Ports != nil {
		ports := parsePorts(in.Ports)
		out.Ports = &ports
	}
	if in.PortSettings != nil {
		out.HTTP = new(httpSettings(in.PortSettings))
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

func (a *API) updatePod(ctx context.Context, svc PodService, id fleet.PodID, c *call, in *v2.UpdatePodRequest) (*v2.Pod, error) {
	if m := in.Mounts; m != nil && m.Network != nil && len(m.Network) == 0 {
		return nil, fleet.BreaksRule("mounts.network must not be empty: mounts cannot be cleared")
	}
	return a.shown(svc.UpdatePod(ctx, c.who, id, podUpdate(in)))
}
