package replica

import (
	"sync"

	"github.com/hashicorp/raft"
)

// acks is a transport that notes up to where each member has said that it has the log, and which is the latest call to which it
// has said that it follows this leader.
//
// Raft is asked to hand leadership to a member that has all of it alone. To another it would send the rest first, and if it cannot, its
// attempt is over in time, but what it asked of the goroutine that sends stays behind. A second attempt waits for that, without a limit
// and also when this node has lost leadership by then: Raft would believe for ever that leadership is being handed on, and refuse every
// command when the node leads again.
type acks struct {
	Transport

	mu      sync.Mutex
	of      map[raft.ServerID]position // the term is that in which it was said
	calls   uint64                     // that have begun
	follows map[raft.ServerID]position // its term and, as index, the number of the latest call that it took
}

func newAcks(t Transport) *acks {
	return &acks{Transport: t, of: map[raft.ServerID]position{}, follows: map[raft.ServerID]position{}}
}

// begun returns how many calls have begun.
func (t *acks) begun() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
}

// followed reports whether a member has taken a call of a term that began after so many others.
func (t *acks) followed(id raft.ServerID, term, calls uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.follows[id]
	return at.term == term && at.index > calls
}

// acked reports whether a member has said in a term that it has the log up to an index, which is at least 1.
func (t *acks) acked(id string, index, term uint64) bool { return t.newest(id, term) >= index }

// newest returns up to where a member has said in a term that it has the log; 0: it has said nothing.
func (t *acks) newest(id string, term uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := t.of[raft.ServerID(id)]; at.term == term {
		return at.index
	}
	return 0
}

// heard notes an answer. Heartbeats say nothing of the log.
func (t *acks) heard(id raft.ServerID, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	at := position{args.PrevLogEntry, args.Term}
	if n := len(args.Entries); n > 0 {
		at.index = args.Entries[n-1].Index
	}
	if !resp.Success {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.of[id]; old.term < at.term || old.term == at.term && old.index < at.index {
		t.of[id] = at
	}
}

// AppendEntries implements raft.Transport.
func (t *acks) AppendEntries(
	id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	t.mu.Lock()
	t.calls++
	call := position{t.calls, args.Term}
	t.mu.Unlock()
	if err := t.Transport.AppendEntries(id, to, args, resp); err != nil {
		return err
	}
	t.heard(id, args, resp)
	if !resp.Success {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.follows[id]; old.term < call.term || old.term == call.term && old.index < call.index {
		t.follows[id] = call
	}
	return nil
}

// AppendEntriesPipeline implements raft.Transport.
func (t *acks) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.Transport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	out := &ackedPipeline{AppendPipeline: p, of: t, id: id, done: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go out.relay()
	return out, nil
}

// ackedPipeline notes what comes out of a pipeline.
type ackedPipeline struct {
	raft.AppendPipeline
	of     *acks
	id     raft.ServerID
	done   chan raft.AppendFuture
	once   sync.Once
	closed chan struct{}
}

// relay ends with the pipeline.
func (p *ackedPipeline) relay() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			if f.Error() == nil {
				p.of.heard(p.id, f.Request(), f.Response())
			}
			select {
			case p.done <- f:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *ackedPipeline) Consumer() <-chan raft.AppendFuture { return p.done }

// Close implements raft.AppendPipeline.
func (p *ackedPipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}
