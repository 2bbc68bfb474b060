package scheduler

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

// Pods lists the pods of the caller's account that have no other owner, oldest first.
func (s *Service) Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error) {
	var rows []*fleet.Pod
	if err := s.read(ctx, func(v *state.View) error { rows = v.PodRows(who.Account); return nil }); err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(p *fleet.Pod) bool { return p.Owner != (fleet.Owner{}) })
	known := map[fleet.HostID]hostFacts{}
	for _, p := range rows {
		known[p.Host] = hostFacts{}
	}
	suffix := ""
	err := s.Store.View(func(v *state.View) error {
		for id := range known {
			known[id] = factsOf(v, id)
		}
		suffix = v.NetworkSettings().Suffix
		return nil
	})
	out := make([]fleet.PodView, len(rows))
	for i, p := range rows { // outside of the view, for which commands wait
		out[i] = s.view(suffix, p, known[p.Host])
	}
	return out, err
}

// Pod returns a pod of the caller's account.
func (s *Service) Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error) {
	var out fleet.PodView
	err := s.read(ctx, func(v *state.View) error {
		p, err := podOf(v, who, id)
		if err == nil {
			out = s.view(v.NetworkSettings().Suffix, &p, factsOf(v, p.Host))
			if c, member := state.Find[fleet.Cluster](v, fleet.ClusterID(p.Owner.ID)); member {
				out.Cluster = c.Type
			}
		}
		return err
	})
	return out, err
}

// podOf returns a pod of the caller's account that is no worker.
func podOf(v *state.View, who fleet.Principal, id fleet.PodID) (fleet.Pod, error) {
	p, ok := v.Pod(id)
	if !ok || p.Account != who.Account || p.Owner.Kind == fleet.OwnerEndpoint {
		return fleet.Pod{}, fleet.NotFound("pod")
	}
	return p, mayTouch(who, id)
}

// hostFacts is what a pod's record shows of its host.
type hostFacts struct {
	lost     bool // its session is lost; its pods may still run
	publicIP string
	drain    *fleet.Drain
}

func factsOf(v *state.View, id fleet.HostID) hostFacts {
	h := v.HostRow(id)
	if h == nil {
		return hostFacts{}
	}
	return hostFacts{lost: h.State == fleet.HostUnreachable, publicIP: h.Inventory.PublicIP, drain: h.Drain}
}

// view adds what is live. A pod of an unreachable host keeps its status: it may still run.
func (s *Service) view(suffix string, p *fleet.Pod, on hostFacts) fleet.PodView {
	out := fleet.PodView{Pod: p, Reason: p.Reason, PublicIP: on.publicIP, Suffix: suffix, ProxyURL: s.ProxyURL}
	if p.Status == fleet.StatusTerminated && p.Held {
		out.Reason = "its host is removing what it left"
	}
	if p.Status.Active() || p.KeepsData() && p.Status != fleet.StatusTerminated {
		out.Drain = on.drain
	}
	if !p.Status.Active() {
		return out
	}
	out.Unreachable = on.lost
	// What was heard before its start belongs to an earlier incarnation. A start that is still to come was told
	// by a clock that was ahead, and tells nothing.
	begun := p.Steps[fleet.StepCreated]
	if live := s.Dispatch.Live(p.Host, p.ID); live != nil && (live.At.After(begun) || begun.After(s.Now())) {
		out.Live = live
	}
	if trouble := out.Live; trouble != nil && p.Reason == "" && strings.HasSuffix(trouble.Activity, fleet.TryingAgain) {
		out.Reason = trouble.Activity
	}
	if p.Owner.Kind == fleet.OwnerEndpoint && p.StartedAt.IsZero() {
		out.Reason = cmp.Or(out.Reason, out.Live.Pull())
	}
	if on.lost {
		out.Reason = "the pod's host cannot be reached; the pod may still run there"
	}
	return out
}

