package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// reasonStopping is a pod's reason while its host brings an accepted stop about.
const reasonStopping = "stopping"

func (c CreatePods) apply(t *txn) (any, error) {
	if len(c.Pods) == 0 || len(c.Pods) > MaxPods {
		return nil, fleet.Invalid("$.pods", "must be 1 to 250")
	}
	first := &c.Pods[0].Pod
	again, err := t.replay(oncePod, first.Account, c.Once, t.recordedPods)
	if err != nil || again != nil {
		return again, err
	}
	out := make([]fleet.Pod, 0, len(c.Pods))
	if err := t.Steps(len(c.Pods), func(i int) error {
		pod, err := c.create(t, i)
		if err == nil {
			out = append(out, clonePod(pod))
		}
		return err
	}); err != nil {
		return nil, err
	}
	t.remember(oncePod, first.Account, c.Once, joinIDs(out), first.CreatedAt)
	return out, nil
}

// joinIDs writes the ids of pods as recordedPods reads them.
func joinIDs(pods []fleet.Pod) string {
	ids := make([]string, len(pods))
	for i := range pods {
		ids[i] = string(pods[i].ID)
	}
	return strings.Join(ids, " ")
}

// recordedPods returns the pods of a set for replay; nil when one of them is gone.
func (t *txn) recordedPods(ids string) any {
	var out []fleet.Pod
	for id := range strings.SplitSeq(ids, " ") {
		pod := t.base.pods.Get(t.Txn, fleet.PodID(id))
		if pod == nil {
			return nil
		}
		out = append(out, clonePod(pod))
	}
	return out
}

// create creates one pod of the set. Its error says which, where there are several.
func (c CreatePods) create(t *txn, i int) (*fleet.Pod, error) {
	pod, err := t.create(&c.Pods[i], &c.Pods[0].Pod)
	var e *fleet.Error
	if len(c.Pods) > 1 && errors.As(err, &e) {
		named := *e
		named.Details = append(slices.Clone(e.Details), fmt.Sprintf("$.pods[%d]", i))
		return nil, &named
	}
	return pod, err
}

// create creates a pod that has the account and the owner of the first of its set.
func (t *txn) create(asked *NewPod, first *fleet.Pod) (*fleet.Pod, error) {
	in := &asked.Pod
	if err := checkID("$.id", string(in.ID)); err != nil {
		return nil, err
	}
	if in.Account != first.Account || in.Owner != first.Owner {
		return nil, fleet.Invalid("$.owner", "must be that of the first pod")
	}
	if err := in.Owner.Check(); err != nil {
		return nil, err
	}
	if t.base.accounts.Get(t.Txn, in.Account) == nil {
		return nil, fleet.NotFound("account")
	}
	if err := t.rentable(nil, in, in.HourlyRate, in.CreatedAt); err != nil {
		return nil, err
	}
	if t.base.pods.Get(t.Txn, in.ID) != nil {
		return nil, exists("there is a pod with this id")
	}
	if err := t.checkReferences(in); err != nil {
		return nil, err
	}
	bind := Binding{Host: in.Host, HostEpoch: asked.HostEpoch, GPUs: in.GPUs, Mappings: in.Mappings, Evict: asked.Evict}
	host, err := t.bindable(in, &bind)
	if err != nil {
		return nil, err
	}
	pod := &fleet.Pod{
		ID: in.ID, Account: in.Account, Owner: in.Owner, Release: in.Release, Rank: in.Rank, Spec: in.Spec, Status: fleet.StatusProvisioning, Goal: fleet.GoalRun,
		Incarnation: lineageFloor(t.lineage()) + 1, Host: host.ID, DataCenter: host.DataCenter, GPUs: bind.GPUs, Need: in.Need, Held: true,
		HourlyRate: in.HourlyRate, Locked: in.Locked, CreatedAt: in.CreatedAt, Steps: firstStep(in.CreatedAt),
		Mappings: bind.Mappings, Image: in.Spec.Image,
	}
	if t.interrupts(bind.Evict) {
		pod.Waiting = in.CreatedAt // until its place is free it costs nothing
	}
	if err := t.attach(pod); err != nil {
		return nil, err
	}
	pod.Generation = t.reassigned(host.ID)
	return t.putPod(pod), nil
}

