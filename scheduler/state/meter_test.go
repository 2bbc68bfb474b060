package state

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// One pod's life, told by hand: each row is what it has cost by then.
func TestALifeAndItsCost(t *testing.T) {
	w := newWorld(t).priced()
	pod := podOn("pod-1", "host-a", 0)
	pod.Spec.DiskGB, pod.Spec.Persistent = 73, &fleet.PersistentMount{SizeGB: 146, Path: "/data"}
	pod.Need.DiskGB = 73 + 146
	const (
		running = 10_000_000 + 20_000_000 // the mount's odd price is lost in rounding
		stopped = 40_000_000
		hour    = 3600
	)
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	expect := func(when int, gpu, disk fleet.Money) {
		t.Helper()
		for range 2 { // before and after it is settled
			if got := sum(w.usage("acme", fleet.ChargePod, "pod-1", at(when))); got != (fleet.Amounts{GPU: gpu, Disk: disk}) {
				t.Errorf("after %d s: %+v, want %d and %d", when, got, gpu, disk)
			}
			w.settleAll(at(when))
		}
	}
	act := func(a fleet.Trigger, when int) {
		t.Helper()
		c := w.act("pod-1", a)
		c.At = at(when)
		w.must(c)
	}
	expect(10, 0, 0)
	expect(10+hour, fleet.Dollar, running)
	w.must(w.report("pod-1", fleet.EventRunning))
	act(fleet.ActionRestart, 10+hour)
	expect(10+2*hour, 2*fleet.Dollar, 2*running)
	w.must(w.report("pod-1", fleet.EventReboot))
	expect(10+3*hour, 3*fleet.Dollar, 3*running)
	// Its process ended an hour ago.
	ended := w.report("pod-1", fleet.EventExited)
	ended.At, ended.Reports[0].At = at(10+3*hour), at(10+2*hour)
	w.must(ended)
	expect(10+3*hour, 2*fleet.Dollar, 2*running+stopped)
	act(fleet.ActionStart, 10+4*hour) // for two dollars an hour
	expect(10+5*hour, 4*fleet.Dollar, 3*running+2*stopped)
	w.resize("pod-1", 146, 146, at(10+5*hour))
	expect(10+6*hour, 6*fleet.Dollar, 4*running+2*stopped+10_000_000)
	act(fleet.ActionStop, 10+6*hour)
	expect(10+7*hour, 6*fleet.Dollar, 4*running+3*stopped+10_000_000)
	act(fleet.ActionTerminate, 10+7*hour)
	expect(10+99*hour, 6*fleet.Dollar, 4*running+3*stopped+10_000_000)
	if len(w.meters()) != 0 {
		t.Errorf("open are %v", w.meters())
	}
}

func TestAChangeWithoutATimeTakesNothingBack(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	w.settleAll(at(10 + 3600))
	before := w.balance("acme", at(10+3600))
	w.resize("pod-1", 21, 0, time.Time{})
	if got := w.balance("acme", at(10+3600)); got != before || before == 0 {
		t.Errorf("balance went from %d to %d", before, got)
	}
}

// A pod that was there before there were meters is charged from its next change on.
func TestAPodWithoutAMeterGetsOne(t *testing.T) {
	w := newWorld(t).priced()
	w.create("pod-1", "host-a", 0)
	id := MeterID{fleet.ChargePod, "pod-1"}
	w.inTxn(at(0), func(t *txn) { t.base.meters.Drop(t.Txn, id.key()) })
	w.must(w.report("pod-1", fleet.EventRunning)) // comes at 41
	if m := w.meters()[id.key()]; m.Begin != meter.Seconds(at(41)) || m.Rates.GPU != fleet.Dollar {
		t.Errorf("got %+v", m)
	}
}

func TestVolumesAreMetered(t *testing.T) {
	w := newWorld(t).priced()
	small := &fleet.Volume{ID: "v", Account: "acme", SizeGB: 73, Type: fleet.VolumeStandard}
	named, large := *small, *small
	named.Name, large.SizeGB = "new", 1073
	change := func(before, after *fleet.Volume, hour int) {
		w.inTxn(time.Time{}, func(t *txn) { t.meterVolume(before, after, at(hour*3600)) })
	}
	change(nil, nil, 0)
	change(nil, small, 0)
	change(small, &named, 1)
	change(&named, &large, 2)
	change(&large, nil, 3)
	want := fleet.Amounts{Standard: 2*7_000_000 + 95_890_411 + 5_000_000}
	hours := w.usage("acme", fleet.ChargeVolume, "v", at(0))
	if sum(hours) != want || len(w.meters()) != 0 || w.balance("acme", at(0)) != -want.Total() {
		t.Errorf("%+v, want %+v; open are %v", sum(hours), want, w.meters())
	}
}
