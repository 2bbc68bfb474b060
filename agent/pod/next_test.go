package pod

import (
	"testing"

	"gantry/fleet"
)

func TestNext(t *testing.T) {
	const boot = "boot-1"
	run := Assignment{Incarnation: 3, Goal: fleet.GoalRun}
	stop := Assignment{Incarnation: 3, Goal: fleet.GoalStop}
	gone := Assignment{Incarnation: 3, Goal: fleet.GoalGone}
	box := func(inc uint64, task TaskState) Container {
		return Container{Exists: true, Incarnation: inc, Task: task}
	}
	still, cold := run, box(3, TaskRunning)
	still.Frozen, cold.Frozen = true, true
	begun := func(inc uint64, in string) Record { return Record{Begun: inc, BegunBoot: in} }
	ended := Record{Begun: 3, BegunBoot: boot, Ended: &Ended{Incarnation: 3}}

	for _, c := range []struct {
		rule string
		want Assignment
		see  Seen
		step Step
	}{
		{"nothing starts before a scheduler was heard", run, Seen{}, StepIdle},
		{"the image comes first", run, Seen{Heard: true}, StepPull},
		{"then the network", run, Seen{Heard: true, Digest: "d"}, StepNetwork},
		{"with the ports that are wanted", run, Seen{Heard: true, Digest: "d", Network: true, WrongPort: true}, StepNetwork},
		{"also when the container was made", run, Seen{Heard: true, Digest: "d", Network: true, WrongPort: true, Container: box(3, TaskCreated)}, StepNetwork},
		{"a running process keeps what it has", run, Seen{Heard: true, Network: true, WrongPort: true, Container: box(3, TaskRunning)}, StepWatch},
		{"then the container", run, Seen{Heard: true, Digest: "d", Network: true}, StepDefine},
		{"then its process", run, Seen{Heard: true, Digest: "d", Network: true, Container: box(3, TaskNone)}, StepTask},
		{"then it runs", run, Seen{Heard: true, Digest: "d", Network: true, Container: box(3, TaskCreated)}, StepStart},
		{"a start that was written down but not made is made", run, Seen{Heard: true, Digest: "d", Network: true, Boot: boot, Record: begun(3, boot), Container: box(3, TaskCreated)}, StepStart},
		{"a running process is watched", run, Seen{Container: box(3, TaskRunning)}, StepWatch},
		{"what is to stand still is frozen", still, Seen{Container: box(3, TaskRunning)}, StepFreeze},
		{"and watched then", still, Seen{Container: cold}, StepWatch},
		{"what is to go on is thawed", run, Seen{Container: cold}, StepThaw},
		{"what is frozen ends", gone, Seen{Container: cold}, StepTerm},
		{"nothing is started in order to be frozen, but as ever", still, Seen{Heard: true, Digest: "d", Network: true}, StepDefine},
		{"also when no scheduler was heard", run, Seen{Container: box(3, TaskRunning), Record: begun(3, boot)}, StepWatch},
		{"an end is written down before the container goes", run, Seen{Heard: true, Container: box(3, TaskStopped)}, StepEnd},
		{"then the container goes", run, Seen{Record: ended, Container: box(3, TaskStopped), Network: true}, StepRemove},
		{"then it is told", run, Seen{Record: ended, Network: true}, StepReport},
		{"then the network goes", run, Seen{Record: ended, Told: true, Network: true}, StepUnlink},
		{"the network volume goes once it is told", run, Seen{Record: ended, Attached: true, Network: true}, StepReport},
		{"and before the network", run, Seen{Record: ended, Told: true, Attached: true, Network: true}, StepDetach},
		{"what a pod that starts has attached stays", run, Seen{Heard: true, Digest: "d", Network: true, Attached: true}, StepDefine},
		{"gone lets go of the network volume", gone, Seen{Attached: true}, StepDetach},
		{"and told once", run, Seen{Record: ended, Told: true}, StepIdle},
		{"an ended incarnation never starts again", run, Seen{Heard: true, Digest: "d", Record: ended, Told: true}, StepIdle},
		{"a restart removes the old incarnation", run, Seen{Heard: true, Container: box(2, TaskRunning)}, StepTerm},
		{"also one that is stopped", run, Seen{Heard: true, Container: box(2, TaskStopped)}, StepRemove},
		{"an older end does not count for the new incarnation", run, Seen{Heard: true, Record: Record{Ended: &Ended{Incarnation: 2}}}, StepPull},
		{"a newer incarnation is not touched", run, Seen{Heard: true, Container: box(4, TaskRunning)}, StepRefuse},
		{"not even to remove the pod", gone, Seen{Heard: true, Container: box(4, TaskRunning)}, StepRefuse},
		{"models come after the image", run, Seen{Heard: true, Boot: boot, Lacking: true}, StepPull},
		{"and before the network", run, Seen{Heard: true, Boot: boot, Digest: "d", Lacking: true}, StepModels},
		{"but not before an agent has heard a scheduler", run, Seen{Boot: boot, Digest: "d", Lacking: true}, StepIdle},
		{"a reboot is told", run, Seen{Heard: true, Boot: "boot-2", Record: begun(3, boot), Container: box(3, TaskNone)}, StepReboot},
		{"also when nothing is left", run, Seen{Heard: true, Boot: "boot-2", Record: begun(3, boot)}, StepReboot},
		{"a pod that was not begun before a reboot starts", run, Seen{Heard: true, Boot: "boot-2", Record: begun(2, boot), Digest: "d", Network: true, Container: box(3, TaskNone)}, StepTask},
		{"a container that disappeared is told", run, Seen{Heard: true, Boot: boot, Record: begun(3, boot)}, StepLost},
		{"its process alone, too", run, Seen{Heard: true, Boot: boot, Record: begun(3, boot), Container: box(3, TaskNone)}, StepLost},
		{"stop ends the process", stop, Seen{Container: box(3, TaskRunning)}, StepTerm},
		{"stop writes the end down", stop, Seen{Container: box(3, TaskStopped)}, StepEnd},
		{"stop of what never ran", stop, Seen{Heard: true}, StepEnd},
		{"stop of what was only made", stop, Seen{Container: box(3, TaskCreated)}, StepEnd},
		{"stop releases all", stop, Seen{Record: ended, Container: box(3, TaskCreated)}, StepRemove},
		{"stop tells", stop, Seen{Record: ended}, StepReport},
		{"gone ends the process", gone, Seen{Container: box(3, TaskRunning)}, StepTerm},
		{"gone removes the container", gone, Seen{Container: box(2, TaskStopped), Network: true}, StepRemove},
		{"gone removes the network", gone, Seen{Network: true}, StepUnlink},
		{"with whatever ports", gone, Seen{Network: true, WrongPort: true}, StepUnlink},
		{"gone removes the rest", gone, Seen{}, StepForget},
	} {
		t.Run(c.rule, func(t *testing.T) {
			if got := next(c.want, c.see); got != c.step {
				t.Errorf("next = %s, want %s", got, c.step)
			}
		})
	}
}

