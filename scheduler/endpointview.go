package scheduler

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
)

// Desks knows what the leader does about the workers of endpoints; see workers.Workers.
type Desks interface {
	// Submit commits a job, and gives a worker that asks for one the first that waits, in the same entry.
	Submit(ctx context.Context, cmd jobs.Submit) (jobs.Job, error)
	// Statuses returns what each worker of an endpoint that is not on its way out does, and the numbers of all.
	Statuses(id fleet.EndpointID) (map[fleet.PodID]fleet.WorkerStatus, fleet.WorkerCounts)
	// Notes returns what else is known of workers of an endpoint that balances.
	Notes(id fleet.EndpointID) map[fleet.PodID]fleet.WorkerNote
	// Requests returns how many requests to such an endpoint wait, are under way, and have ended.
	Requests(id fleet.EndpointID) fleet.JobCounts
	// Why says why a job waits that so many are before; empty: it need not.
	Why(id fleet.EndpointID, before int) string
}

// Endpoints lists the endpoints of the caller's account, oldest first.
func (s *Service) Endpoints(ctx context.Context, who fleet.Principal) ([]fleet.EndpointView, error) {
	all, err := recordsOf[fleet.Endpoint](ctx, s, who)
	if err != nil {
		return nil, err
	}
	out := make([]fleet.EndpointView, 0, len(all))
	for _, e := range all { // each in a view of its own: commands wait for a view's end
		v, err := s.endpointView(e, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Endpoint returns an endpoint of the caller's account. Errors: not_found.
func (s *Service) Endpoint(ctx context.Context, who fleet.Principal, id fleet.EndpointID) (fleet.EndpointView, error) {
	return s.endpointView(record[fleet.Endpoint](ctx, s, who, id))
}

// endpointView adds what is live to what a call returned.
func (s *Service) endpointView(e fleet.Endpoint, err error) (fleet.EndpointView, error) {
	if err != nil {
		return fleet.EndpointView{}, err
	}
	out := fleet.EndpointView{Endpoint: e}
	if scheme, domain, ok := strings.Cut(s.ProxyURL, "://"); ok && e.Spec.Type == fleet.EndpointBalanced {
		out.URL = scheme + "://" + string(e.ID) + "." + domain
	}
	err = s.Store.View(func(v *state.View) error {
		for _, p := range v.WorkersOf(e.ID) {
			if !remains(p) {
				continue
			}
			out.Rollout.Total++
			if p.Release == e.Version() {
				out.Rollout.Latest++
			}
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	out.Reason, err = s.waits(e.Account, e.ID, -1, s.Now())
	return out, err
}

// waits says why a job of an endpoint waits that so many are before, or, before < 0, why those of the endpoint do; empty: none need,
// or that is not known.
func (s *Service) waits(account fleet.AccountID, id fleet.EndpointID, before int, now time.Time) (string, error) {
	var dry bool
	err := s.Store.View(func(v *state.View) error { dry = broke(v, account, now); return nil })
	switch {
	case err != nil:
		return "", err
	case dry:
		return "the account's balance is too low to run jobs", nil
	case s.Desks == nil:
		return "", nil
	}
	return s.Desks.Why(id, before), nil
}

// broke reports whether an account has to pay before it runs something, and cannot.
func broke(v *state.View, id fleet.AccountID, now time.Time) bool {
	account, _ := v.Account(id)
	return account.Prepaid && !v.Covers(id, 1, now)
}

// remains reports whether a worker is not on its way out.
func remains(p *fleet.Pod) bool { return p.Status.Active() && p.Goal == fleet.GoalRun }

// EndpointWorkers lists the workers of an endpoint of the caller's account that are not on their way out. Errors: not_found.
func (s *Service) EndpointWorkers(ctx context.Context, who fleet.Principal, id fleet.EndpointID) (out fleet.EndpointWorkers, err error) {
	var of map[fleet.PodID]fleet.WorkerStatus
	var notes map[fleet.PodID]fleet.WorkerNote
	if s.Desks != nil {
		of, out.Counts = s.Desks.Statuses(id)
		notes = s.Desks.Notes(id)
	}
	err = s.read(ctx, func(v *state.View) (err error) {
		if out.Endpoint, err = state.Get[fleet.Endpoint](v, who.Account, id); err != nil {
			return err
		}
		suffix := v.NetworkSettings().Suffix
		for _, p := range v.WorkersOf(id) {
			if remains(p) {
				out.Workers = append(out.Workers, fleet.WorkerView{
					PodView: s.view(suffix, p, factsOf(v, p.Host)), Status: cmp.Or(of[p.ID], fleet.WorkerInitializing), Stale: p.Release != out.Endpoint.Version(),
					Note: notes[p.ID],
				})
			}
		}
		return nil
	})
	slices.SortFunc(out.Workers, func(a, b fleet.WorkerView) int {
		return cmp.Or(a.Pod.CreatedAt.Compare(b.Pod.CreatedAt), cmp.Compare(a.Pod.ID, b.Pod.ID))
	})
	return out, err
}

// WorkerLogs streams the log of a worker of an endpoint of the caller's account. Errors: not_found, unavailable.
func (s *Service) WorkerLogs(
	ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, worker fleet.PodID, q fleet.LogQuery, sink fleet.LogSink,
) error {
	var host fleet.HostID
	err := s.read(ctx, func(v *state.View) error {
		if _, err := state.Get[fleet.Endpoint](v, who.Account, endpoint); err != nil {
			return err
		}
		p, ok := v.Pod(worker)
		if !ok || p.Owner != endpoint.Owner() || p.Status == fleet.StatusTerminated {
			return fleet.NotFound("worker")
		}
		host = p.Host
		return nil
	})
	if err != nil {
		return err
	}
	return s.Dispatch.Logs(ctx, host, worker, q, sink)
}
