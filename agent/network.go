package agent

import (
	"context"
	"net/netip"
	"path/filepath"

	"gantry/fleet"
	"gantry/netctl"
)

const namespaceDir = "/run/netns"

// podNetwork implements pod.Network on the host's network controller.
type podNetwork struct {
	instance string
	control  netctl.Controller
}

// Ready reports whether the pod's network is complete.
func (n podNetwork) Ready(ctx context.Context, id fleet.PodID, _ netip.Addr) (bool, error) {
	return n.control.Has(ctx, string(id))
}

// Ensure makes the pod's network.
func (n podNetwork) Ensure(ctx context.Context, id fleet.PodID, addr netip.Addr) error {
	return n.control.AddPod(ctx, netctl.NewPod(n.instance, string(id), addr))
}

// Release removes the pod's network.
func (n podNetwork) Release(ctx context.Context, id fleet.PodID) error {
	return n.control.RemovePod(ctx, string(id))
}

// Namespace returns the path of the pod's network namespace.
func (n podNetwork) Namespace(id fleet.PodID) string {
	return filepath.Join(namespaceDir, netctl.NamespaceName(n.instance, string(id)))
}
