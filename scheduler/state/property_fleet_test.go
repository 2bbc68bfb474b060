package state

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// drawFleet draws a command on hosts, on members, or on the cluster itself.
func (w *world) drawFleet(t *rapid.T, now time.Time) Command {
	host := pick[fleet.HostID](t, "host", "host-a", "host-a", "host-b", "host-c")
	pod := pick[fleet.PodID](t, "pod", "p1", "p2", "p3", "p4", "p5")
	id := pick[fleet.MemberID](t, "member", "m1", "m2", "m3")
	switch rapid.IntRange(0, 24).Draw(t, "of the fleet") {
	case 21, 22, 23, 24:
		return w.drawInventory(t, host, now)
	case 0, 1, 2, 3:
		return w.drawConnect(t, host, now)
	case 4, 5, 6:
		return SetHostEligibility{
			Host: host, Eligibility: pick(t, "eligibility", fleet.EligibilityOpen, fleet.EligibilityCordoned, fleet.EligibilityDraining, fleet.EligibilityDraining),
			KeepRunning: rapid.IntRange(0, 3).Draw(t, "keeps running") == 0, At: now,
			Deadline: rapid.SampledFrom([]time.Time{{}, {}, now, now.Add(time.Minute)}).Draw(t, "deadline"),
		}
	case 7, 8:
		var epoch uint64
		w.view(func(v *View) { h, _ := v.Host(host); epoch = h.Epoch })
		return SetHostState{Host: host, Epoch: epoch, State: fleet.HostUnreachable, At: now}
	case 9, 10:
		return FenceHost{Host: host, At: now}
	case 11:
		return RemoveHost{Host: host, At: now}
	case 12:
		return PurgeHosts{Before: now}
	case 13, 14, 15:
		return w.drawMove(t, pod, host, now)
	case 16:
		return PutMember{member(id)}
	case 17:
		return RemoveMember{Member: id, At: now}
	case 20:
		label := func(what string) string { return pick(t, what, "rack", "row", "owner") }
		return SetHostLabels{Host: host, Set: map[string]string{label("set"): "x"}, Unset: []string{label("unset")}}
	case 18:
		return AlarmHost{Host: host, Text: pick(t, "alarm", "", "look"), At: now}
	}
	var c Cluster
	w.view(func(v *View) { c, _ = v.Cluster() })
	c.Lineage += uint64(rapid.SampledFrom([]int{0, 1, 1, 1, 5}).Draw(t, "later"))
	return RestoreCluster{
		ID: "c", Lineage: c.Lineage, Member: member(fleet.MemberID(fmt.Sprintf("m-%d", w.index))), At: now,
		SnapshotAt: now.Add(-time.Duration(rapid.IntRange(0, 1000).Draw(t, "age")) * time.Second),
	}
}

// drawMove draws what a drain does with a pod: mostly what it may do.
func (w *world) drawMove(t *rapid.T, id fleet.PodID, to fleet.HostID, now time.Time) Command {
	var pod fleet.Pod
	var epoch uint64
	w.view(func(v *View) {
		pod, _ = v.Pod(id)
		h, _ := v.Host(to)
		epoch = h.Epoch
	})
	if rapid.IntRange(0, 3).Draw(t, "evicts") == 0 {
		return EvictPod{Pod: id, Rev: pod.Rev, At: now}
	}
	bind := &Binding{Host: to, HostEpoch: epoch, HourlyRate: pod.HourlyRate, Need: &pod.Need, Mappings: w.drawMappings(t, to, pod.Spec.Ports)}
	if pod.Spec.GPU != nil {
		bind.GPUs = podOn(id, to, rapid.SliceOfNDistinct(rapid.IntRange(0, 3), pod.Spec.GPU.Count, pod.Spec.GPU.Count, rapid.ID).Draw(t, "gpus")...).GPUs
	}
	return MovePod{Pod: id, Rev: pod.Rev, At: now, To: bind}
}

