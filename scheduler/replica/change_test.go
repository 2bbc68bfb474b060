package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"

	"github.com/hashicorp/raft"
)

// join starts a member with nothing and makes it a non-voter of the cluster that the leader leads.
func join(t *testing.T, lead *member, id string, change func(*Config)) *member {
	t.Helper()
	m := start(t, t.TempDir(), id, "127.0.0.1:0", change)
	if err := lead.AddNonVoter(within(t), m.self()); err != nil {
		t.Fatal(err)
	}
	return m
}

// calm keeps a busy machine from being taken for a leader that is gone.
func calm(c *Config) { c.HeartbeatTimeout = time.Second }

func (m *member) self() Member { return Member{ID: m.cfg.ID, Address: m.cfg.Address} }

// caughtUp waits until a member has applied all that another has on its log now.
func caughtUp(t *testing.T, m, with *member) {
	t.Helper()
	last := with.store.Index()
	eventually(t, m.cfg.ID+" caught up", func() bool { return m.AppliedIndex() >= last })
}

// writers propose to whoever leads until stopped; acked holds what was acknowledged.
type writers struct {
	members atomic.Pointer[[]*member]
	next    atomic.Int64
	count   atomic.Int64
	acked   sync.Map
	stop    func()
}

func write(t *testing.T, callers int, members []*member) *writers {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &writers{}
	w.members.Store(&members)
	var wg sync.WaitGroup
	w.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(w.stop)
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(w.next.Add(1))
				for _, m := range *w.members.Load() {
					if !m.IsLeader() {
						continue
					}
					if res, err := m.Propose(ctx, account(i)); err == nil && res[0].Err == nil {
						w.acked.Store(i, true)
						w.count.Add(1)
					}
				}
			}
		})
	}
	w.progress(t)
	return w
}

// progress waits until more was acknowledged.
func (w *writers) progress(t *testing.T) {
	t.Helper()
	before := w.count.Load()
	eventually(t, "commands are recorded", func() bool { return w.count.Load() > before+50 })
}

