package state

import (
	"maps"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// maxLogTail is how many bytes of a log tail a pod's record keeps.
const maxLogTail = 16 << 10

func (c ReportPods) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case host.Epoch != c.Epoch:
		return nil, fleet.Stale("the host has a newer session")
	}
	for i := range c.Reports {
		c.record(t, &c.Reports[i])
	}
	if left := c.remaining(host.Leftovers); len(left) < len(host.Leftovers) {
		host.Leftovers = left
		t.reassigned(host.ID)
		t.putHost(host)
	}
	return nil, nil
}

// remaining returns the leftovers that none of the reports says to be gone.
func (c ReportPods) remaining(lefts []fleet.Leftover) (out []fleet.Leftover) {
	for _, left := range lefts {
		ended := slices.ContainsFunc(c.Reports, func(r PodReport) bool {
			ended := r.Event == fleet.EventExited || r.Event == fleet.EventFailed || r.Event == fleet.EventReboot
			return (ended && !left.Gone || r.Event == ReportGone) && r.Pod == left.Pod && r.Incarnation >= left.Incarnation
		})
		if !ended {
			out = append(out, left)
		}
	}
	return out
}

// record takes one report, or ignores it.
func (c ReportPods) record(t *txn, r *PodReport) {
	old := t.base.pods.Get(t.Txn, r.Pod)
	if old == nil || old.Host != c.Host || r.Incarnation < old.Incarnation || !t.mayKnow(r.Pod, r.Incarnation) {
		return
	}
	pod := *old
	// A host can be ahead of a control plane that was restored from an old copy.
	catchUp(&pod, r.Incarnation)
	if pod.Status == fleet.StatusTerminated {
		c.gone(t, &pod, r.Event)
		return
	}
	next, legal := pod.Status.Next(r.Event)
	if !legal {
		return
	}
	pod.Waiting = time.Time{}
	switch r.Event {
	case fleet.EventWaiting:
		if !old.Waiting.IsZero() && pod.Incarnation == old.Incarnation || pod.Goal != fleet.GoalRun {
			return
		}
		pod.Waiting = c.endOf(&pod, r)
		c.mergeSteps(&pod, r.Steps)
	case fleet.EventStarting, fleet.EventRunning:
		if !c.progress(&pod, r, next) && pod.Incarnation == old.Incarnation && old.Waiting.IsZero() {
			return
		}
	case fleet.EventExited, fleet.EventFailed:
		c.end(t, &pod, r, next)
	case fleet.EventReboot:
		c.reboot(t, &pod, r)
	default: // an action, which is not a host's to report
		return
	}
	t.putPod(&pod)
}

// Recorded reports whether a report changes nothing: the host's record and the pod's say as much already. Hosts tell all of
// their pods in each session.
func (v *View) Recorded(id fleet.HostID, r *PodReport) bool {
	host, pod := v.tb.host(id), v.tb.pods.Rows[r.Pod]
	switch {
	case host == nil || len(host.Leftovers) > 0:
		return false
	case pod == nil || pod.Host != id || r.Incarnation < pod.Incarnation:
		return true
	case r.Incarnation > pod.Incarnation:
		return false
	case pod.Status == fleet.StatusTerminated:
		return !pod.Held
	case !pod.Status.Active():
		return true
	}
	next, legal := pod.Status.Next(r.Event)
	switch {
	case !legal:
		return true
	case r.Event == fleet.EventWaiting:
		return !pod.Waiting.IsZero()
	case !pod.Waiting.IsZero():
		return false
	}
	if next != pod.Status || r.Event != fleet.EventStarting && r.Event != fleet.EventRunning {
		return false
	}
	for _, step := range ReportedSteps() {
		if at, ok := r.Steps[step]; ok && !at.Equal(pod.Steps[step]) {
			return false
		}
	}
	return (r.Digest == "" || r.Digest == pod.Digest) && (next != fleet.StatusRunning || !pod.StartedAt.IsZero())
}

// mayKnow reports whether a host can know of an incarnation of a pod, which may have been forgotten here. In a control plane that went
// back to an old copy a host can be ahead, but not of what a lineage gives out: who names a higher one makes it up.
func (t *txn) mayKnow(id fleet.PodID, incarnation uint64) bool {
	most := lineageFloor(t.lineage() + 1)
	if pod := t.base.pods.Get(t.Txn, id); pod != nil {
		most = max(most, pod.Incarnation)
	}
	return incarnation <= most
}

// catchUp gives a pod the incarnation that its host has. Which image a later one than ours was made from is not known,
// so that its digest counts for no start of ours.
func catchUp(pod *fleet.Pod, incarnation uint64) {
	if incarnation > pod.Incarnation {
		pod.Incarnation, pod.Image = incarnation, ""
	}
}

// gone records that nothing is left of a terminated pod. A reboot ends its container, but not its data.
func (c ReportPods) gone(t *txn, pod *fleet.Pod, event fleet.Trigger) {
	switch {
	case !pod.Held || event != ReportGone && event != fleet.EventReboot:
		return
	case event == ReportGone || !pod.KeepsData():
		release(pod)
	case pod.Need.MilliCPU == 0 && pod.Need.MemoryMB == 0 && len(pod.GPUs) == 0:
		return // only its data was left before
	default:
		holdData(pod)
	}
	t.renumber(pod)
	t.putPod(pod)
}

