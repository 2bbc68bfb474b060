// Package bench measures the whole of Gantry against the raw parts below it, in turns in one run.
// It prints figures and ratios and judges nothing. It needs root and the binaries in bin/.
package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	"gantry/agent/logs"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	pollEvery = 2 * time.Millisecond
	waitLimit = 30 * time.Second
	idleTime  = 10 * time.Second
)

// world is a Dev with a client of its containerd beside it.
type world struct {
	site *devtest.Site
	dev  *devtest.Dev
	api  *client.Client
	raw  *containerd.Client
	ctx  context.Context // of the raw client's namespace
}

func newWorld(b *testing.B) *world {
	b.Helper()
	return newWorldOf(b)
}

// newWorldOf is newWorld with more arguments for gantry dev.
func newWorldOf(b *testing.B, extra ...string) *world {
	b.Helper()
	w := &world{}
	var err error
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	w.site, err = devtest.NewSite()
	must(err)
	b.Cleanup(func() { must(w.site.Remove()) })
	w.dev, err = w.site.Start(filepath.Join(w.site.Dir, "dev"), extra...)
	must(err)
	b.Cleanup(func() { must(w.dev.Stop()) })
	w.api, err = w.dev.Client()
	must(err)
	b.Cleanup(w.api.Close)
	socket, err := w.dev.Argument("agent", "--containerd")
	must(err)
	w.raw, err = containerd.New(socket)
	must(err)
	b.Cleanup(func() { must(w.raw.Close()) })
	w.ctx = namespaces.WithNamespace(context.Background(), "bench")
	f, err := os.Open(w.site.Archive)
	must(err)
	defer func() { _ = f.Close() }()
	_, err = w.raw.Import(w.ctx, f)
	must(err)
	img, err := w.raw.GetImage(w.ctx, devtest.Image)
	must(err)
	must(img.Unpack(w.ctx, ""))
	return w
}

// samples collects figures in milliseconds under names.
type samples map[string][]float64

func (s samples) add(name string, d time.Duration) {
	s[name] = append(s[name], float64(d.Microseconds())/1000)
}

func (s samples) median(name string) float64 { return s.at(name, 0.5) }

func (s samples) at(name string, q float64) float64 {
	if len(s[name]) == 0 {
		return 0 // what failed has said so
	}
	slices.Sort(s[name])
	return s[name][int(q*float64(len(s[name])-1))]
}

// BenchmarkPodStart takes turns: a pod through the API, from POST until a GET says RUNNING, and the
// same container made straight through containerd's client.
func BenchmarkPodStart(b *testing.B) {
	w := newWorld(b)
	got := samples{}
	for i := range b.N + 1 { // the first turn warms up
		s := got
		if i == 0 {
			s = samples{}
		}
		if err := errors.Join(w.viaGantry(s), w.viaContainerd(s)); err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"accepted", "running", "raw", "task", "raw-task"} {
		b.ReportMetric(got.median(name), name+"-p50-ms")
	}
	b.ReportMetric(got.at("running", 0.9), "running-p90-ms")
	b.ReportMetric(got.median("running")/got.median("raw"), "ratio")
	b.ReportMetric(got.median("running")-1.25*got.median("raw"), "over-1.25x-ms")
	b.ReportMetric(0, "ns/op")
}

func (w *world) viaGantry(s samples) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	body := devtest.CPUPod("bench", devtest.Sleeper)
	began := time.Now()
	made, err := w.api.CreatePod(ctx, body)
	if err != nil {
		return err
	}
	s.add("accepted", time.Since(began))
	pod := made.Value
	for pod.Status != fleet.StatusRunning {
		time.Sleep(pollEvery) // the poll is part of what is measured
		answer, err := w.api.Pod(ctx, pod.ID)
		if err != nil {
			return err
		}
		if pod = answer.Value; pod.Status == fleet.StatusError {
			return fmt.Errorf("pod failed: %s", pod.StatusReason)
		}
	}
	s.add("running", time.Since(began))
	s.add("task", pod.Steps[fleet.StepTasked].Sub(pod.Steps[fleet.StepDefined].Time))
	if err := w.api.DeletePod(ctx, pod.ID); err != nil {
		return err
	}
	return devtest.Until(waitLimit, func() error { return w.site.NothingLeft(pod.ID) })
}

