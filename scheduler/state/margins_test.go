package state

import (
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// TestViewsOfWhatIsNotThere answer nothing, and nothing of others.
func TestViewsOfWhatIsNotThere(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.create("pod-1", "host-a", 0)
	w.view(func(v *View) {
		_, account := v.Account("nobody")
		_, overlay := v.Overlay("none")
		lost, drained := v.Standing("none")
		if account || overlay || lost || drained {
			t.Error("something is there")
		}
		if got := v.HostPods("none"); len(got) != 0 {
			t.Errorf("pods of no host: %+v", got)
		}
		if got := v.WorkedOn("host-a"); len(got) != 0 {
			t.Errorf("a pod of nobody is a worker of %v", got)
		}
		if got := v.Used("nobody"); got != (fleet.Counts{}) {
			t.Errorf("nobody uses %v", got)
		}
		if got := v.Limits(); got != nil {
			t.Errorf("limits that nobody set: %v", got)
		}
		if got := v.Balance("nobody", at(9)) + v.balance("nobody", at(9)); got != 0 {
			t.Errorf("nobody has %d", got)
		}
		if got := v.LowSince("acme"); !got.IsZero() {
			t.Errorf("its owner was told at %v", got)
		}
		if _, err := Get[fleet.Template](v, "acme", "tpl-9"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("no template: %v", err)
		}
		if _, err := Get[fleet.Template](v, "acme", "tpl-2"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("another's template: %v", err)
		}
		if err := v.MayRun("nobody", nil, &fleet.PodSpec{}, 1); err != nil {
			t.Errorf("nobody may not run a pod: %v", err)
		}
		if v.VolumeHeld("acme", "vol-1") {
			t.Error("nothing has the volume, and it is held")
		}
	})
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(9)})
	w.lose("host-b")
	for id, want := range map[fleet.HostID][2]bool{"host-a": {false, true}, "host-b": {true, false}} {
		w.view(func(v *View) {
			if lost, drained := v.Standing(id); [2]bool{lost, drained} != want {
				t.Errorf("%s is lost: %t, drained: %t", id, lost, drained)
			}
		})
	}
	w.must(SetLimits{Limits: map[string]*int64{"gpus": ptr(int64(7))}})
	w.view(func(v *View) {
		if got := v.Limits(); got["gpus"] != 7 || len(got) != 1 {
			t.Errorf("limits %v", got)
		}
	})
}

func TestWhatACommandMakes(t *testing.T) {
	one := CreatePods{Pods: []NewPod{{Pod: podOn("p1", "h")}, {Pod: podOn("p2", "h")}}}
	for want, cmd := range map[string]Command{
		"": CreatePods{}, "p1": one, "k": PutKey{fleet.Key{ID: "k"}}, string(theCluster): clusterOf(theCluster, "p1"),
	} {
		if got := Subject(cmd); got != want {
			t.Errorf("%T makes %q, want %q", cmd, got, want)
		}
	}
	one.Pods = one.Pods[:1]
	if got := Subject(one); got != "p1" {
		t.Errorf("a create of one pod makes %q", got)
	}
}

func TestAKeyKeepsWhatIsNotChanged(t *testing.T) {
	w := newWorld(t).settle()
	key := fleet.Key{ID: "k1", Account: "acme", Hash: []byte("h1"), Disabled: true}
	w.must(PutKey{key}, PutKey{key}) // the same once more
	w.refused(fleet.CodeNotFound, UpdateKey{Account: "other", Key: "k1", Name: ptr("x")})
	if got := w.must(UpdateKey{Account: "acme", Key: "k1", Name: ptr("new")}).(fleet.Key); got.Name != "new" || !got.Disabled {
		t.Errorf("renamed: %+v", got)
	}
	if got := w.must(UpdateKey{Account: "acme", Key: "k1", Disabled: ptr(false)}).(fleet.Key); got.Name != "new" || got.Disabled {
		t.Errorf("enabled: %+v", got)
	}
	w.must(tick(at(0)), TouchKeys{Used: map[fleet.KeyID]time.Time{"k1": at(99_999), "none": at(1)}})
	w.view(func(v *View) {
		if got := v.Keys("acme")[0].LastUsedAt; !got.Equal(at(0).Add(leap)) {
			t.Errorf("by a clock that is ahead it was used at %v", got)
		}
	})
	w.check()
}

