package state

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// copied makes a world that was restored from a copy of at(60) at at(70), with pods on host-a: run-1 and
// run-2 run, ended-1 is stopped, gone-1 is terminated, data-1 is stopped and keeps data.
func copied(t *testing.T) *world {
	w := newWorld(t).settle().furnish()
	w.create("run-1", "host-a", 0)
	w.create("run-2", "host-a", 1)
	w.create("ended-1", "host-a", 2)
	w.create("gone-1", "host-a", 3)
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("data-1", "host-a", 0), HostEpoch: 1}}})
	for _, id := range []fleet.PodID{"run-1", "run-2", "ended-1", "gone-1", "data-1"} {
		w.must(w.report(id, fleet.EventRunning))
	}
	w.must(w.report("ended-1", fleet.EventExited), w.report("data-1", fleet.EventExited), w.act("gone-1", fleet.ActionTerminate))
	w.must(restore(7))
	return w
}

const floor7 = 7 << lineageBits

func (w *world) pods(ids ...fleet.PodID) (out []HostPod) {
	for _, id := range ids {
		out = append(out, w.runs(id))
	}
	return out
}

func TestARestoredClusterTakesNothingOfAHostBeforeItWasCompared(t *testing.T) {
	w := copied(t)
	if h := w.host("host-a"); !h.Behind {
		t.Errorf("got %+v", h)
	}
	w.wantTakes("host-a", "not compared with the restored state yet")
	w.refused(fleet.CodeNotAllowed, w.act("run-1", fleet.ActionRestart))
	p := w.pod("run-1")
	w.refused(fleet.CodeNotAllowed, UpdatePod{Account: "acme", Pod: p.ID, Rev: p.Rev, Spec: p.Spec, Need: p.Need, Restart: true, At: at(71)})
	w.refused(fleet.CodeConflictRule, RemoveHost{Host: "host-b", At: at(71)})
	w.must(w.back("host-b"))
	w.wantTakes("host-b", "")
	w.refused(fleet.CodeNotAllowed, w.startElsewhere("ended-1", 0)) // host-a may run it
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(72)}, w.startElsewhere("ended-1", 0))
	if p := w.pod("ended-1"); p.Incarnation != floor7+1 {
		t.Errorf("incarnation %d", p.Incarnation)
	}
	w.check()
}

func TestNumbersHoldTheLineage(t *testing.T) {
	w := copied(t)
	h := w.must(w.back("host-b")).(fleet.Host)
	if h.Generation != floor7+1 || h.Lineage != 7 || w.host("host-b").Behind {
		t.Errorf("got %+v", h)
	}
	if p := w.create("new-1", "host-b", 0); p.Incarnation != floor7+1 || p.Generation != floor7+2 {
		t.Errorf("got %+v", p)
	}
	// A host that knows higher numbers: those of the lineage that ended.
	ahead := w.back("host-a", w.pods("run-1")...)
	ahead.Generation, ahead.Lineage = 900, 6
	ahead.Pods[0].Incarnation = 50
	if h := w.must(ahead).(fleet.Host); h.Generation <= floor7 {
		t.Errorf("generation %d", h.Generation)
	}
	if p := w.pod("run-1"); p.Incarnation != 50 || p.Generation != w.host("host-a").Generation {
		t.Errorf("got %+v", p)
	}
	w.must(w.act("run-1", fleet.ActionRestart))
	if p := w.pod("run-1"); p.Incarnation != floor7+1 {
		t.Errorf("incarnation %d", p.Incarnation)
	}
	above := w.back("host-a")
	above.Generation = floor7 + 5000
	if h := w.must(above).(fleet.Host); h.Generation != floor7+5001 {
		t.Errorf("generation %d", h.Generation)
	}
	w.check()
}

