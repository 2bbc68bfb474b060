package reports

import (
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestAReportIsCountedAndToldUntilItIsKept: each wakes the session, as a session that begins does; what is kept of a pod that is gone is
// told no more.
func TestAReportIsCountedAndToldUntilItIsKept(t *testing.T) {
	woken, counted := 0, []fleet.Trigger{}
	r := New(func() { woken++ }, func(rep pod.Report) { counted = append(counted, rep.Event) })
	code := 7
	r.Report(pod.Report{Pod: "a", Event: fleet.EventExited, ExitCode: &code, Steps: map[fleet.Step]time.Time{fleet.StepReceived: time.Unix(1, 0), fleet.StepPulled: {}}})
	r.Report(pod.Report{Pod: "b", Event: pod.EventGone})
	if woken != 2 || !slices.Equal(counted, []fleet.Trigger{fleet.EventExited, pod.EventGone}) {
		t.Errorf("woken %d times, counted %v", woken, counted)
	}
	sequence := uint64(0)
	next := func() map[string]*agentrpc.PodReport {
		t.Helper()
		up := r.Next()
		if up == nil {
			return nil
		}
		m := up.GetReports()
		if sequence = m.GetSequence(); m.GetSentNs() == 0 {
			t.Error("it does not say when it was sent")
		}
		out := map[string]*agentrpc.PodReport{}
		for _, p := range m.GetPods() {
			out[p.GetPodId()] = p
		}
		return out
	}
	got := next()
	if a := got["a"]; len(got) != 2 || !a.GetHasExitCode() || a.GetExitCode() != 7 || a.GetStepsNs()[string(fleet.StepReceived)] == 0 || len(a.GetStepsNs()) != 2 {
		t.Errorf("told %v", got)
	}
	if got["b"].GetHasExitCode() || next() != nil {
		t.Error("a pod that has not ended has an exit code, or a report is told twice in a session")
	}
	if _, err := r.TakeKept(t.Context(), &agentrpc.Down_ReportsKept{ReportsKept: &agentrpc.ReportsKept{Sequence: sequence}}); err != nil {
		t.Fatal(err)
	}
	r.Begin(func(fleet.PodID) bool { return false })
	if got := next(); woken != 3 || got != nil {
		t.Errorf("woken %d times; of pods that the host forgot is told %v", woken, got)
	}
	// One that is gone and was not kept is told again, known or not.
	r.Report(pod.Report{Pod: "c", Event: pod.EventGone})
	r.Begin(func(fleet.PodID) bool { return false })
	if got := next(); len(got) != 1 || got["c"] == nil {
		t.Errorf("told %v", got)
	}
}

// TestActivities are told while there are some, and forgotten with the pod.
func TestActivities(t *testing.T) {
	r := newReports()
	r.Activity("a", "pulls\xff", 3, 9)
	r.Activity("b", "waits", 0, 0)
	r.Activity("c", "waits", 0, 0)
	if got := r.Activities(); len(got) != 3 || got["a"].Done != 3 || got["a"].Total != 9 || !utf8.ValidString(got["a"].Words) {
		t.Errorf("%v", got)
	}
	r.Activity("b", "", 0, 0)
	r.Report(pod.Report{Pod: "c", Event: fleet.EventRunning})
	r.Forget("c")
	if got := r.Activities(); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if up := r.Next(); up != nil {
		t.Errorf("of a pod that is forgotten is told %v", up)
	}
}
