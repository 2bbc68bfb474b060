package state

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// setOf is a set of pods of an owner on host-a, with one GPU each.
func setOf(owner fleet.Owner, ids ...fleet.PodID) CreatePods {
	var c CreatePods
	for i, id := range ids {
		pod := podOn(id, "host-a", i%4)
		pod.Owner = owner
		c.Pods = append(c.Pods, NewPod{Pod: pod, HostEpoch: 1})
	}
	return c
}

var (
	anEndpoint = fleet.EndpointID("endpoint000001").Owner()
	aCluster   = fleet.ClusterID("cluster0000001").Owner()
)

func TestASetOfPodsIsCreated(t *testing.T) {
	w := newWorld(t).settle().furnish()
	set := setOf(aCluster, "p1", "p2", "p3")
	set.Pods[1].Pod.GPUs = set.Pods[0].Pod.GPUs // taken by the one before: it gets another
	set.Once = sampleOnce()
	pods := w.must(set).([]fleet.Pod)
	gpus := map[string]bool{}
	for i, p := range pods {
		gpus[p.GPUs[0]] = true
		if p.Owner != aCluster || p.Status != fleet.StatusProvisioning || p.ID != set.Pods[i].Pod.ID || !same2(p, w.pod(p.ID)) {
			t.Errorf("pod %d is %+v", i, p)
		}
	}
	if len(pods) != 3 || len(gpus) != 3 {
		t.Errorf("%d pods on GPUs %v", len(pods), gpus)
	}
	again := w.must(set).(Replay).Value.([]fleet.Pod)
	if len(again) != 3 || again[2].ID != "p3" {
		t.Errorf("again: %v", again)
	}
	w.must(ActPod{Account: "acme", Owner: aCluster, Pod: "p2", Action: fleet.ActionTerminate, At: at(50)}, w.report("p2", ReportGone))
	w.must(PurgePods{Pods: []fleet.PodID{"p2"}, Before: at(60), At: at(60)})
	w.refused(fleet.CodeExists, set) // one of them is gone
	w.check()
}

func same2(a, b fleet.Pod) bool {
	return a.Rev == b.Rev && a.Generation == b.Generation && slices.Equal(a.GPUs, b.GPUs)
}

func TestASetOfPodsIsAllOrNothing(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(SetLimits{Limits: map[string]*int64{"gpus": ptr(int64(3))}})
	big := setOf(fleet.Owner{}, "p1", "p2")
	big.Pods[0].Pod.Need.MilliCPU, big.Pods[1].Pod.Need.MilliCPU = 9000, 9000
	twice := setOf(fleet.Owner{}, "p1", "p2", "p1")
	mixed := setOf(anEndpoint, "p1", "p2")
	mixed.Pods[1].Pod.Owner = aCluster
	foreign := setOf(fleet.Owner{}, "p1", "p2")
	foreign.Pods[1].Pod.Account = "other"
	many := CreatePods{}
	for i := range MaxPods + 1 {
		many.Pods = append(many.Pods, setOf(fleet.Owner{}, fleet.PodID(fmt.Sprint("p", i))).Pods...)
	}
	for _, tc := range []struct {
		name string
		code fleet.Code
		cmd  CreatePods
	}{
		{"none", fleet.CodeInvalid, CreatePods{}},
		{"too many", fleet.CodeInvalid, many},
		{"more GPUs than the account may have", fleet.CodeQuota, setOf(aCluster, "p1", "p2", "p3", "p4")},
		{"more processors than the host has", fleet.CodeStale, big},
		{"an id twice", fleet.CodeExists, twice},
		{"two owners", fleet.CodeInvalid, mixed},
		{"two accounts", fleet.CodeInvalid, foreign},
		{"an owner of no kind", fleet.CodeInvalid, setOf(fleet.Owner{Kind: "team", ID: "endpoint000001"}, "p1")},
		{"an owner with no id", fleet.CodeInvalid, setOf(fleet.Owner{Kind: fleet.OwnerCluster}, "p1")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			w.refused(tc.code, tc.cmd)
		})
	}
	w.t = t
	err := w.do(twice).Err
	if e := new(fleet.Error); !errors.As(err, &e) || !slices.Contains(e.Details, "$.pods[2]") {
		t.Errorf("the error does not name the pod: %#v", err)
	}
	w.must(setOf(aCluster, "p1", "p2", "p3"))
	w.check()
}

