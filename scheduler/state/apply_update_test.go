package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/scheduler/place"
)

// update makes an update of acme's pod that changes nothing yet.
func (w *world) update(id fleet.PodID) UpdatePod {
	p := w.pod(id)
	return UpdatePod{
		Account: "acme", Pod: id, Rev: p.Rev, Spec: p.Spec, Locked: p.Locked, Need: p.Need, Mappings: p.Mappings, At: at(70),
	}
}

func (c UpdatePod) but(change func(*UpdatePod)) UpdatePod {
	change(&c)
	return c
}

// An update that needs a new container does what the fleet's table says, and begins an incarnation only
// of a pod that runs or shall run.
func TestUpdatePodFollowsTheTable(t *testing.T) {
	for _, status := range fleet.PodStatuses() {
		for _, goal := range goalsOf(status) {
			for _, restart := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/%t", status, goal, restart), func(t *testing.T) {
					w := newWorld(t).settle()
					w.podIn(status, goal)
					before, index := w.pod("pod-1"), w.s.Index()
					cmd := w.update("pod-1").but(func(c *UpdatePod) { c.Spec.Image, c.Spec.Name, c.Restart = "alpine", "renamed", restart })
					next, legal := status.Next(fleet.ActionUpdate)
					if !legal {
						w.refused(fleet.CodeNotAllowed, cmd)
						return
					}
					got := w.must(cmd).(fleet.Pod)
					if restart && status.Active() && goal == fleet.GoalRun {
						if got.Status != next || got.Incarnation != before.Incarnation+1 || got.Generation <= before.Generation ||
							!got.StartedAt.IsZero() || !got.Steps[fleet.StepCreated].Equal(at(70)) {
							t.Errorf("got %+v", got)
						}
						before.Status, before.Incarnation, before.Generation = got.Status, got.Incarnation, got.Generation
						before.StartedAt, before.Steps, before.Reason, before.Image = got.StartedAt, got.Steps, "", "alpine"
					} else if evs, _, _ := w.s.Events(index); len(evs) != 1 || evs[0].Kind != KindPod {
						t.Errorf("events %v", evs) // its host is told nothing
					}
					before.Rev++
					before.Spec.Image, before.Spec.Name = "alpine", "renamed"
					if d := cmp.Diff(before, got); d != "" {
						t.Error(d)
					}
					w.check()
				})
			}
		}
	}
}

