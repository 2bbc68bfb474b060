// Package netctl describes the network that one host should have: a bridge, its
// subnet and the pods behind it, as one value. Controllers make it so; package
// kernel does it on Linux and Fake does it in memory.
//
// The package never touches a kernel object and never decides which pod runs
// where. Nothing is durable here: a host's network is derived again from the
// desired value after every restart, and every name, hardware address and mark
// follows from the instance, the pod and its address alone.
package netctl

import (
	"context"
	"errors"
	"net/netip"
)

var (
	// ErrNoHost says that a pod verb was called before the first Set.
	ErrNoHost = errors.New("the host's network is not set yet")
	// ErrSubnetTaken says that the wanted subnet overlaps an address of another link.
	ErrSubnetTaken = errors.New("the subnet is in use on this host")
	// ErrNoFreeSubnet says that no range of the pool is free.
	ErrNoFreeSubnet = errors.New("no free subnet")
	// ErrOverlayInUse says that a pod still has a place in an overlay that was to be removed.
	ErrOverlayInUse = errors.New("a pod has a place in the overlay")
	// ErrNoFreeAddr says that every address of the subnet is used.
	ErrNoFreeAddr = errors.New("no free address")
)

// Controller makes the network of one instance so. Every verb may be repeated;
// after an error the same verb finishes the work. All verbs are safe for
// concurrent use, and touch only objects that carry the controller's instance.
type Controller interface {
	// Set makes the host's network equal to the value. It leaves what is already
	// right untouched and removes what a predecessor of this instance left. A namespace
	// that stands keeps its owner, whatever Pod.IDBase says (Config.Keeping).
	Set(ctx context.Context, want Config) error
	// Repair is Set with the value that is in force: it puts back what something else took away,
	// such as a flushed ruleset. It returns ErrNoHost before the first Set.
	Repair(ctx context.Context) error
	// SetPublic is Repair with other addresses for published ports (Config.Public).
	SetPublic(ctx context.Context, public []netip.Addr) error
	// SetPolicy is Repair with another policy: what is open to all pods, and their limits. Links stay, and no pod is added.
	SetPolicy(ctx context.Context, p Policy) error
	// AddPod adds or repairs one pod. When it returns nil the pod's packets are
	// already confined, so its first process may start. A pod that differs in ports, Mbps or
	// Closed alone keeps its links, and one that differs in a place the others. Public ports that another pod had are its own. A pod
	// whose namespace has another owner than Pod.IDBase says gets a new one, so nothing may
	// run in the old.
	AddPod(ctx context.Context, pod Pod) error
	// RemovePod removes one pod; one that is not there is no error. After an error the pod is Left,
	// and its address no other pod's, until RemovePod or Repair has removed the rest.
	RemovePod(ctx context.Context, id string) error
	// Has says whether the pod's network is complete.
	Has(ctx context.Context, id string) (bool, error)
	// IDBase returns Pod.IDBase of a pod whose network is there, as it is and not as it is wanted:
	// 0 when the host owns the namespace, or nothing is there.
	IDBase(ctx context.Context, id string) (uint32, error)
	// Left says whether anything of the pod is there: complete, half made, half removed, or a port
	// that leads to the address it had.
	Left(ctx context.Context, id string) (bool, error)
	// Published returns the ports that lead to the pod, by public port: none while Config.Public is empty.
	Published(ctx context.Context, id string) ([]Port, error)
	// SetOverlay makes one overlay as given: its bridge, and whom its members reach where. What is right is left untouched. A pod
	// with a place in it may be added from then on.
	SetOverlay(ctx context.Context, o Overlay) error
	// RemoveOverlay removes an overlay; one that is not there is no error. While a pod has a place in it the error is ErrOverlayInUse.
	RemoveOverlay(ctx context.Context, vni uint32) error
	// SetUnderlay makes what leaves the host go there. Overlays are made anew where that needs it.
	SetUnderlay(ctx context.Context, u Underlay) error
	// Drops reads what the rules counted, by reason.
	Drops(ctx context.Context) ([]Drop, error)
	// Observed reads what is there. It changes nothing.
	Observed(ctx context.Context) (State, error)
	// Clean removes everything of the instance, known or not.
	Clean(ctx context.Context) error
}

// State is what a controller found.
type State struct {
	// Config holds what is in force: the bridge and the complete pods. Its Subnet
	// is the zero prefix when there is no bridge.
	Config Config
	// Ready says that forwarding and the filter rules are as the last Set of this
	// process left them. Pods are confined only while it is true.
	Ready bool
	// Partial names, sorted, what belongs to the instance but to no complete pod.
	Partial []string
}
