package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// What a proposal's error may match, besides being a *fleet.Error of code unavailable.
var (
	// ErrNotLeader: another member leads, or none. Nothing happened.
	ErrNotLeader = errors.New("this node does not lead")
	// ErrBusy: more is waiting than the queue holds, or Raft takes nothing. Nothing happened.
	ErrBusy = errors.New("too many commands are waiting")
	// ErrDiskFull: this node's disk is so full that it takes no commands. Nothing happened.
	ErrDiskFull = errors.New("the disk is full")
	// ErrUnknown: the command may have been done, or may still be.
	ErrUnknown = errors.New("outcome unknown")
)

// Limits of the road from Propose to the log.
const (
	maxQueue       = 4096     // proposals that wait to be packed
	maxQueuedBytes = 64 << 20 // of those
	maxPacked      = 256      // commands in one entry
	maxPackedBytes = 1 << 20  // of one entry, unless one proposal alone is larger
	maxInFlight    = 4        // entries that Raft has not decided
)

// The lives of a proposal. Only one side wins the step away from waiting.
const (
	waiting int32 = iota
	taken
	abandoned
)

// proposal is one call of Propose.
type proposal struct {
	data  []byte
	cmds  int
	state atomic.Int32
	done  chan outcome // of capacity 1
}

type outcome struct {
	results []entry.Result
	err     error
}

// Propose puts commands on the log and returns, once they are committed and applied here, one
// result for each, in order. They are decided one by one, in one entry. Commands of concurrent
// callers share entries. It waits until ctx ends, at most Config.RequestTimeout.
// Errors: unavailable, see ErrNotLeader, ErrBusy, ErrDiskFull and ErrUnknown; too_large and invalid (see
// state.Encode); rule, when a command is of a feature level that is not in force. A group with Config.Machine takes no
// command of the control plane, but Append.
func (n *Node) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if n.cfg.Store == nil {
		return nil, errors.New("replica: commands of the control plane need Store: use Append")
	}
	if err := n.mayPropose(); err != nil {
		return nil, err
	}
	if err := n.checkLevels(cmds); err != nil {
		return nil, err
	}
	data, err := state.Encode(cmds...)
	if err != nil {
		return nil, err
	}
	return n.Append(ctx, len(cmds), data)
}

// mayPropose refuses where nothing can be committed.
func (n *Node) mayPropose() error {
	switch {
	case !n.IsLeader():
		return refused(ErrNotLeader, nil)
	case n.diskFull.Load():
		return diskRefusal()
	}
	return nil
}

