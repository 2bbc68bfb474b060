package membership

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// TestAMemberRemovedBeforeItCaughtUpHearsOfIt: its own state knows no other member, only the one by which it joined.
func TestAMemberRemovedBeforeItCaughtUpHearsOfIt(t *testing.T) {
	w := newWorld(t)
	m := w.machine()
	w.must(w.join(m, w.token(func(*fleet.JoinToken) {}), state.Level))
	w.must(m.ln.Close()) // it never runs
	w.must(propose(within(t), w.lead.node, state.RemoveMember{Member: fleet.MemberID(m.id), At: time.Now()}))
	store, err := state.Open(filepath.Join(t.TempDir(), replica.StateFile), state.Options{BootID: "boot"})
	w.must(err)
	t.Cleanup(func() { w.must(store.Close()) })
	conf := Config{Self: Self{ID: fleet.MemberID(m.id), Address: m.address}, Store: store, Certs: m.certs, Log: slog.New(slog.DiscardHandler)}
	alone := NewPresence(conf)
	alone.show(within(t), replica.Member{}, false)
	if alone.Removed() {
		t.Error("it heard of it from nobody")
	}
	conf.Joined = []string{"127.0.0.1:1", w.lead.address}
	p := NewPresence(conf)
	p.show(within(t), replica.Member{}, false)
	if !p.Removed() {
		t.Error("it did not hear that it was removed")
	}
}
