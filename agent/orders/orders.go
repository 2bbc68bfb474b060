// Package orders takes what a scheduler wants of this host: the full set of assignments or a difference to it. It writes them into the
// ledger, then hands them to the pods' machines, then acknowledges. It never follows a control plane that is an older copy of one that
// it followed before (its lineage), and checks all that an order names, whatever the scheduler checks.
package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Config is what Orders are made from.
type Config struct {
	Ledger *ledger.Ledger
	Pods   *pod.Pods
	// Allocate chooses a pod's address.
	Allocate ledger.Allocate
	// Followed writes a lineage down beside the ledger, which may be lost.
	Followed func(lineage uint64) error
	// Heard is set once a scheduler has said what it wants.
	Heard *atomic.Bool
	Log   *slog.Logger
}

// Orders takes orders. Its methods are called by one session at a time.
type Orders struct {
	Config
	holds bool // the machines have the whole set of the ledger's generation and lineage
}

// New makes Orders.
func New(c Config) *Orders { return &Orders{Config: c} }

// Hello fills in what a hello says of the orders that the host has.
func (o *Orders) Hello(h *agentrpc.Hello) {
	h.Generation, h.Lineage, h.HoldsSet = o.Ledger.Generation(), o.Ledger.Lineage(), o.holds
	for _, rec := range o.Ledger.Records() {
		h.Pods = append(h.Pods, encodeRecord(rec))
	}
}

// Follow takes what the scheduler says of itself. A control plane of a lower lineage than one that was
// followed before is an old copy: what it wants is long past.
func (o *Orders) Follow(w *agentrpc.Welcome) error {
	have := o.Ledger.Lineage()
	if w.GetLineage() < have {
		o.Log.Error("a scheduler was refused: it is of a control plane that was restored since; this host follows the restored one only",
			"lineage", w.GetLineage(), "followed", have)
		return fmt.Errorf("the scheduler's lineage %d is below %d, which this host followed", w.GetLineage(), have)
	}
	if w.GetLineage() > have {
		o.Log.Warn("the control plane was restored from a copy", "lineage", w.GetLineage(), "followed", have)
		o.holds = false
		if err := o.Followed(w.GetLineage()); err != nil {
			return err
		}
		if err := o.Ledger.SetLineage(w.GetLineage()); err != nil {
			return err
		}
	}
	if w.GetKeepSet() && !o.holds {
		return errors.New("the scheduler sends no full set, and this agent has none")
	}
	o.holds = w.GetKeepSet()
	return nil
}

// TakeFull takes the full set of orders.
func (o *Orders) TakeFull(_ context.Context, m *agentrpc.Down_Full) (*agentrpc.Up, error) {
	changed, err := o.Ledger.SetFull(m.Full.GetGeneration(), o.decodeAll(m.Full.GetAssignments()), o.Allocate)
	if err != nil {
		return nil, fmt.Errorf("take the full set: %w", err)
	}
	o.order(changed)
	o.holds = true
	return applied(m.Full.GetGeneration()), nil
}

// TakeDifference takes a difference to the set that the host has. Where it does not apply, the answer asks for the full set.
func (o *Orders) TakeDifference(_ context.Context, m *agentrpc.Down_Difference) (*agentrpc.Up, error) {
	d := m.Difference
	gone := make([]fleet.PodID, len(d.GetGone()))
	for i, id := range d.GetGone() {
		gone[i] = fleet.PodID(id)
	}
	changed, err := o.Ledger.Apply(d.GetFrom(), d.GetTo(), o.decodeAll(d.GetPut()), gone, o.Allocate)
	if errors.Is(err, ledger.ErrGap) {
		return &agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take a difference: %w", err)
	}
	o.order(changed)
	return applied(d.GetTo()), nil
}

func applied(generation uint64) *agentrpc.Up {
	return &agentrpc.Up{Kind: &agentrpc.Up_Applied{Applied: &agentrpc.Applied{Generation: generation}}}
}

// order hands changed assignments to the machines. The first one in an agent's life lets them start
// new containers: until then another host may have been given the work. They have all their orders
// before they are let: those of the ledger lack what is never on disk.
func (o *Orders) order(changed []pod.Assignment) {
	for _, a := range changed {
		o.Pods.Set(a)
	}
	if o.Heard.CompareAndSwap(false, true) {
		o.Pods.Poke()
	}
}

// encodeRecord tells what the ledger holds of a pod. As long as something may run, its GPUs and ports are those
// that it has, whatever is ordered since.
func encodeRecord(rec pod.Record) *agentrpc.LedgerPod {
	a := rec.Assignment
	if held, ok := rec.Holds(); ok {
		a.GPUs, a.Mappings = held.GPUs, held.Mappings
	}
	out := &agentrpc.LedgerPod{
		PodId: string(a.Pod), Incarnation: a.Incarnation, Goal: string(a.Goal),
		Ended: rec.HasEnded(), Gpus: a.GPUs, Need: agentrpc.EncodeResources(a.Limits),
	}
	for _, m := range a.Mappings {
		out.Ports = append(out.Ports, &agentrpc.Port{Number: int32(m.Private), Protocol: "tcp", Public: int32(m.Public)}) //nolint:gosec // 16 bits
	}
	return out
}