// when is the time of a report: the host's own, but never later than when it came.
func (c ReportPods) when(r *PodReport) time.Time {
	if r.At.IsZero() || r.At.After(c.At) {
		return c.At
	}
	return r.At
}

// maxReach is how far back a host may say that a process has ended: it may have been cut off, and its
// clock may be wrong. A process that ended before is charged up to there.
const maxReach = 24 * time.Hour

// endOf is when a process ended. It is not after the report came, not more than maxReach before, and never
// before this incarnation was made.
func (c ReportPods) endOf(pod *fleet.Pod, r *PodReport) time.Time {
	end := r.At
	if end.IsZero() {
		end = c.At
	}
	return latest(earliest(end, c.At), c.At.Add(-maxReach), pod.Steps[fleet.StepCreated])
}

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// progress records how far a start is, and reports whether that is news.
func (c ReportPods) progress(pod *fleet.Pod, r *PodReport, next fleet.PodStatus) bool {
	news := pod.Status != next
	pod.Status = next
	if r.Digest != "" && r.Digest != pod.Digest {
		pod.Digest, news = r.Digest, true
	}
	if c.mergeSteps(pod, r.Steps) {
		news = true
	}
	if next == fleet.StatusRunning && pod.StartedAt.IsZero() {
		pod.StartedAt, news = latest(c.when(r), pod.Steps[fleet.StepCreated]), true
		pod.Steps[fleet.StepRecorded] = c.At
	}
	return news
}

// mergeSteps adds what a host reports to a copy of the pod's time line, and reports whether that is
// news. No step is before the incarnation was made, or after the report came.
func (c ReportPods) mergeSteps(pod *fleet.Pod, reported map[fleet.Step]time.Time) (news bool) {
	steps := map[fleet.Step]time.Time{}
	maps.Copy(steps, pod.Steps)
	for _, step := range ReportedSteps() {
		at, ok := reported[step]
		if at = latest(earliest(at, c.At), steps[fleet.StepCreated]); ok && !at.Equal(steps[step]) {
			steps[step], news = at, true
		}
	}
	pod.Steps = steps
	return news
}

// ReportedSteps lists the steps that a host may report.
func ReportedSteps() []fleet.Step {
	return []fleet.Step{
		fleet.StepReceived, fleet.StepPulling, fleet.StepDownloaded, fleet.StepPulled, fleet.StepNetworked, fleet.StepDefined,
		fleet.StepTasked, fleet.StepStarted, fleet.StepReported,
	}
}

// release says that the host has nothing of the container any more.
func release(pod *fleet.Pod) { pod.Held, pod.GPUs, pod.Mappings = false, nil, nil }

// end records that the container is gone. After an accepted stop it does not matter how it ended.
func (c ReportPods) end(t *txn, pod *fleet.Pod, r *PodReport, next fleet.PodStatus) {
	release(pod)
	c.mergeSteps(pod, r.Steps)
	if _, ok := r.Steps[fleet.StepStarted]; ok && pod.StartedAt.IsZero() {
		pod.StartedAt = pod.Steps[fleet.StepStarted] // it ended before it was reported running
	}
	if pod.EndedAt.IsZero() {
		pod.EndedAt = c.endOf(pod, r)
	}
	pod.ExitCode = r.ExitCode
	if r.Digest != "" {
		pod.Digest = r.Digest
	}
	if pod.Goal == fleet.GoalStop {
		pod.Status, pod.Reason = fleet.StatusExited, stoppedReason(pod.Reason)
		return
	}
	pod.Status, pod.Reason = next, r.Reason
	pod.LogTail = strings.ToValidUTF8(r.LogTail[max(0, len(r.LogTail)-maxLogTail):], "")
	pod.Goal = fleet.GoalStop
	t.renumber(pod)
}

// reboot records that the host was rebooted under the pod: what should run is started again, what
// was being stopped has stopped.
func (c ReportPods) reboot(t *txn, pod *fleet.Pod, r *PodReport) {
	if pod.Goal != fleet.GoalRun {
		c.end(t, pod, r, fleet.StatusExited)
		return
	}
	pod.Status = fleet.StatusProvisioning
	_ = begin(t, pod, c.At) // a network that is full keeps no pod from running again
}

func (c PurgePods) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	n := 0
	for _, id := range c.Pods {
		pod := t.base.pods.Get(t.Txn, id)
		if pod == nil || !Purgeable(pod, c.Before) {
			continue
		}
		t.base.pods.Drop(t.Txn, id)
		t.leave(pod)
		t.Note(KindPod, string(id))
		n++
	}
	return n, nil
}

// Purgeable reports whether PurgePods with the same time would delete a pod's record.
func Purgeable(pod *fleet.Pod, before time.Time) bool {
	return pod.Status == fleet.StatusTerminated && !pod.Held && !pod.TerminatedAt.After(before)
}
