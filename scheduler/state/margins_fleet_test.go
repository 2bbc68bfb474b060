package state

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// TestClustersThatAreRefused: members of others, an unknown policy, and a stop that nothing calls for.
func TestClustersThatAreRefused(t *testing.T) {
	w := newWorld(t).settle().furnish()
	c := clusterOf(theCluster, "p1", "p2")
	c.Cluster.OnFailure = "dance"
	w.refused(fleet.CodeInvalid, c)
	c = clusterOf(theCluster, "p1", "p2")
	for i := range c.Pods {
		c.Pods[i].Pod.Account = "other"
	}
	w.refused(fleet.CodeInvalid, c)
	c = clusterOf(theCluster, "p1", "p2")
	c.Cluster.OnFailure = fleet.OnFailureStop
	w.must(c)
	w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning))
	w.refused(fleet.CodeStale, StopCluster{Account: "acme", ID: theCluster, At: at(50)}) // none failed
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(9000)); len(got) != 0 {
			t.Errorf("nothing failed, and %+v is in need", got)
		}
	})
	stop := w.act("p1", fleet.ActionStop)
	stop.Owner = theCluster.Owner()
	w.must(stop, failed(w, "p2"))
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(9000)); len(got) != 0 {
			t.Errorf("its other member is being stopped, and %+v is in need", got)
		}
		members := v.MembersOf(theCluster)
		if RestartDue(&fleet.Cluster{}, members, at(9000)) {
			t.Error("it is restarted while a member is being stopped")
		}
	})
	before := w.pod("p1")
	w.must(StopCluster{Account: "acme", ID: theCluster, At: at(60)})
	if got := w.pod("p1"); got.Rev != before.Rev || !got.EndedAt.Equal(at(50)) {
		t.Errorf("stopped twice: %+v", got)
	}
}

// TestAClusterOfWhichAMemberIsGone keeps the others, and is deleted with them; members in other networks leave those as any pod.
func TestAClusterOfWhichAMemberIsGone(t *testing.T) {
	w := networked(t, smallNetworks())
	c := clusterOf(theCluster, "p1", "p2")
	for i := range c.Pods {
		c.Pods[i].Pod.Spec.GlobalNetworking = true
		c.Pods[i].HostEpoch = w.host("host-a").Epoch
	}
	w.must(c)
	account := fleet.AccountOverlay("acme")
	terminate := w.act("p1", fleet.ActionTerminate)
	terminate.Owner = theCluster.Owner()
	w.must(terminate)
	w.view(func(v *View) {
		if got := v.MembersOf(theCluster); len(got) != 1 || got[0].ID != "p2" {
			t.Errorf("members %+v", got)
		}
	})
	before := w.pod("p1")
	w.must(Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster), At: at(60)})
	if got := w.pod("p1"); got.Rev != before.Rev {
		t.Error("a member that was terminated is terminated again")
	}
	w.must(w.report("p1", ReportGone), w.report("p2", ReportGone), PurgePods{Pods: []fleet.PodID{"p1", "p2"}, Before: at(9000), At: at(9000)})
	w.view(func(v *View) {
		if _, ok := v.Overlay(fleet.ClusterOverlay(theCluster)); ok {
			t.Error("the cluster's network is left")
		}
		if got := v.tb.networks.of[account]; got == nil || len(got.rows) != 2 {
			t.Errorf("of the account's network is left: %+v", got)
		}
	})
	w.check()
}

// TestARestartPaysForWhatDoesNotRun: a prepaid account has to have the price of the member that starts, and not that of the one that runs.
func TestARestartPaysForWhatDoesNotRun(t *testing.T) {
	w := newWorld(t).settle().furnish()
	policyCluster(w, "")
	start := startOf(w, "p2")
	w.must(AddCredit{Account: "acme", Amount: 10 * fleet.Dollar, At: at(41)}, UpdateAccount{Account: "acme", Prepaid: ptr(true)})
	var has, rate fleet.Money
	w.view(func(v *View) { has = v.Balance("acme", at(100)) })
	rate = w.rate(w.pod("p2").Spec)
	w.must(AddCredit{Account: "acme", Amount: rate - has, At: at(100)})
	runs := startOf(w, "p1")
	w.must(RestartCluster{Account: "acme", ID: theCluster, At: at(100), Starts: []MemberStart{runs, start}})
}

