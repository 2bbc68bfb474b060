package state

import (
	"strings"
	"testing"

	"gantry/fleet"
)

// wired has a host say that it has a fabric.
func (w *world) wired(id fleet.HostID, f fleet.Fabric) {
	w.t.Helper()
	inv := inventory(id)
	inv.Fabric = f
	w.must(UpdateInventory{Host: id, Epoch: w.host(id).Epoch, Inventory: inv, At: at(20)})
}

// fabric is one with a port.
func fabric(mode fleet.FabricMode, link string, functions int) fleet.Fabric {
	return fleet.Fabric{Mode: mode, Ports: []fleet.FabricPort{{Device: "mlx5_0", Port: 1, Link: link, State: fleet.PortActive, Mbps: 1, Functions: functions}}}
}

// apart is a command that creates a cluster with a member on host-a and one on host-b.
func apart(w *world, id fleet.ClusterID, first, second fleet.PodID) CreateCluster {
	c := clusterOf(id, first, second)
	n := 2 * len(w.fabrics()) % 4
	gpus := []int{n % 4, (n + 1) % 4}
	for i, host := range []fleet.HostID{"host-a", "host-b"} {
		p := &c.Pods[i].Pod
		p.Host, p.GPUs, c.Pods[i].HostEpoch = host, podOn(p.ID, host, gpus[i]).GPUs, w.host(host).Epoch
	}
	return c
}

// fabrics are those of the members of all clusters.
func (w *world) fabrics() map[fleet.PodID]string {
	out := map[fleet.PodID]string{}
	w.view(func(v *View) {
		for _, c := range v.Clusters() {
			for _, p := range v.MembersOf(c.ID) {
				out[p.ID] = p.Fabric
			}
		}
	})
	return out
}

func (w *world) wantFabrics(what string, want ...string) {
	w.t.Helper()
	got := w.fabrics()
	for i := 0; i < len(want); i += 2 {
		if got[fleet.PodID(want[i])] != want[i+1] {
			w.t.Errorf("%s: member %s has %q, want %q", what, want[i], got[fleet.PodID(want[i])], want[i+1])
		}
	}
}

// TestAllMembersHaveTheFabricOrNone, whatever their hosts have; and no pod that is no member has one.
func TestAllMembersHaveTheFabricOrNone(t *testing.T) {
	share := fabric(fleet.FabricShared, fleet.LinkEthernet, 0)
	down := fabric(fleet.FabricShared, fleet.LinkEthernet, 0)
	down.Ports[0].State = "DOWN"
	for what, c := range map[string]struct {
		a, b fleet.Fabric
		want string
	}{
		"both":          {share, share, fleet.FabricRoCE},
		"one of them":   {share, fleet.Fabric{}, ""},
		"other kinds":   {share, fabric(fleet.FabricShared, fleet.LinkInfiniBand, 0), ""},
		"a port down":   {share, down, ""},
		"neither":       {fleet.Fabric{}, fleet.Fabric{}, ""},
		"no functions":  {fabric(fleet.FabricFunctions, fleet.LinkEthernet, 1), fabric(fleet.FabricFunctions, fleet.LinkEthernet, 0), ""},
		"own functions": {fabric(fleet.FabricFunctions, fleet.LinkEthernet, 1), fabric(fleet.FabricFunctions, fleet.LinkEthernet, 1), fleet.FabricRoCE},
	} {
		w := newWorld(t).settle().furnish()
		w.wired("host-a", c.a)
		w.wired("host-b", c.b)
		w.must(CreatePods{Pods: []NewPod{{Pod: podOn("lone", "host-a", 3), HostEpoch: w.host("host-a").Epoch}}})
		w.must(apart(w, theCluster, "p1", "p2"))
		w.wantFabrics(what, "p1", c.want, "p2", c.want)
		if w.pod("lone").Fabric != "" {
			t.Errorf("%s: a pod of no cluster has %q", what, w.pod("lone").Fabric)
		}
		w.check()
	}
}

// TestFabricsAreDealtOutAnew with each start: a function is one member's, and free when that has ended.
func TestFabricsAreDealtOutAnew(t *testing.T) {
	w := newWorld(t).settle().furnish()
	one := fabric(fleet.FabricFunctions, fleet.LinkEthernet, 1)
	w.wired("host-a", one)
	w.wired("host-b", one)
	w.must(apart(w, theCluster, "p1", "p2"))
	w.must(apart(w, "cluster0000002", "q1", "q2"))
	w.wantFabrics("the second cluster finds them taken", "p1", fleet.FabricRoCE, "p2", fleet.FabricRoCE, "q1", "", "q2", "")
	w.view(func(v *View) {
		if c := v.Fleet().Get("host-a", nil); c.Fabrics != 1 {
			t.Errorf("%d members have the fabric of host-a", c.Fabrics)
		}
	})
	w.must(w.report("q1", fleet.EventRunning), w.report("q2", fleet.EventRunning), Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster), At: at(30)})
	w.must(w.report("p1", ReportGone), w.report("p2", ReportGone))
	w.must(RestartCluster{Account: "acme", ID: "cluster0000002", At: at(100)})
	w.wantFabrics("it restarts with what is free", "q1", fleet.FabricRoCE, "q2", fleet.FabricRoCE)
	w.wired("host-b", fleet.Fabric{})
	w.wantFabrics("what runs keeps what it has", "q1", fleet.FabricRoCE, "q2", fleet.FabricRoCE)
	w.must(w.report("q1", fleet.EventRunning), w.report("q2", fleet.EventRunning))
	w.must(RestartCluster{Account: "acme", ID: "cluster0000002", At: at(200)})
	w.wantFabrics("one host lost its fabric", "q1", "", "q2", "")
	w.check()
}

