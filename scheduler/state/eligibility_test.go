package state

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// lose says that a host's session is lost.
func (w *world) lose(id fleet.HostID) {
	w.t.Helper()
	w.must(SetHostState{Host: id, Epoch: w.host(id).Epoch, State: fleet.HostUnreachable, At: at(40)})
}

// back makes a connect of a host whose ledger holds pods.
func (w *world) back(id fleet.HostID, pods ...HostPod) ConnectHost {
	w.t.Helper()
	h := w.host(id)
	return ConnectHost{Host: id, MachineID: h.MachineID, BootID: "boot", Inventory: inventory(id), At: at(80), Pods: pods, Generation: h.Generation}
}

// runs says that a pod's container runs on its host as the state has it.
func (w *world) runs(id fleet.PodID) HostPod {
	p := w.pod(id)
	return HostPod{Pod: id, Incarnation: p.Incarnation, Goal: fleet.GoalRun, GPUs: p.GPUs, Need: p.Need, Mappings: p.Mappings}
}

func (w *world) takes(id fleet.HostID) (why string) {
	h := w.host(id)
	_, why = h.Takes()
	return why
}

// wantTakes checks whether and why a host takes no pods, by what views say and by what is accepted.
func (w *world) wantTakes(id fleet.HostID, why string) {
	w.t.Helper()
	if got := w.takes(id); got != why {
		w.t.Fatalf("host %s: %q, want %q", id, got, why)
	}
	cmd := CreatePods{Pods: []NewPod{{Pod: podOn("probe", id), HostEpoch: w.host(id).Epoch}}}
	if why != "" {
		w.refused(fleet.CodeStale, cmd)
		return
	}
	w.must(cmd, ActPod{Account: "acme", Pod: "probe", Action: fleet.ActionTerminate, At: at(90)})
	w.must(w.report("probe", ReportGone), PurgePods{Pods: []fleet.PodID{"probe"}, Before: at(91)})
}

func TestEligibilityKeepsNewPodsAway(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.create("pod-2", "host-a", 1)
	w.must(w.act("pod-2", fleet.ActionStop), w.report("pod-2", fleet.EventExited))
	for _, eligibility := range []fleet.Eligibility{fleet.EligibilityCordoned, fleet.EligibilityDraining} {
		got := w.must(SetHostEligibility{Host: "host-a", Eligibility: eligibility, KeepRunning: true, At: at(50)}).(fleet.Host)
		if got.Eligibility != eligibility || got.KeepRunning != (eligibility == fleet.EligibilityDraining) || string(got.Shown()) != string(eligibility) {
			t.Errorf("got %+v", got)
		}
		w.wantTakes("host-a", string(eligibility))
		w.refused(fleet.CodeStale, w.act("pod-2", fleet.ActionStart))
		w.must(w.report("pod-1", fleet.EventRunning), w.act("pod-1", fleet.ActionRestart)) // it has its place
	}
	w.must(SetHostEligibility{Host: "host-a", At: at(51)})
	w.wantTakes("host-a", "")
	if w.host("host-a").KeepRunning {
		t.Error("an open host keeps the drain's setting")
	}
	w.check()
}

func TestCommandsOnHostsAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.join("host-x", "machine-x")
	w.must(RemoveHost{Host: "host-x", At: at(5)})
	many := map[string]string{}
	for i := range 65 {
		many[strconv.Itoa(i)] = ""
	}
	label := func(k, v string) Command { return SetHostLabels{Host: "host-a", Set: map[string]string{k: v}} }
	for name, c := range map[string]struct {
		code fleet.Code
		cmd  Command
	}{
		"eligibility: unknown host":        {fleet.CodeNotFound, SetHostEligibility{Host: "host-z"}},
		"eligibility: unknown eligibility": {fleet.CodeInvalid, SetHostEligibility{Host: "host-a", Eligibility: "asleep"}},
		"eligibility: gone":                {fleet.CodeNotAllowed, SetHostEligibility{Host: "host-x"}},
		"labels: unknown host":             {fleet.CodeNotFound, SetHostLabels{Host: "host-z"}},
		"labels: gone":                     {fleet.CodeNotAllowed, SetHostLabels{Host: "host-x"}},
		"labels: too many":                 {fleet.CodeInvalid, SetHostLabels{Host: "host-a", Set: many}},
		"labels: no key":                   {fleet.CodeInvalid, label("", "x")},
		"labels: a long key":               {fleet.CodeInvalid, label(strings.Repeat("k", 64), "x")},
		"labels: a bad first byte":         {fleet.CodeInvalid, label("-k", "x")},
		"labels: a bad byte":               {fleet.CodeInvalid, label("k k", "x")},
		"labels: a long value":             {fleet.CodeInvalid, label("k", strings.Repeat("v", 256))},
		"labels: not UTF-8":                {fleet.CodeInvalid, label("k", "\xff")},
		"labels: both":                     {fleet.CodeInvalid, SetHostLabels{Host: "host-a", Set: map[string]string{"k": "v"}, Unset: []string{"k"}}},
		"fence: unknown host":              {fleet.CodeNotFound, FenceHost{Host: "host-z"}},
		"fence: connected":                 {fleet.CodeNotAllowed, FenceHost{Host: "host-a", At: at(9)}},
		"fence: gone":                      {fleet.CodeNotAllowed, FenceHost{Host: "host-x", At: at(9)}},
		"remove: unknown host":             {fleet.CodeNotFound, RemoveHost{Host: "host-z"}},
		"remove: pods hold":                {fleet.CodeConflictRule, RemoveHost{Host: "host-a", At: at(9)}},
		"alarm: unknown host":              {fleet.CodeNotFound, AlarmHost{Host: "host-z"}},
		"alarm: too long":                  {fleet.CodeInvalid, AlarmHost{Host: "host-a", Text: strings.Repeat("x", maxAlarm+1)}},
		"move: unknown pod":                {fleet.CodeNotFound, MovePod{Pod: "pod-9"}},
		"move: another revision":           {fleet.CodeStale, MovePod{Pod: "pod-1", Rev: 9}},
		"move: not draining":               {fleet.CodeNotAllowed, MovePod{Pod: "pod-1", Rev: 1}},
		"connect: gone":                    {fleet.CodeForbidden, ConnectHost{Host: "host-x", MachineID: "machine-x", BootID: "boot"}},
		"state: gone":                      {fleet.CodeStale, SetHostState{Host: "host-x", Epoch: 1, State: fleet.HostReady}},
		"connect: later lineage":           {fleet.CodeStale, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Lineage: 1}},
		"connect: a pod, no id":            {fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Pods: []HostPod{{Incarnation: 1}}}},
		"connect: no boot id":              {fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a"}},
		"connect: absurd":                  {fleet.CodeInvalid, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Pods: []HostPod{{Pod: "p", Incarnation: maxGeneration}}}},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.refused(c.code, c.cmd)
		})
	}
}

func TestLabelsAndAlarms(t *testing.T) {
	w := newWorld(t).settle()
	labels := map[string]string{"rack": "7", "9.a_b/c-d": strings.Repeat("ä", 127), "empty": ""}
	w.must(SetHostLabels{Host: "host-a", Set: labels}, AlarmHost{Host: "host-a", Text: "look", At: at(3)})
	h := w.host("host-a")
	if d := cmp.Diff(labels, h.Labels); d != "" || h.Alarm != "look" || !h.AlarmAt.Equal(at(3)) {
		t.Errorf("%s, alarm %q at %s", d, h.Alarm, h.AlarmAt)
	}
	hash := w.hash()
	w.must(AlarmHost{Host: "host-a", Text: "look", At: at(4)}) // an agent that tries again and again
	if string(hash) != string(w.hash()) {
		t.Error("the same alarm was written again")
	}
	h.Labels["rack"] = "changed"
	w.must(AlarmHost{Host: "host-a", At: at(5)})
	if h := w.host("host-a"); h.Alarm != "" || !h.AlarmAt.IsZero() || h.Labels["rack"] != "7" {
		t.Errorf("got %+v", h)
	}
	w.check()
}

