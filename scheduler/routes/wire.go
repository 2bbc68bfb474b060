package routes

import (
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// EncodePod is what a gateway is told of a pod; nil: nothing, it is terminated. worker: it is one of an endpoint that balances.
func EncodePod(p *fleet.Pod, worker bool) *agentrpc.RoutePod {
	if p.Status == fleet.StatusTerminated {
		return nil
	}
	out := &agentrpc.RoutePod{
		Id: string(p.ID), AccountId: string(p.Account), HostId: string(p.Host), Status: string(p.Status), Goal: string(p.Goal),
		Incarnation: p.Incarnation, Release: p.Release, Frozen: !p.Frozen.IsZero(),
	}
	if p.ExitCode != nil {
		code := int32(*p.ExitCode) //nolint:gosec // of a process
		out.ExitCode = &code
	}
	for _, port := range p.Spec.Ports {
		if port.Protocol == "http" {
			out.HttpPorts = append(out.HttpPorts, int32(port.Number)) //nolint:gosec // 16 bits
		}
	}
	for _, s := range p.Spec.HTTP {
		out.Settings = append(out.Settings, &agentrpc.RoutePort{Port: int32(s.Port), Keyed: s.Keyed, Most: int32(s.Most)}) //nolint:gosec // bounded
	}
	if worker {
		out.EndpointId, out.Serving = p.Owner.ID, map[string]string{}
		for _, name := range []string{fleet.EnvPort, fleet.EnvHealthPort, fleet.EnvHealthPath} {
			if value, ok := p.Spec.Env[name]; ok {
				out.Serving[name] = value
			}
		}
	}
	return out
}

func decodePod(in *agentrpc.RoutePod) *fleet.Pod {
	p := &fleet.Pod{
		ID: fleet.PodID(in.GetId()), Account: fleet.AccountID(in.GetAccountId()), Host: fleet.HostID(in.GetHostId()),
		Status: fleet.PodStatus(in.GetStatus()), Goal: fleet.Goal(in.GetGoal()), Incarnation: in.GetIncarnation(), Release: in.GetRelease(),
	}
	if in.GetFrozen() {
		p.Frozen = time.Unix(1, 0) // since when is nobody's business here
	}
	if in.ExitCode != nil {
		code := int(in.GetExitCode())
		p.ExitCode = &code
	}
	for _, port := range in.GetHttpPorts() {
		p.Spec.Ports = append(p.Spec.Ports, fleet.Port{Number: int(port), Protocol: "http"})
	}
	for _, s := range in.GetSettings() {
		p.Spec.HTTP = append(p.Spec.HTTP, fleet.HTTPSetting{Port: int(s.GetPort()), Keyed: s.GetKeyed(), Most: int(s.GetMost())})
	}
	if id := in.GetEndpointId(); id != "" {
		p.Owner, p.Spec.Env = fleet.Owner{Kind: fleet.OwnerEndpoint, ID: id}, in.GetServing()
	}
	return p
}

// EncodeEndpoint is what a gateway is told of an endpoint that balances.
func EncodeEndpoint(e *fleet.Endpoint) *agentrpc.RouteEndpoint {
	return &agentrpc.RouteEndpoint{
		Id: string(e.ID), AccountId: string(e.Account), Release: e.Version(), WorkersMax: int32(e.Spec.Workers.Max), //nolint:gosec // bounded
		WaitSeconds: int32(e.Spec.WaitSeconds), TimeoutMs: e.Spec.TimeoutMS, MaxBodyMb: int32(e.Spec.MaxBodyMB), //nolint:gosec // bounded
	}
}

func decodeEndpoint(in *agentrpc.RouteEndpoint) fleet.Endpoint {
	return fleet.Endpoint{
		ID: fleet.EndpointID(in.GetId()), Account: fleet.AccountID(in.GetAccountId()), Releases: []fleet.Release{{Version: in.GetRelease()}},
		Spec: fleet.EndpointSpec{
			Type: fleet.EndpointBalanced, Workers: fleet.WorkerBounds{Max: int(in.GetWorkersMax())}, WaitSeconds: int(in.GetWaitSeconds()),
			TimeoutMS: in.GetTimeoutMs(), MaxBodyMB: int(in.GetMaxBodyMb()),
		},
	}
}

// EncodeHost is what a gateway is told of a host.
func EncodeHost(h *fleet.Host) *agentrpc.RouteHost {
	return &agentrpc.RouteHost{Id: string(h.ID), State: string(h.State), Epoch: h.Epoch}
}
