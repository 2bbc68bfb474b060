package replica

import (
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// position is an entry of the log that is committed.
type position struct{ index, term uint64 }

// inbound is a transport whose requests are put so that a follower that is ahead of what its leader knows of it goes on. A leader
// that did not hear that entries had arrived sends them once more, or a snapshot from before them. By then the follower may have
// taken a snapshot, and cut its log there. Raft would refuse the entries, because it no longer has the one before them, and would
// take the snapshot, back to an index behind which its log has a gap: it panics at the next commit. Everything up to the applied
// index is committed, so it is what the leader has (Raft, §5.3 and §7), and the request is taken as one that begins there.
type inbound struct {
	Transport
	calls   chan raft.RPC
	newest  atomic.Pointer[position] // snapshot; nil: there is none
	entries raft.LogStore
	during  func(func()) bool // of the node
}

// SetHeartbeatHandler implements raft.Transport. The handler runs in goroutines of the transport, which Raft's shutdown does not
// wait for, and may write a new term: it must be over before the log is closed.
func (t *inbound) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.Transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if !t.during(func() { handle(rpc) }) {
			rpc.Respond(nil, raft.ErrRaftShutdown)
		}
	})
}

// Consumer implements raft.Transport.
func (t *inbound) Consumer() <-chan raft.RPC { return t.calls }

// carry hands requests to Raft until the node closes.
func (n *Node) carry(t *inbound) {
	for {
		select {
		case rpc := <-t.Transport.Consumer():
			rpc = n.placed(t, rpc)
			select {
			case t.calls <- rpc:
			case <-n.closing.Done():
				return
			}
		case <-n.closing.Done():
			return
		}
	}
}

// placed returns a request as Raft can take it.
func (n *Node) placed(t *inbound, rpc raft.RPC) raft.RPC {
	newest := t.newest.Load()
	if newest == nil {
		return rpc
	}
	switch req := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		heartbeat := req.PrevLogEntry == 0 && len(req.Entries) == 0
		if req.PrevLogEntry <= newest.index && !heartbeat {
			rpc.Command = behind(req, n.reached(t, *newest))
		}
	case *raft.InstallSnapshotRequest:
		if at := n.reached(t, *newest); req.LastLogIndex <= at.index {
			return n.unneeded(rpc, req, at)
		}
	}
	return rpc
}

// reached is the last applied entry, or the snapshot's where the log has no such entry.
func (n *Node) reached(t *inbound, newest position) position {
	var last raft.Log
	if index := n.raft.AppliedIndex(); index > newest.index && t.entries.GetLog(index, &last) == nil {
		return position{index, last.Term}
	}
	return newest
}

// behind is a request without the entries up to an index.
func behind(req *raft.AppendEntriesRequest, at position) *raft.AppendEntriesRequest {
	out := *req
	out.PrevLogEntry, out.PrevLogTerm, out.Entries = at.index, at.term, nil
	for i, e := range req.Entries {
		if e.Index > at.index {
			out.Entries = req.Entries[i:]
			break
		}
	}
	return &out
}

// unneeded answers a snapshot of what is applied already as if it were installed. Raft is asked by a request without entries,
// because it decides about terms.
func (n *Node) unneeded(rpc raft.RPC, req *raft.InstallSnapshotRequest, at position) raft.RPC {
	answers := make(chan raft.RPCResponse, 1)
	n.spawn(func() {
		_, _ = io.Copy(io.Discard, rpc.Reader) // the connection carries other requests behind it
		var got raft.RPCResponse
		select {
		case got = <-answers:
		case <-n.closing.Done():
			got.Error = raft.ErrRaftShutdown
		}
		out := &raft.InstallSnapshotResponse{}
		if a, ok := got.Response.(*raft.AppendEntriesResponse); ok {
			out.RPCHeader, out.Term, out.Success = a.RPCHeader, a.Term, a.Success
		}
		rpc.Respond(out, got.Error)
	})
	return raft.RPC{RespChan: answers, Command: &raft.AppendEntriesRequest{
		RPCHeader: req.RPCHeader, Term: req.Term, Leader: req.Leader, //nolint:staticcheck // members of an earlier protocol send it
		PrevLogEntry: at.index, PrevLogTerm: at.term,
	}}
}