func TestWhoConnectsIsTheHostThatJoined(t *testing.T) {
	w := newWorld(t).settle()
	connect := func(boot, hardware string) ConnectHost {
		return ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: boot, Hardware: hardware, Inventory: inventory("host-a"), At: at(3)}
	}
	w.must(connect("boot", ""), connect("boot-2", "board-1"), connect("boot-2", ""), connect("boot-3", "board-1"))
	h := w.host("host-a")
	if h.Hardware != "board-1" || !slices.Equal(h.PastBoots, []string{"boot", "boot-2"}) || h.BootID != "boot-3" {
		t.Errorf("hardware %q, boots %v, then %q", h.Hardware, h.PastBoots, h.BootID)
	}
	w.refused(fleet.CodeForbidden, connect("boot-3", "board-2"))
	w.refused(fleet.CodeForbidden, connect("boot", "board-1"))
	w.refused(fleet.CodeForbidden, connect("boot-2", ""))
	for i := range 20 {
		w.must(connect("next-"+strconv.Itoa(i), ""))
	}
	if h := w.host("host-a"); len(h.PastBoots) != maxBoots || h.PastBoots[0] != "next-3" {
		t.Errorf("boots %v", h.PastBoots)
	}
	tok := token("t")
	w.must(PutToken{Token: tok, At: at(0)}, JoinHost{
		Token: "t", Hash: tok.Hash, Host: fleet.Host{ID: "host-h", MachineID: "mh", Hardware: "board-7"}, At: at(1),
	})
	w.refused(fleet.CodeForbidden, ConnectHost{Host: "host-h", MachineID: "mh", BootID: "boot", Hardware: "board-8", At: at(2)})
	w.must(ConnectHost{Host: "host-h", MachineID: "mh", BootID: "boot", At: at(2)})
	w.check()
}

// drained makes a running pod-1 on host-a, which is being drained.
func drained(t *testing.T) *world {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	w.allow("pod-1")
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(44)})
	return w
}

// allow lets a pod be moved by drains.
func (w *world) allow(id fleet.PodID) {
	w.t.Helper()
	p := w.pod(id)
	p.Spec.Movable = true
	w.must(UpdatePod{Account: p.Account, Pod: id, Rev: p.Rev, Spec: p.Spec, Locked: p.Locked, Need: p.Need, Mappings: p.Mappings, At: at(43)})
}

// moveTo makes the move of a pod to host-b, with the first GPUs there.
func (w *world) moveTo(id fleet.PodID, when time.Time) MovePod {
	const host = "host-b"
	p := w.pod(id)
	to := &Binding{Host: host, HostEpoch: w.host(host).Epoch, HourlyRate: p.HourlyRate, Need: &p.Need}
	if p.Spec.GPU != nil {
		for i := range p.Spec.GPU.Count {
			to.GPUs = append(to.GPUs, podOn(id, host, i).GPUs...)
		}
	}
	return MovePod{Pod: id, Rev: p.Rev, At: when, To: to}
}

// move moves pod-1 to host-b.
func (w *world) move() fleet.Pod {
	w.t.Helper()
	return w.must(w.moveTo("pod-1", at(45))).(fleet.Pod)
}

// startElsewhere makes a start of a pod on host-b, with as many GPUs as it wants.
func (w *world) startElsewhere(id fleet.PodID, gpus ...int) ActPod {
	const host = "host-b"
	return ActPod{Account: "acme", Pod: id, Action: fleet.ActionStart, At: at(60), Bind: &Binding{
		Host: host, HostEpoch: w.host(host).Epoch, HourlyRate: fleet.Dollar, GPUs: podOn(id, host, gpus...).GPUs,
	}}
}

func (w *world) moving() (ids []fleet.PodID) {
	w.view(func(v *View) {
		for _, p := range v.Moving() {
			ids = append(ids, p.ID)
		}
	})
	return ids
}

func TestAPodIsMoved(t *testing.T) {
	w := drained(t)
	p := w.move()
	if !p.Moving || p.Goal != fleet.GoalStop || p.Status != fleet.StatusRunning || p.Reason != reasonMoving || !p.EndedAt.Equal(at(45)) || !p.Held {
		t.Fatalf("got %+v", p)
	}
	w.refused(fleet.CodeNotAllowed, w.moveTo("pod-1", at(46)))
	w.must(w.report("pod-1", fleet.EventFailed))
	p = w.pod("pod-1")
	if !p.Moving || p.Status != fleet.StatusExited || p.Reason != reasonMoving || p.Held || !p.EndedAt.Equal(at(45)) {
		t.Fatalf("got %+v", p)
	}
	if !slices.Equal(w.moving(), []fleet.PodID{"pod-1"}) {
		t.Errorf("moving: %v", w.moving())
	}
	w.must(w.startElsewhere("pod-1", 2))
	p = w.pod("pod-1")
	if p.Moving || p.Host != "host-b" || p.Status != fleet.StatusProvisioning || p.Reason != "" || len(w.moving()) > 0 {
		t.Fatalf("got %+v", p)
	}
	w.check()
}