// TestABatchSeesItsReservations: what a move of the same batch reserved is not given to a create.
func TestABatchSeesItsReservations(t *testing.T) {
	w := drained(t)
	create := func(id fleet.PodID) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(id, "host-b", 0, 1, 2, 3), HostEpoch: w.host("host-b").Epoch}}}
	}
	res, err := w.s.Apply([]entry.Entry{w.entry(w.moveTo("pod-1", at(45)), create("all")), w.entry(create("all-2"))})
	if err != nil || res[0][0].Err != nil {
		t.Fatal(err, res)
	}
	for _, r := range []entry.Result{res[0][1], res[1][0]} {
		if fleet.CodeOf(r.Err) != fleet.CodeStale {
			t.Errorf("got %v, %v", r.Value, r.Err)
		}
	}
	w.check()
}

// TestAnIDThatComesAgainInABatch: a pod that is purged and one of another account with its id are two pods.
func TestAnIDThatComesAgainInABatch(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(Put[fleet.Template]{Record: fleet.Template{ID: "tpl-1", Account: "other", Name: "t", Image: "busybox", CreatedAt: at(1)}})
	w.must(w.act("pod-1", fleet.ActionTerminate), w.report("pod-1", ReportGone))
	own := podOn("pod-1", "host-a", 0)
	own.CreatedAt = at(11)
	res, err := w.s.Apply([]entry.Entry{w.entry(
		PurgePods{Pods: []fleet.PodID{"pod-1"}, Before: at(9000), At: at(9000)}, CreatePods{Pods: []NewPod{{Pod: own, HostEpoch: 1}}},
	)})
	if err != nil || res[0][1].Err != nil {
		t.Fatal(err, res)
	}
	w.check()
	w.must(w.act("pod-1", fleet.ActionTerminate), w.report("pod-1", ReportGone))
	again := podOn("pod-1", "host-a", 0)
	again.Account, again.Spec.Template = "other", "tpl-1"
	res, err = w.s.Apply([]entry.Entry{w.entry(
		PurgePods{Pods: []fleet.PodID{"pod-1"}, Before: at(9000), At: at(9000)},
		CreatePods{Pods: []NewPod{{Pod: again, HostEpoch: 1}}}, Delete[fleet.Template]{Account: "other", ID: "tpl-1"},
	)})
	if err != nil || res[0][1].Err != nil || fleet.CodeOf(res[0][2].Err) != fleet.CodeInUse {
		t.Fatal(err, res)
	}
	w.view(func(v *View) {
		if mine, theirs := v.tb.ofAccount["acme"], v.tb.ofAccount["other"]; len(mine) != 0 || len(theirs) != 1 {
			t.Errorf("acme has %d pods, other %d", len(mine), len(theirs))
		}
	})
	w.check()
}

func TestABackendWithAnotherKindsParts(t *testing.T) {
	nfs, ceph, local := sampleBackends()
	ceph.NFS = nfs.NFS
	checkBounds(t, []bound{{"NFS beside CephFS", checkBackend(&ceph), "$.nfs"}})
	local.StoragePath = local.Local.Path
	checkBounds(t, []bound{{"the path of a local one", checkBackend(&local), ""}})
	w := newWorld(t).settle().furnish()
	other := cephBackend("b-std")
	other.Type = fleet.VolumeStandard
	w.refused(fleet.CodeInUse, PutBackend{Backend: other}) // another kind is another place
}

// TestTypesOfHostsThatAreGone are not kept in a catalog that is full.
func TestTypesOfHostsThatAreGone(t *testing.T) {
	w := newWorld(t).settle()
	inv := inventory("host-b")
	inv.GPUs[0].Type = "old"
	w.must(UpdateInventory{Host: "host-b", Epoch: w.host("host-b").Epoch, Inventory: inv, At: at(9)})
	full := w.catalog()
	for len(full.GPUs) < maxGPUTypes {
		full.GPUs = append(full.GPUs, fleet.GPUType{ID: "filler-" + string(rune('A'+len(full.GPUs)))})
	}
	fresh := w.says(func(inv *fleet.Inventory) { inv.GPUs[0].Type = "fresh" })
	listed := func(id string) bool {
		return slices.ContainsFunc(w.catalog().GPUs, func(g fleet.GPUType) bool { return g.ID == id })
	}
	w.must(PutCatalog{full}, fresh)
	if listed("fresh") || !listed("old") {
		t.Error("a type went that a host has")
	}
	w.must(RemoveHost{Host: "host-b", At: at(10)}, w.says(func(*fleet.Inventory) {}), fresh)
	if !listed("fresh") || listed("old") {
		t.Error("the type of a host that is gone is kept")
	}
}

