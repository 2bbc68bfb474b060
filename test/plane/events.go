package plane

import (
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Place returns the place behind all events so far.
func (p *Plane) Place() fleet.EventPlace { return p.store.EndOfChanges() }

// HostIDs returns the ids of all hosts, in order.
func (p *Plane) HostIDs(t testing.TB) (out []string) {
	t.Helper()
	p.View(func(v *state.View) {
		for _, h := range v.HostRows() {
			out = append(out, string(h.ID))
		}
	})
	return out
}
