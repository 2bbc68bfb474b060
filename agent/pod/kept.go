package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"gantry/fleet"
)

// keptRecord is what of a record goes with the container, so that a ledger that was lost can be made again.
type keptRecord struct {
	Account fleet.AccountID `json:"account"`
	Addr    netip.Addr      `json:"addr"`
	Held    Holding         `json:"held"`
	// Endpoint is that of the order.
	Endpoint fleet.EndpointID `json:"endpoint,omitempty"`
}

// maxKept is the longest text that goes with a container: containerd's limit of a label is 4,096 bytes with its name.
const maxKept = 4000

// kept writes what goes with the container of an order. What takes too much room is left out: such a pod is not adopted.
func kept(want Assignment, addr netip.Addr) string {
	text, err := json.Marshal(keptRecord{
		Account: want.Account, Addr: addr, Endpoint: want.Endpoint,
		Held: Holding{GPUs: want.GPUs, Mappings: want.Mappings, Overlays: want.Overlays},
	})
	if err != nil || len(text) > maxKept {
		return ""
	}
	return string(text)
}

// Adopted returns the record of a container that no ledger knows. Its order is the one that the container is of, and older
// than any that a scheduler sends. Boot is the host's boot id now; a process that was started under another one counts as
// ended by the reboot. It fails when what goes with the container cannot be read.
func Adopted(id fleet.PodID, c Container, boot string) (Record, error) {
	var k keptRecord
	if err := json.Unmarshal([]byte(c.Kept), &k); err != nil {
		return Record{}, fmt.Errorf("read what goes with the container: %w", err)
	}
	if !k.Addr.Is4() {
		return Record{}, errors.New("what goes with the container names no address")
	}
	rec := Record{
		Assignment: Assignment{
			Pod: id, Account: k.Account, Incarnation: c.Incarnation, Goal: fleet.GoalRun, Endpoint: k.Endpoint, Frozen: c.Frozen,
			GPUs: k.Held.GPUs, Mappings: k.Held.Mappings, Overlays: k.Held.Overlays,
		},
		Addr: k.Addr,
	}
	switch {
	case c.Task == TaskRunning, c.Task == TaskStopped:
		rec.Begun, rec.BegunBoot, rec.Held = c.Incarnation, boot, &k.Held
	case !c.StartedAt.IsZero():
		rec.Begun, rec.Held = c.Incarnation, &k.Held
	}
	return rec, nil
}