// TestRefusedCommandsLeaveTheBatchAlone compares a batch with one of the commands alone that were accepted in it.
func TestRefusedCommandsLeaveTheBatchAlone(t *testing.T) {
	dir := t.TempDir
	rapid.Check(t, func(t *rapid.T) {
		var worlds [2]*world
		for i := range worlds {
			w := newRapidWorld(t, dir)
			defer func() { _ = w.s.Close() }()
			worlds[i] = w.settle().furnish()
		}
		var cmds, accepted []Command
		for range rapid.IntRange(2, 12).Draw(t, "commands") {
			cmds = append(cmds, worlds[0].drawCommand(t, at(100)))
		}
		res, err := worlds[0].s.Apply([]entry.Entry{worlds[0].entry(cmds...)})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range res[0] {
			if r.Err == nil {
				accepted = append(accepted, cmds[i])
			}
		}
		if _, err := worlds[1].s.Apply([]entry.Entry{worlds[1].entry(accepted...)}); err != nil {
			t.Fatal(err)
		}
		if len(accepted) > 0 && !bytes.Equal(worlds[0].hash(), worlds[1].hash()) {
			same(t, worlds[0].dump(), worlds[1].dump())
			t.Fatal("refused commands left something")
		}
		worlds[0].check()
	})
}

// TestAnOwnersPods shows that a pod with an owner is that owner's alone, and is charged to it.
func TestAnOwnersPods(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(setOf(anEndpoint, "p1"), setOf(anEndpoint, "p2"), setOf(fleet.Owner{}, "p3"))
	w.must(ReadyWorkers{Pods: []fleet.PodID{"p1", "p2"}, At: at(10)})
	stop := ActPod{Account: "acme", Pod: "p1", Action: fleet.ActionStop, At: at(3610)}
	w.refused(fleet.CodeNotFound, stop)
	stop.Owner = aCluster
	w.refused(fleet.CodeNotFound, stop)
	own := w.pod("p1")
	w.refused(fleet.CodeNotFound, UpdatePod{Account: "acme", Pod: "p1", Rev: own.Rev, Spec: own.Spec, Need: own.Need, At: at(20)})
	stop.Owner = anEndpoint
	w.must(stop)
	used := map[string]fleet.Money{}
	w.view(func(v *View) {
		hours, err := v.Usage("acme", "", "", at(0), at(7200), at(3610))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hours {
			used[string(h.Kind)+" "+h.ID] += h.Amounts.GPU
		}
		one, err := v.Usage("acme", fleet.ChargeEndpoint, "endpoint000001", at(0), at(7200), at(3610))
		if err != nil || len(one) == 0 {
			t.Errorf("of the endpoint: %v, %v", one, err)
		}
	})
	// p1 is settled, p2 runs: an hour of each is the endpoint's.
	if want := map[string]fleet.Money{"endpoint endpoint000001": 2 * fleet.Dollar, "pod p3": fleet.Dollar}; fmt.Sprint(used) != fmt.Sprint(want) {
		t.Errorf("charged %v, want %v", used, want)
	}
	w.check()
}

// TestARefusedSetOfAnotherAccountUsesNothing deletes a template in the batch in which a set of its owner was refused, and a pod of
// another account got the id of a pod of that set.
func TestARefusedSetOfAnotherAccountUsesNothing(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(Put[fleet.Template]{Record: fleet.Template{ID: "tpl-9", Account: "other", Name: "t", Image: "busybox", Public: true, CreatedAt: at(1)}})
	theirs := setOf(fleet.Owner{}, "p1", "p1")
	ours := setOf(fleet.Owner{}, "p1")
	for _, c := range []*CreatePods{&theirs, &ours} {
		for i := range c.Pods {
			c.Pods[i].Pod.Spec.Template = "tpl-9"
		}
	}
	theirs.Pods[0].Pod.Account, theirs.Pods[1].Pod.Account = "other", "other"
	res, err := w.s.Apply([]entry.Entry{w.entry(theirs, ours, Delete[fleet.Template]{Account: "other", ID: "tpl-9"})})
	if err != nil {
		t.Fatal(err)
	}
	if fleet.CodeOf(res[0][0].Err) != fleet.CodeExists || res[0][1].Err != nil || res[0][2].Err != nil {
		t.Errorf("got %v", res)
	}
	w.check()
}
