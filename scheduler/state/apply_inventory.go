package state

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"

	"gantry/fleet"
)

// The bounds of an inventory.
const (
	maxImages        = 200 // references of images, and of models, that a host's record keeps
	maxGPUs          = 1024
	maxConditions    = 32
	maxConditionText = 1024 // bytes
	maxKinds         = 8    // of network volumes' backends
)

// The public ports that a host may publish.
const (
	minPublicPort = 1024
	maxPublicPort = 65535
)

var conditionCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

func (c UpdateInventory) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case host.Epoch != c.Epoch:
		return nil, fleet.Stale("the host has a newer session")
	case host.State != fleet.HostReady && host.State != fleet.HostUnreachable:
		return nil, fleet.Stale("the host is not connected")
	}
	if err := checkInventory(&c.Inventory); err != nil {
		return nil, err
	}
	t.contribute(c.Inventory.GPUs)
	next := host
	next.Inventory = tidyInventory(&c.Inventory)
	cordonGPUs(&next)
	t.joinTunnel(&next)
	if sameInventory(&host.Inventory, &next.Inventory) && next.Tunnel == host.Tunnel {
		return nil, nil
	}
	t.putHost(next)
	return nil, nil
}

// checkInventory refuses an inventory that the tables cannot mean.
func checkInventory(inv *fleet.Inventory) error {
	total := inv.Total
	if total.MilliCPU < 0 || total.MemoryMB < 0 || total.DiskGB < 0 {
		return fleet.Invalid("$.inventory.total", "must not be negative")
	}
	if len(inv.Digest) > maxID {
		return fleet.Invalid("$.inventory.digest", "must have at most 256 bytes")
	}
	return cmp.Or(checkPublic(inv), checkGPUs(inv.GPUs), checkConditions(inv), checkKinds(inv.Volumes), checkCertificate(&inv.Certificate),
		checkFabric(&inv.Fabric))
}

func checkFabric(f *fleet.Fabric) error {
	switch f.Mode {
	case "", fleet.FabricShared, fleet.FabricFunctions:
	default:
		return fleet.Invalid("$.inventory.fabric.mode", "must be share, vf or empty")
	}
	if len(f.Ports) > fleet.MaxFabricPorts {
		return fleet.Invalid("$.inventory.fabric.ports", "must be at most 64")
	}
	for _, p := range f.Ports {
		if p.Device == "" || max(len(p.Device), len(p.Netdev), len(p.Link), len(p.State), len(p.Subnet), len(p.GUID)) > maxID ||
			min(p.Port, p.Functions) < 0 || p.Mbps < 0 {
			return fleet.Invalid("$.inventory.fabric.ports", "each needs a device, no text of more than 256 bytes and no negative number")
		}
	}
	return nil
}

// maxTrusts bounds how many CAs a host may say that it trusts.
const maxTrusts = 4

func checkCertificate(c *fleet.NodeCertificate) error {
	long := func(digest string) bool { return len(digest) > maxID }
	if len(c.Trusts) > maxTrusts || long(c.CA) || slices.ContainsFunc(c.Trusts, long) {
		return fleet.Invalid("$.inventory.certificate", "must name at most 4 CAs, each with at most 256 bytes")
	}
	return nil
}

func sameCertificate(a, b *fleet.NodeCertificate) bool {
	return a.CA == b.CA && slices.Equal(a.Trusts, b.Trusts) && a.EndsAt.Equal(b.EndsAt)
}

func checkKinds(kinds []fleet.BackendKind) error {
	if len(kinds) > maxKinds {
		return fleet.Invalid("$.inventory.volumes", "must be at most 8")
	}
	for _, kind := range kinds {
		if !knownKind(kind) {
			return fleet.Invalid("$.inventory.volumes", "each must be nfs, cephfs or local")
		}
	}
	return nil
}