// drawInventory draws what a host says of itself while a session stands: fewer GPUs, sick ones, conditions.
func (w *world) drawInventory(t *rapid.T, host fleet.HostID, now time.Time) UpdateInventory {
	inv := inventory(host)
	inv.GPUs = inv.GPUs[:rapid.IntRange(2, 4).Draw(t, "left")]
	if rapid.Bool().Draw(t, "sick") {
		inv.GPUs[0].Sick = "XID 79"
	}
	if rapid.Bool().Draw(t, "publishes") {
		inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 30_004
	}
	inv.Tunnel = drawTunnel(t, host)
	if code := pick(t, "condition", "", "", "one", "two", "No"); code != "" {
		inv.Conditions = []fleet.Condition{{Code: code, Severe: rapid.Bool().Draw(t, "severe")}, {Code: "more"}}
	}
	epoch := w.epochOf(host)
	if rapid.IntRange(0, 5).Draw(t, "old session") == 0 {
		epoch--
	}
	return UpdateInventory{Host: host, Epoch: epoch, Inventory: inv, At: now}
}

// drawConnect draws a session of a host whose ledger holds pods, mostly as the state has them.
func (w *world) drawConnect(t *rapid.T, host fleet.HostID, now time.Time) ConnectHost {
	c := ConnectHost{
		Host: host, Inventory: inventory(host), At: now, Generation: uint64(rapid.IntRange(0, 30).Draw(t, "seen")),
	}
	c.Inventory.PublicIP, c.Inventory.PortFrom, c.Inventory.PortTo = "192.0.2.1", 30_000, 30_004
	c.Inventory.Tunnel = drawTunnel(t, host)
	w.view(func(v *View) { h, _ := v.Host(host); c.MachineID, c.BootID = h.MachineID, h.BootID })
	if c.BootID == "" || rapid.IntRange(0, 3).Draw(t, "booted") == 0 {
		c.BootID = fmt.Sprintf("boot-%d", w.index)
	}
	c.Hardware = drawBoard(t, c.MachineID)
	for _, id := range []fleet.PodID{"p1", "p2", "p3", "p4", "p5", "p6"} {
		if rapid.IntRange(0, 2).Draw(t, "is there") == 0 {
			continue
		}
		var p fleet.Pod
		w.view(func(v *View) { p, _ = v.Pod(id) })
		in := HostPod{
			Pod: id, Incarnation: max(1, p.Incarnation), Goal: pick(t, "goal", fleet.GoalRun, fleet.GoalRun, fleet.GoalRun, fleet.GoalStop, fleet.GoalGone),
			Ended: rapid.IntRange(0, 3).Draw(t, "ended") == 0, GPUs: p.GPUs, Need: p.Need, Mappings: p.Mappings,
		}
		if rapid.IntRange(0, 19).Draw(t, "never begun") == 0 {
			in.Incarnation = 0
		}
		in.Incarnation += uint64(rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "later"))
		if in.Incarnation > 1 && rapid.IntRange(0, 9).Draw(t, "older") == 0 {
			in.Incarnation--
		}
		if rapid.IntRange(0, 2).Draw(t, "changed since") == 0 {
			in.GPUs = podOn(id, host, rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 2, rapid.ID).Draw(t, "gpus")...).GPUs
			in.Need.MilliCPU = rapid.Int64Range(-1, 20_000).Draw(t, "cpu")
			in.Mappings = w.drawMappings(t, host, drawPorts(t))
		}
		c.Pods = append(c.Pods, in)
	}
	return c
}

// checkFleet checks what is derived of hosts and members, and what must never be.
func checkFleet(t *rapid.T, before, after dump) {
	if after.Cluster.Lineage < before.Cluster.Lineage || after.Cluster.Level < before.Cluster.Level {
		t.Fatalf("the cluster went back from %+v to %+v", before.Cluster, after.Cluster)
	}
	for _, m := range before.Members {
		i := slices.IndexFunc(after.Members, func(n fleet.Member) bool { return n.ID == m.ID })
		if i < 0 || !m.RemovedAt.IsZero() && after.Members[i] != m {
			t.Fatalf("member %+v was changed", m)
		}
	}
	checkMoves(t, before, after)
	moving := 0
	for _, pods := range after.Pods {
		for _, p := range pods {
			if p.Moving && (p.Goal != fleet.GoalStop || p.KeepsData()) || p.Target != nil && (!p.Moving || p.Target.Host == p.Host) {
				t.Fatalf("moving: %+v", p)
			}
			if p.Stopping() == p.EndedAt.IsZero() && p.Status.Active() {
				t.Fatalf("stopping %t, ended at %s", p.Stopping(), p.EndedAt)
			}
			if p.Moving {
				moving++
			}
		}
	}
	if moving != len(after.Moving) {
		t.Fatalf("%d pods are being moved, listed are %d", moving, len(after.Moving))
	}
	for _, h := range after.Hosts {
		checkHost(t, &h, after)
	}
}