// shown is the view of a pod that a command has just returned.
func (s *Service) shown(p fleet.Pod) (fleet.PodView, error) {
	var out fleet.PodView
	err := s.Store.View(func(v *state.View) error {
		at := factsOf(v, p.Host)
		at.lost = false // it was ready when the command picked it, or the command did not look
		out = s.view(v.NetworkSettings().Suffix, &p, at)
		return nil
	})
	return out, err
}

// ActPod starts, stops, restarts or terminates a pod of the caller's account.
// A pod's own key starts nothing (forbidden): it is for what runs.
func (s *Service) ActPod(ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error) {
	return s.actPod(ctx, who, id, action, 0)
}

// StartPod starts a pod; bid, unless it is 0, is from then on what an interruptible one bids per GPU and hour. Errors: those of ActPod,
// invalid (the bid is out of bounds), rule (the pod is none that bids).
func (s *Service) StartPod(ctx context.Context, who fleet.Principal, id fleet.PodID, bid fleet.Money) (fleet.PodView, error) {
	return s.actPod(ctx, who, id, fleet.ActionStart, bid)
}

func (s *Service) actPod(
	ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger, bid fleet.Money,
) (fleet.PodView, error) {
	if err := mayTouch(who, id); err != nil {
		return fleet.PodView{}, err
	}
	if who.Pod != "" && action == fleet.ActionStart {
		return fleet.PodView{}, fleet.Forbidden("a pod's own key may not do this")
	}
	if err := s.refuseMember(who, id); err != nil {
		return fleet.PodView{}, err
	}
	pod, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		cmd := state.ActPod{Account: who.Account, Pod: id, Action: action, At: s.Now(), Bid: bid}
		if action == fleet.ActionStart {
			if err := s.bindStart(ctx, who, &cmd, mine); err != nil {
				return fleet.Pod{}, err
			}
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err != nil {
		return fleet.PodView{}, err
	}
	s.Log.Info("pod action", "pod", id, "account", who.Account, "action", action)
	return s.shown(pod)
}

// bindStart picks a host for a start, the one of before when it has room, and the only one when the
// pod has data there. Price and public ports are those of now.
func (s *Service) bindStart(ctx context.Context, who fleet.Principal, cmd *state.ActPod, mine *reserver) error {
	return s.read(ctx, func(v *state.View) error {
		p, err := podOf(v, who, cmd.Pod)
		if err != nil {
			return err
		}
		cmd.Rev = p.Rev
		if !fleet.Allowed(p.Status, p.Goal, fleet.ActionStart) {
			return nil // the state machine says why
		}
		if cmd.Bid > 0 {
			if p.Spec.Spot, err = newBid(v.Catalog(), &p.Spec, cmd.Bid); err != nil {
				return err
			}
		}
		if p.Spec.Spot != nil && !p.Locked { // of others a price that is gone is no reason not to start
			if _, err := rateOf(v.Catalog(), &p); err != nil {
				return err
			}
		}
		cmd.Bind, err = bindAgain(v, &p, cmd.At, mine)
		return err
	})
}

// bindAgain picks where a pod that was there before starts, for a member of a cluster on none of not. Errors: low_balance, and those of demand.bind.
func bindAgain(v *state.View, p *fleet.Pod, now time.Time, mine *reserver, not ...fleet.HostID) (*state.Binding, error) {
	cat := v.Catalog()
	rate := rateAgain(cat, p)
	if !p.Moving { // what is being moved was admitted when it was started
		next := *p
		next.HourlyRate = rate
		if err := rentable(v, p.Account, p, &next, now); err != nil {
			return nil, err
		}
	}
	want, err := demandOf(v, cat, &p.Spec)
	if err != nil {
		return nil, err
	}
	want.asMember(v, p, not...)
	want.req.Prefer = p.Host
	if p.KeepsData() {
		want.req.Pinned = p.Host
		want.req.Need.DiskGB -= int64(p.Spec.Persistent.SizeGB) // its data is there already
	}
	bind, err := want.bind(v, p, mine)
	if err != nil {
		return nil, err
	}
	bind.HourlyRate = rate
	return &bind, nil
}

// rateAgain is what a pod costs per hour from its next start on: what is in the catalog no more keeps its price.
func rateAgain(cat fleet.Catalog, p *fleet.Pod) fleet.Money {
	if now, err := rateOf(cat, p); err == nil {
		return now
	}
	return p.HourlyRate
}

// PodLogs streams a pod's log.
func (s *Service) PodLogs(
	ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink,
) error {
	view, err := s.Pod(ctx, who, id)
	if err != nil {
		return err
	}
	if view.Pod.Status == fleet.StatusTerminated {
		return fleet.NotAllowed("a terminated pod's log is gone")
	}
	return s.Dispatch.Logs(ctx, view.Pod.Host, id, q, sink)
}

// ExecPod starts a process in the container of a running pod of the caller's account. Errors:
// not_found, not_allowed (it does not run), unavailable.
func (s *Service) ExecPod(
	ctx context.Context, who fleet.Principal, id fleet.PodID, req fleet.ExecRequest,
) (fleet.ExecSession, error) {
	host, err := s.running(ctx, who, id)
	if err != nil {
		return nil, err
	}
	s.Log.Info("exec in a pod", "pod", id, "account", who.Account)
	return s.Dispatch.Exec(ctx, host, id, req)
}

// ReadPodFiles returns a file or folder of a running pod's container as a tar stream. Errors: as
// ExecPod's.
func (s *Service) ReadPodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string) (io.ReadCloser, error) {
	host, err := s.running(ctx, who, id)
	if err != nil {
		return nil, err
	}
	return s.Dispatch.ReadFiles(ctx, host, id, path)
}

