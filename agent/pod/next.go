package pod

import "gantry/fleet"

// Seen is everything that next decides on, as look found it.
type Seen struct {
	Container Container
	Digest    string // of the image; empty when it is not on the host
	Lacking   bool   // models of the order are not on the host
	Network   bool   // something of the pod's network is there
	WrongPort bool   // it is not complete, or not as the order says
	Attached  bool   // a network volume is attached, and there is no container
	Record    Record
	Boot      string // boot id of the host now
	Heard     bool   // a scheduler was heard since this agent started
	Told      bool   // the ended incarnation, or gone, was handed to the reporter
}

// Step is one thing to do for a pod.
type Step string

// The steps.
const (
	StepIdle    Step = "idle"    // nothing until something changes
	StepRefuse  Step = "refuse"  // a newer order already ran here: touch nothing
	StepFreeze  Step = "freeze"  // have the processes stand still
	StepThaw    Step = "thaw"    // have them go on
	StepWatch   Step = "watch"   // wait for the process to end
	StepReport  Step = "report"  // tell how the incarnation ended
	StepPull    Step = "pull"    // get the image
	StepModels  Step = "models"  // get the models
	StepNetwork Step = "network" // make the network namespace
	StepDefine  Step = "define"  // make snapshot and container
	StepTask    Step = "task"    // make the process
	StepStart   Step = "start"   // let it run
	StepTerm    Step = "term"    // SIGTERM, then SIGKILL after the grace period
	StepEnd     Step = "end"     // write down how the incarnation ended
	StepReboot  Step = "reboot"  // write down that the host was rebooted under it
	StepLost    Step = "lost"    // write down that the container disappeared
	StepRemove  Step = "remove"  // remove the container
	StepDetach  Step = "detach"  // let go of the network volume
	StepUnlink  Step = "unlink"  // remove the network namespace
	StepForget  Step = "forget"  // remove logs, files and persistent data, report gone
)

// next names the one step that brings the host nearer to what is wanted. It is pure.
func next(want Assignment, see Seen) Step {
	c := see.Container
	switch {
	case c.Exists && c.Incarnation > want.Incarnation:
		return StepRefuse
	case want.Goal == fleet.GoalGone:
		return release(see, StepForget)
	case c.Exists && c.Incarnation < want.Incarnation:
		return removeContainer(c)
	case see.Record.ended(want.Incarnation):
		return afterEnd(see)
	case c.Exists && c.Task == TaskStopped:
		return StepEnd
	case want.Goal == fleet.GoalStop && c.Task == TaskRunning:
		return StepTerm
	case want.Goal == fleet.GoalStop:
		return StepEnd
	case c.Task == TaskRunning:
		return watch(want, c)
	case see.Record.Begun >= want.Incarnation && see.Record.BegunBoot != see.Boot:
		return StepReboot
	case see.Record.Begun >= want.Incarnation && c.Task == TaskNone:
		return StepLost
	default:
		return ensure(see)
	}
}

// watch has a running process stand still or go on before it is waited for.
func watch(want Assignment, c Container) Step {
	switch {
	case want.Frozen && !c.Frozen:
		return StepFreeze
	case !want.Frozen && c.Frozen:
		return StepThaw
	default:
		return StepWatch
	}
}

// ensure names the first resource that is missing, in the order in which they build on each other.
func ensure(see Seen) Step {
	switch {
	case !see.Heard:
		return StepIdle
	case see.Digest == "":
		return StepPull
	case see.Lacking:
		return StepModels
	case !see.Network, see.WrongPort:
		return StepNetwork
	case !see.Container.Exists:
		return StepDefine
	case see.Container.Task == TaskNone:
		return StepTask
	default:
		return StepStart
	}
}

// release names the last resource that is still held, then the step that closes.
func release(see Seen, last Step) Step {
	switch {
	case see.Container.Exists:
		return removeContainer(see.Container)
	case see.Attached:
		return StepDetach
	case see.Network:
		return StepUnlink
	default:
		return last
	}
}

func removeContainer(c Container) Step {
	if c.Task == TaskRunning {
		return StepTerm
	}
	return StepRemove
}

// afterEnd releases an ended incarnation. It is told as soon as nothing of the container is left:
// taking the network namespace down waits for the kernel, and nobody has to wait with it.
func afterEnd(see Seen) Step {
	switch {
	case see.Container.Exists:
		return removeContainer(see.Container)
	case !see.Told:
		return StepReport
	case see.Attached:
		return StepDetach
	case see.Network:
		return StepUnlink
	default:
		return StepIdle
	}
}

// HasEnded reports whether nothing of the pod's newest order runs any more, nor ever will.
func (r Record) HasEnded() bool { return r.ended(r.Assignment.Incarnation) }

func (r Record) ended(incarnation uint64) bool {
	return r.Ended != nil && r.Ended.Incarnation >= incarnation
}