// What the state does not know goes; until it is gone the host takes nothing.
func TestRestoreUnknown(t *testing.T) {
	w := copied(t)
	w.must(w.back("host-a", append(w.pods("run-1", "run-2", "gone-1"),
		HostPod{Pod: "late-1", Incarnation: 4, Goal: fleet.GoalRun, GPUs: []string{"host-a-gpu-2"}},
		HostPod{Pod: "late-2", Incarnation: 1, Goal: fleet.GoalStop, Ended: true})...))
	h := w.host("host-a")
	if d := cmp.Diff([]fleet.Leftover{{Pod: "late-1", Incarnation: 4}}, h.Leftovers); d != "" {
		t.Fatal(d)
	}
	w.wantTakes("host-a", "removing what ran there before")
	w.view(func(v *View) {
		pods := v.HostPods("host-a")
		i := slices.IndexFunc(pods, func(p fleet.Pod) bool { return p.ID == "late-1" })
		if i < 0 || pods[i].Goal != fleet.GoalStop || pods[i].Incarnation != 4 || !slices.IsSortedFunc(pods, func(a, b fleet.Pod) int {
			return strings.Compare(string(a.ID), string(b.ID))
		}) {
			t.Errorf("ordered %+v", pods)
		}
	})
	w.must(ReportPods{Host: "host-a", Epoch: h.Epoch, At: at(81), Reports: []PodReport{{Pod: "late-1", Incarnation: 4, Event: fleet.EventExited}}})
	w.wantTakes("host-a", "")
	if got := w.host("host-a"); got.Generation <= h.Generation {
		t.Error("the host is not told that it may forget the pod")
	}
	w.check()
}

// What is active in the copy and runs is adopted as it is.
func TestRestoreAdoptsWhatRuns(t *testing.T) {
	w := copied(t)
	pods := w.pods("run-1", "run-2")
	// Since the copy they were restarted, and swapped their GPUs.
	pods[0].Incarnation, pods[0].GPUs, pods[1].GPUs = 3, pods[1].GPUs, pods[0].GPUs
	pods[0].Need.MilliCPU = 3000
	before := w.pod("run-1")
	w.must(w.back("host-a", pods...))
	p, q := w.pod("run-1"), w.pod("run-2")
	if p.Incarnation != 3 || p.Need.MilliCPU != 3000 || !slices.Equal(p.GPUs, pods[0].GPUs) || !slices.Equal(q.GPUs, pods[1].GPUs) ||
		q.Incarnation != 1 || p.Goal != fleet.GoalRun || p.Status != fleet.StatusRunning || !p.Steps[fleet.StepCreated].Equal(before.Steps[fleet.StepCreated]) {
		t.Errorf("got %+v\nand %+v", p, q)
	}
	w.check()
}

func TestRestoreHonoursLaterOrders(t *testing.T) {
	w := copied(t)
	w.must(ActPod{Account: "acme", Pod: "run-2", Action: fleet.ActionStop, At: at(75)}) // by the restored control plane
	pods := w.pods("run-1", "run-2")
	pods[0].Goal = fleet.GoalGone // in the future that is lost
	pods[1].Incarnation = 9
	w.must(w.back("host-a", pods...))
	for id, ended := range map[fleet.PodID]int{"run-1": 80, "run-2": 75} {
		if p := w.pod(id); p.Goal != fleet.GoalStop || !p.Held || !p.Stopping() || !p.EndedAt.Equal(at(ended)) {
			t.Errorf("got %+v", p)
		}
	}
	w.must(w.report("run-1", fleet.EventExited), w.report("run-2", fleet.EventExited))
	w.check()
}

// A stop that the copy has as accepted stands against the same incarnation, and not against a later one.
func TestRestoreAndStopsOfTheCopy(t *testing.T) {
	for _, c := range []struct {
		incarnation uint64
		want        fleet.Goal
	}{{1, fleet.GoalStop}, {2, fleet.GoalRun}} {
		w := newWorld(t).settle()
		w.podIn(fleet.StatusRunning, fleet.GoalStop)
		w.must(restore(7))
		pods := w.pods("pod-1")
		pods[0].Incarnation = c.incarnation
		w.must(w.back("host-a", pods...))
		if p := w.pod("pod-1"); p.Goal != c.want || p.EndedAt.IsZero() != (c.want == fleet.GoalRun) || !p.Held || p.Incarnation != c.incarnation {
			t.Errorf("got %+v", p)
		}
		w.check()
	}
}

