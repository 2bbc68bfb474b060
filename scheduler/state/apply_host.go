package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gantry/fleet"
)

// unknownRegion is the region of a data center that nobody described yet.
const unknownRegion = "UNKNOWN"

// maxGeneration bounds the numbers that an agent may report, so that counting on from them never
// wraps round.
const maxGeneration = 1 << 62

func (c JoinHost) apply(t *txn) (any, error) {
	token, err := t.useToken(c.Token, fleet.TokenHost, func(k *fleet.JoinToken) bool {
		return !expired(k, c.At) && sameHash(k.Hash, c.Hash)
	})
	if err != nil {
		return nil, err
	}
	host := c.Host
	err = cmp.Or(checkID("$.id", string(host.ID)), checkID("$.machineId", host.MachineID), checkHardware(host.Hardware))
	if err != nil {
		return nil, err
	}
	if t.base.hosts.Get(t.Txn, host.ID) != nil {
		return nil, exists("there is a host with this id")
	}
	if err := c.replaceOld(t); err != nil {
		return nil, err
	}
	if err := t.burn(token, c.Request, string(host.ID)); err != nil {
		return nil, err
	}
	if t.base.centers.Get(t.Txn, token.DataCenter) == nil {
		center := fleet.DataCenter{ID: token.DataCenter, Name: string(token.DataCenter), Region: unknownRegion}
		t.base.centers.Put(t.Txn, center.ID, &center)
		t.Note(KindCatalog, string(center.ID))
	}
	return t.putHost(fleet.Host{
		ID: host.ID, Name: host.Name, DataCenter: token.DataCenter, Cloud: token.Cloud, State: fleet.HostJoining,
		MachineID: host.MachineID, JoinedAt: host.JoinedAt, SeenAt: c.At, Lineage: t.lineage(), Hardware: host.Hardware,
	}), nil
}

// replaceOld deletes the record that the machine has from an earlier join, unless that may be another machine's, or its pods
// may still run there or have data there.
func (c JoinHost) replaceOld(t *txn) error {
	for _, id := range t.base.hostsByMachine.Keys(t.Txn, c.Host.MachineID) {
		h := t.base.hosts.Get(t.Txn, id)
		if err := c.mayBeAnother(t, h); err != nil {
			return err
		}
		if t.mayHold(id) && h.Lineage != t.lineage() {
			return exists("this machine is already a host, and may run pods that this control plane, which was restored, does not know")
		}
		if slices.ContainsFunc(t.occupants(id), func(p *fleet.Pod) bool { return p.Held || p.KeepsData() }) {
			return exists("this machine is already a host, and pods hold resources or keep data on it")
		}
		t.base.hosts.Drop(t.Txn, id)
		t.base.generations.Drop(t.Txn, id)
		t.Note(KindHost, string(id))
		t.succeed(id, c.Host.ID)
	}
	return nil
}

// awayLong is how long a host has to be away before a machine with its id is taken for it, where their hardware tells nothing.
const awayLong = 10 * time.Minute

// mayBeAnother refuses a machine that may not be the host whose id it has.
func (c JoinHost) mayBeAnother(t *txn, h *fleet.Host) error {
	at, _ := t.base.clock.Get(t.Txn, onlyKey).Of(c.At)
	switch {
	case h.State == fleet.HostGone:
		return nil
	case h.Hardware != "" && c.Host.Hardware != "":
		if h.Hardware == c.Host.Hardware {
			return nil
		}
		return CopiedMachine(h, "has another main board")
	case h.State == fleet.HostReady:
		return CopiedMachine(h, "is connected")
	case at.Before(h.SeenAt.Add(awayLong)):
		return CopiedMachine(h, "was there a moment ago")
	}
	return nil
}

// CopiedMachine is the error of a join with the machine id of a host that may be another machine, as why says.
func CopiedMachine(h *fleet.Host, why string) error {
	return exists(fmt.Sprintf("the machine's id is that of host %q (%s), which %s. Was a disk or a template copied? Then give this machine an id of its own: "+
		"rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup; a virtual machine also needs a UUID of its own. "+
		"If it takes the place of that host: gantry host remove %s", h.Name, h.ID, why, h.ID))
}

// succeed has backends that name a host as the one that looks after them name the one that the machine is now. It gets
// none of their keys before an operator gave it the role.
func (t *txn) succeed(old, id fleet.HostID) {
	for _, backend := range t.base.backends.Keys(t.Txn, 0, func(b *fleet.Backend) bool { return b.StorageHost == old }) {
		b := cloneBackend(t.base.backends.Get(t.Txn, backend))
		b.StorageHost = id
		b.Rev++
		t.base.backends.Put(t.Txn, backend, &b)
		t.Note(KindStorage, string(backend))
	}
}

