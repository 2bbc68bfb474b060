package fleet

import (
	"cmp"
	"math"
	"slices"
)

// FabricMode says how a host passes its fabric into members of clusters.
type FabricMode string

// The modes; empty: members get nothing of it.
const (
	FabricShared    FabricMode = "share" // all members use the host's devices
	FabricFunctions FabricMode = "vf"    // each member gets virtual functions of its own
)

// Link layers of a FabricPort, as the kernel names them. Kinds of fabrics are InfiniBand and RoCE.
const (
	LinkInfiniBand = "InfiniBand"
	LinkEthernet   = "Ethernet"
	FabricRoCE     = "RoCE"
)

// PortActive is the state of a FabricPort that carries traffic.
const PortActive = "ACTIVE"

// LabelFabric tells fabrics of one kind apart that are not connected with each other.
const LabelFabric = "fabric"

// MaxFabricPorts is how many ports a host's record holds at most.
const MaxFabricPorts = 64

// Fabric is what a host has of a network with RDMA for members of clusters. The zero value is none.
type Fabric struct {
	Mode  FabricMode   `cbor:"1,keyasint"`
	Ports []FabricPort `cbor:"2,keyasint,omitempty"` // by device and port
}

// FabricPort is a port of an RDMA device.
type FabricPort struct {
	Device string `cbor:"1,keyasint"` // "mlx5_0"
	Port   int    `cbor:"2,keyasint"`
	Netdev string `cbor:"3,keyasint,omitempty"` // network interface of the port
	Link   string `cbor:"4,keyasint"`           // LinkInfiniBand or LinkEthernet
	State  string `cbor:"5,keyasint"`           // PortActive, "DOWN", …
	Mbps   int64  `cbor:"6,keyasint"`
	Subnet string `cbor:"7,keyasint,omitempty"` // InfiniBand: upper half of the port's first GID
	GUID   string `cbor:"8,keyasint,omitempty"` // of the device
	// Functions is how many virtual functions of the device members can have.
	Functions int `cbor:"9,keyasint,omitempty"`
}

// FabricOffer is a kind of fabric that hosts have.
type FabricOffer struct {
	Kind string // LinkInfiniBand or FabricRoCE
	Mbps int64  // that the fastest of them gives a member
}

// Usable returns the ports that members get: active ones of one kind and subnet, InfiniBand where there is any, with functions where
// each member is to have its own.
func (f *Fabric) Usable() []FabricPort {
	out := make([]FabricPort, 0, len(f.Ports))
	for _, p := range f.Ports {
		if f.Mode != "" && p.State == PortActive && (f.Mode != FabricFunctions || p.Functions > 0) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil
	}
	first := slices.MinFunc(out, func(a, b FabricPort) int {
		return cmp.Or(cmp.Compare(kindRank(a.Link), kindRank(b.Link)), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port))
	})
	return slices.DeleteFunc(out, func(p FabricPort) bool { return p.Link != first.Link || p.Subnet != first.Subnet })
}

func kindRank(link string) int {
	if link == LinkInfiniBand {
		return 0
	}
	return 1
}

// Kind is the kind of fabric that members get: InfiniBand, RoCE, or empty.
func (f *Fabric) Kind() string {
	ports := f.Usable()
	switch {
	case len(ports) == 0:
		return ""
	case ports[0].Link == LinkInfiniBand:
		return LinkInfiniBand
	}
	return FabricRoCE
}

// Mbps is the rate of all ports together that a member gets.
func (f *Fabric) Mbps() (sum int64) {
	for _, p := range f.Usable() {
		sum += p.Mbps
	}
	return sum
}

// Members is how many members can have the fabric at a time.
func (f *Fabric) Members() int {
	ports := f.Usable()
	if len(ports) == 0 {
		return 0
	}
	most := math.MaxInt
	if f.Mode == FabricFunctions {
		for _, p := range ports {
			most = min(most, p.Functions)
		}
	}
	return most
}

// Equal reports whether both are the same.
func (f *Fabric) Equal(o *Fabric) bool { return f.Mode == o.Mode && slices.Equal(f.Ports, o.Ports) }

// FabricName names the fabric that the host gives to members of clusters: hosts with the same name share one. Empty: it gives none.
func (h *Host) FabricName() string {
	kind := h.Inventory.Fabric.Kind()
	if kind == "" {
		return ""
	}
	name := kind
	for _, more := range []string{h.Inventory.Fabric.Usable()[0].Subnet, h.Labels[LabelFabric]} {
		if more != "" {
			name += " " + more
		}
	}
	return name
}
