package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/test/devtest"
	"gantry/test/program/workerimage"
)

// workerWorld is a Dev with an endpoint of one worker at most, which leaves it as soon as it has no job.
type workerWorld struct {
	*world
	image, endpoint string
}

func newWorkerWorld(b *testing.B, flashboot string) *workerWorld {
	b.Helper()
	w := &workerWorld{world: newWorld(b), image: workerimage.Serve(b, "--handler clock")}
	made, err := w.api.CreateEndpoint(b.Context(), v2.CreateEndpointRequest{
		Name: "bench", Type: "QUEUE", Scaling: v2.Scaling{Type: "REQUEST_COUNT", RequestCount: new(1)},
		EndpointSettings: v2.EndpointSettings{
			Image: &w.image, CPU: []v2.CreateCPUConfig{{ID: "cpu3c", VCPUCount: 2}}, FlashBoot: &flashboot,
			Workers: &v2.WantedWorkers{Min: new(0), Max: new(1)},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	w.endpoint = made.Value.ID
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := w.api.DeleteEndpoint(ctx, w.endpoint); err != nil {
			b.Error(err)
		}
	})
	return w
}

// job has a job done, and adds how long it took until its handler ran and until its submitter had the result.
func (w *workerWorld) job(s samples) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	began := time.Now()
	answer, err := w.api.RunJob(ctx, w.endpoint, v2.JobRequest{Input: json.RawMessage(`{}`)}, 5*time.Second)
	for err == nil && !v2.JobEnded(answer.Value.Status) {
		answer, err = w.api.Job(ctx, w.endpoint, answer.Value.ID)
	}
	if err != nil {
		return err
	}
	s.add("result", time.Since(began))
	var ran int64
	if err := json.Unmarshal(answer.Value.Output, &ran); err != nil || answer.Value.Status != "COMPLETED" {
		return errors.Join(err, fmt.Errorf("the job is %+v", answer.Value))
	}
	s.add("handler", time.Unix(0, ran).Sub(began))
	return nil
}

// idle waits until the endpoint has no worker, or only one that is frozen.
func (w *workerWorld) idle(frozen bool) error {
	return devtest.Until(waitLimit, func() error {
		answer, err := w.api.Workers(context.Background(), w.endpoint)
		all := answer.Value.Workers
		if err == nil && (len(all) > 1 || frozen != (len(all) == 1) || frozen && !all[0].IsFrozen) {
			err = fmt.Errorf("workers: %+v", all)
		}
		return err
	})
}

// plainPod starts a pod of the workers' image, until a GET says RUNNING.
func (w *workerWorld) plainPod(s samples) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	body := devtest.CPUPod("bench", devtest.Sleeper)
	body.Image = &w.image
	pod, took, err := w.create(ctx, body, pollEvery)
	if err != nil {
		return err
	}
	s.add("pod", took)
	return w.delete(ctx, pod.ID)
}

// BenchmarkWorkerFromZero takes turns: a job of an endpoint without workers, from its submission until its handler runs, and a plain pod
// of the same image, from its creation until it is RUNNING. The goal is 20 ms more than the pod.
func BenchmarkWorkerFromZero(b *testing.B) {
	w := newWorkerWorld(b, "OFF")
	got := samples{}
	for i := range max(10, b.N) + 1 { // the first turn warms up
		s := got
		if i == 0 {
			s = samples{}
		}
		if err := errors.Join(w.idle(false), w.job(s), w.idle(false), w.plainPod(s)); err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"handler", "result", "pod"} {
		b.ReportMetric(got.median(name), name+"-p50-ms")
	}
	b.ReportMetric(got.at("handler", 0.9), "handler-p90-ms")
	b.ReportMetric(got.at("pod", 0.9), "pod-p90-ms")
	b.ReportMetric(got.median("handler")-got.median("pod"), "over-pod-ms")
	b.ReportMetric(got.median("handler")/got.median("pod"), "ratio")
	b.ReportMetric(0, "ns/op")
}

// rawResume has containerd let a paused container go on.
func (w *world) rawResume(c rawContainer, s samples) error {
	ctx, cancel := context.WithTimeout(w.ctx, waitLimit)
	defer cancel()
	if err := c.task.Pause(ctx); err != nil {
		return err
	}
	began := time.Now()
	err := c.task.Resume(ctx)
	s.add("resume", time.Since(began))
	return err
}

// BenchmarkWorkerThaw takes turns: a job of an endpoint whose only worker is frozen, from its submission until its handler runs, and a
// paused container that containerd lets go on; then the same job on a worker that waits. The goal is 10 ms.
func BenchmarkWorkerThaw(b *testing.B) {
	w := newWorkerWorld(b, "FLASHBOOT")
	if err := errors.Join(w.idle(false), w.job(samples{})); err != nil {
		b.Fatal(err)
	}
	c, _, err := w.rawStart(w.ctx)
	if err != nil {
		b.Fatal(err)
	}
	frozen := samples{}
	for range max(20, b.N) {
		if err := errors.Join(w.idle(true), w.job(frozen), w.rawResume(c, frozen)); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := c.end(w.ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := w.api.UpdateEndpoint(b.Context(), w.endpoint, v2.UpdateEndpointRequest{
		EndpointSettings: v2.EndpointSettings{Workers: &v2.WantedWorkers{Min: new(1)}},
	}); err != nil {
		b.Fatal(err)
	}
	if err := w.job(samples{}); err != nil {
		b.Fatal(err)
	}
	awake := samples{}
	for range max(20, b.N) {
		if err := w.job(awake); err != nil {
			b.Fatal(err)
		}
	}
	for name, s := range map[string]samples{"": frozen, "awake-": awake} {
		b.ReportMetric(s.median("handler"), name+"handler-p50-ms")
		b.ReportMetric(s.at("handler", 0.9), name+"handler-p90-ms")
		b.ReportMetric(s.median("result"), name+"result-p50-ms")
	}
	b.ReportMetric(frozen.median("resume"), "resume-p50-ms")
	b.ReportMetric(frozen.at("resume", 0.9), "resume-p90-ms")
	b.ReportMetric(frozen.median("handler")-frozen.median("resume"), "over-resume-ms")
	b.ReportMetric(frozen.median("handler")-awake.median("handler"), "over-awake-ms")
	b.ReportMetric(0, "ns/op")
}
