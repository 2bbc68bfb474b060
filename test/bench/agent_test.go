package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	roomy       = "400" // times that the machine's processors, memory and disk are offered
	manyPoll    = 20 * time.Millisecond
	sustainAt   = 8 // at once
	sustainTime = 5 * time.Second
)

// size reads a number from the environment.
func size(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s: want a number, got %q", name, text)
	}
	return n
}

// create makes a pod and waits until a GET says RUNNING. The time is that of the scheduler's record where the pod
// is one of many, since polls at a high rate would be a load of their own.
func (w *world) create(ctx context.Context, body v2.CreatePodRequest, poll time.Duration) (v2.Pod, time.Duration, error) {
	began := time.Now()
	made, err := w.api.CreatePod(ctx, body)
	if err != nil {
		return v2.Pod{}, 0, err
	}
	pod, err := w.reach(ctx, made.Value.ID, fleet.StatusRunning, poll)
	took := time.Since(began)
	if recorded := pod.Steps[fleet.StepRecorded]; poll != pollEvery && recorded.After(began) {
		took = recorded.Sub(began)
	}
	return pod, took, err
}

// reach polls a pod until it has the status.
func (w *world) reach(ctx context.Context, id string, want fleet.PodStatus, poll time.Duration) (v2.Pod, error) {
	for {
		answer, err := w.api.Pod(ctx, id)
		if err != nil {
			return v2.Pod{}, err
		}
		switch answer.Value.Status {
		case want:
			return answer.Value, nil
		case fleet.StatusError:
			return answer.Value, fmt.Errorf("pod failed: %s", answer.Value.StatusReason)
		}
		time.Sleep(poll) // the poll is part of what is measured
	}
}

// released polls until the host has nothing of the pods: no control group, no network namespace.
func released(ids ...string) error {
	return devtest.Until(4*waitLimit, func() error {
		for _, id := range ids {
			for _, pattern := range []string{"/sys/fs/cgroup/gantry/*/", "/sys/fs/cgroup/pids/gantry/*/", "/run/netns/gantry-*-"} {
				if found, err := filepath.Glob(pattern + id); err != nil || len(found) > 0 {
					return errors.Join(err, fmt.Errorf("%s is left", pattern+id))
				}
			}
		}
		return nil
	})
}

// delete deletes pods and waits until their host has nothing of them.
func (w *world) delete(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := w.api.DeletePod(ctx, id); err != nil {
			return err
		}
	}
	if err := released(ids...); err != nil {
		return err
	}
	for _, id := range ids {
		if err := devtest.Until(waitLimit, func() error { return w.site.NothingLeft(id) }); err != nil {
			return err
		}
	}
	return nil
}

// rawContainer is a container that runs, made straight through containerd's client.
type rawContainer struct {
	c      containerd.Container
	task   containerd.Task
	ended  <-chan containerd.ExitStatus
	tasked time.Duration // that NewTask took
}

func (w *world) rawStart(ctx context.Context) (rawContainer, time.Duration, error) {
	id := fleet.NewID()
	spec, uri, err := w.rawOptions(id)
	if err != nil {
		return rawContainer{}, 0, err
	}
	began := time.Now()
	img, err := w.raw.GetImage(ctx, devtest.Image)
	if err != nil {
		return rawContainer{}, 0, err
	}
	c, err := w.raw.NewContainer(ctx, id, containerd.WithNewSnapshot(id, img), spec(img))
	if err != nil {
		return rawContainer{}, 0, err
	}
	at := time.Now()
	task, err := c.NewTask(ctx, cio.LogURI(uri))
	if err != nil {
		return rawContainer{}, 0, err
	}
	tasked := time.Since(at)
	ended, err := task.Wait(ctx)
	if err != nil {
		return rawContainer{}, 0, err
	}
	err = task.Start(ctx)
	return rawContainer{c, task, ended, tasked}, time.Since(began), err
}

// end kills the process and removes the container; it returns how long the process took to end.
func (r rawContainer) end(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := r.task.Kill(ctx, syscall.SIGKILL); err != nil {
		return 0, err
	}
	<-r.ended
	took := time.Since(began)
	if _, err := r.task.Delete(ctx); err != nil {
		return took, err
	}
	return took, r.c.Delete(ctx, containerd.WithSnapshotCleanup)
}

