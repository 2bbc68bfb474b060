package state

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func TestReportPodsIsRefusedAsAWhole(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusProvisioning, fleet.GoalRun)
	cmd := w.report("pod-1", fleet.EventRunning)
	cmd.Epoch = 2
	w.refused(fleet.CodeStale, cmd)
	cmd.Host = "host-z"
	w.refused(fleet.CodeNotFound, cmd)
}

func TestReportsAreIgnored(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	w.must(w.act("pod-1", fleet.ActionRestart))
	for name, change := range map[string]func(*ReportPods){
		"unknown pod":       func(c *ReportPods) { c.Reports[0].Pod = "pod-9" },
		"another host":      func(c *ReportPods) { c.Host = "host-b" },
		"older incarnation": func(c *ReportPods) { c.Reports[0].Incarnation = 1 },
		"absurd":            func(c *ReportPods) { c.Reports[0].Incarnation = 1 << 63 },
		"an action":         func(c *ReportPods) { c.Reports[0].Event = fleet.ActionTerminate },
		"a stop":            func(c *ReportPods) { c.Reports[0].Event = fleet.ActionStop },
		"no such event":     func(c *ReportPods) { c.Reports[0].Event = "dance" },
		"gone":              func(c *ReportPods) { c.Reports[0].Event = ReportGone },
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			cmd := w.report("pod-1", fleet.EventExited)
			change(&cmd)
			before := w.hash()
			w.view(func(v *View) {
				if already := v.Recorded(cmd.Host, &cmd.Reports[0]); !already && !slices.Contains([]string{"absurd", "an action", "a stop"}, name) {
					t.Error("it is to be recorded")
				}
			})
			w.must(cmd)
			if !bytes.Equal(before, w.hash()) {
				t.Error("something was written")
			}
		})
	}
}

// Every event in every status under every goal leads where the fleet's table says, or nowhere.
func TestReportsFollowTheTable(t *testing.T) {
	for _, status := range fleet.PodStatuses() {
		for _, goal := range goalsOf(status) {
			for _, event := range append(fleet.Events(), ReportGone) {
				t.Run(fmt.Sprintf("%s/%s/%s", status, goal, event), func(t *testing.T) {
					w := newWorld(t).settle()
					w.podIn(status, goal)
					before, hash := w.pod("pod-1"), w.hash()
					report := w.report("pod-1", event)
					recorded := func() (already bool) {
						w.view(func(v *View) { already = v.Recorded(report.Host, &report.Reports[0]) })
						return already
					}
					already := recorded()
					w.must(report)
					if already && !bytes.Equal(hash, w.hash()) {
						t.Error("a report that was recorded already changed something")
					}
					again := w.hash()
					if !recorded() {
						w.must(report)
						if w.pod("pod-1").Status == fleet.StatusRunning && event == fleet.EventRunning && bytes.Equal(again, w.hash()) {
							t.Error("a pod that runs has to be recorded again and again")
						}
					}
					got := w.pod("pod-1")
					if got.Status != wantStatus(status, goal, event) {
						t.Errorf("got %s, want %s", got.Status, wantStatus(status, goal, event))
					}
					if got.Held != wantHeld(before, event) {
						t.Errorf("held %t", got.Held)
					}
					if got.Held != (len(got.GPUs) == 1) {
						t.Errorf("held %t with GPUs %v", got.Held, got.GPUs)
					}
					if again := event != fleet.EventReboot && event != fleet.EventStarting && event != fleet.EventWaiting && got.Status == before.Status && got.Held == before.Held; again && !bytes.Equal(hash, w.hash()) &&
						got.Status != fleet.StatusRunning {
						t.Error("no change, but something was written")
					}
					// The same report once more, as after a lost answer.
					hash = w.hash()
					cmd := w.report("pod-1", event)
					cmd.Reports[0].Incarnation = before.Incarnation
					w.must(cmd)
					if !bytes.Equal(hash, w.hash()) {
						t.Error("a repeated report changed something")
					}
					w.check()
				})
			}
		}
	}
}

func wantStatus(s fleet.PodStatus, g fleet.Goal, e fleet.Trigger) fleet.PodStatus {
	to, ok := s.Next(e)
	switch {
	case !ok:
		return s
	case g == fleet.GoalStop && (e == fleet.EventFailed || e == fleet.EventReboot):
		return fleet.StatusExited
	}
	return to
}