// TestWhoIsToldOfABackend: hosts that have volumes of it learn of whatever leads there.
func TestWhoIsToldOfABackend(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fleet.Backend)
		told   bool
	}{
		"nothing":          {func(*fleet.Backend) {}, false},
		"closed":           {func(b *fleet.Backend) { b.Closed = !b.Closed }, false},
		"another monitor":  {func(b *fleet.Backend) { b.Ceph.Monitors = []string{"mon9:1"} }, true},
		"another user":     {func(b *fleet.Backend) { b.Ceph.User = "u9" }, true},
		"another operator": {func(b *fleet.Backend) { b.Ceph.AdminUser = "u9" }, true},
		"other keys":       {func(b *fleet.Backend) { b.Sealed = []byte("new") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle().furnish()
			b := cephBackend("c")
			b.Type = fleet.VolumeStandard
			volume := newVolume("v", "c")
			pod := podOn("p", "host-a")
			pod.Spec.Network = &fleet.NetworkMount{Volume: "v", Path: "/net"}
			w.must(PutBackend{Backend: b, New: true}, CreateVolume{Volume: volume}, CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
			pod.ID = "ended"
			w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
			w.must(w.report("ended", fleet.EventExited))
			before, ended := w.host("host-a").Generation, w.pod("ended")
			ceph := *b.Ceph
			b.Ceph, b.Rev = &ceph, 0
			c.change(&b)
			w.must(PutBackend{Backend: b})
			if told := w.host("host-a").Generation > before; told != c.told || w.pod("p").Generation > before != c.told {
				t.Errorf("the host is told: %t", told)
			}
			if got := w.pod("ended"); got.Rev != ended.Rev {
				t.Error("of a pod that holds nothing")
			}
			other := b
			moved := *b.Ceph
			moved.Path = "/elsewhere"
			other.Ceph, other.Rev = &moved, 0
			w.refused(fleet.CodeInUse, PutBackend{Backend: other})
			w.check()
		})
	}
}

func TestDrainsThatAreRefusedOrEnd(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	drain := SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, Deadline: at(50), At: at(40)}
	for _, e := range []fleet.Eligibility{fleet.EligibilityCordoned, fleet.EligibilityOpen} {
		w.refused(fleet.CodeInvalid, SetHostEligibility{Host: "host-a", Eligibility: e, Reason: "x", At: at(40)})
		w.refused(fleet.CodeInvalid, SetHostEligibility{Host: "host-a", Eligibility: e, Deadline: at(50), At: at(40)})
	}
	evict := func(second int) EvictPod { return EvictPod{Pod: "pod-1", Rev: w.pod("pod-1").Rev, At: at(second)} }
	w.refused(fleet.CodeNotAllowed, evict(60))
	w.must(drain)
	w.refused(fleet.CodeNotAllowed, evict(49))
	var counts Counts
	w.view(func(v *View) { counts = v.Counts(at(51)) })
	if counts.Drains.Oldest != 11*time.Second || counts.Drains.Overdue != 1 {
		t.Errorf("counted %+v", counts.Drains)
	}
	w.inTxn(at(45), func(tx *txn) { // as a cluster has it that began the drain before drains had a record
		h, _ := tx.host("host-a")
		h.Drain = nil
		tx.putHost(h)
	})
	w.refused(fleet.CodeNotAllowed, evict(60))
	w.view(func(v *View) { counts = v.Counts(at(51)) })
	if counts.Drains.Oldest != 0 || counts.Drains.Overdue != 0 {
		t.Errorf("counted %+v", counts.Drains)
	}
	w.must(drain, evict(50))
	if p := w.pod("pod-1"); p.Reason != reasonDrained || !p.Stopping() || !p.EndedAt.Equal(at(50)) {
		t.Errorf("evicted: %+v", p)
	}
}

func TestAHostThatWasTakenOutStaysSo(t *testing.T) {
	w := newWorld(t).settle()
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(70)})
	w.refused(fleet.CodeStale, SetHostState{Host: "host-a", Epoch: w.host("host-a").Epoch, State: fleet.HostReady, At: at(71)})
	w.must(RemoveHost{Host: "host-a", At: at(72)})
	w.refused(fleet.CodeStale, SetHostState{Host: "host-a", Epoch: w.host("host-a").Epoch, State: fleet.HostReady, At: at(73)})
	w.must(PurgeHosts{Before: at(99)})
	w.view(func(v *View) {
		if n := v.Forgettable(at(99)); n != 0 {
			t.Errorf("%d hosts may be forgotten", n)
		}
	})
	w.lose("host-b")
	w.must(FenceHost{Host: "host-b", At: at(74)}, RemoveHost{Host: "host-b", At: at(75)})
	w.view(func(v *View) {
		if n := v.Forgettable(at(75)); n != 0 {
			t.Errorf("%d hosts may be forgotten at once", n)
		}
		if n := v.Forgettable(at(76)); n != 1 {
			t.Errorf("%d hosts may be forgotten", n)
		}
	})
}

