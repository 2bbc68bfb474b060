package state

import (
	"fmt"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// limit sets a limit of acme.
func limit(name fleet.Limit, value int64) UpdateAccount {
	return UpdateAccount{Account: "acme", Limits: map[string]*int64{name.String(): &value}}
}

// exited makes pod-1, stopped, of one GPU, that keeps 10 GB.
func (w *world) exited() {
	w.t.Helper()
	const id, gpu = "pod-1", 0
	pod := podOn(id, "host-a", gpu)
	pod.Spec.Persistent, pod.Need.DiskGB = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, 30
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	w.must(w.act(id, fleet.ActionStop))
	w.must(w.report(id, fleet.EventExited))
}

// Each limit refuses what would be one too much on each way to it, and lets the last one pass.
func TestLimitsOfAnAccount(t *testing.T) {
	cpu := func(id fleet.PodID) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(id, "host-a"), HostEpoch: 1}}}
	}
	gpu := func(id fleet.PodID, gpus ...int) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(id, "host-a", gpus...), HostEpoch: 1}}}
	}
	plain := podOn("x", "host-a")
	bytes := specBytes(&plain.Spec)
	grow := func(w *world, change func(*fleet.PodSpec)) Command {
		p := w.pod("pod-1")
		change(&p.Spec)
		return UpdatePod{Account: "acme", Pod: "pod-1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(60)}
	}
	start := func(w *world) Command { return w.act("pod-1", fleet.ActionStart) }
	for _, c := range []struct {
		limit fleet.Limit
		most  int64 // of which the first command has one share
		first func(w *world)
		more  func(w *world) Command
	}{
		{fleet.LimitPods, 1, func(w *world) { w.must(cpu("a")) }, func(*world) Command { return cpu("b") }},
		{fleet.LimitPods, 1, func(w *world) { w.exited() }, func(*world) Command { return cpu("b") }},
		{fleet.LimitRunning, 1, func(w *world) { w.must(cpu("a")) }, func(*world) Command { return cpu("b") }},
		{fleet.LimitRunning, 1, func(w *world) { w.exited(); w.must(cpu("a")) }, start},
		{fleet.LimitGPUs, 2, func(w *world) { w.must(gpu("a", 0)) }, func(*world) Command { return gpu("b", 1, 2) }},
		{fleet.LimitGPUs, 2, func(w *world) { w.exited(); w.must(gpu("a", 1, 2)) }, start},
		{fleet.LimitVCPUs, 1, func(w *world) { w.must(cpu("a")) }, func(*world) Command { return cpu("b") }},
		{fleet.LimitSpecBytes, 2*bytes - 1, func(w *world) { w.must(cpu("a")) }, func(*world) Command { return cpu("b") }},
		{fleet.LimitSpecBytes, 2 * bytes, func(w *world) { w.must(cpu("pod-1")) }, func(w *world) Command {
			return grow(w, func(s *fleet.PodSpec) { s.Args = strings.Repeat("x", int(bytes)+1) })
		}},
		{fleet.LimitVolumes, 1, func(w *world) { w.must(CreateVolume{Volume: newVolume("v1", "b-std")}) }, func(*world) Command {
			return CreateVolume{Volume: newVolume("v2", "b-std")}
		}},
		{fleet.LimitVolumes, 1, func(w *world) { // its ids are its own until nothing of it is left
			w.must(CreateVolume{Volume: newVolume("v1", "b-std")}, DeleteVolume{Account: "acme", Volume: "v1", At: at(3)})
		}, func(*world) Command { return CreateVolume{Volume: newVolume("v2", "b-std")} }},
		{fleet.LimitVolumeGB, 19, func(w *world) { w.must(CreateVolume{Volume: newVolume("v1", "b-std")}) }, func(*world) Command {
			return CreateVolume{Volume: newVolume("v2", "b-std")}
		}},
		{fleet.LimitVolumeGB, 19, func(w *world) { w.must(CreateVolume{Volume: newVolume("v1", "b-std")}) }, func(*world) Command {
			return UpdateVolume{Account: "acme", Volume: "v1", SizeGB: ptr(20), At: at(4)}
		}},
		{fleet.LimitSpend, 1, func(w *world) { w.must(cpu("a")) }, func(*world) Command { return cpu("b") }},
		{fleet.LimitSpend, 3, func(w *world) { w.exited(); w.must(cpu("a"), cpu("b")) }, start},
	} {
		t.Run(c.limit.String(), func(t *testing.T) {
			w := newWorld(t).settle()
			w.must(PutBackend{Backend: nfsBackend("b-std"), New: true}, limit(c.limit, c.most))
			c.first(w)
			more := c.more(w)
			w.refused(fleet.CodeQuota, more)
			if msg := w.message(more); !strings.Contains(msg, fmt.Sprintf("(%s) is %d", c.limit, c.most)) {
				t.Errorf("it says %q", msg)
			}
			w.must(limit(c.limit, fleet.MaxLimit))
			w.must(c.more(w))
			w.check()
		})
	}
}

