package replica

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// leaderByHand sends a follower what a test has its leader send.
type leaderByHand struct {
	t       *testing.T
	trans   *raft.NetworkTransport
	to      raft.ServerAddress
	entries []*raft.Log // from index 1
	term    uint64
}

func (l *leaderByHand) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
}

// send sends the entries after prev up to last, all of them committed.
func (l *leaderByHand) send(prev, last uint64) *raft.AppendEntriesResponse {
	l.t.Helper()
	req := &raft.AppendEntriesRequest{RPCHeader: l.header(), Term: l.term, PrevLogEntry: prev, Entries: l.entries[prev:last], LeaderCommitIndex: last}
	if prev > 0 {
		req.PrevLogTerm = l.entries[prev-1].Term
	}
	out := &raft.AppendEntriesResponse{}
	if err := l.trans.AppendEntries("f", l.to, req, out); err != nil {
		l.t.Fatal(err)
	}
	return out
}

// TestAFollowerAheadOfWhatItsLeaderKnows: answers were lost, and the follower took a snapshot in between. What it is sent again, entries
// or a snapshot from before them, takes it nowhere back, and it goes on.
func TestAFollowerAheadOfWhatItsLeaderKnows(t *testing.T) {
	a := one(t, func(c *Config) { c.SnapshotThreshold = 1_000_000 })
	for i := range 15 {
		a.put(t, i)
	}
	if err := a.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		a.put(t, 15+i)
	}
	snaps, err := a.exports.List()
	if err != nil || len(snaps) != 1 {
		t.Fatal(snaps, err)
	}
	old := snaps[0]
	_, file, err := a.exports.Open(old.ID)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()

	trans, err := raft.NewTCPTransport("127.0.0.1:0", nil, 1, 5*time.Second, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = trans.Close() })
	f := start(t, t.TempDir(), "f", "127.0.0.1:0", func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 })
	l := &leaderByHand{t: t, trans: trans, to: raft.ServerAddress(f.cfg.Address)}
	last, _ := a.logs.LastIndex()
	for i := uint64(1); i <= last; i++ {
		var e raft.Log
		if err := a.logs.GetLog(i, &e); err != nil {
			t.Fatal(err)
		}
		l.entries, l.term = append(l.entries, &e), e.Term
	}
	have := last - 4
	if out := l.send(0, have); !out.Success {
		t.Fatal("a new follower refuses entries")
	}
	eventually(t, "they are applied", func() bool { return f.raft.AppliedIndex() == have && f.store.Index() == have })
	if err := f.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	if first, err := f.logs.FirstIndex(); err != nil || first < have {
		t.Fatalf("its log still begins at %d, %v", first, err)
	}
	install := func(term uint64) *raft.InstallSnapshotResponse {
		t.Helper()
		out := &raft.InstallSnapshotResponse{}
		req := &raft.InstallSnapshotRequest{
			RPCHeader: l.header(), SnapshotVersion: old.Version, Term: term, LastLogIndex: old.Index, LastLogTerm: old.Term,
			Configuration: raft.EncodeConfiguration(old.Configuration), ConfigurationIndex: old.ConfigurationIndex, Size: int64(len(data)),
		}
		if err := trans.InstallSnapshot("f", l.to, req, out, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := l.send(have-20, have+1); !out.Success {
		t.Error("entries that it has in part are refused")
	}
	if out := l.send(have-20, have-10); !out.Success {
		t.Error("entries that it has are refused")
	}
	if out := install(l.term - 1); out.Success || out.Term != l.term {
		t.Errorf("a snapshot of a leader of before: %+v", out)
	}
	if out := install(l.term); !out.Success || f.store.Index() < have || f.raft.AppliedIndex() < have {
		t.Errorf("a snapshot of what is applied: %+v; at %d now, %d applied", out, f.store.Index(), f.raft.AppliedIndex())
	}
	if out := l.send(have+1, last-1); !out.Success {
		t.Error("the next entries are refused")
	}
	l.term++
	if out := install(l.term); !out.Success || out.Term != l.term {
		t.Errorf("a snapshot of a new leader: %+v", out)
	}
	if out := l.send(last-1, last); !out.Success {
		t.Error("the last entry is refused")
	}
	eventually(t, "everything is applied", func() bool { return f.store.Index() == a.store.Index() })
	old.Index, old.Term = f.raft.AppliedIndex(), l.term
	if out := install(l.term); !out.Success || f.hash(t) != a.hash(t) {
		t.Errorf("it has another state than its leader, %+v after a snapshot of just what it has", out)
	}
	at := position{1, 1}
	if got := f.reached(&inbound{entries: raft.NewInmemStore()}, at); got != at {
		t.Errorf("an applied entry that is not in the log is one of term %d", got.term)
	}
}

// TestWhatRaftTakesAsItIs: heartbeats, entries behind what this member has, newer snapshots, and everything as long as
// there is no snapshot.
func TestWhatRaftTakesAsItIs(t *testing.T) {
	m := one(t, nil)
	for i := range 10 {
		m.put(t, i)
	}
	applied := m.raft.AppliedIndex()
	in := &inbound{entries: m.logs}
	taken := func(what string, command any, as bool) {
		t.Helper()
		if got := m.placed(in, raft.RPC{Command: command}); (got.Command == command) != as {
			t.Errorf("%s: taken as it is: %v", what, !as)
		}
	}
	old := &raft.AppendEntriesRequest{PrevLogEntry: 2, Entries: entriesOf(3, 4, 1)}
	taken("old entries without a snapshot", old, true)
	if m.trans.newest.Load() != nil {
		t.Error("a member that never had a snapshot knows of one")
	}
	in.newest.Store(&position{5, m.Term()})
	taken("old entries", old, false)
	taken("a heartbeat", &raft.AppendEntriesRequest{LeaderCommitIndex: applied}, true)
	taken("entries from the beginning", &raft.AppendEntriesRequest{Entries: entriesOf(1, 2, 1)}, false)
	taken("entries behind the snapshot", &raft.AppendEntriesRequest{PrevLogEntry: 6}, true)
	taken("a newer snapshot", &raft.InstallSnapshotRequest{LastLogIndex: applied + 1}, true)
	taken("a vote", &raft.RequestVoteRequest{}, true)
}

// TestEntriesBehindAnIndex are all that is left of a request, which is otherwise the same.
func TestEntriesBehindAnIndex(t *testing.T) {
	req := &raft.AppendEntriesRequest{Term: 9, PrevLogEntry: 2, PrevLogTerm: 1, LeaderCommitIndex: 7, Entries: entriesOf(3, 6, 1)}
	for index, want := range map[uint64]int{2: 4, 3: 3, 5: 1, 6: 0, 8: 0} {
		got := behind(req, position{index, 4})
		if got.PrevLogEntry != index || got.PrevLogTerm != 4 || got.Term != 9 || got.LeaderCommitIndex != 7 || len(got.Entries) != want {
			t.Errorf("behind %d: %+v", index, got)
		}
		if want > 0 && got.Entries[0].Index != index+1 {
			t.Errorf("behind %d comes %d", index, got.Entries[0].Index)
		}
	}
	if len(req.Entries) != 4 || req.PrevLogEntry != 2 {
		t.Errorf("the request itself is another one now: %+v", req)
	}
}

// TestASnapshotThatComesAtTheEndIsAnswered with what is so, and not as if it were installed.
func TestASnapshotThatComesAtTheEndIsAnswered(t *testing.T) {
	n := &Node{}
	n.closing, n.close = context.WithCancel(t.Context())
	answers := make(chan raft.RPCResponse, 1)
	asked := n.unneeded(raft.RPC{RespChan: answers, Reader: strings.NewReader("state")}, &raft.InstallSnapshotRequest{Term: 3}, position{5, 2})
	if req, ok := asked.Command.(*raft.AppendEntriesRequest); !ok || req.Term != 3 || req.PrevLogEntry != 5 || req.PrevLogTerm != 2 || len(req.Entries) != 0 {
		t.Errorf("Raft is asked %+v", asked.Command)
	}
	n.close()
	n.wg.Wait()
	got := <-answers
	if out, ok := got.Response.(*raft.InstallSnapshotResponse); !ok || out.Success || !errors.Is(got.Error, raft.ErrRaftShutdown) {
		t.Errorf("%+v", got)
	}
}