func checkGPUs(gpus []fleet.GPU) error {
	if len(gpus) > maxGPUs {
		return fleet.Invalid("$.inventory.gpus", "must be at most 1024")
	}
	seen := map[string]bool{}
	for _, gpu := range gpus {
		if gpu.UUID == "" || seen[gpu.UUID] {
			return fleet.Invalid("$.inventory.gpus", "each needs a UUID of its own")
		}
		if max(len(gpu.UUID), len(gpu.Type), len(gpu.PCI), len(gpu.Parent)) > maxID || len(gpu.Sick) > maxConditionText {
			return fleet.Invalid("$.inventory.gpus", "no text may have more than 256 bytes, and why one is sick no more than 1024")
		}
		seen[gpu.UUID] = true
	}
	return nil
}

func checkConditions(inv *fleet.Inventory) error {
	if len(inv.Conditions) > maxConditions {
		return fleet.Invalid("$.inventory.conditions", "must be at most 32")
	}
	for _, n := range inv.Conditions {
		if !conditionCode.MatchString(n.Code) || len(n.Text) > maxConditionText {
			return fleet.Invalid("$.inventory.conditions", "each needs a code in snake case of at most 64 bytes and a text of at most 1024")
		}
	}
	switch inv.RuntimeClass {
	case "", "gvisor", "kata":
		return nil
	}
	return fleet.Invalid("$.inventory.runtimeClass", "must be empty, gvisor or kata")
}

// checkPublic refuses public ports or an address that nothing could be published at.
func checkPublic(inv *fleet.Inventory) error {
	none := inv.PortFrom == 0 && inv.PortTo == 0
	if !none && (inv.PortFrom < minPublicPort || inv.PortTo > maxPublicPort || inv.PortFrom > inv.PortTo) {
		return fleet.Invalid("$.inventory.ports", "must be a range within 1024 to 65535")
	}
	if inv.PublicIP == "" {
		return nil
	}
	if _, err := netip.ParseAddr(inv.PublicIP); err != nil {
		return fleet.Invalid("$.inventory.publicIp", "must be an IP address")
	}
	return nil
}

// tidyInventory returns an inventory as a host's record keeps it: what has no order is sorted, nothing is in it
// twice, and of images and models as many as there is room for.
func tidyInventory(inv *fleet.Inventory) fleet.Inventory {
	out := *inv
	out.Images = slices.Compact(slices.Sorted(slices.Values(inv.Images)))
	out.Images = out.Images[:min(len(out.Images), maxImages)]
	out.Models = slices.Compact(slices.Sorted(slices.Values(inv.Models)))
	out.Models = out.Models[:min(len(out.Models), maxImages)]
	out.Conditions = slices.Compact(slices.SortedFunc(slices.Values(inv.Conditions), func(a, b fleet.Condition) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text), cmp.Compare(severity(b), severity(a)))
	}))
	out.Volumes = slices.Compact(slices.Sorted(slices.Values(inv.Volumes)))
	out.Tunnel = tidyTunnel(inv.Tunnel)
	out.Certificate.Trusts = slices.Compact(slices.Sorted(slices.Values(inv.Certificate.Trusts)))
	return out
}

func severity(n fleet.Condition) int {
	if n.Severe {
		return 1
	}
	return 0
}

// sameInventory compares two tidy inventories.
func sameInventory(a, b *fleet.Inventory) bool {
	return a.Total == b.Total && slices.Equal(a.GPUs, b.GPUs) && a.CUDA == b.CUDA && a.Driver == b.Driver && a.Kernel == b.Kernel &&
		a.Runtime == b.Runtime && a.AgentVersion == b.AgentVersion && slices.Equal(a.Images, b.Images) && slices.Equal(a.Models, b.Models) &&
		a.PublicIP == b.PublicIP && a.PortFrom == b.PortFrom && a.PortTo == b.PortTo &&
		slices.Equal(a.Conditions, b.Conditions) && a.RuntimeClass == b.RuntimeClass && slices.Equal(a.Volumes, b.Volumes) &&
		a.Tunnel == b.Tunnel && sameCertificate(&a.Certificate, &b.Certificate) && a.Digest == b.Digest && a.Fabric.Equal(&b.Fabric)
}