// WritePodFiles unpacks a tar stream below a folder of a running pod's container. Errors: as ExecPod's.
func (s *Service) WritePodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string, tar io.Reader) error {
	host, err := s.running(ctx, who, id)
	if err != nil {
		return err
	}
	return s.Dispatch.WriteFiles(ctx, host, id, path, tar)
}

// running returns the host of a pod of the caller's account that runs and is not being stopped.
func (s *Service) running(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.HostID, error) {
	var host fleet.HostID
	err := s.read(ctx, func(v *state.View) error {
		p, err := podOf(v, who, id)
		switch {
		case err != nil:
			return err
		case p.Status != fleet.StatusRunning || p.Goal != fleet.GoalRun:
			return fleet.NotAllowed("the pod does not run")
		}
		host = p.Host
		return nil
	})
	return host, err
}

// HTTPPort says whether the port of the pod can be reached over HTTP now, whose pod it is, and what is set for the port.
func (s *Service) HTTPPort(ctx context.Context, id fleet.PodID, port int) (fleet.AccountID, fleet.HTTPSetting, error) {
	p, err := s.exposed(ctx, id, port)
	return p.Account, p.Spec.HTTPPort(port), err
}

// DialPod connects to an HTTP port that a running pod exposes. It is open to anybody, as the
// contract says of http ports.
func (s *Service) DialPod(ctx context.Context, id fleet.PodID, port int) (fleet.Stream, error) {
	p, err := s.exposed(ctx, id, port)
	if err != nil {
		return nil, err
	}
	return s.Dispatch.OpenPort(ctx, p.Host, id, port)
}

// exposed returns a pod that runs and has the port. What this scheduler's state has is enough, be there a leader or not: a pod that was
// stopped a moment ago is refused by its host. Only a refusal must not be of a moment ago.
func (s *Service) exposed(ctx context.Context, id fleet.PodID, port int) (p fleet.Pod, err error) {
	look := func(v *state.View) (err error) { p, err = routes.Exposed(routes.ViewOf(v), id, port); return err }
	if err = s.Store.View(look); err != nil {
		err = s.read(ctx, look)
	}
	return p, err
}
