package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

func TestAPodKeepsItsAddress(t *testing.T) {
	w := networked(t, smallNetworks())
	index := w.s.Index()
	addr := w.joins("p1", "acme", "host-a", at(10))
	if addr != netip.MustParseAddr("10.64.0.2") {
		t.Errorf("the first address is %s", addr)
	}
	told := func(since uint64, want ...string) uint64 {
		t.Helper()
		if got := w.shown(since); !slices.Equal(got, want) {
			t.Errorf("since %d: got %q, want %q", since, got, want)
		}
		return w.overlay(acmeNet).Rev
	}
	rev := told(0, "10.64.0.2 p1 name-of-p1 host-a")
	if !w.said(index)[Event{Kind: KindNetwork, ID: string(acmeNet)}] {
		t.Error("nobody is told")
	}
	w.reports("p1", fleet.EventRunning, at(11))
	w.acts("p1", fleet.ActionRestart, "", at(12))
	told(rev) // nothing that hosts have to know
	w.reports("p1", fleet.EventRunning, at(13))
	w.acts("p1", fleet.ActionStop, "", at(14))
	told(rev) // its process may still run
	w.reports("p1", fleet.EventExited, at(15))
	told(0)
	rev = told(rev, "10.64.0.2 p1 name-of-p1 ")
	if place := w.pod("p1").Overlays[0]; !place.On || place.Addr != addr {
		t.Errorf("the stopped pod has %+v", place)
	}
	if other := w.joins("p2", "acme", "host-a", at(1000)); other == addr {
		t.Error("the address of a stopped pod is another's")
	}
	rev = told(rev, "10.64.0.3 p2 name-of-p2 host-a")
	if p := w.acts("p1", fleet.ActionStart, "host-b", at(1001)); p.Overlays[0].Addr != addr {
		t.Errorf("after a start it has %+v", p.Overlays)
	}
	rev = told(rev, "10.64.0.2 p1 name-of-p1 host-b")
	spec := w.pod("p1").Spec
	spec.Name = "renamed"
	w.must(UpdatePod{Account: "acme", Pod: "p1", Rev: w.pod("p1").Rev, Spec: spec, Need: w.pod("p1").Need, At: at(1002)})
	told(rev, "10.64.0.2 p1 renamed host-b")
	told(0, "10.64.0.2 p1 renamed host-b", "10.64.0.3 p2 name-of-p2 host-a")
	w.view(func(v *View) {
		if got := v.OverlayHosts(acmeNet); !slices.Equal(got, []fleet.HostID{"host-a", "host-b"}) {
			t.Errorf("hosts %v", got)
		}
		if got := v.HostOverlays("host-b"); !slices.Equal(got, []fleet.OverlayID{acmeNet}) {
			t.Errorf("overlays of host-b %v", got)
		}
		if len(v.OverlayHosts("none"))+len(v.HostOverlays("none"))+len(v.OverlayMembers("none", 0))+len(v.OverlayAddresses("none")) > 0 {
			t.Error("what is not there has something")
		}
	})
	w.check()
}

func TestAnAddressIsFreeAfterItsGraceTime(t *testing.T) {
	w := networked(t, smallNetworks())
	taken := map[netip.Addr]bool{}
	for i := range 13 {
		taken[w.joins(fleet.PodID(fmt.Sprintf("p%d", i)), "acme", "host-a", at(10))] = true
	}
	for _, never := range []string{"10.64.0.0", "10.64.0.1", "10.64.0.15"} {
		if taken[netip.MustParseAddr(never)] || len(taken) != 13 {
			t.Fatalf("given out were %v", taken)
		}
	}
	more := func(now time.Time) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: inNetwork("more", "acme", "host-a", now), HostEpoch: w.host("host-a").Epoch}}}
	}
	w.refused(fleet.CodeNoCapacity, more(at(11)))
	if err := w.do(more(at(11))).Err; !strings.Contains(err.Error(), "at most 13 pods") {
		t.Errorf("it says %q", err)
	}
	addr := w.pod("p5").Overlays[0].Addr
	w.acts("p5", fleet.ActionTerminate, "", at(20))
	w.refused(fleet.CodeNoCapacity, more(at(100))) // its host still has it
	if m := w.member(addr); m.Host != "host-a" || !m.FreeAt.IsZero() {
		t.Errorf("member %+v", m)
	}
	w.reports("p5", ReportGone, at(200))
	if m := w.member(addr); m.Host != "" || !m.FreeAt.Equal(at(203)) {
		t.Errorf("member %+v", m)
	}
	w.refused(fleet.CodeNoCapacity, more(at(202)))
	w.must(PurgePods{Pods: []fleet.PodID{"p5"}, Before: at(202)})
	w.refused(fleet.CodeNoCapacity, more(at(202)))
	w.check()
	if got := w.joins("more", "acme", "host-b", at(203)); got != addr {
		t.Errorf("got %s, want %s", got, addr)
	}
	w.check()
}