// viaContainerd makes the container as a Go program that knows containerd would, with the same
// logger, limits and seccomp profile, and without a network.
func (w *world) viaContainerd(s samples) error {
	ctx, cancel := context.WithTimeout(w.ctx, waitLimit)
	defer cancel()
	c, took, err := w.rawStart(ctx)
	if err != nil {
		return err
	}
	s.add("raw", took)
	s.add("raw-task", c.tasked)
	_, err = c.end(ctx)
	return err
}

// rawOptions is what a raw container is made from, beyond its snapshot, and where its output goes.
func (w *world) rawOptions(id string) (func(containerd.Image) containerd.NewContainerOpts, *url.URL, error) {
	dir := filepath.Join(w.site.Dir, "rawlogs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	text, err := logs.LoggerURI(w.site.Binary("gantry-logger"), dir, logs.WriterOptions{})
	if err != nil {
		return nil, nil, err
	}
	uri, err := url.Parse(text)
	return func(img containerd.Image) containerd.NewContainerOpts {
		return containerd.WithNewSpec(oci.WithImageConfig(img), oci.WithProcessArgs("sh", "-c", devtest.Sleeper), oci.WithMemoryLimit(4e9),
			oci.WithCPUCFS(200_000, 100_000), oci.WithPidsLimit(16384), oci.WithCgroup("/gantry/bench/"+id), seccomp.WithDefaultProfile())
	}, uri, err
}

// BenchmarkStop takes turns of stopping a pod whose process ends at once, from the request until a
// GET says EXITED.
func BenchmarkStop(b *testing.B) {
	w := newWorld(b)
	got := samples{}
	for range b.N {
		if err := w.stop(got); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(got.median("exited"), "exited-p50-ms")
	b.ReportMetric(got.at("exited", 0.9), "exited-p90-ms")
	b.ReportMetric(0, "ns/op")
}

func (w *world) stop(s samples) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	made, err := w.api.CreatePod(ctx, devtest.CPUPod("bench", devtest.Sleeper))
	if err != nil {
		return err
	}
	id := made.Value.ID
	reach := func(want fleet.PodStatus) error {
		for {
			answer, err := w.api.Pod(ctx, id)
			if err != nil || answer.Value.Status == want {
				return err
			}
			time.Sleep(pollEvery) // the poll is part of what is measured
		}
	}
	if err := reach(fleet.StatusRunning); err != nil {
		return err
	}
	// The shell needs a moment to set its trap; without one it would sit out the grace period.
	err = devtest.Until(waitLimit, func() error { return w.trapped(id) })
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := w.api.ActPod(ctx, id, fleet.ActionStop); err != nil {
		return err
	}
	if err := reach(fleet.StatusExited); err != nil {
		return err
	}
	s.add("exited", time.Since(began))
	if err := w.api.DeletePod(ctx, id); err != nil {
		return err
	}
	return devtest.Until(waitLimit, func() error { return w.site.NothingLeft(id) })
}

// trapped reports whether the pod's shell has started its child, which it does after the trap.
func (w *world) trapped(id string) error {
	dirs, err := filepath.Glob("/sys/fs/cgroup/pids/gantry/*/" + id + "/cgroup.procs")
	if err != nil || len(dirs) == 0 {
		if dirs, err = filepath.Glob("/sys/fs/cgroup/gantry/*/" + id + "/cgroup.procs"); err != nil {
			return err
		}
	}
	for _, path := range dirs {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(strings.Fields(string(data))) > 1 {
			return nil
		}
	}
	return errors.New("the shell has no child yet")
}

// BenchmarkIdle reads, once, what scheduler and agent use while nothing happens: resident memory, and
// processor time over ten seconds.
func BenchmarkIdle(b *testing.B) {
	w := newWorld(b)
	for _, role := range []string{"scheduler", "agent"} {
		pid, err := w.dev.PID(role)
		if err != nil {
			b.Fatal(err)
		}
		before, err := cpuTime(pid)
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(idleTime) // idling is what is measured
		after, err := cpuTime(pid)
		if err != nil {
			b.Fatal(err)
		}
		rss, err := resident(pid)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(rss, role+"-RSS-MB")
		b.ReportMetric(100*float64(after-before)/float64(idleTime), role+"-CPU-%")
	}
	b.ReportMetric(0, "ns/op")
}

// cpuTime reads a process's processor time (proc(5), /proc/pid/stat, fields 14 and 15).
func cpuTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("stat: too few fields")
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// resident reads a process's resident memory in MB of 10^6 bytes.
func resident(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(text)[0])
			return float64(kb) * 1024 / 1e6, err
		}
	}
	return 0, errors.New("status: no VmRSS")
}
