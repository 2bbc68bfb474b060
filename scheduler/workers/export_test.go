package workers

import "gantry/fleet"

// Kick has an endpoint looked at.
func (w *Workers) Kick(id fleet.EndpointID) { w.kick(id) }

// Leads reports whether Lead has begun.
func (w *Workers) Leads() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run != nil
}
