package routes

import "gantry/fleet"

// Flows reports whether a pod is known and its host is connected here.
func Flows(s Store, connected func(fleet.HostID) bool, pod fleet.PodID) (here bool) {
	_ = s.View(func(v View) error { // a closed store has none
		p, ok := v.Pod(pod)
		here = ok && connected(p.Host)
		return nil
	})
	return here
}

// Serves reports whether a worker of an endpoint is reached here, or there is none yet: those of a host that is not connected here are
// the leader's.
func Serves(s Store, connected func(fleet.HostID) bool, id fleet.EndpointID) bool {
	ready, here := false, false
	_ = s.View(func(v View) error { // a closed store has none
		for _, p := range v.WorkersOf(id) {
			if p.Status == fleet.StatusRunning {
				ready, here = true, here || connected(p.Host)
			}
		}
		return nil
	})
	return here || !ready
}