// What is active in the copy and does not run has ended, and is not started by itself.
func TestRestoreEndsWhatDoesNotRun(t *testing.T) {
	w := copied(t)
	ended := w.runs("run-2")
	ended.Ended, ended.Incarnation = true, 6
	w.must(w.back("host-a", ended))
	for id, incarnation := range map[fleet.PodID]uint64{"run-1": 1, "run-2": 6} {
		p := w.pod(id)
		if p.Status != fleet.StatusExited || p.Goal != fleet.GoalStop || p.Held || p.GPUs != nil || !p.EndedAt.Equal(at(60)) ||
			p.Incarnation != incarnation || !strings.Contains(p.Reason, "restored") {
			t.Errorf("got %+v", p)
		}
	}
	w.wantTakes("host-a", "")
	if p := w.pod("gone-1"); !p.Held || p.GPUs != nil || p.Need != (fleet.Resources{}) { // its host may have a log of it
		t.Errorf("got %+v", p)
	}
	w.must(w.report("gone-1", ReportGone))
	if w.pod("gone-1").Held {
		t.Error("what is gone holds")
	}
	w.must(w.back("host-b"), w.act("run-1", fleet.ActionStart))
	w.check()
}

// An older incarnation than the copy has is stopped: the newer one was never begun.
func TestRestoreStopsAnOlderIncarnation(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	older := w.runs("pod-1")
	w.must(w.act("pod-1", fleet.ActionRestart), restore(7), w.back("host-a", older))
	if p := w.pod("pod-1"); p.Goal != fleet.GoalStop || !p.Held || p.Incarnation != 2 || len(p.GPUs) != 1 {
		t.Errorf("got %+v", p)
	}
	w.must(w.report("pod-1", fleet.EventExited))
	w.check()
}

// What has ended in the copy and runs was started since: it runs on.
func TestRestoreAdoptsWhatWasStartedSince(t *testing.T) {
	w := copied(t)
	pods := w.pods("run-1", "run-2", "ended-1")
	pods[2].Incarnation, pods[2].GPUs, pods[2].Need = 2, []string{"host-a-gpu-3"}, fleet.Resources{MilliCPU: 4000, MemoryMB: 1, DiskGB: 20}
	data := w.runs("data-1")
	data.Incarnation, data.GPUs = 2, []string{"host-a-gpu-0"} // run-1 has it
	w.must(w.back("host-a", append(pods, data)...))
	p := w.pod("ended-1")
	if p.Status != fleet.StatusRunning || p.Goal != fleet.GoalRun || !p.Held || p.Incarnation != 2 || !p.EndedAt.IsZero() ||
		!slices.Equal(p.GPUs, []string{"host-a-gpu-3"}) || p.Need.MilliCPU != 4000 || !p.Steps[fleet.StepCreated].Equal(at(80)) {
		t.Errorf("got %+v", p)
	}
	q := w.pod("data-1")
	if q.Status != fleet.StatusRunning || q.Goal != fleet.GoalStop || !q.Held || len(q.GPUs) > 0 || q.EndedAt.IsZero() {
		t.Errorf("got %+v", q)
	}
	w.must(w.report("data-1", fleet.EventExited))
	w.check()
}

// What is terminated in the copy is ordered gone, and holds what it has until then.
func TestRestoreRemovesWhatIsTerminated(t *testing.T) {
	w := copied(t)
	w.must(w.act("data-1", fleet.ActionTerminate), w.act("ended-1", fleet.ActionTerminate))
	pods := w.pods("gone-1", "ended-1", "data-1")
	pods[0].Incarnation = 4
	pods[1].GPUs, pods[1].Incarnation = []string{"host-a-gpu-2"}, 2
	pods[2].Ended = true
	w.must(w.back("host-a", pods...))
	for id, want := range map[fleet.PodID]struct {
		incarnation uint64
		gpus        []string
	}{"gone-1": {4, []string{"host-a-gpu-3"}}, "ended-1": {2, []string{"host-a-gpu-2"}}, "data-1": {1, nil}} {
		p := w.pod(id)
		if p.Status != fleet.StatusTerminated || p.Goal != fleet.GoalGone || !p.Held || p.Incarnation != want.incarnation || !slices.Equal(p.GPUs, want.gpus) {
			t.Errorf("got %+v", p)
		}
		w.must(w.report(id, ReportGone))
		if w.pod(id).Held {
			t.Errorf("%s holds on", id)
		}
	}
	w.check()
}

