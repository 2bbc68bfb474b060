package replica

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/scheduler/state"

	"github.com/hashicorp/raft"
)

// three starts a cluster of three over TCP.
func three(t testing.TB, change func(*Config)) []*member {
	t.Helper()
	var out []*member
	var members []Member
	for _, id := range []string{"a", "b", "c"} {
		m := start(t, t.TempDir(), id, "127.0.0.1:0", change)
		out, members = append(out, m), append(members, Member{ID: id, Address: m.cfg.Address})
	}
	if err := out[0].Bootstrap(within(t), members...); err != nil {
		t.Fatal(err)
	}
	return out
}

// leader waits until one of the members leads for sure.
func leader(t testing.TB, members []*member) *member {
	t.Helper()
	var found *member
	eventually(t, "one leads", func() bool {
		for _, m := range members {
			if m.IsLeader() && m.Barrier(within(t)) == nil {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func others(members []*member, not *member) (out []*member) {
	for _, m := range members {
		if m != not {
			out = append(out, m)
		}
	}
	return out
}

// alike waits until all members have the same state, of at least n accounts: what was not acknowledged
// may still be recorded.
func alike(t *testing.T, members []*member, n int) {
	t.Helper()
	eventually(t, "all members have the same state", func() bool {
		for _, m := range members {
			if m.accounts() < n || m.store.Index() != members[0].store.Index() || m.hash(t) != members[0].hash(t) {
				return false
			}
		}
		return true
	})
}

func TestFollowersRefuse(t *testing.T) {
	members := three(t, nil)
	first := leader(t, members)
	first.put(t, 1)
	for _, m := range others(members, first) {
		if _, err := m.Propose(within(t), account(2)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v", err)
		}
		if err := m.Barrier(within(t)); !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v", err)
		}
		if err := m.ask(); !errors.Is(err, ErrNotLeader) {
			t.Errorf("others confirm that a follower leads: %v", err)
		}
		if err := m.mayPropose(); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a command comes into the queue of a follower: %v", err)
		}
		eventually(t, "a follower knows the leader", func() bool {
			l, ok := m.Leader()
			return ok && l.ID == first.cfg.ID
		})
		eventually(t, "the leader knows that it has the log", func() bool { return first.Acked(m.cfg.ID) == first.LastIndex() })
		if at := m.Acked(first.cfg.ID); at != 0 {
			t.Errorf("a follower was told of entries up to %d", at)
		}
	}
	alike(t, members, 1)
}

func TestAcknowledgedCommandsSurviveTheLeader(t *testing.T) {
	members := three(t, nil)
	first := leader(t, members)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// Proposals go to whoever leads, all the time.
	var acked sync.Map
	var count, next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1))
				for _, m := range members {
					if m.IsLeader() {
						if res, err := m.Propose(ctx, account(i)); err == nil && res[0].Err == nil {
							acked.Store(i, true)
							count.Add(1)
						}
					}
				}
			}
		})
	}
	eventually(t, "commands are recorded", func() bool { return count.Load() > 200 })
	first.stop(t)
	left := others(members, first)
	second := leader(t, left)
	before := count.Load()
	eventually(t, "commands are recorded by the new leader", func() bool { return count.Load() > before+200 })
	stop()
	wg.Wait()

	if err := second.Barrier(within(t)); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	if err := second.store.View(func(v *state.View) error {
		for _, a := range v.Accounts() {
			have[string(a.ID)] = true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	acked.Range(func(i, _ any) bool {
		if id := string(account(i.(int)).Account.ID); !have[id] {
			t.Errorf("%s was acknowledged and is gone", id)
		}
		return true
	})
	alike(t, left, second.accounts())

	// The first one comes back and catches up.
	l := startAgain(t, first)
	alike(t, append(left, l), second.accounts())
}

// startAgain starts a stopped member at its old address.
func startAgain(t *testing.T, m *member) *member {
	t.Helper()
	return start(t, m.cfg.Dir, m.cfg.ID, m.cfg.Address, func(c *Config) {
		c.TrailingLogs, c.SnapshotThreshold = m.cfg.TrailingLogs, m.cfg.SnapshotThreshold
	})
}

// A member that was away for longer than the log reaches back gets a snapshot.
func TestALateMemberGetsASnapshot(t *testing.T) {
	members := three(t, func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 })
	first := leader(t, members)
	first.put(t, 0)
	late := others(members, first)[0]
	alike(t, members, 1)
	late.stop(t)
	for i := 1; i < 30; i++ {
		first.put(t, i)
	}
	if err := first.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	first.put(t, 30)
	late = startAgain(t, late)
	alike(t, append(others(members, first)[1:], first, late), 31)
}

// switchable is a StreamLayer that can be cut off.
type switchable struct {
	loopback
	cut   atomic.Bool
	mu    sync.Mutex
	conns []net.Conn
	hold  atomic.Pointer[holding] // of what arrives; nil: nothing is held
}

// holding keeps what has arrived from being read, and lets nothing be sent from then on.
type holding struct {
	arrived atomic.Int64
	release chan struct{}
}

type holdable struct {
	net.Conn
	of *switchable
}

func (c holdable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if h := c.of.hold.Load(); h != nil {
		h.arrived.Add(1)
		<-h.release
	}
	return n, err
}

func (c holdable) Write(b []byte) (int, error) {
	if h := c.of.hold.Load(); h != nil && h.arrived.Load() > 0 {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (s *switchable) keep(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut.Load() {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	c = holdable{c, s}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *switchable) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, err := s.keep(c, nil); err == nil {
			return c, nil
		}
	}
}

func (s *switchable) Dial(address string, timeout time.Duration) (net.Conn, error) {
	if s.cut.Load() {
		return nil, net.ErrClosed
	}
	return s.keep(s.loopback.Dial(address, timeout))
}

func (s *switchable) disconnect() {
	s.cut.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// A leader that is cut off answers neither reads nor writes, and its work ends.
func TestALeaderThatIsCutOffAnswersNothing(t *testing.T) {
	layers := map[string]*switchable{}
	members := three(t, func(c *Config) {
		c.RequestTimeout = 2 * time.Second
		layers[c.ID] = &switchable{loopback: c.Streams.(loopback)}
		c.Streams = layers[c.ID]
	})
	first := leader(t, members)
	first.put(t, 1)
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = first.WhileLeader(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			select {
			case <-ended:
			default:
				close(ended)
			}
			return nil
		})
	})
	layers[first.cfg.ID].disconnect()
	if err := first.Barrier(within(t)); !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrBusy) {
		t.Errorf("a read was answered: %v", err)
	}
	if _, err := first.Propose(within(t), account(2)); err == nil {
		t.Error("a write was acknowledged")
	}
	select {
	case <-ended:
	case <-within(t).Done():
		t.Error("the leader's work goes on")
	}
	second := leader(t, others(members, first))
	second.put(t, 3)

	// Back again, it forgets what was never committed.
	layers[first.cfg.ID].cut.Store(false)
	eventually(t, "all members have the same state", func() bool {
		return first.store.Index() == second.store.Index() && first.hash(t) == second.hash(t)
	})
	stop()
	wg.Wait()
}