func TestAMoveEndsWithWhatTheOwnerDoes(t *testing.T) {
	for name, c := range map[string]struct {
		ended bool
		do    func(w *world) Command
		want  fleet.PodStatus
	}{
		"stop":           {false, func(w *world) Command { return w.act("pod-1", fleet.ActionStop) }, fleet.StatusRunning},
		"stop, later":    {true, func(w *world) Command { return w.act("pod-1", fleet.ActionStop) }, fleet.StatusExited},
		"terminate":      {false, func(w *world) Command { return w.act("pod-1", fleet.ActionTerminate) }, fleet.StatusTerminated},
		"terminate late": {true, func(w *world) Command { return w.act("pod-1", fleet.ActionTerminate) }, fleet.StatusTerminated},
		"start":          {true, func(w *world) Command { return w.startElsewhere("pod-1", 0) }, fleet.StatusProvisioning},
		"update": {true, func(w *world) Command {
			p := w.pod("pod-1")
			return UpdatePod{Account: "acme", Pod: p.ID, Rev: p.Rev, Spec: p.Spec, Need: p.Need, Restart: true, At: at(61)}
		}, fleet.StatusExited},
	} {
		t.Run(name, func(t *testing.T) {
			w := drained(t)
			w.move()
			if c.ended {
				w.must(w.report("pod-1", fleet.EventExited))
			}
			w.must(c.do(w))
			p := w.pod("pod-1")
			if p.Moving || p.Status != c.want || p.Reason == reasonMoving || len(w.moving()) > 0 {
				t.Errorf("got %+v", p)
			}
			w.check()
		})
	}
}

func TestWhatMayNotBeMoved(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("data", "host-a", 0), HostEpoch: 1}}})
	locked := podOn("locked", "host-a")
	locked.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: locked, HostEpoch: 1}}})
	w.create("stopping", "host-a")
	w.create("stopped", "host-a")
	for _, id := range []fleet.PodID{"data", "locked", "stopping", "stopped"} {
		w.allow(id)
	}
	w.create("not allowed", "host-a")
	w.must(w.act("stopping", fleet.ActionStop), w.report("stopped", fleet.EventExited))
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(44)})
	for _, id := range []fleet.PodID{"data", "locked", "stopping", "stopped", "not allowed"} {
		w.refused(fleet.CodeNotAllowed, w.moveTo(id, at(45)))
		if p := w.pod(id); p.MayMove() {
			t.Errorf("%s is movable", id)
		}
	}
}

// fenced makes on host-a, which is fenced: pod-1, which ran; pod-2, which was being stopped; pod-3, which was
// terminated; data-1, which ran and has data there; and pod-4, which is being moved.
func fenced(t *testing.T) *world {
	w := newWorld(t).settle().furnish()
	for i, id := range []fleet.PodID{"pod-1", "pod-2", "pod-3", "pod-4"} {
		w.create(id, "host-a", i)
		w.must(w.report(id, fleet.EventRunning))
	}
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("data-1", "host-a", 0), HostEpoch: 1}}})
	w.must(w.act("pod-2", fleet.ActionStop), w.act("pod-3", fleet.ActionTerminate))
	w.allow("pod-4")
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(51)})
	w.must(w.moveTo("pod-4", at(52)))
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(70)})
	return w
}

func TestAFenceFrees(t *testing.T) {
	w := fenced(t)
	for id, want := range map[fleet.PodID]struct {
		status fleet.PodStatus
		reason string
		ended  time.Time
	}{
		"pod-1":  {fleet.StatusError, reasonFenced, at(70)},
		"pod-2":  {fleet.StatusExited, "", at(50)},
		"pod-3":  {fleet.StatusTerminated, "", at(50)},
		"pod-4":  {fleet.StatusExited, reasonMoving, at(52)},
		"data-1": {fleet.StatusError, reasonFenced, at(70)},
	} {
		p := w.pod(id)
		if p.Status != want.status || p.Reason != want.reason || !p.EndedAt.Equal(want.ended) || p.Held || p.Host != "host-a" {
			t.Errorf("got %+v", p)
		}
	}
	h := w.host("host-a")
	if h.State != fleet.HostFenced || h.Eligibility != fleet.EligibilityCordoned || h.Epoch != 2 || len(h.Leftovers) != 5 {
		t.Errorf("got %+v", h)
	}
	w.refused(fleet.CodeNotAllowed, SetHostEligibility{Host: "host-a", At: at(71)})
	w.refused(fleet.CodeConflictRule, RemoveHost{Host: "host-a", At: at(71)}) // data-1
	w.wantTakes("host-a", "fenced")
	w.must(w.startElsewhere("pod-1", 0), w.startElsewhere("pod-4", 1))
	w.must(w.act("data-1", fleet.ActionTerminate)) // nothing is held of a fenced host
	if w.pod("data-1").Held {
		t.Error("a terminated pod holds something of a fenced host")
	}
	w.must(DeleteBackend{ID: "b-fast"}, RemoveHost{Host: "host-a", At: at(72)}, RemoveHost{Host: "host-a", At: at(73)})
	w.check()
}

