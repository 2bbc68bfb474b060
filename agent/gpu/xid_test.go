package gpu

import (
	"log/slog"
	"strings"
	"testing"

	"gantry/agent/gpu/wire"
)

// TestErrorsThatAPodMakesAsItLikesKeepNobodyBusy: neither driver nor log, and they do not displace those that matter.
func TestErrorsThatAPodMakesAsItLikesKeepNobodyBusy(t *testing.T) {
	var text strings.Builder
	h := newHost(Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
	p := &helper{log: h.Log, events: make(chan wire.Event, eventRoom)}
	const harmful = 79
	for range 3 * eventRoom {
		p.deliver(wire.Reply{Event: &wire.Event{UUID: "GPU-a", XID: 31}})
	}
	p.deliver(wire.Reply{Event: &wire.Event{UUID: "GPU-a", XID: harmful}})
	for n := len(p.events); n > 0; n-- {
		e := <-p.events
		if matters := h.note(e); matters != (e.XID == harmful) {
			t.Errorf("XID %d matters: %t", e.XID, matters)
		}
	}
	if h.sick["GPU-a"] == "" {
		t.Error("the error that matters was lost")
	}
	if n := strings.Count(text.String(), "\n"); n != 2 {
		t.Errorf("%d lines in the log:\n%s", n, text.String())
	}
}