// TestAnEndOfTheTunnelThatIsFreeAgain is given with an inventory that is what it was.
func TestAnEndOfTheTunnelThatIsFreeAgain(t *testing.T) {
	w := newWorld(t).settle()
	w.inTxn(at(9), func(tx *txn) {
		h, _ := tx.host("host-a")
		h.Tunnel = fleet.Host{}.Tunnel
		tx.putHost(h)
	})
	w.must(w.says(func(*fleet.Inventory) {}))
	if h := w.host("host-a"); !h.Tunnel.IsValid() {
		t.Errorf("%+v", h.Tunnel)
	}
}

func TestWhatIsNotWrittenAgain(t *testing.T) {
	w := newWorld(t).settle().furnish()
	nothing := func(what string, do func()) {
		t.Helper()
		before := w.hash()
		do()
		if !bytes.Equal(before, w.hash()) {
			t.Error(what + " wrote")
		}
	}
	w.create("pod-1", "host-a", 0)
	report := w.report("pod-1", fleet.EventRunning)
	report.Reports[0].Digest = "sha256:1"
	w.must(report)
	nothing("a digest that is known", func() { w.must(report) })
	w.must(SetSSHKeys{Account: "acme"})
	w.view(func(v *View) {
		if len(v.tb.sshKeys.Rows) != 0 {
			t.Errorf("SSH keys of nobody: %v", v.tb.sshKeys.Rows)
		}
	})
	w.must(SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod-1"}}, At: at(7200)})
	nothing("a meter that is settled", func() { w.must(SettleMeters{Meters: []MeterID{{fleet.ChargePod, "pod-1"}}, At: at(7200)}) })
	w.must(Put[fleet.Endpoint]{Record: endpoint("ep-1")}, PutModel{model()}, AddCredit{Account: "other", Amount: 20 * fleet.Dollar, At: at(0)}, hold("h1"))
	index := w.s.Index()
	w.must(SettleHolds{Holds: []SettledHold{{ID: "h1"}}, At: at(9)})
	if said := w.said(index); said[Event{Kind: KindAccount, ID: "other"}] {
		t.Error("an account is told of a call that was free")
	}
	if got := w.usage("other", fleet.ChargeModel, "draw", at(10)); len(got) != 0 {
		t.Errorf("a call that was free is charged: %+v", got)
	}
}

func TestWhoIsAnOperatorMayBeResumed(t *testing.T) {
	w := newWorld(t).settle()
	w.must(SuspendAccount{Account: "acme", Reason: "unpaid", At: at(5)})
	w.must(PutKey{fleet.Key{ID: "kop", Account: "acme", Hash: []byte("operator"), Can: map[fleet.Group]fleet.Access{fleet.GroupAdmin: fleet.AccessRead}}})
	if got := w.must(SuspendAccount{Account: "acme", Resume: true, At: at(6)}).(fleet.Account); got.Suspended != nil {
		t.Errorf("%+v", got)
	}
}

func TestALockedPodYieldsToNobody(t *testing.T) {
	w := newWorld(t).settle()
	locked := bidding("pod-1", 5, 0)
	locked.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: locked, HostEpoch: 1}}})
	w.view(func(v *View) {
		if got := v.Yielding(); len(got) != 0 {
			t.Errorf("%v yield", got)
		}
	})
}

func TestWorkersAreCounted(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 1)
	pod := podOn("pod-2", "host-a", 0)
	pod.Owner, pod.Release = fleet.EndpointID("endpoint000001").Owner(), 1
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}}, limit(fleet.LimitWorkers, 5))
	w.must(w.report("pod-1", fleet.EventRunning), w.report("pod-2", fleet.EventRunning))
	if n := w.must(ReadyWorkers{Pods: []fleet.PodID{"pod-1", "pod-2"}, At: at(60)}); n != 1 || !w.pod("pod-1").Ready.IsZero() {
		t.Errorf("%v are ready, and a pod of nobody since %v", n, w.pod("pod-1").Ready)
	}
	w.view(func(v *View) {
		if used, room := v.Used("acme"), v.WorkerRoom("acme"); used[fleet.LimitWorkers] != 1 || used[fleet.LimitRunning] != 2 || room != 4 {
			t.Errorf("used %v, room for %d", used, room)
		}
	})
}