func TestAccountsAreKeptApart(t *testing.T) {
	s := smallNetworks()
	s.Pool = netip.MustParsePrefix("10.64.0.0/28") // one range
	w := networked(t, s)
	one := CreatePods{Pods: []NewPod{{Pod: inNetwork("p1", "acme", "host-a", at(10)), HostEpoch: 1}}}
	two := CreatePods{Pods: []NewPod{{Pod: inNetwork("p2", "other", "host-a", at(10)), HostEpoch: 1}}}
	if _, err := w.s.Apply([]entry.Entry{w.entry(one, two)}); err != nil { // one batch
		t.Fatal(err)
	}
	a, b := w.overlay("account-acme"), w.overlay("account-other")
	if a.VNI != 4096 || b.VNI != 4097 || a.CIDR != b.CIDR || w.pod("p1").Overlays[0].Addr != w.pod("p2").Overlays[0].Addr {
		t.Errorf("got %+v and %+v", a, b)
	}
	w.view(func(v *View) {
		for account, pod := range map[fleet.AccountID]fleet.PodID{"acme": "p1", "other": "p2"} {
			if of := v.OverlaysOf(account); len(of) != 1 || of[0].ID != fleet.AccountOverlay(account) {
				t.Errorf("%s has %+v", account, of)
			}
			if in := v.OverlayMembers(fleet.AccountOverlay(account), 0); len(in) != 1 || in[0].Pod != pod {
				t.Errorf("%s has the members %+v", account, in)
			}
		}
		if got := v.HostOverlays("host-a"); !slices.Equal(got, []fleet.OverlayID{"account-acme", "account-other"}) {
			t.Errorf("host-a has %v", got)
		}
	})
	w.check()
}

// Another network of an account, such as a cluster's, has a range of its own, and a pod can be in both.
func TestAnAccountHasSeveralNetworks(t *testing.T) {
	w := networked(t, smallNetworks())
	w.joins("p1", "acme", "host-a", at(10))
	const cluster = fleet.OverlayID("cluster-1")
	w.inTxn(at(11), func(tx *txn) {
		o, err := tx.overlayFor(cluster, "acme")
		if err != nil {
			t.Fatal(err)
		}
		p := *tx.base.pods.Get(tx.Txn, "p1")
		addr, err := tx.takeAddr(o, &p)
		if err != nil {
			t.Fatal(err)
		}
		p.Overlays = append(slices.Clone(p.Overlays), fleet.OverlayPlace{Overlay: cluster, Addr: addr, On: true})
		tx.putPod(&p)
	})
	if a, b := w.overlay(acmeNet), w.overlay(cluster); a.CIDR.Overlaps(b.CIDR) || a.VNI == b.VNI || b.Account != "acme" {
		t.Errorf("got %+v and %+v", a, b)
	}
	w.view(func(v *View) {
		if got := v.HostOverlays("host-a"); !slices.Equal(got, []fleet.OverlayID{acmeNet, cluster}) {
			t.Errorf("host-a has %v", got)
		}
	})
	w.check()
	w.acts("p1", fleet.ActionTerminate, "", at(12))
	w.reports("p1", ReportGone, at(13))
	w.view(func(v *View) {
		if len(v.HostOverlays("host-a"))+len(v.OverlayAddresses(acmeNet))+len(v.OverlayAddresses(cluster)) > 0 {
			t.Error("something is left")
		}
	})
	w.check()
}