// Append is Propose for commands that are encoded already. The data of two calls, one after the other, has to be that of
// all their commands.
func (n *Node) Append(ctx context.Context, cmds int, data []byte) ([]entry.Result, error) {
	if err := n.mayPropose(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	p := &proposal{data: data, cmds: cmds, done: make(chan outcome, 1)}
	if err := n.enqueue(p); err != nil {
		return nil, err
	}
	select {
	case out := <-p.done:
		return out.results, out.err
	case <-ctx.Done():
		return nil, p.giveUp(ErrBusy, ctx.Err())
	case <-n.closing.Done():
		return nil, p.giveUp(ErrNotLeader, errClosed)
	}
}

// checkLevels refuses commands that some member may not understand: it would have to stop.
func (n *Node) checkLevels(cmds []state.Command) error {
	for _, cmd := range cmds {
		switch level := state.LevelOf(cmd); level {
		case 1: // always in force
		case 0:
			return fmt.Errorf("replica: %T has no feature level", cmd)
		default:
			if err := n.inForce(level); err != nil {
				return err
			}
		}
	}
	return nil
}

// inForce refuses a feature level above the cluster's.
func (n *Node) inForce(level uint64) error {
	have := uint64(1)
	err := n.cfg.Store.View(func(v *state.View) error {
		c, _ := v.Cluster()
		have = max(have, c.Level)
		return nil
	})
	if err == nil && level > have {
		err = fleet.BreaksRule("This needs feature level %d, and the cluster is at %d: upgrade every scheduler first.", level, have)
	}
	return err
}

// enqueue hands a proposal to the submitter, or refuses it.
func (n *Node) enqueue(p *proposal) error {
	size := int64(len(p.data))
	if n.queued.Add(size) > maxQueuedBytes && size < maxQueuedBytes {
		n.queued.Add(-size)
		return refused(ErrBusy, fmt.Errorf("the queue of commands holds %d bytes, and may hold %d", n.queued.Load(), maxQueuedBytes))
	}
	select {
	case n.queue <- p:
		return nil
	default:
		n.queued.Add(-size)
		return refused(ErrBusy, fmt.Errorf("the queue of commands is full with %d", cap(n.queue)))
	}
}

// giveUp ends the wait for a proposal: nothing happened if it was not yet taken.
func (p *proposal) giveUp(what, why error) error {
	if p.state.CompareAndSwap(waiting, abandoned) {
		return refused(what, why)
	}
	return unknown(why)
}

// refused is the error of a proposal that did not happen and will not.
func refused(what, why error) error {
	return &fleet.Error{
		Code: fleet.CodeUnavailable, Msg: "The control plane cannot take the request now. Please try again.",
		Err: errors.Join(what, why), NothingDone: true,
	}
}

// unknown is the error of a proposal that may have happened.
func unknown(why error) error {
	return fleet.Unavailable("The outcome of the request is not known. Please look before trying again.",
		errors.Join(ErrUnknown, why))
}

// submit packs what waits into entries and hands them to Raft. It waits for room in flight before
// it packs, so that what comes meanwhile goes along; a lone proposal goes at once.
func (n *Node) submit() {
	var next *proposal // taken from the queue, but too large for the last entry
	for {
		select {
		case n.inFlight <- struct{}{}:
		case <-n.closing.Done():
			return
		}
		if next == nil {
			if next = n.dequeue(true); next == nil {
				return
			}
		}
		var batch []*proposal
		batch, next = n.pack(next)
		n.send(batch)
	}
}

// dequeue takes the next proposal that its caller still waits for; nil when there is none or, with
// wait, when the node closes.
func (n *Node) dequeue(wait bool) *proposal {
	for {
		var p *proposal
		select {
		case p = <-n.queue:
		default:
			if !wait {
				return nil
			}
			select {
			case p = <-n.queue:
			case <-n.closing.Done():
				return nil
			}
		}
		n.queued.Add(-int64(len(p.data)))
		if p.state.CompareAndSwap(waiting, taken) {
			return p
		}
	}
}

// pack gathers what waits behind first, up to the limits. It returns what did not fit any more.
func (n *Node) pack(first *proposal) (batch []*proposal, next *proposal) {
	batch = append(batch, first)
	cmds, size := first.cmds, len(first.data)
	for {
		next = n.dequeue(false)
		if next == nil {
			return batch, nil
		}
		cmds, size = cmds+next.cmds, size+len(next.data)
		if cmds > maxPacked || size > maxPackedBytes {
			return batch, next
		}
		batch = append(batch, next)
	}
}

// send hands an entry to Raft and has a goroutine wait for what becomes of it.
func (n *Node) send(batch []*proposal) {
	parts := make([][]byte, len(batch))
	for i, p := range batch {
		parts[i] = p.data
	}
	future := n.raft.ApplyLog(raft.Log{Data: bytes.Join(parts, nil)}, n.cfg.RequestTimeout)
	n.wg.Go(func() {
		err := n.wait(future)
		<-n.inFlight
		if err != nil {
			deliver(batch, nil, raftError(err))
			return
		}
		switch v := future.Response().(type) {
		case []entry.Result:
			deliver(batch, v, nil)
		case error:
			deliver(batch, nil, unknown(v))
		default:
			deliver(batch, nil, unknown(errors.New("the entry has no result")))
		}
	})
}

// wait returns a future's error, at the latest when Raft has shut down. Raft has a channel for that in its futures but
// sets none for entries, and when it shuts down it forgets those that are committed and queued for the state machine:
// without this their callers, and Close, would wait without end. Futures of what failed at once have no such channel.
func (n *Node) wait(future raft.Future) error {
	if field := reflect.Indirect(reflect.ValueOf(future)).FieldByName("ShutdownCh"); field.CanSet() {
		field.Set(reflect.ValueOf(n.stopped))
	}
	return future.Error()
}

// deliver gives each proposal its part of an entry's results.
func deliver(batch []*proposal, results []entry.Result, err error) {
	for _, p := range batch {
		if err == nil && len(results) < p.cmds {
			err = unknown(errors.New("the entry has too few results"))
		}
		if err != nil {
			p.done <- outcome{err: err}
			continue
		}
		p.done <- outcome{results: results[:p.cmds:p.cmds]}
		results = results[p.cmds:]
	}
}

// raftError tells what did not happen from what may have.
func raftError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return refused(ErrNotLeader, err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return refused(ErrBusy, fmt.Errorf("the log takes no entry: %w", err))
	}
	return unknown(err)
}