func TestUpdatePodIsRefused(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.publish("host-a")
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 30_000, 0), HostEpoch: 2}}}, CreatePods{Pods: []NewPod{{Pod: rich("pod-2", "host-a", 30_001), HostEpoch: 2}}})
	net := podOn("pod-3", "host-a")
	net.Spec.Network = &fleet.NetworkMount{Volume: "vol-1", Path: "/data"}
	w.must(CreatePods{Pods: []NewPod{{Pod: net, HostEpoch: 2}}})
	w.must(CreateVolume{Volume: newVolume("volume00000001", "b-std")}, Put[fleet.Template]{Record: fleet.Template{ID: "private", Account: "other"}})
	for _, tc := range []struct {
		rule   string
		pod    fleet.PodID
		code   fleet.Code
		change func(*UpdatePod)
	}{
		{"no such pod", "pod-1", fleet.CodeNotFound, func(c *UpdatePod) { c.Pod = "pod-9" }},
		{"another account", "pod-1", fleet.CodeNotFound, func(c *UpdatePod) { c.Account = "other" }},
		{"an old revision", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Rev-- }},
		{"no revision", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Rev = 0 }},
		{"GPUs", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.GPU = &fleet.GPURequest{Type: h100, Count: 2} }},
		{"a CPU beside the GPU", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.CPU = &fleet.CPURequest{} }},
		{"CPUs", "pod-2", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.CPU = nil }},
		{"a bid", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Spot = &fleet.Spot{Bid: 5} }},
		{"the tier", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Cloud = fleet.CloudCommunity }},
		{"the data centers", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Centers = []fleet.DataCenterID{"dc-1"} }},
		{"no mount any more", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Persistent = nil }},
		{"another kind of mount", "pod-3", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/"} }},
		{"a network volume beside the data", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Network = &fleet.NetworkMount{Volume: "vol-1"} }},
		{"another network volume", "pod-3", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Network = &fleet.NetworkMount{Volume: "volume00000001"} }},
		{"less data", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: 99} }},
		{"data without end", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: maxDiskGB + 1} }},
		{"a disk without end", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.DiskGB = maxDiskGB + 1 }},
		{"more data than there is room", "pod-1", fleet.CodeNoCapacity, func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: 841} }},
		{"tcp ports without a restart", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Spec.Ports = nil }},
		{"a credential that is gone", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Spec.Registry = "reg-9" }},
		{"a template that is gone", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Spec.Template = "tpl-9" }},
		{"another account's template", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Spec.Template = "private" }},
		{"more CPU than is free", "pod-1", fleet.CodeNoCapacity, func(c *UpdatePod) { c.Restart, c.Need.MilliCPU = true, 14_001 }},
		{"more disk than is free", "pod-1", fleet.CodeNoCapacity, func(c *UpdatePod) { c.Restart, c.Need.DiskGB = true, 861 }},
		{"memory below zero", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Restart, c.Need.MemoryMB = true, -1 }},
		{"CPU below zero", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Restart, c.Need.MilliCPU = true, -1 }},
		{"a disk below zero", "pod-2", fleet.CodeInvalid, func(c *UpdatePod) { c.Restart, c.Need.DiskGB = true, -1 }},
		{"a disk smaller than the data", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Restart, c.Need.DiskGB = true, 99 }},
		{"a port that is not mapped", "pod-1", fleet.CodeStale, func(c *UpdatePod) { c.Restart, c.Mappings = true, nil }},
		{"a mapping of no port", "pod-1", fleet.CodeInvalid, func(c *UpdatePod) { c.Restart, c.Spec.Ports = true, nil }},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			w.t = t
			w.refused(tc.code, w.update(tc.pod).but(tc.change))
		})
	}
	w.t = t
	// What just fits is fine.
	w.must(w.update("pod-1").but(func(c *UpdatePod) {
		c.Spec.Persistent, c.Restart = &fleet.PersistentMount{SizeGB: 840, Path: "/elsewhere"}, true
		c.Need = fleet.Resources{MilliCPU: 14_000, MemoryMB: 60_000, DiskGB: 860}
		c.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_004}}
	}))
	// A public port of another pod is not.
	got := w.must(w.update("pod-1").but(func(c *UpdatePod) {
		c.Restart, c.Mappings = true, []fleet.PortMapping{{Private: 22, Public: 30_001}}
	})).(fleet.Pod)
	if want := []fleet.PortMapping{{Private: 22, Public: 30_002}}; !slices.Equal(got.Mappings, want) {
		t.Errorf("got %v, want the next free one: %v", got.Mappings, want)
	}
	w.check()
}

func TestUpdateOfALockedPod(t *testing.T) {
	w := newWorld(t).settle()
	in := podOn("pod-1", "host-a")
	in.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: in, HostEpoch: 1}}})
	w.refused(fleet.CodeNotAllowed, w.update("pod-1").but(func(c *UpdatePod) { c.Restart = true }))
	w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Spec.Name = "x" }))
	got := w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Restart, c.Locked = true, false })).(fleet.Pod)
	if got.Locked || got.Incarnation != 2 {
		t.Errorf("got %+v", got)
	}
	got = w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Restart, c.Locked = true, true })).(fleet.Pod)
	if !got.Locked || got.Incarnation != 3 {
		t.Errorf("got %+v", got)
	}
}

// A pod without room for more says so in the public words.
func TestUpdatePodWithoutRoom(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a")
	var e *fleet.Error
	r := w.do(w.update("pod-1").but(func(c *UpdatePod) { c.Restart, c.Need.MemoryMB = true, 64_001 }))
	if !errors.As(r.Err, &e) || e.Msg != place.NoCapacity || len(e.Excluded) != 1 || !strings.HasPrefix(e.Excluded[0].Reason, "memory: needs ") {
		t.Errorf("got %+v", r.Err)
	}
	// On a host that came back smaller, a pod may keep what it holds, and shrink.
	inv := inventory("host-a")
	inv.Total = fleet.Resources{MilliCPU: 500, MemoryMB: 64_000, DiskGB: 10}
	w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)})
	w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Restart, c.Need.MemoryMB, c.Need.DiskGB = true, 3000, 15 }))
	w.refused(fleet.CodeNoCapacity, w.update("pod-1").but(func(c *UpdatePod) { c.Restart, c.Need.DiskGB = true, 16 }))
}