// An account has none of its ranges twice as long as there are others.
func TestRangesAreGivenOutInTurn(t *testing.T) {
	s := smallNetworks()
	s.Pool, s.Bits = netip.MustParsePrefix("10.80.0.0/12"), 16 // of which 10.88.0.0/13 is that of hosts
	w := networked(t, s)
	var got []string
	w.inTxn(at(10), func(tx *txn) {
		for i := range 10 {
			o, err := tx.overlayFor(fleet.OverlayID(fmt.Sprintf("o%d", i)), "acme")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, o.CIDR.Addr().String())
		}
	})
	want := "10.80.0.0 10.81.0.0 10.82.0.0 10.83.0.0 10.84.0.0 10.85.0.0 10.86.0.0 10.87.0.0 10.80.0.0 10.80.0.0"
	if strings.Join(got, " ") != want {
		t.Errorf("got %s", strings.Join(got, " "))
	}
}

func TestNetworkingChangesWithTheNextIncarnation(t *testing.T) {
	w := networked(t, smallNetworks())
	w.create("p1", "host-a", 0)
	w.must(w.report("p1", fleet.EventRunning))
	patch := func(on, restart bool) fleet.Pod {
		t.Helper()
		p := w.pod("p1")
		p.Spec.GlobalNetworking = on
		return w.must(UpdatePod{Account: "acme", Pod: "p1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, Restart: restart, At: at(50)}).(fleet.Pod)
	}
	if p := patch(true, false); len(p.Overlays) != 0 {
		t.Errorf("the present incarnation has %+v", p.Overlays)
	}
	p := w.must(w.act("p1", fleet.ActionRestart)).(fleet.Pod)
	if place, ok := p.AccountPlace(); !ok || len(w.shown(0)) != 1 {
		t.Fatalf("the next one has %+v, %t", place, ok)
	}
	addr := p.Overlays[0].Addr
	if p := patch(false, false); !p.Overlays[0].On || len(w.shown(0)) != 1 {
		t.Errorf("the present incarnation has %+v", p.Overlays)
	}
	if p := patch(false, true); p.Overlays[0].On || p.Overlays[0].Addr != addr || len(w.shown(0)) != 0 {
		t.Errorf("the next one has %+v", p.Overlays)
	}
	if p := patch(true, true); !p.Overlays[0].On || p.Overlays[0].Addr != addr || len(w.shown(0)) != 1 {
		t.Errorf("the one after that has %+v", p.Overlays)
	}
	w.must(w.report("p1", fleet.EventReboot))
	if p := w.pod("p1"); !p.Overlays[0].On || p.Overlays[0].Addr != addr {
		t.Errorf("after a reboot it has %+v", p.Overlays)
	}
	w.check()
}

func TestWhereThereIsNoNetwork(t *testing.T) {
	w := networked(t, smallNetworks())
	addr := w.joins("p1", "acme", "host-a", at(10))
	w.must(w.report("p1", fleet.EventRunning))
	create := CreatePods{Pods: []NewPod{{Pod: inNetwork("p2", "acme", "host-a", at(10)), HostEpoch: 1}}}
	for what, cmds := range map[string][2]Command{
		"the data center has none": {
			PutDataCenter{fleet.DataCenter{ID: "dc-1"}}, PutDataCenter{fleet.DataCenter{ID: "dc-1", GlobalNetwork: true}},
		},
		"the host has no tunnel": {
			UpdateInventory{Host: "host-a", Epoch: 1, Inventory: firstInventory("host-a"), At: at(11)},
			UpdateInventory{Host: "host-a", Epoch: 1, Inventory: inventory("host-a"), At: at(12)},
		},
	} {
		t.Run(what, func(t *testing.T) {
			w.must(cmds[0])
			w.refused(fleet.CodeStale, create)
			if p := w.acts("p1", fleet.ActionRestart, "", at(20)); p.Overlays[0].On || p.Overlays[0].Addr != addr {
				t.Errorf("a pod that restarts there has %+v", p.Overlays)
			}
			w.must(cmds[1])
			w.must(w.report("p1", fleet.EventRunning))
			if p := w.acts("p1", fleet.ActionRestart, "", at(30)); !p.Overlays[0].On || p.Overlays[0].Addr != addr {
				t.Errorf("a pod that restarts has %+v", p.Overlays)
			}
			w.must(w.report("p1", fleet.EventRunning))
		})
	}
	w.check()
}

func TestAMovedPodKeepsItsAddress(t *testing.T) {
	w := networked(t, smallNetworks())
	addr := w.joins("p1", "acme", "host-a", at(10))
	w.reports("p1", fleet.EventRunning, at(11))
	rev := w.overlay(acmeNet).Rev
	w.allow("p1")
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(12)})
	w.must(w.moveTo("p1", at(13)))
	w.reports("p1", fleet.EventExited, at(14))
	if p := w.acts("p1", fleet.ActionStart, "host-b", at(15)); p.Overlays[0].Addr != addr {
		t.Errorf("it has %+v", p.Overlays)
	}
	if got := w.shown(rev); !slices.Equal(got, []string{"10.64.0.2 p1 name-of-p1 host-b"}) {
		t.Errorf("told is %q", got)
	}
	w.check()
}

