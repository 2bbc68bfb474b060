package ctrd

import (
	"context"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"

	"gantry/agent/logs"
	"gantry/fleet"
)

// BenchmarkStart compares the start of a pod with the same container made by containerd's client in
// its usual way, in turns on one daemon. It reports medians in milliseconds.
func BenchmarkStart(b *testing.B) {
	e := setup(b)
	ref := e.local(nil)
	parts := map[string][]float64{}
	note := func(name string, since time.Time) time.Time {
		now := time.Now()
		parts[name] = append(parts[name], float64(now.Sub(since).Microseconds())/1000)
		return now
	}
	var order []string
	for range b.N {
		order = []string{"image", "define", "task", "start", "total", "raw-create", "raw-task", "raw-start", "raw-total"}
		e.ours(ref, note)
		e.raw(ref, note)
	}
	for _, name := range order {
		slices.Sort(parts[name])
		b.ReportMetric(parts[name][len(parts[name])/2], name+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) ours(ref string, note func(string, time.Time) time.Time) {
	s := b.spec(ref, "sleep 600")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	begin := time.Now()
	_, err := b.r.Image(ctx, ref)
	b.must(err)
	at := note("image", begin)
	b.must(b.r.Define(ctx, s))
	at = note("define", at)
	b.must(b.r.Task(ctx, s.Pod))
	at = note("task", at)
	_, err = b.r.Start(ctx, s.Pod)
	b.must(err)
	note("start", at)
	note("total", begin)
	b.must(b.r.Remove(ctx, s.Pod))
}

// raw starts a container with the same logger and memory limit, and otherwise the client's defaults.
func (b *bench) raw(ref string, note func(string, time.Time) time.Time) {
	ctx, cancel := context.WithTimeout(b.r.in(context.Background()), time.Minute)
	defer cancel()
	text, err := logs.LoggerURI(loggerPath, b.TempDir(), b.r.cfg.Logs)
	b.must(err)
	uri, err := url.Parse(text)
	b.must(err)
	id := fleet.NewID()
	begin := time.Now()
	img, err := b.r.client.GetImage(ctx, "docker.io/"+ref)
	b.must(err)
	c, err := b.r.client.NewContainer(ctx, id,
		client.WithNewSnapshot(id, img), client.WithRuntime(runtimeName, &options.Options{Root: b.d.RuncRoot()}),
		client.WithNewSpec(oci.WithImageConfig(img), oci.WithProcessArgs("sleep", "600"), oci.WithMemoryLimit(128e6),
			oci.WithCgroup("/"+b.r.cgroups.path(fleet.PodID(id)))))
	b.must(err)
	at := note("raw-create", begin)
	task, err := c.NewTask(ctx, cio.LogURI(uri))
	b.must(err)
	at = note("raw-task", at)
	b.must(task.Start(ctx))
	note("raw-start", at)
	note("raw-total", begin)
	ended, err := task.Wait(ctx)
	b.must(err)
	b.must(task.Kill(ctx, syscall.SIGKILL))
	<-ended
	_, err = task.Delete(ctx)
	b.must(err)
	b.must(c.Delete(ctx, client.WithSnapshotCleanup))
}
