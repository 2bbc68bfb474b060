package rest

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// UpdatePodRequest is the body that changes a pod; what it leaves out stays as it is.
type UpdatePodRequest struct {
	PodSettings
	Name   string `json:"name,omitempty" doc:"Name of the pod; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"trainer"`
	Locked *bool  `json:"locked,omitempty" doc:"When true, stop, restart and changes that restart the pod are refused."`
}

// TransformSchema adds what field tags cannot say.
func (UpdatePodRequest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeSettings(s)
	for name, text := range map[string]string{
		"disk": "Container disk in GB (10^9 bytes), wiped at every start. A new size restarts the pod.",
		"env": "Replaces all environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most " +
			"32768 characters and no NUL. A change restarts the pod.",
		"globalNetworking": "Join the account's private network, or leave it, from the next start on. Needs an NVIDIA GPU and a data center " +
			"that has it (400 otherwise).",
		"templateId": "Template to apply once, under the other members of the body; its mounts are not applied, and the pod keeps no link to it.",
		"mounts":     "Omitted or {}: as they are. The kind and the volume cannot change, a path can, and host-local storage can grow (400 otherwise).",
	} {
		p := *s.Properties[name]
		p.Description = text
		s.Properties[name] = &p
	}
	return s
}

func (in *UpdatePodRequest) check() []string { return in.PodSettings.check() }

// rules checks the rules between fields that need no record: CodeConflictRule.
func (in *UpdatePodRequest) rules() error {
	if m := in.Mounts; m != nil && m.Network != nil && len(m.Network) == 0 {
		return fleet.BreaksRule("mounts.network must not be empty: mounts cannot be cleared")
	}
	return in.Mounts.rules()
}

func (in *UpdatePodRequest) change() fleet.PodUpdate {
	out := fleet.PodUpdate{
		Args: in.Args, Registry: in.registry(), Locked: in.Locked, GlobalNetworking: in.GlobalNetworking, Movable: in.Movable,
		Template: fleet.TemplateID(in.TemplateID), Name: given(in.Name), Image: given(in.Image), DiskGB: given(in.Disk),
	}
	if in.Ports != nil {
		ports := parsePorts(in.Ports)
		out.Ports = &ports
	}
	if in.Env != nil {
		out.Env = &in.Env
	}
	out.Persistent, out.Network = in.Mounts.parts()
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

func (a *API) updatePod(ctx context.Context, c *call, in *UpdatePodRequest) (*Pod, error) {
	id, err := c.podID()
	if err != nil {
		return nil, err
	}
	if err := in.rules(); err != nil {
		return nil, err
	}
	return a.shown(a.svc.UpdatePod(ctx, c.who, id, in.change()))
}