// TestAPodOutlivesItsHost that stopped there: it is terminated without a host that could be told.
func TestAPodOutlivesItsHost(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventExited), RemoveHost{Host: "host-a", At: at(60)}, PurgeHosts{Before: at(61)})
	before := w.pod("pod-1")
	w.must(w.act("pod-1", fleet.ActionTerminate))
	if p := w.pod("pod-1"); p.Held || p.Status != fleet.StatusTerminated || p.Generation != before.Generation {
		t.Errorf("terminated: %+v", p)
	}
	w.view(func(v *View) {
		if len(v.tb.generations.Rows) != 0 {
			t.Errorf("generations of %v", v.tb.generations.Rows)
		}
	})
	w.check()
}

func TestBidsOfAStart(t *testing.T) {
	w := newWorld(t).settle()
	spot := bidding("pod-1", 5, 0)
	spot.Spec.Spot.Return = true
	w.must(CreatePods{Pods: []NewPod{{Pod: spot, HostEpoch: 1}}})
	w.create("pod-2", "host-a", 1)
	w.must(w.act("pod-1", fleet.ActionStop), w.act("pod-2", fleet.ActionStop), w.report("pod-1", fleet.EventExited), w.report("pod-2", fleet.EventExited))
	start := func(id fleet.PodID, bid fleet.Money) ActPod {
		c := w.act(id, fleet.ActionStart)
		c.Bid = bid
		return c
	}
	w.refused(fleet.CodeInvalid, start("pod-1", -1))
	w.refused(fleet.CodeInvalid, start("pod-2", 1))
	w.must(start("pod-1", 9), start("pod-2", 0))
	if p := w.pod("pod-1"); *p.Spec.Spot != (fleet.Spot{Bid: 9, Return: true}) {
		t.Errorf("started with %+v", p.Spec.Spot)
	}
	w.must(w.act("pod-1", fleet.ActionStop), w.report("pod-1", fleet.EventExited), start("pod-1", 0))
	if p := w.pod("pod-1"); *p.Spec.Spot != (fleet.Spot{Bid: 9, Return: true}) {
		t.Errorf("started again with %+v", p.Spec.Spot)
	}
}

// TestAStartWaitsForWhatItInterrupts, and what was interrupted keeps its data and nothing else.
func TestAStartWaitsForWhatItInterrupts(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-2", "host-a", 0)
	w.must(w.act("pod-2", fleet.ActionStop), w.report("pod-2", fleet.EventExited))
	victim := bidding("pod-1", 5, 0, 1, 2, 3)
	victim.Spec.Persistent, victim.Need.DiskGB = &fleet.PersistentMount{SizeGB: 7, Path: "/data"}, 27
	w.must(CreatePods{Pods: []NewPod{{Pod: victim, HostEpoch: 1}}})
	start := w.act("pod-2", fleet.ActionStart)
	w.refused(fleet.CodeStale, start)
	start.Bind.Evict = []fleet.PodID{"pod-1"}
	w.must(start)
	if p := w.pod("pod-2"); p.Waiting.IsZero() {
		t.Errorf("started: %+v", p)
	}
	if p := w.pod("pod-1"); p.Need != (fleet.Resources{DiskGB: 7}) || len(p.GPUs) != 0 || p.Interrupted.IsZero() {
		t.Errorf("interrupted: %+v", p)
	}
	w.check()
}

// TestATimeComesForAPodOnTheMove: it is no longer moved, and does not return.
func TestATimeComesForAPodOnTheMove(t *testing.T) {
	w := drained(t)
	p := w.pod("pod-1")
	p.Spec.StopAfter, p.Spec.Spot = at(100), &fleet.Spot{Bid: 5, Return: true}
	w.inTxn(at(44), func(tx *txn) { tx.putPod(&p) })
	w.move()
	w.view(func(v *View) {
		if got := v.Returning(); len(got) != 0 || len(v.Ending()) != 1 {
			t.Errorf("%+v return", got)
		}
	})
	if n := w.must(EndPods{Pods: []fleet.PodID{"pod-1"}, At: at(100)}); n != 1 {
		t.Errorf("%v ended", n)
	}
	got := w.pod("pod-1")
	if got.Moving || got.Target != nil || got.Reason != reasonStopping || !got.Spec.StopAfter.IsZero() || *got.Spec.Spot != (fleet.Spot{Bid: 5}) {
		t.Errorf("%+v", got)
	}
	w.must(w.report("pod-1", fleet.EventExited))
	if got := w.pod("pod-1"); got.Status != fleet.StatusExited || got.Reason != "" {
		t.Errorf("%+v", got)
	}
	w.check()
}