// A fenced host that comes back is told to stop whatever it may still have, and takes no pods before it did.
func TestAFencedHostComesBack(t *testing.T) {
	w := fenced(t)
	w.must(w.startElsewhere("pod-1", 0))
	w.must(PurgePods{Pods: []fleet.PodID{"pod-3"}, Before: at(99)})
	was := w.host("host-a")
	w.must(w.back("host-a", HostPod{Pod: "pod-1", Incarnation: 1, Goal: fleet.GoalRun}, HostPod{Pod: "pod-2", Incarnation: 1, Ended: true}))
	h := w.host("host-a")
	if h.State != fleet.HostReady || h.Eligibility != fleet.EligibilityCordoned || len(h.Leftovers) != 4 || h.Generation <= was.Generation {
		t.Fatalf("got %+v", h)
	}
	orders := map[fleet.PodID]fleet.Goal{}
	w.view(func(v *View) {
		for _, p := range v.HostPods("host-a") {
			orders[p.ID] = p.Goal
			if p.Incarnation != 1 || p.Generation > h.Generation {
				t.Errorf("ordered %+v", p)
			}
		}
	})
	want := map[fleet.PodID]fleet.Goal{
		"pod-1": fleet.GoalStop, "pod-3": fleet.GoalGone, "pod-4": fleet.GoalStop, "data-1": fleet.GoalStop,
	}
	if d := cmp.Diff(want, orders); d != "" {
		t.Error(d)
	}
	w.refused(fleet.CodeNotAllowed, SetHostEligibility{Host: "host-a", At: at(81)})
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(81)}) // which takes nothing either
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityCordoned, At: at(81)})
	report := func(id fleet.PodID, event fleet.Trigger) ReportPods {
		return ReportPods{Host: "host-a", Epoch: h.Epoch, At: at(82), Reports: []PodReport{{Pod: id, Incarnation: 1, Event: event, At: at(82)}}}
	}
	w.must(report("pod-1", fleet.EventRunning), report("pod-1", fleet.EventExited), report("pod-3", ReportGone), report("pod-4", fleet.EventFailed))
	if p := w.pod("pod-1"); p.Host != "host-b" || p.Status != fleet.StatusProvisioning {
		t.Errorf("the old host's report counts: %+v", p)
	}
	w.refused(fleet.CodeNotAllowed, SetHostEligibility{Host: "host-a", At: at(81)})
	w.must(report("data-1", fleet.EventExited))
	w.wantTakes("host-a", "cordoned")
	w.must(SetHostEligibility{Host: "host-a", At: at(83)})
	w.wantTakes("host-a", "")
	w.must(w.act("data-1", fleet.ActionTerminate))
	if !w.pod("data-1").Held {
		t.Error("the data is not held")
	}
	w.check()
}

func TestGoneHostsAreForgotten(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventExited), RemoveHost{Host: "host-a", At: at(60)})
	h := w.host("host-a")
	if h.State != fleet.HostGone || h.Epoch != 2 || !h.SeenAt.Equal(at(60)) {
		t.Errorf("got %+v", h)
	}
	w.refused(fleet.CodeStale, w.act("pod-1", fleet.ActionStart))
	w.refused(fleet.CodeStale, ReportPods{Host: "host-a", Epoch: 1, At: at(61)})
	w.must(w.startElsewhere("pod-1", 0))
	if n := w.must(PurgeHosts{Before: at(60)}); n != 0 {
		t.Errorf("%v were purged", n)
	}
	if n := w.must(PurgeHosts{Before: at(61)}); n != 1 {
		t.Errorf("%v were purged", n)
	}
	w.view(func(v *View) {
		if _, ok := v.Host("host-a"); ok || v.Forgettable(at(99)) != 0 {
			t.Error("the host is still there")
		}
	})
	w.refused(fleet.CodeNotFound, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", At: at(90)})
	w.must(w.act("pod-1", fleet.ActionTerminate))
	w.check()
}