func TestAFencedPodKeepsItsAddress(t *testing.T) {
	w := networked(t, smallNetworks())
	addr := w.joins("p1", "acme", "host-a", at(10))
	w.must(SetHostState{Host: "host-a", Epoch: 1, State: fleet.HostUnreachable, At: at(11)})
	if got := w.shown(0); len(got) != 1 {
		t.Errorf("of a host that cannot be reached there is %q", got)
	}
	w.must(FenceHost{Host: "host-a", At: at(12)})
	if got := w.shown(0); len(got) != 0 {
		t.Errorf("of a fenced host there is %q", got)
	}
	if p := w.acts("p1", fleet.ActionStart, "host-b", at(13)); p.Overlays[0].Addr != addr {
		t.Errorf("it has %+v", p.Overlays)
	}
	w.check()
}

// Data of a terminated pod that its host still has is nobody in a network, and keeps the address from others.
func TestDataIsNoMember(t *testing.T) {
	w := networked(t, smallNetworks())
	pod := inNetwork("p1", "acme", "host-a", at(10))
	pod.Spec.Persistent, pod.Need.DiskGB = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, 10
	made := w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}}).([]fleet.Pod)[0]
	w.acts("p1", fleet.ActionStop, "", at(11))
	w.reports("p1", fleet.EventExited, at(12))
	w.acts("p1", fleet.ActionTerminate, "", at(13))
	if p := w.pod("p1"); !p.Held || len(w.shown(0)) != 0 {
		t.Errorf("pod %+v is shown: %q", p, w.shown(0))
	}
	w.reports("p1", ReportGone, at(14))
	if m := w.member(made.Overlays[0].Addr); !m.FreeAt.Equal(at(17)) {
		t.Errorf("member %+v", m)
	}
	w.check()
}

// A network that is full keeps no pod from running that was not in it, when its host was rebooted.
func TestARebootWithoutAnAddress(t *testing.T) {
	w := networked(t, smallNetworks())
	for i := range 13 {
		w.joins(fleet.PodID(fmt.Sprintf("p%d", i)), "acme", "host-a", at(10))
	}
	w.create("late", "host-a", 0)
	w.must(w.report("late", fleet.EventRunning))
	p := w.pod("late")
	p.Spec.GlobalNetworking = true
	w.must(UpdatePod{Account: "acme", Pod: "late", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(11)})
	w.refused(fleet.CodeNoCapacity, w.act("late", fleet.ActionRestart))
	w.must(w.report("late", fleet.EventReboot))
	if now := w.pod("late"); now.Incarnation != p.Incarnation+1 || len(now.Overlays) != 0 {
		t.Errorf("got %+v", now)
	}
	w.check()
}

