package state

import (
	"slices"

	"gantry/fleet"
)

// portRange returns how many public ports a host has for pods.
func portRange(h *fleet.Host) int {
	if h.Inventory.PortFrom <= 0 {
		return 0
	}
	return max(0, h.Inventory.PortTo-h.Inventory.PortFrom+1)
}

// heldPorts returns the public ports that a host's pods hold, but for one pod.
func heldPorts(on []*fleet.Pod, but fleet.PodID) map[int]bool {
	out := map[int]bool{}
	for _, p := range on {
		if !p.Held || p.ID == but {
			continue
		}
		for _, m := range p.Mappings {
			out[m.Public] = true
		}
	}
	return out
}

// tcpPorts returns the tcp ports of a specification.
func tcpPorts(spec *fleet.PodSpec) map[int]bool {
	out := map[int]bool{}
	for _, p := range spec.Ports {
		if p.Protocol == "tcp" {
			out[p.Number] = true
		}
	}
	return out
}

// mappable checks that mappings publish each tcp port of the pod once, where its host publishes ports,
// and returns those that it gets: a public port that another pod holds is replaced by the next free one.
// What depends on the pod alone is invalid when it is wrong, the rest is stale.
func mappable(h *fleet.Host, on []*fleet.Pod, pod *fleet.Pod, mappings []fleet.PortMapping) ([]fleet.PortMapping, error) {
	tcp := tcpPorts(&pod.Spec)
	private, public := map[int]bool{}, map[int]bool{}
	for _, m := range mappings {
		if !tcp[m.Private] || private[m.Private] || public[m.Public] {
			return nil, fleet.Invalid("$.mappings", "each must publish another tcp port of the pod at another public port")
		}
		private[m.Private], public[m.Public] = true, true
	}
	if portRange(h) == 0 {
		if len(mappings) > 0 {
			return nil, fleet.Stale("the host publishes no ports")
		}
		return nil, nil
	}
	if len(mappings) != len(tcp) {
		return nil, fleet.Stale("the host publishes ports, and not all of the pod's are mapped")
	}
	if len(mappings) == 0 {
		return nil, nil
	}
	return otherPorts(h, &pod.Spec, heldPorts(on, pod.ID), public, mappings)
}

// PortFits reports whether a public port will do for a port of a pod. At a symmetrical one the container listens
// itself, so that it must not be another port of the pod.
func PortFits(spec *fleet.PodSpec, private, public int) bool {
	return !fleet.Symmetrical(private) || !slices.ContainsFunc(spec.Ports, func(p fleet.Port) bool { return p.Number == public })
}

// otherPorts replaces the public ports that are taken, or that do not fit. Named are those that the mappings name.
func otherPorts(
	h *fleet.Host, spec *fleet.PodSpec, taken, named map[int]bool, mappings []fleet.PortMapping,
) ([]fleet.PortMapping, error) {
	out := slices.Clone(mappings)
	for i, m := range out {
		if m.Public < h.Inventory.PortFrom || m.Public > h.Inventory.PortTo {
			return nil, fleet.Stale("a public port is not the host's")
		}
		if !taken[m.Public] && PortFits(spec, m.Private, m.Public) {
			continue
		}
		size, next := portRange(h), 0
		for step := 1; step < size && next == 0; step++ {
			if port := h.Inventory.PortFrom + (m.Public-h.Inventory.PortFrom+step)%size; !taken[port] && !named[port] && PortFits(spec, m.Private, port) {
				next = port
			}
		}
		if next == 0 {
			return nil, fleet.Stale("a public port is taken")
		}
		out[i].Public, named[next] = next, true
	}
	return out, nil
}
