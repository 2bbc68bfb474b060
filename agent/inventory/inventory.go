// Package inventory says what a host has and what an operator should know of it: what pods may use of it, its GPUs, the container runtime,
// images, and conditions. What asks others for something keeps what they said, so that to ask for the inventory never waits.
package inventory

import (
	"cmp"
	"net/netip"
	"slices"

	"gantry/agent/gpu"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Config is what a Host is made from. A function that is nil has nothing to tell.
type Config struct {
	Stock        fleet.Inventory // what Read found, with pretended GPUs
	RuntimeClass string          // see fleet.Inventory
	Version      string          // of the agent
	UserNS       bool            // pods have user namespaces
	Runtime      *Runtime
	// Found are the GPUs of the machine.
	Found func() gpu.Found
	// Published is where the pods' ports are reached; an IP that is not valid: nowhere.
	Published func() (ip netip.Addr, from, to int)
	// Fabric is what the host has of a fabric for members of clusters.
	Fabric func() fleet.Fabric
	// Volumes are the kinds of backends of network volumes that the host can mount.
	Volumes func() []fleet.BackendKind
	// Models are the references of models that are on the host.
	Models func() []string
	// Tunnel is how other hosts reach the pods' private networks here.
	Tunnel func() fleet.HostTunnel
	// Certificate is the host's own, and whom the host trusts.
	Certificate func() fleet.NodeCertificate
	// Conditions tell what an operator should know.
	Conditions []func() []fleet.Condition
}

// Host knows what the host has. It is safe for concurrent use.
type Host struct{ Config }

// New makes a Host.
func New(c Config) *Host { return &Host{c} }

// Inventory is what the host has now.
func (h *Host) Inventory() fleet.Inventory {
	inv := h.Stock
	if h.Published != nil {
		if ip, from, to := h.Published(); ip.IsValid() {
			inv.PublicIP, inv.PortFrom, inv.PortTo = ip.String(), from, to
		}
	}
	if h.Found != nil {
		found := h.Found()
		inv.GPUs, inv.CUDA, inv.Driver = h.GPUs(), found.CUDA, found.Driver
		inv.Conditions = append(inv.Conditions, found.Conditions...)
	}
	if h.Fabric != nil {
		inv.Fabric = h.Fabric()
	}
	if h.Volumes != nil {
		inv.Volumes = h.Volumes()
	}
	if h.Models != nil {
		inv.Models = h.Models()
	}
	if h.Tunnel != nil {
		inv.Tunnel = h.Tunnel()
	}
	if h.Certificate != nil {
		inv.Certificate = h.Certificate()
	}
	for _, conditions := range h.Conditions {
		inv.Conditions = append(inv.Conditions, conditions()...)
	}
	inv.RuntimeClass, inv.AgentVersion = h.RuntimeClass, h.Version
	h.Runtime.tell(&inv, h.UserNS)
	slices.SortFunc(inv.Conditions, func(a, b fleet.Condition) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text))
	})
	return inv
}

// GPUs returns the host's GPUs, pretended ones first.
func (h *Host) GPUs() []fleet.GPU {
	if h.Found == nil {
		return h.Stock.GPUs
	}
	return slices.Concat(h.Stock.GPUs, h.Found().GPUs)
}

// GPUName returns the type of a GPU of this host; "" when there is none.
func (h *Host) GPUName(uuid string) string {
	for _, g := range h.GPUs() {
		if g.UUID == uuid {
			return g.Type
		}
	}
	return ""
}

// Encoded is Inventory as the link has it.
func (h *Host) Encoded() *agentrpc.Inventory { return encode(h.Inventory()) }

func encode(inv fleet.Inventory) *agentrpc.Inventory {
	out := &agentrpc.Inventory{
		Total: agentrpc.EncodeResources(inv.Total),
		Cuda:  inv.CUDA, Driver: inv.Driver, Kernel: inv.Kernel, Runtime: inv.Runtime, AgentVersion: inv.AgentVersion, Images: inv.Images, Models: inv.Models,
		PublicIp: inv.PublicIP, PortFrom: int32(inv.PortFrom), PortTo: int32(inv.PortTo), //nolint:gosec // 16 bits
		RuntimeClass: inv.RuntimeClass, Tunnel: encodeTunnel(inv.Tunnel),
		Certificate: agentrpc.EncodeCertificate(inv.Certificate), Fabric: encodeFabric(inv.Fabric),
	}
	for _, kind := range inv.Volumes {
		out.Volumes = append(out.Volumes, string(kind))
	}
	for _, g := range inv.GPUs {
		out.Gpus = append(out.Gpus, &agentrpc.GPU{
			Uuid: g.UUID, Type: g.Type, MemoryMb: g.MemoryMB, Numa: int32(g.NUMA), Island: int32(g.Island), //nolint:gosec // small
			Simulated: g.Simulated, Sick: g.Sick, Pci: g.PCI, Parent: g.Parent,
		})
	}
	for _, n := range inv.Conditions {
		out.Conditions = append(out.Conditions, &agentrpc.Condition{Code: n.Code, Text: n.Text, Severe: n.Severe})
	}
	return agentrpc.Seal(out)
}

func encodeTunnel(t fleet.HostTunnel) *agentrpc.HostTunnel {
	if t.PublicKey == "" {
		return nil
	}
	out := &agentrpc.HostTunnel{PublicKey: t.PublicKey, UserSpace: t.UserSpace, Mtu: int32(t.MTU)} //nolint:gosec // small
	if t.Endpoint.IsValid() {
		out.Endpoint = t.Endpoint.String()
	}
	if t.Plain.IsValid() {
		out.Plain = t.Plain.String()
	}
	return out
}

func encodeFabric(f fleet.Fabric) *agentrpc.Fabric {
	if f.Mode == "" {
		return nil
	}
	out := &agentrpc.Fabric{Mode: string(f.Mode)}
	for _, p := range f.Ports {
		out.Ports = append(out.Ports, &agentrpc.FabricPort{
			Device: p.Device, Port: int32(p.Port), Netdev: p.Netdev, Link: p.Link, State: p.State, Mbps: p.Mbps, //nolint:gosec // small
			Subnet: p.Subnet, Guid: p.GUID, Functions: int32(p.Functions), //nolint:gosec // small
		})
	}
	return out
}