// usedDisk returns the disk that the pods of host-a use, as views and candidates have it.
func (w *world) usedDisk() (used int64) {
	const id = "host-a"
	w.t.Helper()
	w.view(func(v *View) {
		use, _ := v.HostUsage(id)
		used = use.Used.DiskGB
		for _, c := range v.Candidates() {
			if c.Host.ID == id && c.Host.Inventory.Total.DiskGB-c.Free.DiskGB != used {
				w.t.Errorf("a candidate has %d GB free, %d of %d are used", c.Free.DiskGB, used, c.Host.Inventory.Total.DiskGB)
			}
		}
	})
	return used
}

// Data takes its host's disk from the pod's first start on.
func TestDataStaysOnItsHost(t *testing.T) {
	w := newWorld(t).settle().furnish()
	expect := func(when string, disk int64) {
		t.Helper()
		if got := w.usedDisk(); got != disk {
			t.Errorf("%s: %d GB are used, not %d", when, got, disk)
		}
		w.check()
	}
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 0, 0), HostEpoch: 1}}})
	expect("bound", 120)
	grow := func(size int) UpdatePod {
		return w.update("pod-1").but(func(c *UpdatePod) { c.Spec.Persistent = &fleet.PersistentMount{SizeGB: size, Path: "/data"} })
	}
	w.must(grow(150))
	expect("grown", 170)
	w.must(w.act("pod-1", fleet.ActionStop))
	w.must(grow(160))
	expect("grown while stopping", 180)
	w.must(w.report("pod-1", fleet.EventExited))
	expect("stopped", 160)
	w.refused(fleet.CodeNoCapacity, grow(1001))
	w.must(grow(200))
	expect("grown while stopped", 200)

	// Nobody else gets its room, and its host is not forgotten.
	big := podOn("pod-2", "host-a")
	big.Need.DiskGB = 801
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: big, HostEpoch: 1}}})
	tok := token("t2")
	w.must(PutToken{tok, at(0)}, ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Hardware: "board-a", Inventory: inventory("host-a"), At: at(59)})
	w.refused(fleet.CodeExists, JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-new", MachineID: "machine-a", Hardware: "board-a"}, At: at(60)})

	start := w.act("pod-1", fleet.ActionStart)
	away := start
	away.Bind = &Binding{Host: "host-b", HostEpoch: 1, GPUs: []string{"host-b-gpu-0"}}
	w.refused(fleet.CodeInvalid, away)
	small := start
	small.Bind = &Binding{Host: "host-a", HostEpoch: 1, GPUs: start.Bind.GPUs, Need: &fleet.Resources{DiskGB: 199}}
	w.refused(fleet.CodeInvalid, small)
	start.Bind.Need = &fleet.Resources{DiskGB: 1000} // all of the host, its own data among it
	w.must(start)
	expect("started", 1000)
	w.must(w.report("pod-1", fleet.EventFailed))
	expect("ended", 200)
}

// A terminated pod's data takes its host's disk until the host reports it gone.
func TestDataOfAStoppedPodIsHeldWhenItIsTerminated(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 0, 0), HostEpoch: 1}}})
	w.must(w.report("pod-1", fleet.EventFailed))
	w.must(w.act("pod-1", fleet.ActionTerminate))
	p := w.pod("pod-1")
	if !p.Held || p.GPUs != nil || p.Mappings != nil || p.Need != (fleet.Resources{DiskGB: 100}) || p.Goal != fleet.GoalGone {
		t.Errorf("got %+v", p)
	}
	if got := w.usedDisk(); got != 100 {
		t.Errorf("%d GB are used by what was terminated", got)
	}
	before := w.hash()
	w.must(w.report("pod-1", fleet.EventReboot))
	if string(before) != string(w.hash()) {
		t.Error("a reboot changed a pod of which only data is left")
	}
	w.must(w.report("pod-1", ReportGone))
	if p := w.pod("pod-1"); p.Held {
		t.Errorf("got %+v", p)
	}
	if got := w.usedDisk(); got != 0 {
		t.Errorf("%d GB are used by what is gone", got)
	}
	w.check()
}