// checkMoves checks that a drain takes only pods whose owners allowed it, to a place that is reserved.
func checkMoves(t *rapid.T, before, after dump) {
	for account, pods := range after.Pods {
		for _, p := range pods {
			i := slices.IndexFunc(before.Pods[account], func(o fleet.Pod) bool { return o.ID == p.ID && o.Rev == p.Rev-1 })
			if i < 0 || !p.Moving || before.Pods[account][i].Moving {
				continue
			}
			if old := before.Pods[account][i]; !old.MayMove() || p.Target == nil {
				t.Fatalf("%+v is moved as %+v", old, p)
			}
		}
	}
}

func checkHost(t *rapid.T, h *fleet.HostView, d dump) {
	id := h.Host.ID
	if (h.Host.Eligibility == fleet.EligibilityDraining) != slices.Contains(d.Draining, id) {
		t.Fatalf("host %s is %s, listed is %v", id, h.Host.Eligibility, d.Draining)
	}
	if h.Host.Behind != (h.Host.Lineage != d.Cluster.Lineage) || h.Host.Lineage > d.Cluster.Lineage {
		t.Fatalf("host %s has lineage %d of %d", id, h.Host.Lineage, d.Cluster.Lineage)
	}
	if (h.Host.State == fleet.HostFenced || h.Host.State == fleet.HostGone) && (h.Host.Eligibility == fleet.EligibilityOpen || h.UsedGPUs > 0 || h.Used.MilliCPU > 0) {
		t.Fatalf("host %+v holds something", h)
	}
	orders := map[fleet.PodID]int{}
	for _, p := range d.OnHost[id] {
		orders[p.ID]++
		if p.Host != id || p.Generation > h.Host.Generation && h.Host.State != fleet.HostJoining {
			t.Fatalf("host %s at %d is ordered %+v", id, h.Host.Generation, p)
		}
	}
	if h.Host.Leftovers != nil && len(h.Host.Leftovers) == 0 {
		t.Fatalf("host %s has a list of no leftovers, which is another after a reload", id)
	}
	for _, left := range h.Host.Leftovers {
		if orders[left.Pod] != 1 {
			t.Fatalf("host %s is told of leftover %s %d times", id, left.Pod, orders[left.Pod])
		}
		i := slices.IndexFunc(d.OnHost[id], func(p fleet.Pod) bool { return p.ID == left.Pod })
		if p := d.OnHost[id][i]; p.Incarnation < left.Incarnation || left.Gone && p.Goal != fleet.GoalGone {
			t.Fatalf("host %s is ordered %+v of leftover %+v", id, p, left)
		}
	}
}

// ledgers is what hosts had in their ledgers when they were last compared after a restore.
type ledgers struct {
	lineage map[fleet.HostID]uint64
	has     map[fleet.HostID]map[fleet.PodID]uint64
}

func newLedgers() *ledgers {
	return &ledgers{lineage: map[fleet.HostID]uint64{}, has: map[fleet.HostID]map[fleet.PodID]uint64{}}
}

// follow takes what became of commands.
func (l *ledgers) follow(cmds []Command, results []entry.Result) {
	for i, cmd := range cmds {
		host, done := results[i].Value.(fleet.Host)
		if !done {
			continue
		}
		switch c := cmd.(type) {
		case JoinHost:
			l.lineage[host.ID], l.has[host.ID] = host.Lineage, nil
		case ConnectHost:
			now := map[fleet.PodID]uint64{}
			for _, p := range c.Pods {
				now[p.Pod] = max(now[p.Pod], p.Incarnation)
			}
			if host.Lineage == l.lineage[host.ID] {
				// Drawn at random, a ledger may have less than before; it is the one that is asked.
				for id, has := range l.has[host.ID] {
					l.has[host.ID][id] = min(has, now[id])
				}
				continue
			}
			l.lineage[host.ID], l.has[host.ID] = host.Lineage, now
		}
	}
}

// check checks that no host is ordered what its ledger takes for overtaken.
func (l *ledgers) check(t *rapid.T, d dump) {
	for id, has := range l.has {
		for _, p := range d.OnHost[id] {
			if p.Incarnation < has[p.ID] && l.lineage[id] == d.Cluster.Lineage {
				t.Fatalf("host %s is ordered %+v, and its ledger has incarnation %d", id, p, has[p.ID])
			}
		}
	}
}
