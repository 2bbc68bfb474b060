package state

import (
	"cmp"
	"crypto/subtle"
	"net/netip"
	"slices"

	"gantry/fleet"
)

// maxImages is how many image references a host's record keeps.
const maxImages = 200

// unknownRegion is the region of a data center that nobody described yet.
const unknownRegion = "UNKNOWN"

// maxGeneration bounds the numbers that an agent may report, so that counting on from them never
// wraps round.
const maxGeneration = 1 << 62

// The public ports that a host may publish.
const (
	minPublicPort = 1024
	maxPublicPort = 65535
)

func (c JoinHost) apply(t *txn) (any, error) {
	token := get(t, &t.base.tokens, c.Token)
	// One answer for all: who tries tokens learns nothing.
	if token == nil || expired(token, c.At) || subtle.ConstantTimeCompare(token.Hash, c.Hash) != 1 {
		return nil, &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the join token is unknown, used or expired"}
	}
	host := c.Host
	if err := cmp.Or(checkID("$.id", string(host.ID)), checkID("$.machineId", host.MachineID)); err != nil {
		return nil, err
	}
	if get(t, &t.base.hosts, host.ID) != nil {
		return nil, exists("there is a host with this id")
	}
	if err := c.replaceOld(t); err != nil {
		return nil, err
	}
	if get(t, &t.base.centers, token.DataCenter) == nil {
		center := fleet.DataCenter{ID: token.DataCenter, Name: string(token.DataCenter), Region: unknownRegion}
		put(t, &t.base.centers, center.ID, &center)
		t.note(KindCatalog, string(center.ID))
	}
	drop(t, &t.base.tokens, token.ID)
	return t.putHost(fleet.Host{
		ID: host.ID, Name: host.Name, DataCenter: token.DataCenter, Cloud: token.Cloud, State: fleet.HostJoining,
		MachineID: host.MachineID, JoinedAt: host.JoinedAt, SeenAt: c.At,
	}), nil
}

// replaceOld deletes the record that the machine has from an earlier join, unless its pods may still
// run there or have data there.
func (c JoinHost) replaceOld(t *txn) error {
	for _, id := range keysOf(t, &t.base.hosts) {
		if get(t, &t.base.hosts, id).MachineID != c.Host.MachineID {
			continue
		}
		if slices.ContainsFunc(t.podsOn(id), func(p *fleet.Pod) bool { return p.Held || p.KeepsData() }) {
			return exists("this machine is already a host, and pods hold resources or keep data on it")
		}
		drop(t, &t.base.hosts, id)
		drop(t, &t.base.generations, id)
		t.note(KindHost, string(id))
	}
	return nil
}

func (c ConnectHost) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	if !ok {
		return nil, fleet.NotFound("host")
	}
	if host.MachineID != c.MachineID {
		return nil, &fleet.Error{Code: fleet.CodeForbidden, Msg: "the host's identity belongs to another machine"}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Generation > host.Generation {
		host.Generation = t.setGeneration(host.ID, c.Generation+1)
	}
	host.State, host.BootID, host.SeenAt = fleet.HostReady, c.BootID, c.At
	host.Epoch++
	host.Inventory = c.Inventory
	images := slices.Clone(c.Inventory.Images)
	slices.Sort(images)
	images = slices.Compact(images)
	host.Inventory.Images = images[:min(len(images), maxImages)]
	t.contribute(c.Inventory.GPUs)
	return t.putHost(host), nil
}

// check refuses an inventory that the tables cannot mean.
func (c ConnectHost) check() error {
	if c.Generation >= maxGeneration {
		return fleet.Invalid("$.generation", "is too large")
	}
	total := c.Inventory.Total
	if total.MilliCPU < 0 || total.MemoryMB < 0 || total.DiskGB < 0 {
		return fleet.Invalid("$.inventory.total", "must not be negative")
	}
	if err := checkPublic(&c.Inventory); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, gpu := range c.Inventory.GPUs {
		if gpu.UUID == "" || seen[gpu.UUID] {
			return fleet.Invalid("$.inventory.gpus", "each needs a UUID of its own")
		}
		seen[gpu.UUID] = true
	}
	return nil
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

func (c SetHostCloud) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case c.Cloud != fleet.CloudSecure && c.Cloud != fleet.CloudCommunity:
		return nil, fleet.Invalid("$.cloud", "must be SECURE or COMMUNITY")
	}
	host.Cloud = c.Cloud
	return t.putHost(host), nil
}

func (c SetHostState) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case host.Epoch != c.Epoch:
		return nil, fleet.Stale("the host has a newer session")
	case c.State != fleet.HostReady && c.State != fleet.HostUnreachable:
		return nil, fleet.Invalid("$.state", "must be ready or unreachable")
	case host.State == fleet.HostJoining:
		return nil, fleet.Stale("the host has not connected yet")
	case host.State == c.State:
		return nil, nil
	}
	host.State, host.SeenAt = c.State, c.At
	t.putHost(host)
	return nil, nil
}