// A reboot ends the container of a terminated pod, but its data is there until the host has removed it.
func TestARebootLeavesTheDataOfATerminatedPod(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 0, 0), HostEpoch: 1}}}, w.act("pod-1", fleet.ActionTerminate))
	generation := w.pod("pod-1").Generation
	w.must(w.report("pod-1", fleet.EventReboot))
	p := w.pod("pod-1")
	if !p.Held || p.GPUs != nil || p.Need != (fleet.Resources{DiskGB: 100}) || p.Generation <= generation {
		t.Errorf("got %+v", p)
	}
	w.create("pod-2", "host-a", 0) // its GPU is free
	w.must(w.report("pod-1", ReportGone))
	if got := w.usedDisk(); got != 20 {
		t.Errorf("%d GB are used", got)
	}
	w.check()
}

func TestCreatePodChecksWhatItRefersTo(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(Put[fleet.Template]{Record: fleet.Template{ID: "private", Account: "other"}},
		Put[fleet.Registry]{Record: fleet.Registry{ID: "theirs", Account: "other"}})
	for _, tc := range []struct {
		rule   string
		code   fleet.Code
		change func(*fleet.Pod)
	}{
		{"a credential that is gone", fleet.CodeStale, func(p *fleet.Pod) { p.Spec.Registry = "reg-9" }},
		{"another account's credential", fleet.CodeStale, func(p *fleet.Pod) { p.Spec.Registry = "theirs" }},
		{"a template that is gone", fleet.CodeStale, func(p *fleet.Pod) { p.Spec.Template = "tpl-9" }},
		{"another account's template", fleet.CodeStale, func(p *fleet.Pod) { p.Spec.Template = "private" }},
		{"data of no size", fleet.CodeInvalid, func(p *fleet.Pod) { p.Spec.Persistent.SizeGB = 0 }},
		{"a disk below zero", fleet.CodeInvalid, func(p *fleet.Pod) { p.Spec.DiskGB = -1 }},
		{"no room for the data", fleet.CodeInvalid, func(p *fleet.Pod) { p.Need.DiskGB = 99 }},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			w.t = t
			p := rich("pod-1", "host-a", 0)
			tc.change(&p)
			w.refused(tc.code, CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}})
		})
	}
	w.t = t
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 0), HostEpoch: 1}}})
	// The pod keeps a template that its owner has made private.
	w.must(Put[fleet.Template]{Record: fleet.Template{ID: "tpl-2", Account: "other", Rev: 1}})
	w.must(w.update("pod-1").but(func(c *UpdatePod) { c.Spec.Name = "renamed" }))
	w.check()
}

// TestTheRateOfABidChangesWithTheLockAlone, and no other pod's does.
func TestTheRateOfABidChangesWithTheLockAlone(t *testing.T) {
	w := newWorld(t).settle()
	w.must(CreatePods{Pods: []NewPod{{Pod: bidding("bids", 5, 0), HostEpoch: 1}, {Pod: podOn("pays", "host-a", 1), HostEpoch: 1}}})
	for i, c := range []struct {
		pod     fleet.PodID
		lock    bool
		rate    fleet.Money
		changes bool
	}{{"bids", false, 7, false}, {"bids", true, 0, false}, {"bids", false, 7, true}, {"pays", true, 7, false}} {
		before := w.pod(c.pod).HourlyRate
		w.must(w.update(c.pod).but(func(u *UpdatePod) { u.Locked, u.HourlyRate = c.lock, c.rate }))
		if got := w.pod(c.pod).HourlyRate; c.changes && got != c.rate || !c.changes && got != before {
			t.Errorf("change %d: %s costs %d, before %d", i, c.pod, got, before)
		}
	}
}

// TestAPodWhoseHostIsGoneIsNotChangedThere, should a record ever name one.
func TestAPodWhoseHostIsGoneIsNotChangedThere(t *testing.T) {
	w := newWorld(t).settle()
	pod := rich("pod-1", "host-z", 0)
	larger := pod
	larger.Spec.Persistent = &fleet.PersistentMount{SizeGB: 101}
	w.inTxn(at(70), func(txn *txn) {
		for what, err := range map[string]error{
			"restart": UpdatePod{}.restart(txn, &pod, &larger), "record": UpdatePod{}.record(txn, &pod, &larger),
		} {
			if fleet.CodeOf(err) != fleet.CodeStale || !strings.Contains(err.Error(), "host is gone") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := txn.compared("host-z"); err != nil {
			t.Errorf("compared: %v", err)
		}
		held := fleet.Pod{Held: true, Spec: fleet.PodSpec{Network: &fleet.NetworkMount{Volume: "gone"}}}
		txn.letGo(&held, &fleet.Pod{Spec: held.Spec}) // of a volume that is gone, too
	})
}