func (c ConnectHost) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	if !ok {
		return nil, fleet.NotFound("host")
	}
	if err := cmp.Or(c.identify(&host), c.check()); err != nil {
		return nil, err
	}
	if c.Lineage > t.lineage() {
		return nil, fleet.Stale("the host followed a control plane that was restored later than this one")
	}
	inventory := c.Inventory
	if c.Brief {
		if c.Generation > host.Generation || !knows(&host, c.Inventory.Digest, t.lineage()) {
			return nil, ErrBrief
		}
		inventory = host.Inventory
	}
	was := host
	if c.Generation > host.Generation {
		host.Generation = t.setGeneration(host.ID, max(c.Generation, lineageFloor(t.lineage()))+1)
	}
	if host.BootID != "" && host.BootID != c.BootID {
		host.PastBoots = append(slices.Clone(host.PastBoots), host.BootID)
		host.PastBoots = host.PastBoots[max(0, len(host.PastBoots)-maxBoots):]
	}
	host.State, host.BootID, host.SeenAt = fleet.HostReady, c.BootID, c.At
	host.Hardware = cmp.Or(host.Hardware, c.Hardware)
	host.Epoch++
	host.Inventory = tidyInventory(&inventory)
	t.joinTunnel(&host)
	t.contribute(inventory.GPUs)
	c.compare(t, &was, &host)
	return t.putHost(host), nil
}

// ErrBrief refuses a host that left out what is needed of it: it has to say everything.
var ErrBrief error = &fleet.Error{Code: fleet.CodeStale, Msg: "more has to be known of the host than it said"}

// knows reports whether a host whose inventory has the digest need not say more than that: it is the one that its record has,
// and its ledger is to be compared with nothing (see compare).
func knows(host *fleet.Host, digest string, lineage uint64) bool {
	compared := host.Lineage == lineage && host.State != fleet.HostFenced && host.State != fleet.HostJoining && len(host.Leftovers) == 0
	return compared && digest != "" && digest == host.Inventory.Digest
}

// Knows reports whether a host whose inventory has the digest may connect without saying more (ConnectHost.Brief).
func (v *View) Knows(id fleet.HostID, digest string) bool {
	host := v.tb.host(id)
	c, _ := v.Cluster()
	return host != nil && knows(host, digest, c.Lineage)
}

// maxBoots is how many past boot ids a host's record keeps.
const maxBoots = 16

// identify refuses who is not the host that joined. Hardware that either side does not know is not compared.
func (c ConnectHost) identify(host *fleet.Host) error {
	msg := ""
	switch {
	case host.State == fleet.HostGone:
		msg = "the host was removed; it can join again"
	case host.MachineID != c.MachineID:
		msg = "the host's identity belongs to another machine"
	case host.Hardware != "" && c.Hardware != "" && host.Hardware != c.Hardware:
		msg = "the host's identity belongs to another machine: the main board is not the one of before"
	case slices.Contains(host.PastBoots, c.BootID):
		msg = "the host was booted anew since: two machines use one identity"
	default:
		return nil
	}
	return &fleet.Error{Code: fleet.CodeForbidden, Msg: msg}
}

// checkHardware refuses what identifies no main board.
func checkHardware(hardware string) error {
	if len(hardware) > maxID {
		return fleet.Invalid("$.hardware", "must have at most 256 bytes")
	}
	return nil
}

// check refuses an inventory that the tables cannot mean, and a host that does not say when it was booted: the
// next one that does would count as booted anew.
func (c ConnectHost) check() error {
	if c.Generation >= maxGeneration {
		return fleet.Invalid("$.generation", "is too large")
	}
	if err := checkID("$.bootId", c.BootID); err != nil {
		return err
	}
	return cmp.Or(checkInventory(&c.Inventory), checkHardware(c.Hardware), c.checkPods())
}

// checkPods refuses what no ledger holds. A record without an incarnation is ignored: nothing was ordered of it.
func (c ConnectHost) checkPods() error {
	for i := range c.Pods {
		p := &c.Pods[i]
		if err := checkID("$.pods", string(p.Pod)); err != nil {
			return err
		}
		if p.Incarnation >= maxGeneration {
			return fleet.Invalid("$.pods", "each needs an incarnation that was given out")
		}
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
	case host.State == fleet.HostFenced || host.State == fleet.HostGone:
		return nil, fleet.Stale("the host was taken out")
	case host.State == c.State:
		return nil, nil
	}
	host.State, host.SeenAt = c.State, c.At
	t.putHost(host)
	return nil, nil
}
