package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// DrainHost drains a host, or changes how that is done. Errors: not_found, invalid, not_allowed, rule.
func (s *Service) DrainHost(ctx context.Context, id fleet.HostID, req fleet.DrainRequest) (fleet.HostView, error) {
	cmd := state.SetHostEligibility{
		Host: id, Eligibility: fleet.EligibilityDraining, KeepRunning: req.KeepRunning, At: s.Now(), Reason: req.Reason, Deadline: req.Deadline,
	}
	switch {
	case req.Force && !req.Deadline.IsZero():
		return fleet.HostView{}, fleet.BreaksRule("force and deadline exclude each other")
	case req.Force && req.KeepRunning:
		return fleet.HostView{}, fleet.BreaksRule("force and keepRunning exclude each other")
	case !req.Deadline.IsZero() && !req.Deadline.After(cmd.At):
		return fleet.HostView{}, fleet.BreaksRule("deadline must be in the future; force stops what runs at once")
	case req.Force:
		cmd.Deadline = cmd.At
	}
	return s.setEligibility(ctx, cmd)
}

// HostPods returns the pods that hold something of a host or keep data there, and those that are being moved
// from there, by id, for operators. Of each it tells what the drain of the host does with it, if there is one. Errors: not_found.
func (s *Service) HostPods(ctx context.Context, id fleet.HostID) ([]fleet.HeldPod, error) {
	return s.heldPods(ctx, id, func(host *fleet.Host) bool { return host.Eligibility == fleet.EligibilityDraining })
}

// PlanDrain is HostPods as it would be if the host were drained now; it changes nothing. Errors: not_found.
func (s *Service) PlanDrain(ctx context.Context, id fleet.HostID, keepRunning bool) ([]fleet.HeldPod, error) {
	return s.heldPods(ctx, id, func(host *fleet.Host) bool {
		host.Eligibility, host.KeepRunning, host.Drain = fleet.EligibilityDraining, keepRunning, nil
		return true
	})
}

func (s *Service) heldPods(ctx context.Context, id fleet.HostID, drained func(*fleet.Host) bool) ([]fleet.HeldPod, error) {
	out := []fleet.HeldPod{}
	err := s.read(ctx, func(v *state.View) error {
		host, ok := v.Host(id)
		if !ok {
			return fleet.NotFound("host")
		}
		plan := &drainPlan{v: v, now: s.Now(), host: host, less: place.Instead{id: nil}}
		asked := drained(&plan.host)
		for _, p := range v.HeldPods(id) {
			held := fleet.HeldPod{ID: p.ID, Account: p.Account, Status: p.Status, GPUs: len(p.GPUs), Moving: p.Moving, Steps: p.Steps}
			if asked {
				plan.tell(&held, &p)
			}
			out = append(out, held)
		}
		return nil
	})
	return out, err
}

// drainPlan works out what a drain does with the pods of a host, one after the other.
type drainPlan struct {
	v    *state.View
	now  time.Time
	host fleet.Host
	less place.Instead // hosts less what pods before would get there; the host itself takes none
}

// tell says what the drain does with a pod.
func (d *drainPlan) tell(out *fleet.HeldPod, p *fleet.Pod) {
	switch {
	case p.Status == fleet.StatusTerminated:
		out.Waits = "what it left is being removed"
		return
	case p.Moving && p.Target != nil:
		out.To = p.Target.Host
		return
	case p.Moving:
		out.Waits = "its destination was lost; it is started as soon as a host has room"
		return
	case p.Stopping():
		out.Waits = "it is being stopped"
		return
	case !p.Status.Active():
		out.Waits = "it keeps data on this host"
		return
	}
	out.Stops = true
	switch {
	case p.Owner.Kind == fleet.OwnerEndpoint && !d.host.KeepRunning:
		out.Waits = "it is a worker: it goes when it has no job and another took its place"
	case p.KeepsData():
		out.Waits = "it runs on: it keeps data on this host"
	case !p.Spec.Movable:
		out.Waits = "it runs on: its owner did not allow it to be moved"
	case p.Locked:
		out.Waits = "it runs on: it is locked"
	case d.host.KeepRunning:
		out.Waits = "it runs on: the drain moves no pods"
	case d.host.State != fleet.HostReady:
		out.Waits = "the host cannot be reached"
	default:
		d.place(out, p)
	}
	if d.host.Drain != nil && !d.host.Drain.Deadline.IsZero() && out.To == "" {
		out.Waits += "; it is stopped at " + d.host.Drain.Deadline.UTC().Format("2006-01-02 15:04:05 MST")
	}
}

// place looks for room for a pod that may be moved, beside those before.
func (d *drainPlan) place(out *fleet.HeldPod, p *fleet.Pod) {
	cat := d.v.Catalog()
	next := *p
	next.HourlyRate = rateAgain(cat, p)
	if err := rentable(d.v, p.Account, p, &next, d.now); err != nil {
		out.Waits = "it runs on: its account could not rent it again now"
		return
	}
	want, err := demandOf(d.v, cat, &p.Spec)
	if err == nil {
		var all []bound
		if all, err = want.choose(d.v, []*fleet.Pod{p}, place.Group{}, d.v.Fleet(), d.less, noPorts); err == nil {
			bind := &all[0]
			left := d.v.Fleet().Get(bind.Host, d.less).Less(bind.GPUs, *bind.Need, 1)
			d.less[bind.Host], out.To, out.Stops = &left, bind.Host, false
			return
		}
	}
	out.Waits = "it runs on: no room elsewhere" + noRoom(err)
}