// An answer to a heartbeat that was sent before a read says nothing of who leads by the time of the read.
func TestAnswersFromBeforeAReadDoNotConfirmIt(t *testing.T) {
	layers := map[string]*switchable{}
	members := three(t, func(c *Config) {
		c.HeartbeatTimeout, c.RequestTimeout = 2*time.Second, 4*time.Second
		layers[c.ID] = &switchable{loopback: c.Streams.(loopback)}
		c.Streams = layers[c.ID]
	})
	first := leader(t, members)
	first.put(t, 1)
	h := &holding{release: make(chan struct{})}
	layers[first.cfg.ID].hold.Store(h)
	eventually(t, "an answer has arrived", func() bool { return h.arrived.Load() > 0 })
	term, calls := first.raft.CurrentTerm(), first.acks.begun()
	got := make(chan error, 1)
	go func() { got <- first.Barrier(within(t)) }()
	eventually(t, "the read asks who leads", func() bool {
		first.verifying.mu.Lock()
		defer first.verifying.mu.Unlock()
		return first.verifying.running != nil
	})
	close(h.release)
	if err := <-got; !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrBusy) {
		t.Errorf("a read was answered: %v", err)
	}
	if first.mostFollow(term, calls) {
		t.Error("answers from before count")
	}
}

// slowTransport answers a call when it is told to.
type slowTransport struct {
	Transport
	begun, answer chan struct{}
}

