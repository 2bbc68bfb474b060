package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/test/devtest"
)

const (
	gangPods = 4
	gangGPUs = 1 // of each pod: hosts of one machine have too few processors for more
)

// BenchmarkGangStart takes turns: one pod alone, four pods at once, and a cluster of four pods on four hosts, from POST until the last is
// recorded as RUNNING. The image is there. The hosts share one machine, so that the goal, at most 1.5 times, is that of four pods at once.
func BenchmarkGangStart(b *testing.B) {
	w := newWorldOf(b, "--agents", fmt.Sprint(gangPods))
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(b.N+1)*4*waitLimit)
	defer cancel()
	got := samples{}
	for i := range b.N + 1 { // the first turn warms up
		s := got
		if i == 0 {
			s = samples{}
		}
		err := errors.Join(w.plainGang(ctx, s, "alone", 1), w.plainGang(ctx, s, "four", gangPods), w.gang(ctx, s))
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"alone", "four", "gang"} {
		b.ReportMetric(got.median(name), name+"-ms")
	}
	b.ReportMetric(got.median("gang")/got.median("four"), "gang-of-four")
	b.ReportMetric(got.median("gang")/got.median("alone"), "gang-of-alone")
	b.ReportMetric(0, "ns/op")
}

// plainGang starts so many pods at once, and notes when the last of them ran.
func (w *world) plainGang(ctx context.Context, s samples, name string, n int) error {
	body := v2.CreatePodRequest{
		Name: "plain", GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: gangGPUs},
		PodSettings: v2.PodSettings{Image: new(devtest.Image), Args: new("sh -c '" + devtest.Sleeper + "'")},
	}
	var mu sync.Mutex // guards the variables below
	var ids []string
	var faults []error
	var last time.Time
	began := time.Now()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			pod, _, err := w.create(ctx, body, 20*time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			ids, faults = append(ids, pod.ID), append(faults, err)
			if at := pod.Steps[fleet.StepRecorded]; at.After(last) {
				last = at.Time
			}
		})
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	s.add(name, last.Sub(began))
	return w.delete(ctx, ids...)
}

// gang starts a cluster, and notes when the last of its pods ran.
func (w *world) gang(ctx context.Context, s samples) error {
	began := time.Now()
	made, err := w.api.CreateCluster(ctx, v2.CreateClusterRequest{
		Name: "gang", Type: string(fleet.ClusterTraining), Image: new(devtest.Image), Args: new("sh -c '" + devtest.Sleeper + "'"),
		Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: gangGPUs, PodCount: gangPods},
	})
	if err != nil {
		return err
	}
	id := made.Value.ID
	for made.Value.Status != string(fleet.ClusterReady) {
		if made, err = w.api.InstantCluster(ctx, id); err != nil {
			return err
		}
		if len(made.Value.Faults) > 0 {
			return fmt.Errorf("the cluster failed: %+v", made.Value.Faults)
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil { // between questions, which are a part of what is measured
			return err
		}
	}
	pods, err := w.api.ClusterPods(ctx, id)
	if err != nil {
		return err
	}
	var last time.Time
	var ids []string
	for _, p := range pods.Value.Pods {
		ids = append(ids, p.ID)
		if at := p.Steps[fleet.StepRecorded]; at.After(last) {
			last = at.Time
		}
	}
	s.add("gang", last.Sub(began))
	if err := w.api.DeleteCluster(ctx, id); err != nil {
		return err
	}
	return released(ids...)
}