// noRoom says in words which rules refused how many hosts.
func noRoom(err error) string {
	var e *fleet.Error
	if !errors.As(err, &e) || len(e.Excluded) == 0 {
		return ""
	}
	var why []string
	for _, x := range e.Excluded {
		hosts := "1 host"
		if x.Hosts != 1 {
			hosts = fmt.Sprintf("%d hosts", x.Hosts)
		}
		why = append(why, hosts+": "+x.Reason)
	}
	return " (" + strings.Join(why, ", ") + ")"
}

// MovePod begins to take a pod from its host, which is drained: its place on another is reserved in the command that
// stops it. It does nothing to a pod that may not be moved. Errors: no_capacity, low_balance, and those of state.MovePod.
func (s *Service) MovePod(ctx context.Context, id fleet.PodID) error {
	moved, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		cmd := state.MovePod{Pod: id, At: s.Now()}
		err := s.read(ctx, func(v *state.View) error {
			p, ok := v.Pod(id)
			if !ok || !p.MayMove() {
				return nil
			}
			var err error
			cmd.Rev = p.Rev
			cmd.To, err = bindAgain(v, &p, cmd.At, mine)
			return err
		})
		if err != nil || cmd.To == nil {
			return fleet.Pod{}, err
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err == nil && moved.Target != nil {
		s.Log.Info("moving pod", "pod", id, "account", moved.Account, "from", moved.Host, "to", moved.Target.Host)
	}
	return err
}

// StartMoved starts a pod that was taken from a host which is drained, if it is still to be started: at the place that
// is reserved for it. Where that was lost, it goes to any host that has room, or back to its own. Errors: those of a start by its owner.
func (s *Service) StartMoved(ctx context.Context, id fleet.PodID) error {
	started, stale := false, 0
	pod, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		cmd := state.ActPod{Pod: id, Action: fleet.ActionStart, At: s.Now()}
		var old fleet.Pod
		err := s.read(ctx, func(v *state.View) (err error) {
			if old, _ = v.Pod(id); !old.Moving || old.Status.Active() {
				return nil
			}
			cmd.Account, cmd.Rev = old.Account, old.Rev
			if stale >= maxStale {
				old.Target = nil // its place is not what it was
			}
			cmd.Bind, err = bindMoved(v, &old, cmd.At, mine)
			return err
		})
		if started = cmd.Bind != nil; err != nil || !started {
			return old, err
		}
		pod, err := propose[fleet.Pod](ctx, s, cmd)
		if fleet.CodeOf(err) == fleet.CodeStale {
			stale++
		}
		return pod, err
	})
	if err == nil && started {
		s.Log.Info("pod was moved", "pod", id, "account", pod.Account, "host", pod.Host)
	}
	return err
}

// maxStale is how often a start at a reserved place is tried before any other place will do.
const maxStale = 3

// bindMoved says where a pod on the move starts.
func bindMoved(v *state.View, p *fleet.Pod, now time.Time, mine *reserver) (*state.Binding, error) {
	if to := p.Target; to != nil {
		host, _ := v.Host(to.Host)
		if host.Eligibility = fleet.EligibilityOpen; well(&host, to.GPUs) {
			return &state.Binding{
				Host: to.Host, HostEpoch: host.Epoch, GPUs: to.GPUs, HourlyRate: rateAgain(v.Catalog(), p), Need: &to.Need, Mappings: to.Mappings,
			}, nil
		}
	}
	bind, err := bindAgain(v, p, now, mine)
	if fleet.CodeOf(err) != fleet.CodeNoCapacity {
		return bind, err
	}
	if back := bindBack(v, p); back != nil {
		return back, nil
	}
	return nil, err
}

// well reports whether a host takes pods, and its GPUs of these UUIDs are in service.
func well(host *fleet.Host, uuids []string) bool {
	found := 0
	for _, gpu := range host.Inventory.GPUs {
		if gpu.Out() == "" && slices.Contains(uuids, gpu.UUID) {
			found++
		}
	}
	ok, _ := host.Takes()
	return ok && found == len(uuids)
}

// bindBack starts a pod on the host that it was moved from; nil when that has no room any more.
func bindBack(v *state.View, p *fleet.Pod) *state.Binding {
	on := v.Fleet().Get(p.Host, nil)
	want, err := demandOf(v, v.Catalog(), &p.Spec)
	if on == nil || err != nil {
		return nil
	}
	host := *on.Host
	host.Eligibility = fleet.EligibilityOpen
	open := *on
	open.Host, open.Keep = &host, 0 // it was there before
	want.req.Pinned = p.Host
	all, err := want.choose(v, []*fleet.Pod{p}, place.Group{}, v.Fleet(), place.Instead{p.Host: &open}, noPorts)
	if err != nil {
		return nil
	}
	all[0].HourlyRate = rateAgain(v.Catalog(), p)
	return &all[0].Binding
}
