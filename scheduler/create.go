package scheduler

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// CreatePod creates a pod that has a host and its GPUs when the call returns. A request whose Once was
// seen before is answered with the pod of then.
func (s *Service) CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	replayed := false
	pod, err := untilBound(ctx, s, func(mine *holding) (fleet.Pod, error) {
		plan, epoch, err := s.plan(ctx, who, req, mine)
		if err != nil {
			return fleet.Pod{}, err
		}
		var pod fleet.Pod
		pod, replayed, err = proposeOnce[fleet.Pod](ctx, s, state.CreatePod{Pod: plan, HostEpoch: epoch, Once: req.Once})
		return pod, err
	})
	if err != nil && req.Once != nil {
		pod, replayed, err = s.createdBefore(ctx, who, req.Once, err)
	}
	if err != nil {
		return fleet.PodView{}, err
	}
	if !replayed {
		s.Log.Info("pod created", "pod", pod.ID, "account", pod.Account, "host", pod.Host)
	}
	view, err := s.shown(pod)
	view.Replayed = replayed
	return view, err
}

// createdBefore answers a create that cannot be planned now, but may have been done already: a retry
// must not fail because the first try took the last GPU. The pod that it proposes names no host, so
// that it is never made.
func (s *Service) createdBefore(
	ctx context.Context, who fleet.Principal, once *fleet.Once, why error,
) (fleet.Pod, bool, error) {
	if fleet.CodeOf(why) == fleet.CodeUnavailable {
		return fleet.Pod{}, false, why
	}
	probe := fleet.Pod{ID: fleet.PodID(fleet.NewID()), Account: who.Account, CreatedAt: s.Now()}
	pod, replayed, err := proposeOnce[fleet.Pod](ctx, s, state.CreatePod{Pod: probe, Once: once})
	switch {
	case replayed:
		return pod, true, nil
	case fleet.CodeOf(err) == fleet.CodeInvalid || fleet.CodeOf(err) == fleet.CodeExists:
		return fleet.Pod{}, false, err // of the probe that can be the key alone: see state.CreatePod
	case fleet.CodeOf(err) == fleet.CodeUnavailable:
		return fleet.Pod{}, false, err // nobody knows yet whether it was done
	}
	return fleet.Pod{}, false, why
}

// PlanPod answers as CreatePod would, and creates nothing.
func (s *Service) PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error) {
	pod, _, err := s.plan(ctx, who, req, nil)
	if err != nil {
		return fleet.PodView{}, err
	}
	pod.Status, pod.Goal, pod.Incarnation = fleet.StatusProvisioning, fleet.GoalRun, 1
	return fleet.PodView{Pod: pod}, nil
}

// plan checks what the request means, whether it can be paid, and picks a host for it.
func (s *Service) plan(
	ctx context.Context, who fleet.Principal, req fleet.PodRequest, mine *holding,
) (fleet.Pod, uint64, error) {
	pod := fleet.Pod{ID: fleet.PodID(fleet.NewID()), Account: who.Account, CreatedAt: s.Now()}
	if req.Movable == nil {
		req.Movable = &s.Movable
	}
	var epoch uint64
	err := s.read(ctx, func(v *state.View) error {
		cat := v.Catalog()
		var err error
		if pod.Spec, err = specOf(v, cat, who.Account, req); err != nil {
			return err
		}
		if pod.HourlyRate, err = rateOf(cat, &pod.Spec); err != nil {
			return err
		}
		want, err := demandOf(v, cat, &pod.Spec)
		if err != nil {
			return err
		}
		if err := rentable(v, who.Account, nil, &pod, pod.CreatedAt); err != nil {
			return err
		}
		bind, center, err := want.bind(v, &pod, mine)
		if err != nil {
			return err
		}
		epoch = bind.HostEpoch
		pod.Host, pod.DataCenter, pod.GPUs, pod.Mappings = bind.Host, center, bind.GPUs, bind.Mappings
		pod.Need = *bind.Need
		return nil
	})
	return pod, epoch, err
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
