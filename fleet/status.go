package fleet

import "slices"

// PodStatus is a pod's life-cycle status as the contract shows it.
type PodStatus string

// The statuses of a pod.
const (
	StatusProvisioning PodStatus = "PROVISIONING" // bound to a host, resources being prepared
	StatusStarting     PodStatus = "STARTING"     // the container is being created and started
	StatusRunning      PodStatus = "RUNNING"      // the container's process runs
	StatusExited       PodStatus = "EXITED"       // stopped, or ended with exit code 0
	StatusError        PodStatus = "ERROR"        // the container cannot run or ended badly
	StatusTerminated   PodStatus = "TERMINATED"   // deleted; final
)

// PodStatuses lists every status in the order of a pod's life.
func PodStatuses() []PodStatus {
	return []PodStatus{StatusProvisioning, StatusStarting, StatusRunning, StatusExited, StatusError, StatusTerminated}
}

// Trigger is what moves a pod from one status to another: an action of its owner, or an event
// that its host reports.
type Trigger string

// The triggers. The first four are the public actions.
const (
	ActionStart     Trigger = "start"
	ActionStop      Trigger = "stop"
	ActionRestart   Trigger = "restart"
	ActionTerminate Trigger = "terminate"

	// ActionUpdate is a change of a pod's specification that needs a new container. It is not one of the
	// public actions: it comes with a change of the record.
	ActionUpdate Trigger = "update"

	EventWaiting  Trigger = "waiting"  // the image cannot be had for now: as when its registry does not answer
	EventStarting Trigger = "starting" // resources are ready, the container is being created
	EventRunning  Trigger = "running"  // the process runs
	EventExited   Trigger = "exited"   // the container is gone after exit code 0 or an accepted stop
	EventFailed   Trigger = "failed"   // the container is gone after an error
	EventReboot   Trigger = "reboot"   // the host was rebooted under the pod

	// EventFenced and EventAdopted are not a host's to report: an operator vouched that nothing runs on the
	// host any more; a restored control plane found the pod running on its host.
	EventFenced  Trigger = "fenced"
	EventAdopted Trigger = "adopted"
)

// Actions lists the public actions.
func Actions() []Trigger { return []Trigger{ActionStart, ActionStop, ActionRestart, ActionTerminate} }

// Events lists what a host may report of a pod.
func Events() []Trigger {
	return []Trigger{EventWaiting, EventStarting, EventRunning, EventExited, EventFailed, EventReboot}
}

// moves is the legal-move table of decisions.md, "Pod life". A stop is legal where it is listed,
// though the status changes only when the host reports the container gone: see Pod.Goal.
var moves = map[PodStatus]map[Trigger]PodStatus{
	StatusProvisioning: {
		ActionStop: StatusExited, ActionTerminate: StatusTerminated, ActionUpdate: StatusProvisioning,
		EventWaiting: StatusProvisioning, EventStarting: StatusStarting, EventRunning: StatusRunning, EventExited: StatusExited, EventFailed: StatusError,
		EventReboot: StatusProvisioning, EventFenced: StatusError, EventAdopted: StatusRunning,
	},
	StatusStarting: {
		ActionStop: StatusExited, ActionTerminate: StatusTerminated, ActionUpdate: StatusProvisioning,
		EventWaiting: StatusStarting, EventStarting: StatusStarting, EventRunning: StatusRunning, EventExited: StatusExited, EventFailed: StatusError,
		EventReboot: StatusProvisioning, EventFenced: StatusError, EventAdopted: StatusRunning,
	},
	StatusRunning: {
		ActionStop: StatusExited, ActionRestart: StatusStarting, ActionTerminate: StatusTerminated,
		ActionUpdate: StatusStarting,
		EventRunning: StatusRunning, EventExited: StatusExited, EventFailed: StatusError,
		EventReboot: StatusProvisioning, EventFenced: StatusError, EventAdopted: StatusRunning,
	},
	StatusExited: {ActionStart: StatusProvisioning, ActionTerminate: StatusTerminated, ActionUpdate: StatusExited, EventAdopted: StatusRunning},
	StatusError:  {ActionStart: StatusProvisioning, ActionTerminate: StatusTerminated, ActionUpdate: StatusError, EventAdopted: StatusRunning},
}

// Next returns the status that t leads to from s, and whether the move is legal.
func (s PodStatus) Next(t Trigger) (PodStatus, bool) {
	to, ok := moves[s][t]
	return to, ok
}

// Active reports whether a pod in this status holds its host's resources and may be charged.
func (s PodStatus) Active() bool {
	return s == StatusProvisioning || s == StatusStarting || s == StatusRunning
}

// Goal is what a pod's host is told to bring about.
type Goal string

// The goals.
const (
	GoalRun  Goal = "run"  // one container of the wanted incarnation, never started twice
	GoalStop Goal = "stop" // no container; logs and host-local data are kept
	GoalGone Goal = "gone" // nothing of the pod is left on the host
)

// AllowedActions lists the public actions that are legal in s under goal, in a fixed order. While
// a stop is under way only terminate is left (decisions.md, "Pod life").
func AllowedActions(s PodStatus, g Goal) []Trigger {
	out := []Trigger{}
	for _, a := range Actions() {
		if _, ok := s.Next(a); ok && (g == GoalRun || !s.Active() || a == ActionTerminate) {
			out = append(out, a)
		}
	}
	return out
}

// Allowed reports whether action a is legal in s under goal.
func Allowed(s PodStatus, g Goal, a Trigger) bool { return slices.Contains(AllowedActions(s, g), a) }
