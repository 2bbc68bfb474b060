package sim

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// raftLimit is how long a call of Raft to another member may take.
const raftLimit = 2 * time.Second

// rafts carries Raft's calls between schedulers over the wire.
type rafts struct {
	wire *wire

	mu   sync.Mutex // guards ends
	ends map[raft.ServerAddress]*raftEnd
}

// raftEnd is one process's transport.
type raftEnd struct {
	of    *rafts
	addr  raft.ServerAddress
	calls chan raft.RPC
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	fast func(raft.RPC) // takes heartbeats though Raft is busy with its disk
}

func newRafts(w *wire) *rafts { return &rafts{wire: w, ends: map[raft.ServerAddress]*raftEnd{}} }

// open opens the transport of a process that begins.
func (r *rafts) open(addr string) *raftEnd {
	e := &raftEnd{of: r, addr: raft.ServerAddress(addr), calls: make(chan raft.RPC, 16), done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends[e.addr] = e
	return e
}

func (r *rafts) end(addr raft.ServerAddress) *raftEnd {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ends[addr]
}

// Close ends every call.
func (e *raftEnd) Close() error {
	e.once.Do(func() {
		close(e.done)
		e.of.mu.Lock()
		defer e.of.mu.Unlock()
		if e.of.ends[e.addr] == e {
			delete(e.of.ends, e.addr)
		}
	})
	return nil
}

// ask carries a call there and its answer back.
func ask[T any](e *raftEnd, to raft.ServerAddress, args any, body io.Reader, answer *T) error {
	timer := time.NewTimer(raftLimit)
	defer timer.Stop()
	here, there := nodeOf(string(e.addr)), nodeOf(string(to))
	if err := e.of.wire.travel(here, there, timer.C, e.done); err != nil {
		return err
	}
	peer := e.of.end(to)
	if peer == nil {
		return &net.OpError{Op: "dial", Net: "wire", Addr: wireAddr(to), Err: syscall.ECONNREFUSED}
	}
	answers := make(chan raft.RPCResponse, 1)
	if err := peer.take(raft.RPC{Command: args, Reader: body, RespChan: answers}, timer.C, e.done); err != nil {
		return err
	}
	var got raft.RPCResponse
	select {
	case got = <-answers:
	case <-peer.done:
		return syscall.ECONNRESET
	case <-timer.C:
		return os.ErrDeadlineExceeded
	case <-e.done:
		return net.ErrClosed
	}
	if err := e.of.wire.travel(there, here, timer.C, e.done); err != nil {
		return err
	}
	if got.Error != nil {
		return got.Error
	}
	*answer = *got.Response.(*T)
	return nil
}

// take hands a call to Raft.
func (e *raftEnd) take(rpc raft.RPC, late <-chan time.Time, gone <-chan struct{}) error {
	e.mu.Lock()
	fast := e.fast
	e.mu.Unlock()
	if a, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && fast != nil && a.PrevLogEntry == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0 {
		go fast(rpc) // in the other process: what its disk holds up does not hold up the caller
		return nil
	}
	select {
	case e.calls <- rpc:
		return nil
	case <-e.done:
		return syscall.ECONNRESET
	case <-late:
		return os.ErrDeadlineExceeded
	case <-gone:
		return net.ErrClosed
	}
}

// Consumer implements raft.Transport.
func (e *raftEnd) Consumer() <-chan raft.RPC { return e.calls }

// LocalAddr implements raft.Transport.
func (e *raftEnd) LocalAddr() raft.ServerAddress { return e.addr }

// AppendEntriesPipeline implements raft.Transport: each call waits for its answer.
func (e *raftEnd) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries implements raft.Transport.
func (e *raftEnd) AppendEntries(
	_ raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	own := *args
	return ask(e, to, &own, nil, resp)
}

// RequestVote implements raft.Transport.
func (e *raftEnd) RequestVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	own := *args
	return ask(e, to, &own, nil, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (e *raftEnd) RequestPreVote(
	_ raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	own := *args
	return ask(e, to, &own, nil, resp)
}

// InstallSnapshot implements raft.Transport.
func (e *raftEnd) InstallSnapshot(
	_ raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	own := *args
	all, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	return ask(e, to, &own, bytes.NewReader(all), resp)
}

// TimeoutNow implements raft.Transport.
func (e *raftEnd) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	own := *args
	return ask(e, to, &own, nil, resp)
}

// EncodePeer implements raft.Transport.
func (e *raftEnd) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer implements raft.Transport.
func (e *raftEnd) DecodePeer(addr []byte) raft.ServerAddress { return raft.ServerAddress(addr) }

// SetHeartbeatHandler implements raft.Transport.
func (e *raftEnd) SetHeartbeatHandler(fast func(raft.RPC)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fast = fast
}