// checkReferences checks that what a new pod names of its account is still there.
func (t *txn) checkReferences(pod *fleet.Pod) error {
	if err := t.checkRegistry(pod.Account, pod.Spec.Registry); err != nil {
		return err
	}
	if err := t.checkTemplate(pod.Account, pod.Spec.Template); err != nil {
		return err
	}
	if m := pod.Spec.Network; m != nil {
		if t.volumeOf(pod.Account, m.Volume) == nil {
			return fleet.Stale("the network volume is gone")
		}
	}
	return t.checkSecrets(pod.Account, pod.Spec.Env)
}

// firstStep begins the time line of an incarnation.
func firstStep(at time.Time) map[fleet.Step]time.Time {
	return map[fleet.Step]time.Time{fleet.StepCreated: at}
}

// bindable checks that what a binding names is there and free for the pod, and puts others of the host in
// the place of GPUs and public ports that other pods hold by now. What else has changed since the binding
// was picked is stale; what no pick could have given is invalid.
func (t *txn) bindable(pod *fleet.Pod, bind *Binding) (fleet.Host, error) {
	need, count := pod.Need, 0
	if pod.Spec.GPU != nil {
		count = pod.Spec.GPU.Count
	}
	if err := cmp.Or(checkDisks(&pod.Spec), pod.Spec.CheckHTTP(), checkNeed(need, &pod.Spec)); err != nil {
		return fleet.Host{}, err
	}
	if len(bind.GPUs) != count {
		return fleet.Host{}, fleet.Invalid("$.gpus", "must be as many as were asked for")
	}
	host, ok := t.host(bind.Host)
	switch {
	case !ok:
		return host, fleet.Stale("the host is gone")
	case !t.usable(&host, promised(pod, host.ID)):
		return host, fleet.Stale("the host is not ready")
	case host.Epoch != bind.HostEpoch:
		return host, fleet.Stale("the host has a newer session")
	}
	if err := t.mountable(pod.Spec.Network, &host); err != nil {
		return host, err
	}
	if err := t.connectable(pod, &host); err != nil {
		return host, err
	}
	on := without(slices.Clone(t.occupants(host.ID)), pod, byID) // its own data and what is reserved for it have their place already
	if err := t.evict(host.ID, bind.Evict, pod, on); err != nil {
		return host, err
	}
	free := t.freeFor(pod, &host, on)
	if free.MilliCPU < need.MilliCPU || free.MemoryMB < need.MemoryMB || free.DiskGB < need.DiskGB {
		return host, fleet.Stale("the host's free resources are taken")
	}
	var err error
	if bind.Mappings, err = mappable(&host, on, pod, bind.Mappings); err != nil {
		return host, err
	}
	bind.GPUs, err = takeable(&host, on, pod, bind.GPUs)
	return host, err
}

// freeFor returns what is free for a pod on a host with others: one without GPUs leaves what is kept for those, except where it
// was promised its place.
func (t *txn) freeFor(pod *fleet.Pod, host *fleet.Host, others []*fleet.Pod) fleet.Resources {
	if pod.Spec.GPU == nil && !promised(pod, host.ID) {
		c := candidate(host, others, placementOf(t.base.placement.Get(t.Txn, onlyKey)).KeepPercent)
		return c.Beside(0)
	}
	used, _, _ := usedBy(others)
	return minus(host.Inventory.Total, used)
}

func (c ActPod) apply(t *txn) (any, error) {
	old := t.base.pods.Get(t.Txn, c.Pod)
	switch {
	case old == nil || old.Account != c.Account || old.Owner != c.Owner:
		return nil, fleet.NotFound("pod")
	case c.Rev != 0 && c.Rev != old.Rev:
		return nil, fleet.Stale("the pod changed")
	case old.Moving && c.Action == fleet.ActionStop && !old.Locked:
		pod := *old
		stay(&pod)
		return clonePod(t.putPod(&pod)), nil
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
		if err := t.compared(old.Host); err != nil {
			return nil, err
		}
		pod.Status = fleet.StatusStarting
		if err := begin(t, &pod, c.At); err != nil {
			return nil, err
		}
	case fleet.ActionStart:
		if err := c.start(t, old, &pod); err != nil {
			return nil, err
		}
	default:
		return nil, c.notAllowed(old)
	}
	out := clonePod(t.putPod(&pod))
	if c.Action == fleet.ActionStart && memberOf(&pod) != "" {
		t.sizeNetwork(memberOf(&pod))
	}
	return out, nil
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
	pod.Goal, pod.Moving, pod.Target = fleet.GoalStop, false, nil
	pod.EndedAt, pod.Reason = c.At, reasonStopping
	t.renumber(pod)
}

