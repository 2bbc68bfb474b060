package state

import (
	"slices"
	"time"

	"gantry/fleet"
)

// reasonStopping is a pod's reason while its host brings an accepted stop about.
const reasonStopping = "stopping"

func (c CreatePod) apply(t *txn) (any, error) {
	in := c.Pod
	if err := checkID("$.id", string(in.ID)); err != nil {
		return nil, err
	}
	if get(t, &t.base.accounts, in.Account) == nil {
		return nil, fleet.NotFound("account")
	}
	if err := t.affordable(in.Account, &in.Spec, in.HourlyRate, in.CreatedAt); err != nil {
		return nil, err
	}
	if get(t, &t.base.pods, in.ID) != nil {
		return nil, exists("there is a pod with this id")
	}
	host, err := t.bindable(&in, Binding{Host: in.Host, HostEpoch: c.HostEpoch, GPUs: in.GPUs})
	if err != nil {
		return nil, err
	}
	pod := &fleet.Pod{
		ID: in.ID, Account: in.Account, Spec: in.Spec, Status: fleet.StatusProvisioning, Goal: fleet.GoalRun,
		Incarnation: 1, Host: host.ID, DataCenter: host.DataCenter, GPUs: in.GPUs, Need: in.Need, Held: true,
		HourlyRate: in.HourlyRate, Locked: in.Locked, CreatedAt: in.CreatedAt, Steps: firstStep(in.CreatedAt),
	}
	pod.Generation = t.reassigned(host.ID)
	return clonePod(t.putPod(pod)), nil
}

// firstStep begins the time line of an incarnation.
func firstStep(at time.Time) map[fleet.Step]time.Time {
	return map[fleet.Step]time.Time{fleet.StepCreated: at}
}

// bindable checks that what a binding names is there and free for the pod. What has changed since
// the binding was picked is stale; what no pick could have given is invalid.
func (t *txn) bindable(pod *fleet.Pod, bind Binding) (fleet.Host, error) {
	need, count := pod.Need, 0
	if pod.Spec.GPU != nil {
		count = pod.Spec.GPU.Count
	}
	switch {
	case need.MilliCPU < 0 || need.MemoryMB < 0 || need.DiskGB < 0:
		return fleet.Host{}, fleet.Invalid("$.need", "must not be negative")
	case len(bind.GPUs) != count:
		return fleet.Host{}, fleet.Invalid("$.gpus", "must be as many as were asked for")
	}
	host, ok := t.host(bind.Host)
	switch {
	case !ok:
		return host, fleet.Stale("the host is gone")
	case host.State != fleet.HostReady:
		return host, fleet.Stale("the host is not ready")
	case host.Epoch != bind.HostEpoch:
		return host, fleet.Stale("the host has a newer session")
	}
	on := t.podsOn(host.ID)
	used, _, _ := usedBy(on)
	free := minus(host.Inventory.Total, used)
	if free.MilliCPU < need.MilliCPU || free.MemoryMB < need.MemoryMB || free.DiskGB < need.DiskGB {
		return host, fleet.Stale("the host's free resources are taken")
	}
	for i, uuid := range bind.GPUs {
		if slices.Contains(bind.GPUs[:i], uuid) {
			return host, fleet.Invalid("$.gpus", "must not name one twice")
		}
		gpu := slices.IndexFunc(host.Inventory.GPUs, func(g fleet.GPU) bool { return g.UUID == uuid })
		if gpu < 0 || host.Inventory.GPUs[gpu].Sick != "" || host.Inventory.GPUs[gpu].Type != pod.Spec.GPU.Type {
			return host, fleet.Stale("a GPU is gone or out of service")
		}
		if holder(on, uuid) != nil {
			return host, fleet.Stale("a GPU is taken")
		}
	}
	return host, nil
}

// holder returns the pod that holds a GPU, or nil.
func holder(on []*fleet.Pod, uuid string) *fleet.Pod {
	for _, p := range on {
		if p.Held && slices.Contains(p.GPUs, uuid) {
			return p
		}
	}
	return nil
}

func (c ActPod) apply(t *txn) (any, error) {
	old := get(t, &t.base.pods, c.Pod)
	switch {
	case old == nil || old.Account != c.Account:
		return nil, fleet.NotFound("pod")
	case c.Rev != 0 && c.Rev != old.Rev:
		return nil, fleet.Stale("the pod changed")
	case !fleet.Allowed(old.Status, old.Goal, c.Action):
		return nil, c.notAllowed(old)
	case old.Locked && (c.Action == fleet.ActionStop || c.Action == fleet.ActionRestart):
		return nil, fleet.NotAllowed("the pod is locked")
	}
	pod := *old
	switch c.Action {
	case fleet.ActionStop:
		c.stop(t, &pod)
	case fleet.ActionTerminate:
		c.terminate(t, &pod)
	case fleet.ActionRestart:
		pod.Status = fleet.StatusStarting
		begin(t, &pod, c.At)
	case fleet.ActionStart:
		if err := c.start(t, old, &pod); err != nil {
			return nil, err
		}
	default:
		return nil, c.notAllowed(old)
	}
	return clonePod(t.putPod(&pod)), nil
}

func (c ActPod) notAllowed(pod *fleet.Pod) error {
	if pod.Stopping() {
		return fleet.NotAllowed("the action is not allowed while the pod is stopping")
	}
	return fleet.NotAllowed("the action is not allowed while the pod is %s", pod.Status)
}

// stop accepts a stop: charging ends now, the status changes when the host reports the container
// gone.
func (c ActPod) stop(t *txn, pod *fleet.Pod) {
	pod.Goal = fleet.GoalStop
	pod.EndedAt = c.At
	if pod.Held {
		pod.Reason = reasonStopping
	} else {
		pod.Status, pod.Reason, pod.GPUs = fleet.StatusExited, "", nil
	}
	t.renumber(pod)
}

// terminate is final at once; the host's resources stay held until it reports that nothing is left.
func (c ActPod) terminate(t *txn, pod *fleet.Pod) {
	if pod.Status.Active() && pod.EndedAt.IsZero() {
		pod.EndedAt = c.At
	}
	pod.Status, pod.Goal, pod.Reason = fleet.StatusTerminated, fleet.GoalGone, ""
	pod.TerminatedAt = c.At
	t.renumber(pod)
}

// start binds a stopped pod anew.
func (c ActPod) start(t *txn, old, pod *fleet.Pod) error {
	if c.Bind == nil {
		return fleet.Invalid("$.bind", "a start needs a binding")
	}
	if c.Bind.Need != nil {
		pod.Need = *c.Bind.Need
	}
	if err := t.affordable(pod.Account, &pod.Spec, c.Bind.HourlyRate, c.At); err != nil {
		return err
	}
	host, err := t.bindable(pod, *c.Bind)
	if err != nil {
		return err
	}
	pod.Host, pod.DataCenter, pod.GPUs, pod.HourlyRate = host.ID, host.DataCenter, c.Bind.GPUs, c.Bind.HourlyRate
	pod.Status, pod.Goal, pod.Held = fleet.StatusProvisioning, fleet.GoalRun, true
	pod.EndedAt = time.Time{}
	if old.Host != pod.Host {
		t.reassigned(old.Host)
	}
	begin(t, pod, c.At)
	return nil
}

// begin makes the pod's next incarnation, of which nothing has happened yet.
func begin(t *txn, pod *fleet.Pod, at time.Time) {
	pod.Incarnation++
	pod.Steps = firstStep(at)
	pod.StartedAt = time.Time{}
	pod.Reason, pod.ExitCode, pod.LogTail = "", nil, ""
	t.renumber(pod)
}