// TestWhatWaitsIsChargedFromItsBegin: a pod that waited for the place of another costs from when its host began to make it.
func TestWhatWaitsIsChargedFromItsBegin(t *testing.T) {
	w := newWorld(t).settle()
	w.must(CreatePods{Pods: []NewPod{{Pod: bidding("pod-1", 5, 0, 1), HostEpoch: 1}}})
	w.must(w.report("pod-1", fleet.EventRunning))
	w.must(CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 0, 1), HostEpoch: 1, Evict: []fleet.PodID{"pod-1"}}}})
	r := w.report("pod-2", fleet.EventStarting)
	r.At = at(3600)
	w.must(r)
	w.view(func(v *View) {
		m := v.tb.meters.Rows[MeterID{fleet.ChargePod, "pod-2"}.key()]
		if want := at(3600).Unix(); m == nil || m.Begin != want {
			t.Errorf("it is charged from %+v, want %d", m, want)
		}
	})
}

// TestAnAddressOfAnotherPodIsNotKept when an incarnation begins: the pod gets one of its own.
func TestAnAddressOfAnotherPodIsNotKept(t *testing.T) {
	w := networked(t, smallNetworks())
	taken := w.joins("p1", "acme", "host-a", at(10))
	w.joins("p2", "acme", "host-a", at(11))
	w.inTxn(at(12), func(tx *txn) {
		p := *tx.base.pods.Get(tx.Txn, "p2")
		p.Overlays = slices.Clone(p.Overlays)
		p.Overlays[0].Addr = taken
		if err := tx.attach(&p); err != nil {
			t.Fatal(err)
		}
		if len(p.Overlays) != 1 || p.Overlays[0].Addr == taken || !p.Overlays[0].On {
			t.Errorf("it is at %+v", p.Overlays)
		}
	})
	w.must(UpdatePod{Account: "acme", Pod: "p1", Rev: w.pod("p1").Rev, Spec: renamed(w.pod("p1")), Need: w.pod("p1").Need, At: at(13)})
	if m := w.member(taken); m.Name != "new" {
		t.Errorf("%+v", m)
	}
	w.check()
}

func renamed(p fleet.Pod) fleet.PodSpec {
	p.Spec.Name = "new"
	return p.Spec
}

// TestAnIndexOfMembersStaysInOrder, and drops what is over.
func TestAnIndexOfMembersStaysInOrder(t *testing.T) {
	x := newNetworkIndex()
	put := func(addr uint32, rev uint64) {
		m := &fleet.OverlayMember{Overlay: acmeNet, Addr: addrAt(smallNetworks().Pool, addr), Rev: rev}
		var old *fleet.OverlayMember
		if of := x.of[acmeNet]; of != nil {
			old = of.rows[m.Addr]
		}
		x.takeMember(old, m)
	}
	gone := &fleet.OverlayMember{Overlay: "gone", Addr: addrAt(smallNetworks().Pool, 9), Rev: 1}
	x.takeMember(nil, gone)
	x.takeMember(gone, nil) // of the same batch
	put(1, 5)
	put(2, 6)
	x.order()
	put(3, 4) // of an older entry
	x.order()
	of := x.of[acmeNet]
	byRev := func(a, b memberChange) int { return int(a.rev) - int(b.rev) }
	if !slices.IsSortedFunc(of.changes, byRev) || len(of.since(4)) != 2 || len(of.since(3)) != 3 {
		t.Errorf("changes %+v", of.changes)
	}
	for rev := uint64(7); len(of.changes) < 2*3+64; rev++ {
		put(1, rev)
	}
	x.order()
	if len(of.changes) != 2*3+64 {
		t.Errorf("%d changes are left, and none had to go", len(of.changes))
	}
	put(1, 1000)
	x.order()
	if len(of.changes) != 3 || of.sorted != 3 {
		t.Errorf("%d changes are left", len(of.changes))
	}
}