// The spend limit of an account's own refuses what would be more, on each way to it, with a code of its own.
func TestOwnSpendLimit(t *testing.T) {
	w := newWorld(t).priced()
	w.must(PutBackend{Backend: nfsBackend("b-std"), New: true}, CreateVolume{Volume: newVolume("v1", "b-std")})
	w.exited()
	own := func(limit fleet.Money) UpdateAccount { return UpdateAccount{Account: "acme", SpendLimit: &limit} }
	pod := CreatePods{Pods: []NewPod{{Pod: podOn("a", "host-a", 1), HostEpoch: 1}}}
	ways := map[string]func() Command{
		"create":  func() Command { return pod },
		"start":   func() Command { return w.act("pod-1", fleet.ActionStart) },
		"volume":  func() Command { return CreateVolume{Volume: newVolume("v2", "b-std")} },
		"resize":  func() Command { return UpdateVolume{Account: "acme", Volume: "v1", SizeGB: ptr(13), At: at(4)} },
		"cluster": func() Command { return clusterOf(theCluster, "p1", "p2") },
		"disks": func() Command {
			p := w.pod("pod-1")
			p.Spec.Persistent = &fleet.PersistentMount{SizeGB: 13, Path: "/data"}
			return UpdatePod{Account: "acme", Pod: "pod-1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(60)}
		},
	}
	var spends fleet.Money
	w.view(func(v *View) { spends = v.HourlyRate("acme") })
	w.must(own(spends))
	for name, way := range ways {
		cmd := way()
		w.refused(fleet.CodeSpendLimit, cmd)
		if msg := w.message(cmd); !strings.Contains(msg, "its own spend limit of $") {
			t.Errorf("%s: it says %q", name, msg)
		}
	}
	w.must(limit(fleet.LimitSpend, 0))
	w.refused(fleet.CodeQuota, pod) // the operators' holds all the same
	w.must(limit(fleet.LimitSpend, fleet.MaxLimit))
	w.must(own(spends + w.rate(pod.Pods[0].Pod.Spec) - 1))
	w.refused(fleet.CodeSpendLimit, pod)
	w.must(own(spends+w.rate(pod.Pods[0].Pod.Spec)), pod)
	w.refused(fleet.CodeInvalid, own(maxCredit+1))
	if got := w.must(own(-1)).(fleet.Account); got.SpendLimit != nil {
		t.Error("the limit was not taken back")
	}
	w.must(ways["start"](), ways["resize"]())
	w.check()
}

// What an account spends is bounded where a size grows, too.
func TestSpendingIsBoundedWhereSizesGrow(t *testing.T) {
	w := newWorld(t).priced()
	w.must(PutStoragePrices{fleet.StoragePrices{PersistentStopped: 730 * fleet.Dollar, VolumeFirst: 730 * fleet.Dollar}})
	w.must(PutBackend{Backend: nfsBackend("b-std"), New: true}, CreateVolume{Volume: newVolume("v1", "b-std")})
	w.exited()
	w.must(limit(fleet.LimitSpend, 22)) // 10 GB of each are 20 dollars
	larger := UpdateVolume{Account: "acme", Volume: "v1", SizeGB: ptr(13), At: at(4)}
	w.refused(fleet.CodeQuota, larger)
	p := w.pod("pod-1")
	p.Spec.Persistent = &fleet.PersistentMount{SizeGB: 13, Path: "/data"}
	grow := UpdatePod{Account: "acme", Pod: "pod-1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(60)}
	w.refused(fleet.CodeQuota, grow)
	w.must(limit(fleet.LimitSpend, 26))
	w.must(larger, grow)
	w.view(func(v *View) {
		if used := v.Used("acme"); used[fleet.LimitSpend] != int64(26*fleet.Dollar) || used[fleet.LimitVolumeGB] != 13 {
			t.Errorf("used %v", used)
		}
	})
	w.check()
}

// A lowered limit takes nothing away, hinders nothing but what is more, and a repeated request is answered as the first was.
func TestALimitTakesNothingAway(t *testing.T) {
	w := newWorld(t).settle()
	first := CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", 0), HostEpoch: 1}}, Once: sampleOnce()}
	w.must(first)
	none := map[string]*int64{}
	for _, l := range fleet.AllLimits() {
		none[l.String()] = ptr(int64(0))
	}
	w.must(UpdateAccount{Account: "acme", Limits: none})
	if _, ok := w.must(first).(Replay); !ok {
		t.Error("the replay is none")
	}
	w.must(w.report("pod-1", fleet.EventRunning))
	w.must(w.act("pod-1", fleet.ActionRestart))
	p := w.pod("pod-1")
	p.Spec.Name = "y"
	w.must(UpdatePod{Account: "acme", Pod: "pod-1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(60)})
	w.must(w.report("pod-1", fleet.EventReboot))
	w.must(w.act("pod-1", fleet.ActionStop))
	w.must(w.report("pod-1", fleet.EventExited))
	w.refused(fleet.CodeQuota, w.act("pod-1", fleet.ActionStart))
	w.must(w.act("pod-1", fleet.ActionTerminate))
	w.check()
}

// Limits of an account come before those of all, and those before the ones that Gantry comes with.
func TestWhoseLimitsHold(t *testing.T) {
	w := newWorld(t).settle()
	create := func(n int) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(fleet.PodID(fmt.Sprint("pod-", n)), "host-a"), HostEpoch: 1}}}
	}
	w.must(SetLimits{Limits: map[string]*int64{"pods": ptr(int64(1)), "gpus": ptr(int64(7))}})
	w.must(create(1))
	w.refused(fleet.CodeQuota, create(2))
	w.must(limit(fleet.LimitPods, 2))
	w.must(create(2))
	w.must(UpdateAccount{Account: "acme", Limits: map[string]*int64{"pods": nil}})
	w.refused(fleet.CodeQuota, create(3))
	got := w.must(SetLimits{Limits: map[string]*int64{"pods": nil}}).(fleet.Limits)
	if len(got) != 1 || fleet.LimitPods.Of(got) != 1000 || fleet.LimitGPUs.Of(got) != 7 {
		t.Errorf("limits %v", got)
	}
	w.must(create(3))
	for _, bad := range []map[string]*int64{{"pets": ptr(int64(1))}, {"pods": ptr(int64(-1))}, {"pods": ptr(int64(fleet.MaxLimit + 1))}} {
		w.refused(fleet.CodeInvalid, SetLimits{Limits: bad})
		w.refused(fleet.CodeInvalid, UpdateAccount{Account: "acme", Limits: bad})
	}
	w.check()
}