func wantHeld(before fleet.Pod, e fleet.Trigger) bool {
	switch {
	case before.Status == fleet.StatusTerminated:
		return e != ReportGone && e != fleet.EventReboot
	case !before.Status.Active():
		return false
	case e == fleet.EventExited, e == fleet.EventFailed:
		return false
	case e == fleet.EventReboot:
		return before.Goal == fleet.GoalRun
	}
	return true
}

func TestRunningFillsTheTimeLine(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusProvisioning, fleet.GoalRun)
	cmd := w.report("pod-1", fleet.EventRunning)
	r := &cmd.Reports[0]
	r.Digest = "sha256:1"
	r.Steps = map[fleet.Step]time.Time{
		fleet.StepReceived: at(11), fleet.StepStarted: at(12), fleet.StepCreated: at(0), fleet.StepRecorded: at(0), "made up": at(0),
	}
	w.must(cmd)
	p := w.pod("pod-1")
	want := map[fleet.Step]time.Time{
		fleet.StepCreated: at(10), fleet.StepReceived: at(11), fleet.StepStarted: at(12), fleet.StepRecorded: at(41),
	}
	if d := cmp.Diff(want, p.Steps); d != "" {
		t.Error(d)
	}
	if !p.StartedAt.Equal(at(40)) || p.Digest != "sha256:1" {
		t.Errorf("got %+v", p)
	}
}

func TestFailureIsExplained(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	cmd := w.report("pod-1", fleet.EventFailed)
	code := 3
	r := &cmd.Reports[0]
	r.ExitCode, r.Reason, r.LogTail, r.At = &code, "exit code 3", strings.Repeat("ö", 20_000)+"end", at(99)
	generation := w.pod("pod-1").Generation
	w.must(cmd)
	p := w.pod("pod-1")
	if p.Status != fleet.StatusError || p.Goal != fleet.GoalStop || p.Reason != "exit code 3" || *p.ExitCode != 3 {
		t.Errorf("got %s, %s, %q", p.Status, p.Goal, p.Reason)
	}
	if len(p.LogTail) > 16<<10 || !strings.HasSuffix(p.LogTail, "end") || strings.ToValidUTF8(p.LogTail, "") != p.LogTail {
		t.Errorf("log tail of %d bytes", len(p.LogTail))
	}
	if !p.EndedAt.Equal(at(41)) {
		t.Errorf("ended at %s, which is after the report came", p.EndedAt)
	}
	if p.Generation != generation+1 {
		t.Error("the host is not told that the goal is stop now")
	}
	// A start forgets it.
	p = w.must(w.act("pod-1", fleet.ActionStart)).(fleet.Pod)
	if p.Reason != "" || p.ExitCode != nil || p.LogTail != "" || !p.EndedAt.IsZero() {
		t.Errorf("got %+v", p)
	}
}

func TestRebootStartsAgainWhatShouldRun(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	generation := w.pod("pod-1").Generation
	w.must(w.report("pod-1", fleet.EventReboot))
	p := w.pod("pod-1")
	if p.Status != fleet.StatusProvisioning || p.Incarnation != 2 || !p.Held || p.Generation != generation+1 || !p.StartedAt.IsZero() {
		t.Errorf("got %+v", p)
	}
}

// A host can know of starts that a control plane restored from an old copy does not.
func TestReportOfALaterIncarnationIsAdopted(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	cmd := w.report("pod-1", fleet.EventRunning)
	cmd.Reports[0].Incarnation = 5
	w.must(cmd)
	if p := w.pod("pod-1"); p.Incarnation != 5 {
		t.Errorf("incarnation %d", p.Incarnation)
	}
	if p := w.must(w.act("pod-1", fleet.ActionRestart)).(fleet.Pod); p.Incarnation != 6 {
		t.Errorf("incarnation %d", p.Incarnation)
	}
}

func TestOneCommandTakesManyReports(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-b", 0)
	w.create("pod-2", "host-b", 1)
	cmd := w.report("pod-1", fleet.EventStarting)
	cmd.Reports = append(cmd.Reports, w.report("pod-2", fleet.EventFailed).Reports...)
	cmd.Reports = append(cmd.Reports, w.report("pod-1", fleet.EventRunning).Reports...)
	w.must(cmd)
	if a, b := w.pod("pod-1").Status, w.pod("pod-2").Status; a != fleet.StatusRunning || b != fleet.StatusError {
		t.Errorf("got %s and %s", a, b)
	}
	w.check()
}
