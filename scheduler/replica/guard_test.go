package replica

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// When every disk is full leadership stays where it is; when one has room again it goes there, and to no other.
func TestAFullLeaderHandsOnOnlyToAVoterWithRoom(t *testing.T) {
	used, roomy := &diskUse{}, atomic.Pointer[string]{}
	members := three(t, func(c *Config) {
		c.DiskUsed = used.get
		c.MayLead = func(id string) bool { r := roomy.Load(); return r != nil && *r == id }
	})
	first := leader(t, members)
	first.put(t, 1)
	used.set(97)
	eventually(t, "it knows", first.DiskFull)
	if at := first.leaveLead(time.Time{}); !at.IsZero() || !first.IsLeader() {
		t.Fatal("a full leader handed on to a full voter")
	}
	if _, err := first.Propose(within(t), account(2)); !errors.Is(err, ErrDiskFull) {
		t.Errorf("got %v", err)
	}
	if err := first.Barrier(within(t)); err != nil {
		t.Errorf("a read was refused: %v", err)
	}
	id := others(members, first)[1].cfg.ID
	roomy.Store(&id)
	eventually(t, "the one with room leads", others(members, first)[1].IsLeader)
}

// unknownCommand is one that this program does not know the level of.
type unknownCommand struct{ state.PutAccount }

func TestCommandsAboveTheLevelInForceAreRefused(t *testing.T) {
	m := one(t, nil)
	before := m.LastIndex()
	if _, err := m.Propose(within(t), account(1), unknownCommand{}); err == nil {
		t.Error("a command without a level was taken")
	}
	if err := m.inForce(2); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("level 2 without a cluster: %v", err)
	}
	if m.LastIndex() != before || m.accounts() != 0 {
		t.Error("something was written")
	}
	boot := state.Bootstrap{Level: 1, ClusterID: fleet.NewID()}
	if _, err := m.Propose(within(t), boot); err != nil {
		t.Fatal(err)
	}
	if err := m.inForce(1); err != nil {
		t.Error(err)
	}
	if err := m.inForce(2); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("level 2 at level 1: %v", err)
	}
}

// What a member holds can be read while nobody runs, from its log and from its snapshot.
func TestInspectTellsUpToWhereACopyGoes(t *testing.T) {
	m := one(t, func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 })
	begun := time.Now().Add(-time.Minute)
	for i := range 5 {
		m.put(t, i)
	}
	last, term := m.LastIndex(), m.raft.CurrentTerm()
	m.stop(t)
	h, err := Inspect(m.cfg.Dir)
	if err != nil || h.Index != last || h.Term != term || h.At.Before(begun) {
		t.Errorf("got %+v, %v; the log ends at %d of term %d", h, err, last, term)
	}
	again := start(t, m.cfg.Dir, "a", "127.0.0.1:0", nil)
	again.ready(t)
	if again.accounts() != 5 {
		t.Error("the copy was changed")
	}
	again.stop(t)
	if _, err := Inspect(t.TempDir()); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
}