// check stops the writers and finds all that was acknowledged in a member's state.
func (w *writers) check(t *testing.T, m *member) {
	t.Helper()
	w.stop()
	have := map[string]bool{}
	if err := m.store.View(func(v *state.View) error {
		for _, a := range v.Accounts() {
			have[string(a.ID)] = true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.acked.Range(func(i, _ any) bool {
		if id := string(account(i.(int)).Account.ID); !have[id] {
			t.Errorf("%s was acknowledged and is gone", id)
		}
		return true
	})
}

// atTheLeader repeats a change at whoever leads until it is done.
func atTheLeader(t *testing.T, members []*member, what func(*member) error) {
	t.Helper()
	var last error
	eventually(t, "the change is made", func() bool {
		for _, m := range members {
			if m.IsLeader() {
				if last = what(m); last == nil {
					return true
				}
				if fleet.CodeOf(last) != fleet.CodeUnavailable {
					t.Fatal(last)
				}
			}
		}
		return false
	})
}

func voters(m *member) (ids []string) {
	for _, s := range m.Servers() {
		if s.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// One member grows to three while commands are recorded, loses its leader and then another.
func TestMembersChangeUnderLoad(t *testing.T) {
	a := one(t, calm)
	w := write(t, 4, []*member{a})
	members := []*member{a}
	for _, id := range []string{"b", "c"} {
		m := join(t, a, id, calm)
		caughtUp(t, m, a)
		if err := a.Promote(within(t), m.self()); err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
		now := members
		w.members.Store(&now)
		w.progress(t)
	}
	if got := fmt.Sprint(voters(a)); got != "[a b c]" {
		t.Fatalf("voters %s", got)
	}
	if err := a.Remove(within(t), "a"); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("the leader removed itself: %v", err)
	}
	left := others(members, a)
	atTheLeader(t, members, func(m *member) error { return m.Remove(within(t), "a") })
	w.members.Store(&left)
	w.progress(t)
	second := leader(t, left)
	if got := fmt.Sprint(voters(second)); got != "[b c]" {
		t.Fatalf("voters %s", got)
	}
	a.stop(t)
	third := others(left, second)[0]
	atTheLeader(t, left, func(m *member) error { return m.Remove(within(t), third.cfg.ID) })
	w.progress(t)
	w.check(t, second)
	if err := second.Remove(within(t), second.cfg.ID); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("the last voter was removed: %v", err)
	}
	if err := second.Demote(within(t), second.cfg.ID); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("the last voter was demoted: %v", err)
	}
	if err := second.Transfer(within(t), ""); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("leadership went to nobody: %v", err)
	}
}

func TestTransfer(t *testing.T) {
	members := three(t, calm)
	first := leader(t, members)
	first.put(t, 1)
	rest := others(members, first)
	for _, m := range rest {
		if err := m.Transfer(within(t), ""); !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v", err)
		}
		if err := m.AddNonVoter(within(t), Member{ID: "d", Address: "127.0.0.1:1"}); !errors.Is(err, ErrNotLeader) {
			t.Errorf("got %v", err)
		}
	}
	for _, id := range []string{"x", first.cfg.ID} {
		if err := first.Transfer(within(t), id); fleet.CodeOf(err) != fleet.CodeConflictRule {
			t.Errorf("to %s: %v", id, err)
		}
	}
	alike(t, members, 1)
	changed := rest[1].LeaderChanges()
	to := rest[0]
	if err := first.Transfer(within(t), to.cfg.ID); err != nil {
		t.Fatal(err)
	}
	if first.IsLeader() {
		t.Error("it still leads")
	}
	eventually(t, "its time of leading is over", func() bool { lead, _ := first.leading(); return lead == nil })
	to.ready(t)
	select {
	case <-changed:
	case <-within(t).Done():
		t.Error("nobody was told")
	}
	// A leader that is to go hands leadership on, and is still a member: the next leader is asked to remove it.
	if err := to.Remove(within(t), to.cfg.ID); !errors.Is(err, ErrNotLeader) {
		t.Errorf("a leader removes itself: %v", err)
	}
	to = leader(t, members)
	to.ready(t)
	rest = others(members, to)
	if s := to.Servers(); len(s) != 3 {
		t.Errorf("servers %v", s)
	}
	if err := to.Demote(within(t), rest[1].cfg.ID); err != nil {
		t.Fatal(err)
	}
	if err := to.Transfer(within(t), rest[1].cfg.ID); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("to one without a vote: %v", err)
	}
	if got := len(voters(to)); got != 2 {
		t.Errorf("%d voters", got)
	}
	if s := to.Servers(); len(s) != 3 {
		t.Errorf("servers %v", s)
	}
}