// each runs f so many times at once.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// BenchmarkAgentStart takes turns of so many pods at once through the API, from POST until RUNNING is recorded,
// and as many containers straight through containerd's client. The goal is 1.15 times the floor and 10 ms.
func BenchmarkAgentStart(b *testing.B) {
	w := newWorldOf(b, "--overcommit", roomy)
	for _, n := range []int{1, 8, 32} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			got := samples{}
			rounds := max(2, min(b.N, 24/n))
			for range rounds {
				if err := errors.Join(w.startMany(got, n), w.rawMany(got, n)); err != nil {
					b.Fatal(err)
				}
			}
			for _, name := range []string{"running", "raw"} {
				b.ReportMetric(got.median(name), name+"-p50-ms")
				b.ReportMetric(got.at(name, 0.9), name+"-p90-ms")
			}
			b.ReportMetric(got.median("running")/got.median("raw"), "ratio")
			b.ReportMetric(got.median("running")-1.15*got.median("raw"), "over-1.15x-ms")
			b.ReportMetric(got.median("all-raw")/got.median("all"), "rate-ratio")
			b.ReportMetric(float64(n)*1000/got.median("all"), "starts/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func (w *world) startMany(s samples, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*waitLimit)
	defer cancel()
	poll := pollEvery
	if n > 1 {
		poll = manyPoll
	}
	ids, took := make([]string, n), make([]time.Duration, n)
	began := time.Now()
	err := each(n, func(i int) error {
		pod, t, err := w.create(ctx, devtest.CPUPod("bench", devtest.Sleeper), poll)
		ids[i], took[i] = pod.ID, t
		return err
	})
	s.add("all", time.Since(began))
	for _, t := range took {
		s.add("running", t)
	}
	return errors.Join(err, w.delete(ctx, ids...))
}

func (w *world) rawMany(s samples, n int) error {
	ctx, cancel := context.WithTimeout(w.ctx, 4*waitLimit)
	defer cancel()
	made, took := make([]rawContainer, n), make([]time.Duration, n)
	began := time.Now()
	err := each(n, func(i int) error {
		var err error
		made[i], took[i], err = w.rawStart(ctx)
		return err
	})
	s.add("all-raw", time.Since(began))
	if err != nil {
		return err
	}
	for _, t := range took {
		s.add("raw", t)
	}
	return each(n, func(i int) error { _, err := made[i].end(ctx); return err })
}

// BenchmarkAgentSustained takes turns of a few clients that start and delete, one pod after the other, and the same
// with containers through containerd's client. The goal is 0.9 of the floor.
func BenchmarkAgentSustained(b *testing.B) {
	w := newWorldOf(b, "--overcommit", roomy)
	rates := samples{}
	for range 2 {
		for name, once := range map[string]func(context.Context) error{"starts": w.oneLife, "raw": w.oneRawLife} {
			rate, err := sustain(w.ctx, once)
			if err != nil {
				b.Fatal(err)
			}
			rates[name] = append(rates[name], rate)
		}
	}
	b.ReportMetric(rates.median("starts"), "starts/s")
	b.ReportMetric(rates.median("raw"), "raw/s")
	b.ReportMetric(rates.median("starts")/rates.median("raw"), "ratio")
	b.ReportMetric(0, "ns/op")
}

// sustain repeats a life with a few clients for a while, and tells how many began each second.
func sustain(ctx context.Context, once func(context.Context) error) (float64, error) {
	var mu sync.Mutex
	lives := 0
	began := time.Now()
	err := each(sustainAt, func(int) error {
		for time.Since(began) < sustainTime {
			life, cancel := context.WithTimeout(ctx, 4*waitLimit)
			err := once(life)
			cancel()
			if err != nil {
				return err
			}
			mu.Lock()
			lives++
			mu.Unlock()
		}
		return nil
	})
	return float64(lives) / time.Since(began).Seconds(), err
}

func (w *world) oneLife(ctx context.Context) error {
	pod, _, err := w.create(ctx, devtest.CPUPod("bench", devtest.Sleeper), manyPoll)
	if err != nil {
		return err
	}
	if err := devtest.Until(waitLimit, func() error { return w.trapped(pod.ID) }); err != nil {
		return err
	}
	if err := w.api.DeletePod(ctx, pod.ID); err != nil {
		return err
	}
	return released(pod.ID)
}

func (w *world) oneRawLife(ctx context.Context) error {
	c, _, err := w.rawStart(ctx)
	if err != nil {
		return err
	}
	_, err = c.end(ctx)
	return err
}

// BenchmarkAgentLife measures a pod's later steps: stop until EXITED, start of the stopped pod until RUNNING,
// delete until the host has nothing of it, each beside what containerd's client takes for its part.
func BenchmarkAgentLife(b *testing.B) {
	w := newWorldOf(b)
	got := samples{}
	for range max(2, b.N) {
		if err := errors.Join(w.life(got), w.rawLife(got)); err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"exited", "raw-exited", "restarted", "raw-started", "released"} {
		b.ReportMetric(got.median(name), name+"-p50-ms")
	}
	b.ReportMetric(got.at("exited", 0.9), "exited-p90-ms")
	b.ReportMetric(0, "ns/op")
}

func (w *world) life(s samples) error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*waitLimit)
	defer cancel()
	pod, _, err := w.create(ctx, devtest.CPUPod("bench", devtest.Sleeper), pollEvery)
	if err != nil {
		return err
	}
	if err := devtest.Until(waitLimit, func() error { return w.trapped(pod.ID) }); err != nil {
		return err
	}
	for _, step := range []struct {
		name, action string
		want         fleet.PodStatus
	}{{"exited", string(fleet.ActionStop), fleet.StatusExited}, {"restarted", string(fleet.ActionStart), fleet.StatusRunning}} {
		began := time.Now()
		if _, err := w.api.ActPod(ctx, pod.ID, fleet.Trigger(step.action)); err != nil {
			return err
		}
		if _, err := w.reach(ctx, pod.ID, step.want, pollEvery); err != nil {
			return err
		}
		s.add(step.name, time.Since(began))
	}
	if err := devtest.Until(waitLimit, func() error { return w.trapped(pod.ID) }); err != nil {
		return err
	}
	began := time.Now()
	if err := w.api.DeletePod(ctx, pod.ID); err != nil {
		return err
	}
	if err := released(pod.ID); err != nil {
		return err
	}
	s.add("released", time.Since(began))
	return devtest.Until(waitLimit, func() error { return w.site.NothingLeft(pod.ID) })
}

func (w *world) rawLife(s samples) error {
	ctx, cancel := context.WithTimeout(w.ctx, 4*waitLimit)
	defer cancel()
	c, took, err := w.rawStart(ctx)
	if err != nil {
		return err
	}
	s.add("raw-started", took)
	took, err = c.end(ctx)
	s.add("raw-exited", took)
	return err
}
