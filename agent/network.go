package agent

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"gantry/fleet"
	"gantry/netctl"
)

const namespaceDir = "/run/netns"

// podNetwork implements pod.Network on the host's network controller.
type podNetwork struct {
	instance string
	control  netctl.Controller
}

// Ready reports whether the pod's network is complete, and whether these are its published ports.
func (n podNetwork) Ready(ctx context.Context, id fleet.PodID, _ netip.Addr, ports []fleet.PortMapping) (ready, published bool, err error) {
	if ready, err = n.control.Has(ctx, string(id)); err != nil || !ready {
		return false, false, err
	}
	have, err := n.control.Published(ctx, string(id))
	return true, slices.Equal(have, netPorts(ports)), err
}

// Ensure makes the pod's network.
func (n podNetwork) Ensure(ctx context.Context, id fleet.PodID, addr netip.Addr, ports []fleet.PortMapping) error {
	return n.control.AddPod(ctx, n.pod(id, addr, ports))
}

func (n podNetwork) pod(id fleet.PodID, addr netip.Addr, ports []fleet.PortMapping) netctl.Pod {
	out := netctl.NewPod(n.instance, string(id), addr)
	out.Ports = netPorts(ports)
	return out
}

// netPorts orders a pod's mappings by public port. What is no port is left out.
func netPorts(mappings []fleet.PortMapping) []netctl.Port {
	const most = 1<<16 - 1
	var out []netctl.Port
	for _, m := range mappings {
		if m.Public >= 1 && m.Public <= most && m.Private >= 1 && m.Private <= most {
			out = append(out, netctl.Port{Public: uint16(m.Public), Private: uint16(m.Private)}) //nolint:gosec // just checked
		}
	}
	slices.SortFunc(out, func(a, b netctl.Port) int { return cmp.Compare(a.Public, b.Public) })
	return slices.CompactFunc(out, func(a, b netctl.Port) bool { return a.Public == b.Public })
}

// Release removes the pod's network.
func (n podNetwork) Release(ctx context.Context, id fleet.PodID) error {
	return n.control.RemovePod(ctx, string(id))
}

// Namespace returns the path of the pod's network namespace.
func (n podNetwork) Namespace(id fleet.PodID) string {
	return filepath.Join(namespaceDir, netctl.NamespaceName(n.instance, string(id)))
}