// snapshotOf returns a snapshot of a member's state.
func snapshotOf(t *testing.T, m *member) []byte {
	t.Helper()
	snap, err := m.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = snap.WriteTo(&b)
	if err := errors.Join(err, snap.Release()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestInstall(t *testing.T) {
	m := one(t, nil)
	for i := range 20 {
		m.put(t, i)
	}
	copied, want, index := snapshotOf(t, m), m.hash(t), m.store.Index()
	dir := t.TempDir()
	if err := Install(dir, Member{ID: "z", Address: "127.0.0.1:1"}, bytes.NewReader(copied[:len(copied)-3])); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Fatalf("half a snapshot: %v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Fatalf("it left %v, %v", names, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(dir, Member{ID: "z", Address: l.Addr().String()}, bytes.NewReader(copied)); err != nil {
		t.Fatal(err)
	}
	z, err := tryStart(t, dir, "z", l, nil)
	if err != nil {
		t.Fatal(err)
	}
	z.ready(t)
	if z.hash(t) != want || z.store.Index() != index {
		t.Error("another state")
	}
	z.put(t, 20)
	b := join(t, z, "b", nil)
	alike(t, []*member{z, b}, 21)
	z.stop(t)
	if err := Install(dir, z.self(), bytes.NewReader(copied)); err == nil {
		t.Error("a replica was replaced")
	}
	again := startAgain(t, z)
	again.ready(t)
	if again.accounts() != 21 {
		t.Errorf("%d accounts", again.accounts())
	}
}

// termOf reads the term that the member of a folder voted in.
func termOf(t *testing.T, dir string) uint64 {
	t.Helper()
	logs, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	term, err := logs.GetUint64([]byte(keyTerm))
	if err := errors.Join(err, logs.Close()); err != nil {
		t.Fatal(err)
	}
	return term
}

func TestRecover(t *testing.T) {
	for name, snapshot := range map[string]bool{"from the log": false, "from a snapshot": true} {
		t.Run(name, func(t *testing.T) {
			members := three(t, func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 })
			first := leader(t, members)
			for i := range 10 {
				first.put(t, i)
			}
			if snapshot {
				if err := first.Snapshot(within(t)); err != nil {
					t.Fatal(err)
				}
			}
			first.put(t, 10)
			want := first.hash(t)
			for _, m := range members {
				m.stop(t)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			self := Member{ID: "new", Address: l.Addr().String()}
			before := termOf(t, first.cfg.Dir)
			for range 2 { // once more does no harm
				if err := Recover(first.cfg.Dir, self, OpenState); err != nil {
					t.Fatal(err)
				}
			}
			if after := termOf(t, first.cfg.Dir); after != before+2 {
				t.Errorf("the term is %d, after %d: another member's vote may count in it", after, before)
			}
			m, err := tryStart(t, first.cfg.Dir, "new", l, nil)
			if err != nil {
				t.Fatal(err)
			}
			m.ready(t)
			if m.hash(t) != want || m.accounts() != 11 {
				t.Errorf("another state, of %d accounts", m.accounts())
			}
			m.put(t, 11)
			if _, err := os.Stat(filepath.Join(first.cfg.Dir, scratchDir)); !errors.Is(err, os.ErrNotExist) {
				t.Error("scratch files are left")
			}
		})
	}
	if err := Recover(t.TempDir(), Member{ID: "a", Address: "a"}, OpenState); err == nil {
		t.Error("nothing was recovered")
	}
}

// TestAHandoverThatDoesNotEnd makes handovers to a member that is behind and answers nothing, and takes leadership away during one: Raft
// would refuse every entry from then on, also once this member leads again, so its process has to end.
func TestAHandoverThatDoesNotEnd(t *testing.T) {
	members := three(t, func(c *Config) {
		calm(c)
		c.RequestTimeout = patience // for an answer
	})
	first := leader(t, members)
	first.put(t, 1)
	alike(t, members, 1)
	rest := others(members, first)
	mute, other := rest[0], rest[1]
	mute.stop(t)
	asked := silent(t, mute.cfg.Address)
	first.put(t, 2)
	limit := within(t)
	select {
	case <-asked:
	case <-limit.Done():
		t.Fatal("the leader does not send to the member that is behind")
	}
	again := 0
	eventually(t, "a handover does not end", func() bool { // one that ends refuses the next for a moment, too
		err := first.transferOnce(mute.self())
		if err == nil {
			t.Fatal("leadership went to a member that answers nothing")
		}
		if again++; !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			again = 0
		}
		return again == 50
	})
	other.stop(t)
	eventually(t, "it does not lead any more", func() bool { return first.raft.State() != raft.Leader })
	other = start(t, other.cfg.Dir, other.cfg.ID, other.cfg.Address, calm)
	for {
		select {
		case err := <-first.fatal:
			if !errors.Is(err, ErrHandover) {
				t.Error(err)
			}
			return
		case <-limit.Done():
			t.Fatal("a member whose Raft takes nothing any more goes on")
		case <-time.After(50 * time.Millisecond):
			if other.IsLeader() { // it is the other's turn
				_ = other.Transfer(limit, first.cfg.ID)
			}
		}
	}
}

// silent listens and answers nothing, until the test ends; the channel says that somebody connected.
func silent(t *testing.T, address string) <-chan struct{} {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() { _ = l.Close() }) // the connections end with those who made them
	return asked
}
