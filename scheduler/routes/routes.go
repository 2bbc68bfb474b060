// Package routes tells where requests to pods and to endpoints that balance lead: from a scheduler's copy of the state, or from a Table,
// which a gateway fills with what a scheduler tells it. It decides nothing, opens no connection and stores nothing.
package routes

import (
	"context"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// View is what is known at an index. What it returns by pointer must not be changed.
type View interface {
	Index() uint64
	Pod(id fleet.PodID) (fleet.Pod, bool)
	Host(id fleet.HostID) (fleet.Host, bool)
	Endpoint(id fleet.EndpointID) (fleet.Endpoint, bool)
	WorkersOf(id fleet.EndpointID) []*fleet.Pod
	// Worked returns the endpoints that have workers.
	Worked() []fleet.EndpointID
}

// Store has views, and tells of changes as a state.Store does.
type Store interface {
	View(fn func(View) error) error
	Wait(ctx context.Context, after uint64) error
	Events(after uint64) (events []state.Event, upTo uint64, all bool)
}

// Of returns a scheduler's own copy of the state.
func Of(s *state.Store) Store { return stateStore{s} }

type stateStore struct{ *state.Store }

// View implements Store.
func (s stateStore) View(fn func(View) error) error {
	return s.Store.View(func(v *state.View) error { return fn(ViewOf(v)) })
}

type stateView struct{ *state.View }

// Endpoint implements View.
func (v stateView) Endpoint(id fleet.EndpointID) (fleet.Endpoint, bool) {
	return state.Find[fleet.Endpoint](v.View, id)
}

// ViewOf returns a view of the state.
func ViewOf(v *state.View) View { return stateView{v} }

// Balanced returns an endpoint that balances.
func Balanced(v View, id fleet.EndpointID) (fleet.Endpoint, bool) {
	e, ok := v.Endpoint(id)
	return e, ok && e.Spec.Type == fleet.EndpointBalanced
}

// Exposed returns a pod that runs and exposes an http port. Errors: not_found, not_allowed (it does not run).
func Exposed(v View, id fleet.PodID, port int) (fleet.Pod, error) {
	p, ok := v.Pod(id)
	switch {
	case !ok || p.Status == fleet.StatusTerminated:
		return p, fleet.NotFound("pod")
	case keyed(v, &p):
		return p, fleet.NotFound("port")
	case !slices.Contains(p.Spec.Ports, fleet.Port{Number: port, Protocol: "http"}):
		return p, fleet.NotFound("port")
	case p.Status != fleet.StatusRunning || p.Goal != fleet.GoalRun:
		return p, notServing(&p)
	}
	return p, nil
}

// keyed reports whether a pod is a worker that requests reach with a key.
func keyed(v View, p *fleet.Pod) bool {
	if p.Owner.Kind != fleet.OwnerEndpoint {
		return false
	}
	e, ok := v.Endpoint(fleet.EndpointID(p.Owner.ID))
	return !ok || e.Spec.Type == fleet.EndpointBalanced
}

// notServing says to whoever asks for its port why a pod does not serve. It is public, so it tells how the pod is and no more.
func notServing(p *fleet.Pod) error {
	switch {
	case p.Goal != fleet.GoalRun && p.Status.Active():
		return fleet.NotAllowed("the pod is being stopped")
	case p.Status.Active():
		return fleet.NotAllowed("the pod has not started yet; try again in a moment")
	case p.ExitCode != nil:
		return fleet.NotAllowed("the pod is not running: it ended with code %d", *p.ExitCode)
	}
	return fleet.NotAllowed("the pod is not running")
}
