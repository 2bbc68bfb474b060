package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// crowd gives acme, prepaid, so many stopped pods on one host.
func (w *world) crowd(pods int) {
	w.t.Helper()
	yes, most := true, int64(fleet.MaxLimit)
	w.must(
		state.UpdateAccount{Account: acme, Prepaid: &yes, Limits: map[string]*int64{"pods": &most, "specificationBytes": &most}},
		state.AddCredit{Account: acme, Amount: 1000 * fleet.Dollar, At: w.clock()},
	)
	var host fleet.Host
	w.view(func(v *state.View) { host, _ = v.Host("host-a") })
	var cmds []state.Command
	for i := range pods {
		id := fleet.PodID(fmt.Sprintf("old%011d", i))
		cmds = append(cmds,
			state.CreatePods{Pods: []state.NewPod{{HostEpoch: host.Epoch, Pod: fleet.Pod{
				ID: id, Account: acme, Host: host.ID, CreatedAt: w.clock(), HourlyRate: fleet.Dollar, Need: fleet.Resources{MilliCPU: 1000},
				Spec: fleet.PodSpec{Name: "x", Image: "busybox", Cloud: fleet.CloudSecure, CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 1, MemoryGB: 2}},
			}}}},
			state.ActPod{Account: acme, Pod: id, Action: fleet.ActionStop, At: w.clock()},
			state.ReportPods{Host: host.ID, Epoch: host.Epoch, At: w.clock(), Reports: []state.PodReport{{Pod: id, Incarnation: 1, Event: fleet.EventExited}}},
		)
		if len(cmds) < 3000 && i < pods-1 {
			continue
		}
		results, err := w.Propose(context.Background(), cmds...)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		cmds = cmds[:0]
	}
}

// BenchmarkNeighbourOfStoppedPods measures create and get of an account beside another one that has 100,000 stopped pods and lists
// them all the while, and what they take without it. The ratios are what counts.
func BenchmarkNeighbourOfStoppedPods(b *testing.B) {
	const rounds = 300
	measure := func(pods int) (create, get time.Duration) {
		w := newWorld(b)
		w.addHost("host-a", "EU-RO-1", "", 0, total(64, 256, 10000))
		w.crowd(pods)
		ctx := context.Background()
		var creates, gets []time.Duration
		for i := range rounds {
			if i%50 == 0 {
				if _, err := w.svc.Pods(ctx, member(acme)); err != nil {
					b.Fatal(err)
				}
			}
			began := time.Now()
			v, err := w.svc.CreatePod(ctx, member(other), cpuPod(2))
			creates = append(creates, time.Since(began))
			if err != nil {
				b.Fatal(err)
			}
			began = time.Now()
			_, err = w.svc.Pod(ctx, member(other), v.Pod.ID)
			gets = append(gets, time.Since(began))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := w.svc.ActPod(ctx, member(other), v.Pod.ID, fleet.ActionTerminate); err != nil {
				b.Fatal(err)
			}
			w.report(v.Pod.ID, state.ReportGone)
		}
		slices.Sort(creates)
		slices.Sort(gets)
		return creates[rounds/2], gets[rounds/2]
	}
	for b.Loop() {
		create, get := measure(0)
		beside, getBeside := measure(100_000)
		micro := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
		b.ReportMetric(micro(create), "create-alone-us")
		b.ReportMetric(micro(beside), "create-beside-us")
		b.ReportMetric(micro(beside)/micro(create), "create-ratio")
		b.ReportMetric(micro(get), "get-alone-us")
		b.ReportMetric(micro(getBeside), "get-beside-us")
		b.ReportMetric(micro(getBeside)/micro(get), "get-ratio")
	}
}