// TestAPublicPortThatDoesNotFit is replaced by one that does.
func TestAPublicPortThatDoesNotFit(t *testing.T) {
	const private = 70_000 // symmetrical: the container listens at the public port itself
	spec := &fleet.PodSpec{Ports: []fleet.Port{{Number: 30_001, Protocol: "tcp"}, {Number: private, Protocol: "tcp"}}}
	h := &fleet.Host{Inventory: fleet.Inventory{PortFrom: 30_000, PortTo: 30_002}}
	if !fleet.Symmetrical(private) {
		t.Fatal("the port is none")
	}
	got, err := otherPorts(h, spec, map[int]bool{30_000: true}, map[int]bool{}, []fleet.PortMapping{{Private: private, Public: 30_000}})
	if err != nil || got[0].Public != 30_002 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAVolumeOfBeforeMetersGetsOne with its next record.
func TestAVolumeOfBeforeMetersGetsOne(t *testing.T) {
	w := newWorld(t).priced()
	w.must(PutBackend{Backend: nfsBackend("b-std"), New: true}, CreateVolume{Volume: newVolume("v1", "b-std")})
	id := MeterID{fleet.ChargeVolume, "v1"}
	w.inTxn(at(5), func(tx *txn) { tx.base.meters.Drop(tx.Txn, id.key()) })
	w.must(UpdateVolume{Account: "acme", Volume: "v1", Name: ptr("new"), At: at(7)})
	w.view(func(v *View) {
		if m := v.tb.meters.Rows[id.key()]; m == nil || m.Begin != at(7).Unix() {
			t.Errorf("its meter is %+v", m)
		}
	})
}

func TestAVolumeIsHeldByWhatHoldsSomething(t *testing.T) {
	w := storing(t)
	w.must(w.report("pod-1", fleet.EventExited))
	w.view(func(v *View) {
		if v.VolumeHeld("acme", "vol-1") {
			t.Error("a pod that ended holds it")
		}
	})
	shown := func() (n int) {
		w.view(func(v *View) { n = len(v.VolumePods("vol-1")) })
		return n
	}
	if shown() != 1 {
		t.Error("a pod that can start again is not shown")
	}
	w.must(DeleteVolume{Account: "acme", Volume: "vol-2", At: at(60)})
	index := w.s.Index()
	terminate := w.act("pod-1", fleet.ActionTerminate)
	w.must(terminate)
	if said := w.said(index); said[Event{Kind: KindStorage, ID: "b-std"}] {
		t.Error("a pod of a volume that stays lets nothing go")
	}
	if shown() != 1 {
		t.Error("a pod of which its host may have something left is not shown")
	}
	w.must(w.report("pod-1", ReportGone))
	if shown() != 0 {
		t.Error("a pod is shown of which nothing is left")
	}
	rev := w.volume("vol-1").Rev
	w.must(restore(7))
	if got := w.volume("vol-1"); got.Rev != rev || got.ProvisionedGB != 0 {
		t.Errorf("a volume that nobody made is to be measured again: %+v", got)
	}
	w.inTxn(at(99), func(tx *txn) {
		for _, id := range tx.base.volumes.Keys(tx.Txn, 0, func(*fleet.Volume) bool { return true }) {
			tx.base.volumes.Drop(tx.Txn, id)
		}
	})
	w.view(func(v *View) {
		if len(v.tb.baseUses) != 0 {
			t.Error("uses of bases are kept of a data center without volumes")
		}
	})
	w.must(SetHostRoles{Host: "host-b", Roles: []fleet.HostRole{fleet.RoleS3}})
	w.view(func(v *View) {
		if got := v.HostsWith(fleet.RoleStorage); !slices.Equal(got, []fleet.HostID{"host-a"}) {
			t.Errorf("%v look after storage", got)
		}
	})
}

// TestWhichPodOfASetIsRefused is said where there are several.
func TestWhichPodOfASetIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	set := CreatePods{Pods: []NewPod{{Pod: podOn("p1", "host-a"), HostEpoch: 1}, {Pod: podOn("p2", "host-a"), HostEpoch: 9}}}
	named := func(cmd CreatePods) (out []string) {
		var e *fleet.Error
		if err := w.do(cmd).Err; !errors.As(err, &e) {
			t.Fatal(err)
		}
		return e.Details
	}
	if got := named(set); !slices.Contains(got, "$.pods[1]") {
		t.Errorf("of two: %q", got)
	}
	if got := named(CreatePods{Pods: set.Pods[1:]}); slices.Contains(got, "$.pods[0]") {
		t.Errorf("of one: %q", got)
	}
}

func TestWhyAnActionIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.act("pod-1", fleet.ActionStop))
	for _, c := range []struct{ before, want string }{{"stopping", "while the pod is stopping"}, {"ended", "while the pod is EXITED"}} {
		if msg := w.message(w.act("pod-1", fleet.ActionRestart)); !strings.Contains(msg, c.want) {
			t.Errorf("%s: %q", c.before, msg)
		}
		w.must(w.report("pod-1", fleet.EventExited))
	}
}