// TestALockHoldsOnTheMove: a pod that is locked while it moves is not stopped.
func TestALockHoldsOnTheMove(t *testing.T) {
	w := drained(t)
	w.move()
	w.inTxn(at(46), func(tx *txn) {
		p := *tx.base.pods.Get(tx.Txn, "pod-1")
		p.Locked = true
		tx.putPod(&p)
	})
	w.refused(fleet.CodeNotAllowed, w.act("pod-1", fleet.ActionStop))
	if p := w.pod("pod-1"); !p.Moving {
		t.Error("it is not moved any more")
	}
}

func TestAWorkerThatStopsIsNotFrozen(t *testing.T) {
	w := newWorld(t).settle()
	frozenWorker(w, "pod-1")
	w.view(func(v *View) {
		if got := v.WorkedOn("host-a"); !slices.Equal(got, []fleet.EndpointID{"endpoint000001"}) {
			t.Errorf("workers of %v", got)
		}
	})
	w.must(FreezeWorker{Pod: "pod-1", Thaw: true, At: at(3700)})
	stop := w.act("pod-1", fleet.ActionStop)
	stop.Owner = w.pod("pod-1").Owner
	w.must(stop)
	w.refused(fleet.CodeNotAllowed, FreezeWorker{Pod: "pod-1", At: at(3800)})
}

func TestTimesOfABackUp(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeInvalid, NoteBackup{SavedAt: at(5)})
	w.must(NoteBackup{SavedAt: at(90), At: at(90)})
	if got := w.must(NoteBackup{SavedAt: at(5), At: at(10)}).(time.Time); !got.Equal(at(5)) {
		t.Errorf("after a clock was put back: %v", got) // at 10, one of 90 is of the future
	}
}

// TestAStartCountsForWhatItAdds: at its limits an account starts what it has.
func TestAStartCountsForWhatItAdds(t *testing.T) {
	w := newWorld(t).settle()
	w.exited()
	p := w.pod("pod-1")
	w.must(limit(fleet.LimitPods, 1), limit(fleet.LimitSpecBytes, specBytes(&p.Spec)))
	w.must(w.act("pod-1", fleet.ActionStart))
}

// TestARestoreTakesNoPodForAnother: one that the copy has elsewhere with the same incarnation, and ends that are known.
func TestARestoreTakesNoPodForAnother(t *testing.T) {
	w := copied(t)
	w.inTxn(at(71), func(tx *txn) { // ended-1 was stopped on host-a, of which nothing is to be heard first
		h, _ := tx.host("host-a")
		h.Lineage = 7
		tx.putHost(h)
	})
	same := w.runs("ended-1")
	w.must(w.back("host-b", same))
	if h := w.host("host-b"); len(h.Leftovers) != 1 || h.Leftovers[0].Pod != "ended-1" {
		t.Errorf("taken: %+v, left %+v", w.pod("ended-1"), h.Leftovers)
	}
	w = newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventRunning), w.act("pod-1", fleet.ActionStop)) // at 50
	again := restore(7)
	again.SnapshotAt, again.At = at(60), at(70)
	w.must(again, w.back("host-a"))
	if p := w.pod("pod-1"); p.Status != fleet.StatusExited || !p.EndedAt.Equal(at(50)) {
		t.Errorf("it ended at %v", p.EndedAt)
	}
}

// TestAHostThatIsAsFarAsTheStateKeepsItsPods: only one that is ahead has forgotten what it does not name.
func TestAHostThatIsAsFarAsTheStateKeepsItsPods(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	again := ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inventory("host-a"), At: at(20)}
	again.Generation = w.host("host-a").Generation
	w.must(again)
	if p := w.pod("pod-1"); !p.Held || p.Status != fleet.StatusProvisioning {
		t.Errorf("as far: %+v", p)
	}
	again.Generation = w.host("host-a").Generation + 1
	w.must(again)
	if p := w.pod("pod-1"); p.Held || p.Status != fleet.StatusExited {
		t.Errorf("ahead: %+v", p)
	}
}

// TestARestoreLeavesWhatDoesNotMove as the copy has it, until its host tells more.
func TestARestoreLeavesWhatDoesNotMove(t *testing.T) {
	w := newWorld(t).settle()
	w.create("runs", "host-a", 0)
	w.create("failed", "host-a", 1)
	w.must(w.report("runs", fleet.EventRunning), failed(w, "failed"))
	before := []fleet.Pod{w.pod("runs"), w.pod("failed")}
	w.must(restore(7))
	for _, want := range before {
		if got := w.pod(want.ID); got.Rev != want.Rev || got.Reason != want.Reason {
			t.Errorf("%s is %+v", want.ID, got)
		}
	}
}
