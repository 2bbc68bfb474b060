package main

import (
	"strconv"
	"strings"
	"testing"

	"gantry/scheduler/state"
)

func TestLevelOfTheProgram(t *testing.T) {
	defer func(was string) { level = was }(level)
	for text, want := range map[string]uint64{"": state.Level, "1": 1, "0": 0, "99999": 0, "x": 0} {
		level = text
		if got, err := programLevel(); got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
}

// Members of two versions run side by side at the older one's level; the newer one comes into force when every
// member understands it, and then the older program is refused.
func TestTwoVersionsSideBySide(t *testing.T) {
	before, now := build(t, strconv.FormatUint(state.Level, 10)), build(t, strconv.FormatUint(state.Level+1, 10))
	w := newWorld(t, before)
	w.join(before, map[string]any{})
	w.join(now, map[string]any{})
	if c := w.awaitVoters(3); c.Level != state.Level {
		t.Errorf("with two older members level %d is in force", c.Level)
	}
	for _, m := range w.all[:2] {
		if c := w.view(); c.Level != state.Level {
			t.Errorf("with an older member level %d is in force", c.Level)
		}
		m.stop()
		m.binary = now
		m.start()
		w.awaitVoters(3)
	}
	w.eventually("the level rises", func() bool { return w.view().Level == state.Level+1 })

	old := w.all[0]
	old.stop()
	old.binary = before
	old.start()
	if err := old.ended(); err == nil || !strings.Contains(old.log.String(), "older than the cluster") {
		t.Errorf("an older program runs: %v\n%s", err, old.log)
	}
	old.cmd = nil
	if _, out, err := w.tryJoin(before, map[string]any{}); err == nil || !strings.Contains(out, "too old") {
		t.Errorf("an older program joins: %v %s", err, out)
	}
}