// TestNextHoldsItsRules walks through every combination of what can be wanted and seen.
func TestNextHoldsItsRules(t *testing.T) {
	checked := 0
	for _, goal := range []fleet.Goal{fleet.GoalRun, fleet.GoalStop, fleet.GoalGone} {
		for _, task := range []TaskState{TaskNone, TaskCreated, TaskRunning, TaskStopped} {
			for inc := uint64(0); inc <= 4; inc++ {
				for begun := uint64(0); begun <= 4; begun++ {
					for end := uint64(0); end <= 4; end++ {
						for bits := range 256 {
							see := Seen{
								Container: Container{Exists: inc > 0, Incarnation: inc, Task: task},
								Heard:     bits&1 != 0, Network: bits&2 != 0, Told: bits&4 != 0, Boot: "now",
								Record: Record{Begun: begun, BegunBoot: "now"},
							}
							if !see.Container.Exists {
								see.Container.Task = TaskNone
							}
							if bits&8 != 0 {
								see.Digest = "d"
							}
							if bits&16 != 0 {
								see.Record.BegunBoot = "before"
							}
							see.WrongPort = see.Network && bits&32 != 0
							see.Lacking = bits&128 != 0
							see.Attached = inc == 0 && bits&64 != 0
							if end > 0 {
								see.Record.Ended = &Ended{Incarnation: end}
							}
							want := Assignment{Incarnation: 3, Goal: goal}
							holdRules(t, want, see, next(want, see))
							checked++
						}
					}
				}
			}
		}
	}
	if checked < 10_000 {
		t.Fatalf("only %d combinations", checked)
	}
}

func holdRules(t *testing.T, want Assignment, see Seen, got Step) {
	t.Helper()
	making := got == StepPull || got == StepModels || got == StepNetwork || got == StepDefine || got == StepTask || got == StepStart
	c := see.Container
	switch {
	case making && !see.Heard:
		t.Fatalf("%s before a scheduler was heard: %+v", got, see)
	case making && want.Goal != fleet.GoalRun:
		t.Fatalf("%s for goal %s: %+v", got, want.Goal, see)
	case making && see.Record.ended(want.Incarnation):
		t.Fatalf("%s after the incarnation ended: %+v", got, see)
	case making && c.Task == TaskRunning:
		t.Fatalf("%s beside a running process: %+v", got, see)
	case making && see.Record.Begun >= want.Incarnation && c.Task != TaskCreated:
		t.Fatalf("%s though the incarnation may have run: %+v", got, see)
	case (got == StepTask || got == StepStart || got == StepDefine) && see.WrongPort:
		t.Fatalf("%s with ports that are not wanted: %+v", got, see)
	case got == StepRemove && c.Task == TaskRunning:
		t.Fatalf("removed while it runs: %+v", see)
	case got == StepForget && (c.Exists || see.Network || see.Attached):
		t.Fatalf("forgotten while something is left: %+v", see)
	case got == StepReport && c.Exists:
		t.Fatalf("told as ended while something is held: %+v", see)
	case c.Exists && c.Incarnation > want.Incarnation && got != StepRefuse:
		t.Fatalf("%s though a newer order ran here: %+v", got, see)
	}
}
