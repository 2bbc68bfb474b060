// Package podnet is the network of the host's pods: how a pod is connected, on the host's network controller and the private networks.
package podnet

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"

	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

const namespaceDir = "/run/netns"

// Network implements pod.Network on the host's network controller.
type Network struct {
	Instance string
	Control  netctl.Controller
	Overlays *overlay.Reconciler
}

// Ready reports whether anything of the pod's network is there, and whether it is whole: complete, in
// the pod's user namespace, with these published ports and places. What is half removed is there and not whole.
// It is asked of pods that do not run: one that runs keeps the network that it has.
func (n Network) Ready(ctx context.Context, id fleet.PodID, want pod.Link) (some, whole bool, err error) {
	complete, err := n.Control.Has(ctx, string(id))
	if err != nil {
		return false, false, err
	}
	if !complete {
		if some, err = n.Control.Left(ctx, string(id)); err == nil && !some {
			n.Overlays.Leave(id) // such as after a start that came to nothing
		}
		return some, false, err
	}
	base, err := n.Control.IDBase(ctx, string(id))
	if err != nil || base != want.IDBase || !slices.Equal(n.Overlays.At(id), want.Overlays) {
		return true, false, err
	}
	whole, err = n.publishes(ctx, id, want.Ports)
	return true, whole, err
}

func (n Network) publishes(ctx context.Context, id fleet.PodID, ports []fleet.PortMapping) (bool, error) {
	have, err := n.Control.Published(ctx, string(id))
	return err == nil && slices.Equal(have, netPorts(ports)), err
}

// Ensure makes the pod's network. It fails while the host cannot publish the pod's ports: the pod's
// owner would be told of what nobody can reach.
func (n Network) Ensure(ctx context.Context, id fleet.PodID, want pod.Link) error {
	p := n.Pod(id, want)
	if err := n.Overlays.Join(ctx, id); err != nil {
		return err
	}
	if err := n.Control.AddPod(ctx, p); err != nil {
		return err
	}
	if err := n.Overlays.Added(ctx, p, want.Account); err != nil {
		return err
	}
	there, err := n.publishes(ctx, id, want.Ports)
	if err == nil && !there {
		err = errors.New("the host does not publish the pod's ports")
	}
	return err
}

// Pod is what the pod's network is to be. Its overlays know of it from here on.
func (n Network) Pod(id fleet.PodID, want pod.Link) netctl.Pod {
	out := netctl.NewPod(n.Instance, string(id), want.Addr)
	out.Ports, out.IDBase = netPorts(want.Ports), want.IDBase
	return n.Overlays.Place(out, want.Account, want.Overlays)
}

// netPorts orders a pod's mappings by public port. What is no port is left out.
func netPorts(mappings []fleet.PortMapping) []netctl.Port {
	const most = 1<<16 - 1
	var out []netctl.Port
	for _, m := range mappings {
		inside := m.Inside()
		if m.Public >= 1 && m.Public <= most && inside >= 1 && inside <= most {
			out = append(out, netctl.Port{Public: uint16(m.Public), Private: uint16(inside)}) //nolint:gosec // just checked
		}
	}
	slices.SortFunc(out, func(a, b netctl.Port) int { return cmp.Compare(a.Public, b.Public) })
	return slices.CompactFunc(out, func(a, b netctl.Port) bool { return a.Public == b.Public })
}

// Release removes the pod's network.
func (n Network) Release(ctx context.Context, id fleet.PodID) error {
	if err := n.Control.RemovePod(ctx, string(id)); err != nil {
		return err
	}
	n.Overlays.Leave(id)
	return nil
}

// Namespace returns the path of the pod's network namespace.
func (n Network) Namespace(id fleet.PodID) string {
	return filepath.Join(namespaceDir, netctl.NamespaceName(n.Instance, string(id)))
}
