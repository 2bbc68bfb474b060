package link

import (
	"bytes"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/agent"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/state"
)

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(io.Writer(l), nil)) }

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// frozen returns a control plane with a copy of the state as it is now.
func (w *world) frozen() *world {
	w.Helper()
	out := &world{TB: w.TB, ctx: w.ctx, ca: w.ca, log: w.log, dial: w.dial, listen: w.listen}
	w.mu.Lock()
	defer w.mu.Unlock()
	snapshot, err := w.store.Snapshot()
	must(w, err)
	path := filepath.Join(w.TempDir(), "copy")
	out.store, err = state.Open(path, state.Options{})
	must(w, err)
	w.Cleanup(func() { _ = out.store.Close() })
	var buf bytes.Buffer
	_, err = snapshot.WriteTo(&buf)
	must(w, err)
	must(w, snapshot.Release())
	must(w, out.store.Restore(&buf))
	out.index = w.index
	return out
}

// TestACopyOfAHostsDiskIsRefused starts agents on copies of a host's data folder.
func TestACopyOfAHostsDiskIsRefused(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*agent.Config)
		fresh  bool // the first agent has ended before
		alarm  string
	}{
		"beside the host":           {func(*agent.Config) {}, false, "at the same time"},
		"on another machine":        {func(c *agent.Config) { c.Hardware = "board-2" }, true, "main board"},
		"of a boot that is history": {func(c *agent.Config) { c.BootID = "boot" }, true, "booted anew"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.newScheduler(loopback, dispatch.Config{Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: time.Second, HostTimeout: 500 * time.Millisecond})
			s.begin()
			h := w.newHost(s.addr)
			h.start(s.addr)
			w.soon("the host is ready", h.is(fleet.HostReady))
			h.kill()
			copied := h.copied()
			copied.conf = x.change
			h.conf = func(c *agent.Config) { c.BootID = "boot-2" }
			h.start(s.addr)
			w.soon("the host is ready again", func() bool { return h.record().BootID == "boot-2/0" && s.dispatch.Reachable(h.id) })
			if x.fresh {
				h.kill()
				w.soon("the host is lost", h.is(fleet.HostUnreachable))
			}
			epoch := h.record().Epoch
			copied.start(s.addr)
			w.soon("there is an alarm", func() bool { return strings.Contains(h.record().Alarm, x.alarm) })
			first := h.record()
			w.propose(state.AlarmHost{Host: h.id, At: time.Now()})
			time.Sleep(2 * time.Second) // the copy goes on and on
			if now := h.record(); now.Epoch != epoch || now.Rev > first.Rev+1 {
				t.Errorf("the copy was let in, or the alarm came again at once: %+v, was %+v", now, first)
			}
		})
	}
}

// TestCopiesOfAMachineJoin has machines join that have the id of a host: one that is connected, and one that is away.
func TestCopiesOfAMachineJoin(t *testing.T) {
	w := newWorld(t)
	s := w.newScheduler(loopback, dispatch.Config{Heartbeat: 100 * time.Millisecond, HeartbeatTimeout: time.Second, HostTimeout: 500 * time.Millisecond})
	s.begin()
	h := w.newHost(s.addr)
	token := w.token()
	join := func(board string) (fleet.HostID, error) {
		id, err := session.JoinCluster(w.ctx, session.JoinConfig{
			Dir: t.TempDir(), Schedulers: []string{s.addr}, Name: "copy", Token: token, MachineID: h.machine, Hardware: board, Dial: w.dial,
		})
		return fleet.HostID(id), err
	}
	refused := func(board, why string) {
		t.Helper()
		if _, err := join(board); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), string(h.id)) {
			t.Errorf("board %q, which %s: %v", board, why, err)
		}
	}
	refused("board-2", "another main board")
	h.start(s.addr)
	w.soon("the host is ready", func() bool { return s.dispatch.Reachable(h.id) })
	for _, board := range []string{"board-1", "board-2"} {
		refused(board, "is connected at this moment")
	}
	h.kill()
	w.soon("its session has ended", func() bool { return !s.dispatch.Reachable(h.id) })
	refused("board-2", "another main board")
	// The same machine, which was installed anew, with the token that was refused all along. It waits for nothing.
	id, err := join("board-1")
	must(t, err)
	if now := h.record(); now.ID != "" || id == h.id {
		t.Errorf("the machine has two records: %+v", now)
	}
}
