package state

import (
	"fmt"
	"slices"
	"testing"

	"gantry/fleet"
)

func TestFreePorts(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.publish("host-a") // 30000 to 30004
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 30_001), HostEpoch: 2}}}, CreatePods{Pods: []NewPod{{Pod: rich("pod-2", "host-a", 30_004), HostEpoch: 2}}})
	for _, tc := range []struct {
		host     fleet.HostID
		n, start int
		want     []int
		ok       bool
	}{
		{"host-a", 3, 0, []int{30_000, 30_002, 30_003}, true},
		{"host-a", 2, 3, []int{30_003, 30_000}, true},
		{"host-a", 1, 5_000_001, []int{30_002}, true},
		{"host-a", 1, -1, []int{30_000}, true},
		{"host-a", 0, 0, nil, true},
		{"host-a", 4, 0, []int{30_000, 30_002, 30_003}, false},
		{"host-b", 1, 0, nil, false}, // publishes none
		{"host-b", 0, 0, nil, true},
		{"host-z", 0, 0, nil, false},
	} {
		w.view(func(v *View) {
			if got, ok := v.FreePorts(tc.host, tc.n, tc.start); ok != tc.ok || !slices.Equal(got, tc.want) {
				t.Errorf("%s, %d from %d: %v, %t", tc.host, tc.n, tc.start, got, ok)
			}
		})
	}
}

func TestMappingsOfANewPod(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.publish("host-a")
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("taken", "host-a", 30_001), HostEpoch: 2}}})
	mapped := func(host fleet.HostID, epoch uint64, mappings ...fleet.PortMapping) CreatePods {
		p := rich("pod-1", host, 0)
		p.Mappings = mappings
		return CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: epoch}}}
	}
	for _, tc := range []struct {
		rule string
		code fleet.Code
		cmd  CreatePods
	}{
		{"a port that is http", fleet.CodeInvalid, mapped("host-a", 2, fleet.PortMapping{Private: 80, Public: 30_000})},
		{"a port that the pod does not have", fleet.CodeInvalid, mapped("host-a", 2, fleet.PortMapping{Private: 23, Public: 30_000})},
		{"a port twice", fleet.CodeInvalid, mapped("host-a", 2, fleet.PortMapping{Private: 22, Public: 30_000}, fleet.PortMapping{Private: 22, Public: 30_002})},
		{"not mapped", fleet.CodeStale, mapped("host-a", 2)},
		{"below the range", fleet.CodeStale, mapped("host-a", 2, fleet.PortMapping{Private: 22, Public: 29_999})},
		{"above the range", fleet.CodeStale, mapped("host-a", 2, fleet.PortMapping{Private: 22, Public: 30_005})},
		{"a host that publishes none", fleet.CodeStale, mapped("host-b", 1, fleet.PortMapping{Private: 22, Public: 30_000})},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			w.t = t
			w.refused(tc.code, tc.cmd)
		})
	}
	w.t = t
	two := mapped("host-a", 2, fleet.PortMapping{Private: 22, Public: 30_002}, fleet.PortMapping{Private: 23, Public: 30_002})
	two.Pods[0].Pod.Spec.Ports = append(two.Pods[0].Pod.Spec.Ports, fleet.Port{Number: 23, Protocol: "tcp"})
	w.refused(fleet.CodeInvalid, two) // both at one public port
	two.Pods[0].Pod.Mappings = two.Pods[0].Pod.Mappings[:1]
	w.refused(fleet.CodeStale, two)
	w.must(mapped("host-b", 1))
	w.check()
}

// A public port is a pod's from its start until its host has nothing more of it.
func TestMappingsFollowThePod(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.publish("host-a")
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 30_001, 0), HostEpoch: 2}}})
	second := CreatePods{Pods: []NewPod{{Pod: rich("pod-2", "host-a", 30_001), HostEpoch: 2}}}
	kept := func(when string) {
		t.Helper()
		if got := w.pod("pod-1").Mappings; len(got) != 1 || got[0] != (fleet.PortMapping{Private: 22, Public: 30_001}) {
			t.Errorf("%s: mappings %v", when, got)
		}
		w.view(func(v *View) {
			if free, _ := v.FreePorts("host-a", 5, 0); slices.Contains(free, 30_001) {
				t.Errorf("%s: its port is free", when)
			}
		})
	}
	w.must(w.report("pod-1", fleet.EventRunning), w.act("pod-1", fleet.ActionRestart))
	kept("after a restart")
	w.must(w.report("pod-1", fleet.EventReboot))
	kept("after a reboot")
	w.must(w.act("pod-1", fleet.ActionStop))
	kept("while it is stopping")
	w.must(w.report("pod-1", fleet.EventExited))
	if got := w.pod("pod-1").Mappings; got != nil {
		t.Errorf("a stopped pod has mappings %v", got)
	}
	w.must(second)
	start := w.act("pod-1", fleet.ActionStart)
	start.Bind.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_001}} // the second's by now
	if got := w.must(start).(fleet.Pod); len(got.Mappings) != 1 || got.Mappings[0].Public != 30_002 {
		t.Errorf("mappings %v", got.Mappings)
	}
	w.must(w.act("pod-1", fleet.ActionTerminate))
	third := CreatePods{Pods: []NewPod{{Pod: rich("pod-3", "host-a", 30_002), HostEpoch: 2}}}
	for i, public := range []int{30_003, 30_004, 30_000} { // all but those that are held
		id := fleet.PodID(fmt.Sprintf("pod-%d", 4+i))
		next := CreatePods{Pods: []NewPod{{Pod: rich(id, "host-a", 30_002), HostEpoch: 2}}}
		if got := w.must(next).([]fleet.Pod)[0]; got.Mappings[0].Public != public {
			t.Errorf("got %v, want %d", got.Mappings, public)
		}
	}
	w.refused(fleet.CodeStale, third)
	w.must(w.report("pod-1", ReportGone), third)
	w.check()
}

// At a symmetrical port the container listens at the port that is published, so that it must be none that the pod
// uses otherwise.
func TestSymmetricalPorts(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.publish("host-a") // 30000 to 30004
	p := rich("pod-1", "host-a", 30_002)
	p.Spec.Ports = append(p.Spec.Ports, fleet.Port{Number: 70_001, Protocol: "tcp"}, fleet.Port{Number: 30_001, Protocol: "http"}, fleet.Port{Number: 70_000, Protocol: "tcp"})
	p.Mappings = append(p.Mappings, fleet.PortMapping{Private: 70_001, Public: 30_001}, fleet.PortMapping{Private: 70_000, Public: 30_004})
	got := w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 2}}}).([]fleet.Pod)[0]
	want := []fleet.PortMapping{{Private: 22, Public: 30_002}, {Private: 70_001, Public: 30_003}, {Private: 70_000, Public: 30_004}}
	if !slices.Equal(got.Mappings, want) {
		t.Errorf("the mappings are %v, want %v", got.Mappings, want)
	}
	// What is left are 30000 and 30001; the second is the pod's own.
	q := rich("pod-2", "host-a", 30_000)
	q.Spec.Ports = append(q.Spec.Ports, fleet.Port{Number: 70_001, Protocol: "tcp"}, fleet.Port{Number: 30_001, Protocol: "http"})
	q.Mappings = append(q.Mappings, fleet.PortMapping{Private: 70_001, Public: 30_001})
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: q, HostEpoch: 2}}})
	q.Spec.Ports = q.Spec.Ports[:len(q.Spec.Ports)-1]
	w.must(CreatePods{Pods: []NewPod{{Pod: q, HostEpoch: 2}}})
	w.check()
}