// TestAReplacedMemberHasWhatTheOthersHave, or nothing.
func TestAReplacedMemberHasWhatTheOthersHave(t *testing.T) {
	for what, c := range map[string]struct {
		then fleet.Fabric
		want string
	}{
		"the same fabric": {fabric(fleet.FabricShared, fleet.LinkEthernet, 0), fleet.FabricRoCE},
		"none":            {fleet.Fabric{}, ""},
		"another":         {fabric(fleet.FabricShared, fleet.LinkInfiniBand, 0), ""},
	} {
		w := newWorld(t).settle().furnish()
		for _, host := range []fleet.HostID{"host-a", "host-b"} {
			w.wired(host, fabric(fleet.FabricShared, fleet.LinkEthernet, 0))
		}
		w.must(apart(w, theCluster, "p1", "p2"))
		w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning), failed(w, "p2"))
		w.wired("host-b", c.then)
		p := w.pod("p2")
		w.must(ActPod{Account: "acme", Owner: p.Owner, Pod: "p2", Action: fleet.ActionStart, At: at(60), Bind: &Binding{
			Host: "host-b", HostEpoch: w.host("host-b").Epoch, HourlyRate: p.HourlyRate, GPUs: podOn("p2", "host-b", 1).GPUs,
		}})
		w.wantFabrics(what, "p1", fleet.FabricRoCE, "p2", c.want)
		w.check()
	}
}

// TestFabricsThatAreRefused: what a host says must fit into its record.
func TestFabricsThatAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	for _, change := range map[string]func(*fleet.Fabric){
		"an unknown mode":    func(f *fleet.Fabric) { f.Mode = "all" },
		"no device":          func(f *fleet.Fabric) { f.Ports[0].Device = "" },
		"a long text":        func(f *fleet.Fabric) { f.Ports[0].GUID = strings.Repeat("x", maxID+1) },
		"negative functions": func(f *fleet.Fabric) { f.Ports[0].Functions = -1 },
		"too many ports":     func(f *fleet.Fabric) { f.Ports = make([]fleet.FabricPort, fleet.MaxFabricPorts+1) },
	} {
		f := fabric(fleet.FabricShared, fleet.LinkEthernet, 0)
		change(&f)
		w.refused(fleet.CodeInvalid, w.says(func(inv *fleet.Inventory) { inv.Fabric = f }))
	}
}

// TestANetworkCarriesWhatAllHostsCarry: frames of a cluster's network are as large as the smallest interface of its hosts lets them be, those
// of the settings at least.
func TestANetworkCarriesWhatAllHostsCarry(t *testing.T) {
	w := newWorld(t).settle().furnish()
	least := smallNetworks().MTU
	says := func(id fleet.HostID, mtu int) {
		inv := inventory(id)
		inv.Tunnel.MTU = mtu
		w.must(UpdateInventory{Host: id, Epoch: w.host(id).Epoch, Inventory: inv, At: at(20)})
	}
	want := func(what string, mtu int, more bool) {
		t.Helper()
		w.view(func(v *View) {
			o, _ := v.Overlay(fleet.ClusterOverlay(theCluster))
			if o.MTU != mtu {
				t.Errorf("%s: MTU %d, want %d", what, o.MTU, mtu)
			}
			for _, m := range v.OverlayMembers(o.ID, 0) {
				if more && m.Rev >= o.Rev {
					t.Errorf("%s: hosts do not learn of it: revision %d, a member's is %d", what, o.Rev, m.Rev)
				}
			}
		})
	}
	says("host-a", 9000)
	says("host-b", 9000)
	w.must(apart(w, theCluster, "p1", "p2"))
	want("jumbo frames on both", 9000-fleet.OverlayOverhead, true)
	w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning))
	says("host-b", 4000)
	want("a host changed while they run", 9000-fleet.OverlayOverhead, false)
	w.must(RestartCluster{Account: "acme", ID: theCluster, At: at(100)})
	want("mixed", 4000-fleet.OverlayOverhead, true)
	w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning), failed(w, "p2"))
	for _, c := range []struct{ says, want int }{{0, 0}, {9000, 9000 - fleet.OverlayOverhead}, {least + fleet.OverlayOverhead, 0}, {1 << 20, 9000 - fleet.OverlayOverhead}} {
		says("host-b", c.says)
		p := w.pod("p2")
		w.must(ActPod{Account: "acme", Owner: p.Owner, Pod: "p2", Action: fleet.ActionStart, At: at(160), Bind: &Binding{
			Host: "host-b", HostEpoch: w.host("host-b").Epoch, HourlyRate: p.HourlyRate, GPUs: podOn("p2", "host-b", 1).GPUs,
		}})
		want("a member that is replaced", c.want, false)
		w.must(w.report("p2", fleet.EventRunning), failed(w, "p2"))
	}
	w.check()
}