// stay makes a stopped or stopping pod that is being moved one that its owner stopped.
func stay(pod *fleet.Pod) {
	pod.Moving, pod.Target, pod.Reason = false, nil, ""
	if pod.Status.Active() {
		pod.Reason = reasonStopping
	}
}

// terminate is final at once; the host's resources stay held until it reports that nothing is left. Of a stopped pod that is its
// data, or its log alone, which needs nothing; a host that is fenced has them as a leftover.
func (c ActPod) terminate(t *txn, pod *fleet.Pod) {
	if pod.Status.Active() && pod.EndedAt.IsZero() {
		pod.EndedAt = c.At
	}
	pod.Status, pod.Goal, pod.Reason, pod.Moving = fleet.StatusTerminated, fleet.GoalGone, "", false
	pod.Target = nil
	pod.TerminatedAt = c.At
	switch host, there := t.host(pod.Host); {
	case !there || pod.Held:
	case t.mayHold(pod.Host):
		pod.Held = true
		holdData(pod)
	case host.State == fleet.HostFenced:
		host.Leftovers = addLeftover(host.Leftovers, leftoverOf(pod))
		t.putHost(host)
	}
	t.renumber(pod)
}

// holdData says that of a terminated pod only data, if it has any, and its log are left on its host.
func holdData(pod *fleet.Pod) {
	detach(pod)
	pod.GPUs, pod.Mappings = nil, nil
	pod.Need = fleet.Resources{}
	if pod.KeepsData() {
		pod.Need.DiskGB = int64(pod.Spec.Persistent.SizeGB)
	}
}

// start binds a stopped pod anew.
func (c ActPod) start(t *txn, old, pod *fleet.Pod) error {
	if c.Bind == nil {
		return fleet.Invalid("$.bind", "a start needs a binding")
	}
	if pod.KeepsData() && c.Bind.Host != old.Host {
		return fleet.Invalid("$.bind.host", "must be the host that has the pod's data")
	}
	if c.Bind.Need != nil {
		pod.Need = *c.Bind.Need
	}
	if c.Bid < 0 || c.Bid > 0 && pod.Spec.Spot == nil {
		return fleet.Invalid("$.bid", "is for interruptible pods")
	}
	if c.Bid > 0 {
		pod.Spec.Spot = &fleet.Spot{Bid: c.Bid, Return: pod.Spec.Spot.Return}
	}
	if !old.Moving { // what is being moved was admitted when it was started
		if err := t.rentable(old, pod, c.Bind.HourlyRate, c.At); err != nil {
			return err
		}
	}
	if err := t.elsewhere(old); err != nil {
		return err
	}
	bind := *c.Bind
	host, err := t.bindable(pod, &bind)
	if err != nil {
		return err
	}
	pod.Host, pod.DataCenter, pod.GPUs, pod.HourlyRate = host.ID, host.DataCenter, bind.GPUs, bind.HourlyRate
	pod.Mappings = bind.Mappings
	pod.Status, pod.Goal, pod.Held = fleet.StatusProvisioning, fleet.GoalRun, true
	pod.EndedAt, pod.Moving, pod.Target = time.Time{}, false, nil
	t.joinFabric(pod)
	err = begin(t, pod, c.At)
	if t.interrupts(bind.Evict) {
		pod.Waiting = c.At
	}
	return err
}

// begin makes the pod's next incarnation, of which nothing has happened yet. Errors: no_capacity, when it is to be in a private
// network in which it is not and there is no address left; it is all the same, without that.
func begin(t *txn, pod *fleet.Pod, at time.Time) error {
	pod.Incarnation = max(pod.Incarnation, lineageFloor(t.lineage())) + 1
	pod.Steps = firstStep(at)
	pod.StartedAt, pod.Waiting, pod.Ready, pod.Frozen = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	pod.Reason, pod.ExitCode, pod.LogTail = "", nil, ""
	pod.Interrupted, pod.Notice = time.Time{}, 0
	if pod.Image != pod.Spec.Image { // the digest was another image's
		pod.Image, pod.Digest = pod.Spec.Image, ""
	}
	err := t.attach(pod)
	t.renumber(pod)
	return err
}