// A pod that was started on another host since the copy was made is there.
func TestRestoreFindsAPodElsewhere(t *testing.T) {
	for _, first := range []fleet.HostID{"host-a", "host-b"} {
		t.Run(string(first), func(t *testing.T) {
			w := copied(t)
			there := w.runs("run-1")
			there.Incarnation, there.GPUs = 2, []string{"host-b-gpu-1"}
			connects := map[fleet.HostID]ConnectHost{"host-a": w.back("host-a"), "host-b": w.back("host-b", there)}
			w.must(connects[first])
			delete(connects, first)
			for host, c := range connects {
				before := w.host("host-a").Generation
				w.must(c)
				if host == "host-b" && w.host("host-a").Generation <= before {
					t.Error("the host that had it is not told that it is gone from there")
				}
			}
			p := w.pod("run-1")
			if p.Host != "host-b" || p.Status != fleet.StatusRunning || p.Goal != fleet.GoalRun || !p.Held || p.Incarnation != 2 || !slices.Equal(p.GPUs, there.GPUs) {
				t.Errorf("got %+v", p)
			}
			w.check()
		})
	}
}

// Of a pod that runs on two hosts by what they say, the older one goes, whoever comes first.
func TestRestoreLeavesOneOfTwo(t *testing.T) {
	w := copied(t)
	here, there := w.runs("run-1"), w.runs("run-1")
	there.GPUs = []string{"host-b-gpu-1"}
	w.must(w.back("host-a", here), w.back("host-b", there))
	if p := w.pod("run-1"); p.Host != "host-a" || !p.Held {
		t.Errorf("got %+v", p)
	}
	if lefts := w.host("host-b").Leftovers; len(lefts) != 1 {
		t.Errorf("leftovers %v", lefts)
	}
	w.check()
}

func TestAFencedHostIsNotAdoptedFrom(t *testing.T) {
	w := copied(t)
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(72)})
	w.must(w.back("host-a", w.pods("run-1", "ended-1")...))
	if p := w.pod("run-1"); p.Status != fleet.StatusError || p.Held {
		t.Errorf("got %+v", p)
	}
	lefts := w.host("host-a").Leftovers
	if len(lefts) != 4 || w.host("host-a").Behind {
		t.Errorf("leftovers %v", lefts)
	}
	w.wantTakes("host-a", "cordoned")
	w.check()
}

// A machine that joins anew may still run what its earlier identity was told to.
func TestWhatAJoiningHostRunsGoes(t *testing.T) {
	w := newWorld(t).settle()
	w.join("host-c", "machine-c")
	w.must(w.back("host-c", HostPod{Pod: "old-1", Incarnation: 3, Goal: fleet.GoalRun, GPUs: []string{"host-c-gpu-0"}}))
	w.wantTakes("host-c", "removing what ran there before")
	w.check()
}

// ordered returns what a host is ordered of a pod.
func (w *world) ordered(host fleet.HostID, id fleet.PodID) (out fleet.Pod) {
	w.t.Helper()
	w.view(func(v *View) {
		for _, p := range v.HostPods(host) {
			if p.ID == id {
				out = p
			}
		}
	})
	if out.ID == "" {
		w.t.Fatalf("host %s is ordered nothing of %s", host, id)
	}
	return out
}

// data-1 is stopped in the copy. Later it was started, and ended. A ledger follows no order of a lower
// incarnation than the one it knows.
func TestAfterARestoreOrdersAreNotOvertaken(t *testing.T) {
	w := copied(t)
	w.must(w.back("host-a", append(w.pods("run-1", "run-2"), HostPod{Pod: "data-1", Incarnation: 2, Goal: fleet.GoalStop, Ended: true})...))
	w.must(w.act("data-1", fleet.ActionTerminate))
	if p := w.ordered("host-a", "data-1"); p.Goal != fleet.GoalGone || p.Incarnation < 2 {
		t.Errorf("ordered %s of incarnation %d; the ledger has 2", p.Goal, p.Incarnation)
	}
	w.check()
}

// run-1 and data-1 got later incarnations after the copy. Their host is fenced after the restore, and comes back.
func TestAFenceAfterARestoreOrdersTheLaterIncarnations(t *testing.T) {
	w := copied(t)
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(72)}, w.act("data-1", fleet.ActionTerminate))
	run := w.runs("run-1")
	run.Incarnation = 2
	w.must(w.back("host-a", run, HostPod{Pod: "data-1", Incarnation: 3, Goal: fleet.GoalStop, Ended: true}))
	for id, least := range map[fleet.PodID]uint64{"run-1": 2, "data-1": 3} {
		if p := w.ordered("host-a", id); p.Incarnation < least {
			t.Errorf("%s: ordered %s of incarnation %d; the ledger has %d", id, p.Goal, p.Incarnation, least)
		}
	}
	w.check()
}

