package reports

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

func newReports() *Reports { return New(func() {}, func(pod.Report) {}) }

func told(r *Reports, at time.Time) []string {
	out := []string{}
	for _, p := range r.unsent(at).GetPods() {
		out = append(out, p.GetPodId()+" "+p.GetEvent())
	}
	slices.Sort(out)
	return out
}

func TestEverySessionIsToldOfEveryPod(t *testing.T) {
	r, now := newReports(), time.Unix(1, 0)
	forgotten := fleet.PodID("")
	session := func() { r.Begin(func(id fleet.PodID) bool { return id != forgotten }) }
	session()
	r.Report(pod.Report{Pod: "a", Event: fleet.EventRunning})
	r.Report(pod.Report{Pod: "b", Event: fleet.EventExited})
	r.Report(pod.Report{Pod: "c", Event: pod.EventGone})
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"at first", func() {}, []string{"a running", "b exited", "c gone"}},
		{"once per session", func() {}, []string{}},
		{"again when nothing was recorded", session, []string{"a running", "b exited", "c gone"}},
		{"not of a pod that is recorded as gone", func() { r.kept(2); session() }, []string{"a running", "b exited"}},
		{"not of a pod that the host has forgotten", func() { forgotten = "b"; session() }, []string{"a running"}},
		{"the newest", func() { r.Report(pod.Report{Pod: "a", Event: fleet.EventFailed}) }, []string{"a failed"}},
	} {
		step.do()
		if got := told(r, now); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %v, want %v", step.name, got, step.want)
		}
	}
}

func TestAReportTellsWhenItFirstLeftAndOnlyOfAStartMadeHere(t *testing.T) {
	r := newReports()
	r.Report(pod.Report{Pod: "a", Event: fleet.EventRunning, Steps: map[fleet.Step]time.Time{fleet.StepReceived: time.Unix(1, 0)}})
	r.Report(pod.Report{Pod: "b", Event: fleet.EventRunning})
	for _, at := range []int64{5, 9} {
		r.Begin(func(fleet.PodID) bool { return true })
		got := map[string]*agentrpc.PodReport{}
		for _, p := range r.unsent(time.Unix(at, 0)).GetPods() {
			got[p.GetPodId()] = p
		}
		if ns := got["a"].GetStepsNs()[string(fleet.StepReported)]; ns != time.Unix(5, 0).UnixNano() {
			t.Errorf("at %d s: reported at %d ns", at, ns)
		}
		if n := len(got["b"].GetStepsNs()); n != 0 {
			t.Errorf("a start of an earlier agent has %d steps", n)
		}
	}
}

func TestMessageHoldsSoManyReports(t *testing.T) {
	wake := make(chan struct{}, 2)
	r := New(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}, func(pod.Report) {})
	const pods = maxReports + 3
	for range pods {
		r.Report(pod.Report{Pod: fleet.PodID(fleet.NewID()), Event: fleet.EventRunning})
	}
	for len(wake) > 0 {
		<-wake
	}
	if n := len(r.unsent(time.Now()).GetPods()); n != maxReports {
		t.Errorf("the first message has %d reports, want %d", n, maxReports)
	}
	<-wake // it says that more are left
	if n := len(r.unsent(time.Now()).GetPods()); n != pods-maxReports {
		t.Errorf("the second message has %d reports, want %d", n, pods-maxReports)
	}
}

func TestEveryReportCanBeSent(t *testing.T) {
	code := 255
	sent := encodeReport(pod.Report{
		Pod: "a", Event: fleet.EventFailed, Reason: "cut \xc3", LogTail: "\xff\xfe tail", ExitCode: &code,
		Steps: map[fleet.Step]time.Time{fleet.StepStarted: {}},
	}, time.Time{})
	if _, err := proto.Marshal(&agentrpc.Reports{Pods: []*agentrpc.PodReport{sent}}); err != nil {
		t.Fatal(err)
	}
	if sent.GetAtNs() != 0 {
		t.Errorf("a time that is not known became %d", sent.GetAtNs())
	}
	if _, ok := sent.GetStepsNs()[string(fleet.StepStarted)]; ok {
		t.Error("a step without a time was sent")
	}
}

// An acknowledgement drops the report of a pod that is gone only when it covers it.
func TestAnAcknowledgementCoversWhatWasSentBefore(t *testing.T) {
	r, now := newReports(), time.Unix(1, 0)
	has := func(id fleet.PodID) bool { _, ok := r.newest[id]; return ok }
	r.Report(pod.Report{Pod: "a", Event: pod.EventGone})
	if r.kept(5); !has("a") { // nothing was sent yet: this is of a session before
		t.Error("an acknowledgement dropped a report that was never sent")
	}
	first := r.unsent(now).GetSequence()
	r.Report(pod.Report{Pod: "b", Event: pod.EventGone})
	second := r.unsent(now).GetSequence()
	r.Report(pod.Report{Pod: "c", Event: fleet.EventRunning})
	third := r.unsent(now).GetSequence()
	if r.kept(first - 1); !has("a") || !has("b") {
		t.Error("an acknowledgement of less dropped a report")
	}
	if r.kept(first); has("a") || !has("b") {
		t.Errorf("after %d of %d there is a: %v, b: %v", first, second, has("a"), has("b"))
	}
	r.Report(pod.Report{Pod: "b", Event: pod.EventGone}) // anew, and not sent
	if r.kept(third); !has("b") || !has("c") {
		t.Error("an acknowledgement dropped what came after it, or of a pod that is not gone")
	}
	r.unsent(now)
	r.Begin(func(fleet.PodID) bool { return true })
	if r.kept(100); !has("b") {
		t.Error("a report that is to be sent again was dropped")
	}
}