// Limits count what the batch at hand has made.
func TestLimitsSeeTheirOwnBatch(t *testing.T) {
	w := newWorld(t).settle()
	w.must(limit(fleet.LimitPods, 2))
	var cmds []Command
	for i := range 4 {
		cmds = append(cmds, CreatePods{Pods: []NewPod{{Pod: podOn(fleet.PodID(fmt.Sprint("pod-", i)), "host-a"), HostEpoch: 1}}})
	}
	cmds = append(cmds, ActPod{Account: "acme", Pod: "pod-0", Action: fleet.ActionTerminate, At: at(11)}, cmds[3])
	res, err := w.s.Apply([]entry.Entry{w.entry(cmds[:2]...), w.entry(cmds[2:]...)})
	if err != nil {
		t.Fatal(err)
	}
	var codes []fleet.Code
	for _, r := range append(res[0], res[1]...) {
		codes = append(codes, fleet.CodeOf(r.Err))
	}
	if got := fmt.Sprint(codes); got != fmt.Sprint([]fleet.Code{"", "", fleet.CodeQuota, fleet.CodeQuota, "", ""}) {
		t.Errorf("got %v", codes)
	}
	w.check()
}

// A prepaid account without credit enlarges neither the data of a stopped pod nor a disk of one that runs.
func TestDisksGrowOnCredit(t *testing.T) {
	for _, c := range []struct {
		name   string
		stop   bool
		change func(*UpdatePod)
	}{
		{"data of a stopped pod", true, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: 500, Path: "/data"} }},
		{"data of a pod that runs", false, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: 500, Path: "/data"} }},
		{"disk with a restart", false, func(c *UpdatePod) { c.Spec.DiskGB, c.Restart = 500, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t).priced()
			w.prepaid(true)
			w.must(AddCredit{Account: "acme", Amount: 1000 * fleet.Dollar, At: at(1)})
			pod := podOn("pod-1", "host-a", 0)
			pod.Spec.Persistent, pod.Need.DiskGB = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, 30
			w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
			w.must(w.report("pod-1", fleet.EventRunning))
			if c.stop {
				w.must(w.act("pod-1", fleet.ActionStop))
				w.must(w.report("pod-1", fleet.EventExited))
			}
			w.must(AddCredit{Account: "acme", Amount: -2000 * fleet.Dollar, At: at(55)})
			p := w.pod("pod-1")
			cmd := UpdatePod{Account: "acme", Pod: "pod-1", Rev: p.Rev, Spec: p.Spec, Need: p.Need, At: at(60)}
			c.change(&cmd)
			cmd.Need.DiskGB = 510
			w.refused(fleet.CodeNoCredit, cmd)
			same := cmd
			same.Spec, same.Need, same.Restart, same.Spec.Name = p.Spec, p.Need, false, "y"
			w.must(same)
			w.must(AddCredit{Account: "acme", Amount: 2000 * fleet.Dollar, At: at(61)})
			before := w.meters()["pod/pod-1"].Rates.Total()
			cmd.Rev = w.pod("pod-1").Rev
			w.must(cmd)
			if after := w.meters()["pod/pod-1"].Rates.Total(); after <= before {
				t.Errorf("it cost %d and costs %d", before, after)
			}
			w.check()
		})
	}
}