// host-c had joined when the copy was made, and not connected; later it did, and run-1 was moved there.
func TestAHostThatWasJoiningInTheCopyMayRunPods(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.join("host-c", "machine-c")
	w.create("run-1", "host-a", 0)
	w.must(w.report("run-1", fleet.EventRunning), restore(7))
	w.must(w.back("host-a"), w.back("host-b"))
	w.refused(fleet.CodeNotAllowed, w.startElsewhere("run-1", 0))
	w.refused(fleet.CodeConflictRule, RemoveHost{Host: "host-c", At: at(75)})
	again := token("again")
	joins := JoinHost{Token: "again", Hash: again.Hash, Host: fleet.Host{ID: "host-d", MachineID: "machine-c"}, At: at(776)}
	w.must(PutToken{Token: again, At: at(0)})
	w.refused(fleet.CodeExists, joins)
	w.must(FenceHost{Host: "host-c", At: at(77)}, w.startElsewhere("run-1", 0), RemoveHost{Host: "host-c", At: at(78)}, joins)
	w.check()
}

// A pod that was on the move in the copy may have been ended by its owner since: nothing but an owner starts it again.
func TestARestoreLeavesMoves(t *testing.T) {
	for name, ended := range map[string]bool{"stopping": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			w := drained(t)
			w.move()
			if ended {
				w.must(w.report("pod-1", fleet.EventExited))
			}
			w.must(restore(7), w.back("host-a"), w.back("host-b"))
			p := w.pod("pod-1")
			if p.Moving || p.Status != fleet.StatusExited || p.Held || p.Reason == reasonMoving || len(w.moving()) > 0 {
				t.Errorf("got %+v", p)
			}
			w.check()
		})
	}
}

// The host of a drain of the copy is asked first what runs there.
func TestNothingIsMovedFromAHostThatWasNotCompared(t *testing.T) {
	w := drained(t)
	p := w.pod("pod-1")
	w.must(restore(7))
	w.refused(fleet.CodeNotAllowed, w.moveTo(p.ID, at(75)))
	w.must(w.back("host-a", w.runs("pod-1")), w.back("host-b"))
	w.must(w.moveTo(p.ID, at(76)))
	w.check()
}

// A volume of before a restore keeps its data while a host may run a pod with it that the copy does not have.
func TestARestoreKeepsWhatUnknownPodsMayHave(t *testing.T) {
	w := storing(t)
	w.must(w.provides("host-a", VolumeReport{Volume: "vol-2", ProvisionedGB: 10}), DeleteVolume{Account: "acme", Volume: "vol-2", At: at(50)}, restore(7))
	unknown := HostPod{Pod: "since", Incarnation: 3, Goal: fleet.GoalRun}
	back := func(host fleet.HostID, pods ...HostPod) ConnectHost {
		h := w.host(host)
		return ConnectHost{Host: host, MachineID: h.MachineID, BootID: "boot", Inventory: inventory(host), Pods: pods, At: at(71)}
	}
	gone := func() ReportVolumes { return w.provides("host-a", VolumeReport{Volume: "vol-2", Gone: true}) }
	since := func(want time.Time) {
		t.Helper()
		w.view(func(v *View) {
			if got := v.Unsettled("dc-1"); !got.Equal(want) || !v.Unsettled("dc-9").IsZero() {
				t.Errorf("kept are volumes of before %s, want %s", got, want)
			}
		})
	}
	w.must(back("host-a"))
	w.must(gone())
	since(at(70))
	w.must(back("host-b", unknown))
	w.must(gone())
	since(at(70))
	index := w.s.Index()
	w.must(back("host-b", unknown))
	if w.said(index)[Event{Kind: KindStorage, ID: "b-fast"}] {
		t.Error("who looks after the backend is told of a host that still keeps something back")
	}
	index = w.s.Index()
	unknown.Ended = true
	w.must(back("host-b", unknown))
	since(time.Time{})
	if !w.said(index)[Event{Kind: KindStorage, ID: "b-fast"}] {
		t.Error("who looks after the backend is not told")
	}
	index = w.s.Index()
	w.must(back("host-b", unknown))
	if w.said(index)[Event{Kind: KindStorage, ID: "b-fast"}] {
		t.Error("who looks after the backend is told of a host that kept nothing back")
	}
	w.volume("vol-2")
	w.must(gone())
	w.view(func(v *View) {
		if _, there := v.VolumeRecord("vol-2"); there {
			t.Error("it is still there")
		}
	})
	w.check()
}
