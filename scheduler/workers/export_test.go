package workers

import (
	"context"

	"gantry/fleet"
)

// Kick has an endpoint looked at.
func (w *Workers) Kick(id fleet.EndpointID) { w.kick(id) }

// GiveAfter gives an endpoint's jobs with what was seen before something else happened; nobody else looks at the endpoint meanwhile.
func (w *Workers) GiveAfter(ctx context.Context, id fleet.EndpointID, before, meanwhile func()) error {
	w.mu.Lock()
	d := w.desk(id)
	d.busy = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		d.busy = false
		w.mu.Unlock()
		w.kick(id)
	}()
	before()
	s, err := w.see(d)
	if err != nil {
		return err
	}
	meanwhile()
	if err := w.stopJobs(d, &s); err != nil {
		return err
	}
	return w.give(ctx, d, &s)
}

// Leads reports whether Lead has begun.
func (w *Workers) Leads() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run != nil
}
