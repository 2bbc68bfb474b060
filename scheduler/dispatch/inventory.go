package dispatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

// stockPause is the least time between two inventories of a session that are recorded; of those that come within
// it the last one counts. For a host that never stops it doubles, up to stockMost.
const (
	stockPause = time.Second
	stockMost  = 30 * time.Second
)

// stock is the newest inventory of a session that is not recorded yet.
type stock struct {
	mu   sync.Mutex // guards the fields below
	next *agentrpc.Inventory
	busy bool // a task of the session records
}

// restock has an inventory recorded that the host says it has now.
func (x *session) restock(ctx context.Context, inv *agentrpc.Inventory) {
	x.stock.mu.Lock()
	defer x.stock.mu.Unlock()
	x.stock.next = inv
	if !x.stock.busy {
		x.stock.busy = true
		x.tasks.Go(func() {
			if err := x.recordStock(ctx); err != nil {
				x.cancel(err)
			}
		})
	}
}

// take returns what is to be recorded; nil when there is nothing, and then nobody records.
func (s *stock) take() *agentrpc.Inventory {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.next
	s.next, s.busy = nil, next != nil
	return next
}

// recordStock records inventories until a pause brings none. What the state refuses is left out: the session is worth
// more than what it says beside the matter.
func (x *session) recordStock(ctx context.Context) error {
	wait := stockPause
	for inv := x.stock.take(); inv != nil; inv = x.stock.take() {
		err := x.proposeStock(ctx, inv)
		switch {
		case fleet.CodeOf(err) == fleet.CodeInvalid:
			x.server.Log.Error("a host's inventory was refused", "host", x.host, "err", err)
		case err != nil:
			return fmt.Errorf("record an inventory: %w", err)
		}
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, stockMost)
	}
	return nil
}

func (x *session) proposeStock(ctx context.Context, inv *agentrpc.Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return x.server.propose(ctx, state.UpdateInventory{
		Host: x.host, Epoch: x.epoch, Inventory: decodeInventory(inv), At: time.Now(),
	})
}