func (s slowTransport) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	s.begun <- struct{}{}
	<-s.answer
	resp.Success = true
	return nil
}

func TestOnlyCallsThatBeganSinceCount(t *testing.T) {
	slow := slowTransport{begun: make(chan struct{}), answer: make(chan struct{})}
	a := newAcks(slow)
	done := make(chan error)
	call := func(term uint64) {
		go func() {
			done <- a.AppendEntries("b", "", &raft.AppendEntriesRequest{Term: term}, &raft.AppendEntriesResponse{})
		}()
		<-slow.begun
	}
	answer := func() {
		t.Helper()
		slow.answer <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	call(3)
	asked := a.begun()
	answer()
	if a.followed("b", 3, asked) {
		t.Error("a call that was under way counts")
	}
	call(3)
	answer()
	if !a.followed("b", 3, asked) || a.followed("b", 2, asked) || a.followed("b", 4, asked) || a.followed("c", 3, asked) {
		t.Error("a call that began since counts for its member and term, and for no other")
	}
	call(2)
	answer()
	if !a.followed("b", 3, asked) || a.followed("b", 2, asked) {
		t.Error("a late answer of an earlier term takes the newest one's place")
	}
}

// TestWhatAMemberHasOfTheLog is what it said last and furthest in the newest term; a refusal or a heartbeat says nothing.
func TestWhatAMemberHasOfTheLog(t *testing.T) {
	a := newAcks(nil)
	for i, c := range []struct {
		term, prev, entries uint64
		success             bool
		want                uint64 // in that term
	}{
		{3, 5, 2, true, 7},
		{3, 8, 0, true, 8},
		{3, 5, 1, true, 8},
		{3, 9, 3, false, 8},
		{3, 0, 0, true, 8},
		{2, 20, 1, true, 0},
		{4, 0, 0, true, 0},
		{4, 1, 0, true, 1},
		{4, 0, 2, true, 2},
	} {
		a.heard("b", &raft.AppendEntriesRequest{Term: c.term, PrevLogEntry: c.prev, Entries: entriesOf(c.prev+1, c.prev+c.entries, c.term)},
			&raft.AppendEntriesResponse{Success: c.success})
		if got := a.newest("b", c.term); got != c.want || a.acked("b", c.want+1, c.term) || c.want > 0 && !a.acked("b", c.want, c.term) || a.newest("c", c.term) != 0 {
			t.Errorf("%d: %d, want %d", i, got, c.want)
		}
	}
}

// What one caller was told is there, every later reader sees, whoever leads by then.
func TestBarrierShowsWhatWasAcknowledged(t *testing.T) {
	members := three(t, nil)
	first := leader(t, members)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				n := first.accounts()
				if err := first.Barrier(within(t)); err != nil {
					t.Error(err)
				}
				if first.accounts() < n {
					t.Error("a read went back in time")
				}
			}
		})
	}
	for i := range 20 {
		first.put(t, i)
	}
	wg.Wait()
	first.stop(t)
	second := leader(t, others(members, first))
	if second.accounts() != 20 {
		t.Errorf("%d of 20 accounts after a barrier of the new leader", second.accounts())
	}
}