// Pods that come and go use a part of a range again and again, and more of it only when that is full.
func TestAddressesAreUsedAgain(t *testing.T) {
	s := smallNetworks()
	s.Pool, s.Bits = netip.MustParsePrefix("10.64.0.0/20"), 20
	w := networked(t, s)
	seen := map[netip.Addr]int{}
	take := func(tx *txn, n int, now time.Time, free bool) {
		tx.now = now
		for range n {
			o, err := tx.overlayFor(acmeNet, "acme")
			if err != nil {
				t.Fatal(err)
			}
			addr, err := tx.takeAddr(o, &fleet.Pod{ID: "p"})
			if err != nil {
				t.Fatal(err)
			}
			seen[addr]++
			if free {
				m := *tx.base.overlayMembers.Get(tx.Txn, memberKey(acmeNet, addr))
				m.FreeAt = now
				tx.base.overlayMembers.Put(tx.Txn, memberKey(acmeNet, addr), &m)
			}
		}
	}
	w.inTxn(at(1), func(tx *txn) { take(tx, 5000, at(1), true) })
	if len(seen) != firstWindow-firstAddr {
		t.Errorf("%d addresses were used", len(seen))
	}
	clear(seen)
	w.inTxn(at(2), func(tx *txn) { take(tx, 4093, at(2), false) }) // all that there are
	for addr, n := range seen {
		if n != 1 {
			t.Fatalf("%s was given out %d times", addr, n)
		}
	}
	if len(seen) != 4093 {
		t.Errorf("%d addresses were used", len(seen))
	}
	w.view(func(v *View) {
		if got := v.OverlayAddresses(acmeNet); len(got) != 4093 || !slices.IsSortedFunc(got, func(a, b fleet.OverlayMember) int { return a.Addr.Compare(b.Addr) }) {
			t.Errorf("%d addresses are pods'", len(got))
		}
	})
}

func TestARestoredClusterGivesOutOtherNetworks(t *testing.T) {
	var got []string
	for lineage := range uint64(3) {
		s := fleet.DefaultNetworkSettings()
		w := networked(t, s)
		w.joins("p1", "acme", "host-a", at(10))
		before := w.overlay(acmeNet)
		if lineage > 0 {
			w.must(RestoreCluster{ID: "c2", Lineage: lineage, Member: member("m9"), SnapshotAt: at(11), At: at(12)})
			w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inventory("host-a"), At: at(13), Pods: []HostPod{
				{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun},
			}})
		}
		p := w.pod("p1")
		if place, on := p.AccountPlace(); !on || place.Addr != netip.MustParseAddr("10.64.0.2") {
			t.Errorf("the pod has %+v", p.Overlays)
		}
		second, first := w.joins("p2", "acme", "host-a", at(14)), w.joins("p3", "other", "host-a", at(15))
		o := w.overlay(fleet.AccountOverlay("other"))
		tunnel := w.connected("host-c", at(16)).Tunnel
		got = append(got, second.String(), fmt.Sprint(o.VNI), tunnel.String())
		if first != addrAt(o.CIDR, firstAddr) {
			t.Errorf("the first address of %s is %s", o.CIDR, first)
		}
		if now := w.overlay(acmeNet); now.VNI != before.VNI || now.CIDR != before.CIDR || now.Rev <= max(before.Rev, lineageFloor(lineage)) {
			t.Errorf("from %+v to %+v", before, now)
		}
		w.check()
	}
	if !slices.Equal(got[:3], []string{"10.64.0.3", "4097", "100.127.0.3"}) {
		t.Errorf("without a restore: %q", got[:3])
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 9 {
		t.Errorf("the same is given out again: %q", got)
	}
}

// In a copy a pod may be terminated whose container runs; its address may be another pod's by then.
func TestAnAddressThatIsAnothersByNow(t *testing.T) {
	s := smallNetworks()
	s.Grace = 0
	w := networked(t, s)
	addr := w.joins("p1", "acme", "host-a", at(10))
	w.acts("p1", fleet.ActionTerminate, "", at(11))
	w.reports("p1", ReportGone, at(12))
	w.must(RestoreCluster{ID: "c2", Lineage: 1, Member: member("m9"), SnapshotAt: at(13), At: at(14)})
	w.connect("host-b")
	for i := 0; ; i++ {
		if w.joins(fleet.PodID(fmt.Sprintf("q%d", i)), "acme", "host-b", at(20)) == addr {
			break
		}
	}
	w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inventory("host-a"), At: at(30), Pods: []HostPod{
		{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun},
	}})
	if p := w.pod("p1"); !p.Held || len(p.Overlays) != 0 {
		t.Errorf("got %+v", p)
	}
	if m := w.member(addr); m.Pod == "p1" || m.Host != "host-b" {
		t.Errorf("member %+v", m)
	}
	w.check()
}
