package scheduler

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// PodSet asks for pods of one shape, of which all are created or none.
type PodSet struct {
	Owner      fleet.Owner        // of all; the zero value: the account alone
	Release    uint64             // of the endpoint, for workers
	Requests   []fleet.PodRequest // at least 1, at most state.MaxPods; what they want of a host is what the first wants
	OneCenter  bool               // all in one data center
	OnePerHost bool               // no two on one host
	Once       *fleet.Once
}

// CreatePod creates a pod that has a host and its GPUs when the call returns. A request whose Once was
// seen before is answered with the pod of then.
func (s *Service) CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	pods, replayed, err := s.CreatePods(ctx, who, PodSet{Requests: []fleet.PodRequest{req}, Once: req.Once})
	if err != nil {
		return fleet.PodView{}, err
	}
	view, err := s.shown(pods[0])
	view.Replayed = replayed
	return view, err
}

// CreatePods creates pods that have hosts and their GPUs when the call returns: all, or none. A set whose Once was seen before is
// answered with the pods of then (replayed).
func (s *Service) CreatePods(ctx context.Context, who fleet.Principal, set PodSet) (pods []fleet.Pod, replayed bool, err error) {
	pods, err = untilBound(ctx, s, func(mine *reserver) (made []fleet.Pod, err error) {
		cmd, err := s.plan(ctx, who, set, mine)
		if err != nil {
			return nil, err
		}
		made, replayed, err = proposeOnce[[]fleet.Pod](ctx, s, cmd)
		return made, err
	})
	if err != nil && set.Once != nil {
		pods, replayed, err = s.createdBefore(ctx, who, set.Once, err)
	}
	if err != nil {
		return nil, false, err
	}
	if !replayed {
		for i := range pods {
			s.Log.Info("pod created", "pod", pods[i].ID, "account", pods[i].Account, "host", pods[i].Host)
		}
	}
	return pods, replayed, nil
}

// createdBefore answers a create that cannot be planned now, but may have been done already: a retry
// must not fail because the first try took the last GPU. The pod that it proposes names no host, so
// that it is never made.
func (s *Service) createdBefore(
	ctx context.Context, who fleet.Principal, once *fleet.Once, why error,
) ([]fleet.Pod, bool, error) {
	if fleet.CodeOf(why) == fleet.CodeUnavailable {
		return nil, false, why
	}
	probe := fleet.Pod{ID: fleet.PodID(fleet.NewID()), Account: who.Account, CreatedAt: s.Now()}
	pods, replayed, err := proposeOnce[[]fleet.Pod](ctx, s, state.CreatePods{Pods: []state.NewPod{{Pod: probe}}, Once: once})
	switch {
	case replayed:
		return pods, true, nil
	case fleet.CodeOf(err) == fleet.CodeInvalid || fleet.CodeOf(err) == fleet.CodeExists:
		return nil, false, err // of the probe that can be the key alone: see state.CreatePods
	case fleet.CodeOf(err) == fleet.CodeUnavailable:
		return nil, false, err // nobody knows yet whether it was done
	}
	return nil, false, why
}

// PlanPod answers as CreatePod would, and creates nothing.
func (s *Service) PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	cmd, err := s.plan(ctx, who, PodSet{Requests: []fleet.PodRequest{req}}, nil)
	if err != nil {
		return fleet.PodView{}, err
	}
	pod := cmd.Pods[0].Pod
	pod.Status, pod.Goal, pod.Incarnation = fleet.StatusProvisioning, fleet.GoalRun, 1
	return fleet.PodView{Pod: &pod, Reason: pod.Reason}, nil
}

// plan checks what the requests mean, whether the first can be paid, and picks hosts for all.
func (s *Service) plan(ctx context.Context, who fleet.Principal, set PodSet, mine *reserver) (state.CreatePods, error) {
	cmd := state.CreatePods{Pods: make([]state.NewPod, len(set.Requests)), Once: set.Once}
	if n := len(set.Requests); n == 0 || n > state.MaxPods {
		return cmd, fleet.Invalid("$.pods", "must be 1 to 250")
	}
	now := s.Now()
	err := s.read(ctx, func(v *state.View) error {
		cat := v.Catalog()
		pods := make([]*fleet.Pod, len(cmd.Pods))
		for i := range pods {
			pods[i] = &cmd.Pods[i].Pod
			if err := s.planned(v, cat, who, &set, i, pods[i], now); err != nil {
				return err
			}
		}
		want, err := demandOf(v, cat, &pods[0].Spec)
		if err != nil {
			return err
		}
		want.asMember(v, pods[0])
		if err := rentable(v, who.Account, nil, pods[0], now); err != nil {
			return err
		}
		all, err := want.bindAll(v, pods, place.Group{OneCenter: set.OneCenter, OnePerHost: set.OnePerHost}, mine)
		if err != nil {
			return err
		}
		for i, b := range all {
			pods[i].Host, pods[i].DataCenter, pods[i].GPUs, pods[i].Mappings = b.Host, b.center, b.GPUs, b.Mappings
			pods[i].Need = *b.Need
			cmd.Pods[i].HostEpoch, cmd.Pods[i].Evict = b.HostEpoch, b.Evict
		}
		return nil
	})
	return cmd, err
}

// planned fills in what a pod of a set is, but for its place.
func (s *Service) planned(
	v *state.View, cat fleet.Catalog, who fleet.Principal, set *PodSet, i int, pod *fleet.Pod, now time.Time,
) (err error) {
	req := set.Requests[i]
	if req.Movable == nil {
		req.Movable = &s.Movable
	}
	*pod = fleet.Pod{ID: fleet.PodID(fleet.NewID()), Account: who.Account, Owner: set.Owner, Release: set.Release, CreatedAt: now}
	if set.Owner.Kind == fleet.OwnerCluster {
		pod.Rank = i
	}
	if pod.Spec, err = specOf(v, cat, who.Account, req); err != nil {
		return err
	}
	if pod.HourlyRate, err = rateOf(cat, pod); err != nil {
		return err
	}
	return checkEnds(now, req.StopAfter, req.TerminateAfter)
}

// rentable refuses a pod that is to run, at its hourly rate, when its account may not have it, or is prepaid and cannot pay it for
// an hour. Old is the pod as it is, stopped; nil: there is none yet.
func rentable(v *state.View, id fleet.AccountID, old, pod *fleet.Pod, now time.Time) error {
	account, ok := v.Account(id)
	if !ok {
		return fleet.NotFound("account")
	}
	if err := v.MayRun(id, old, &pod.Spec, pod.HourlyRate); err != nil {
		return err
	}
	switch {
	case !account.Prepaid:
		return nil
	case pod.Spec.GPU != nil && pod.HourlyRate == 0:
		return fleet.BreaksRule("this GPU type has no price yet, and a prepaid account cannot rent it")
	}
	if hourly := v.PodRate(pod.Spec, pod.HourlyRate); !v.Covers(id, hourly, now) {
		return fleet.NoCredit("Your account balance is too low to rent a pod", hourly, v.Balance(id, now))
	}
	return nil
}
