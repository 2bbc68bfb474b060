package ctrd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.uber.org/goleak"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

var loggerPath string

func TestMain(m *testing.M) {
	if os.Getenv("GANTRY_GUEST") != "" { // there are no daemons there
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gl")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		loggerPath = filepath.Join(dir, "gantry-logger")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", loggerPath, "gantry/cmd/gantry-logger")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the logger: %v\n%s", err, out)
			return 1
		}
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// bench is a Runtime on a private daemon.
type bench struct {
	testing.TB
	d   *ctrdtest.Daemon
	r   *Runtime
	ctx context.Context
}

// config of a Runtime on a daemon, with a control group root of its own.
func config(tb testing.TB, d *ctrdtest.Daemon) Config {
	return Config{
		Socket: d.Socket, Namespace: "test", LoggerPath: loggerPath, RuncRoot: d.RuncRoot(),
		RootDir: filepath.Join(d.Dir, "roots"), RunDir: filepath.Join(d.Dir, "run"),
		CgroupRoot: "gantry-test-" + filepath.Base(d.Dir), AllowLoopbackRegistries: true,
		Log: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
}

func setup(tb testing.TB, change ...func(*Config)) *bench {
	tb.Helper()
	d := ctrdtest.StartDaemon(tb)
	cfg := config(tb, d)
	for _, f := range change {
		f(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	b := &bench{TB: tb, d: d, r: r, ctx: ctx}
	tb.Cleanup(func() {
		defer cancel()
		b.census()
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// census cleans up and checks that nothing is left in the daemon.
func (b *bench) census() {
	b.Helper()
	b.d.Start()
	var err error
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := ctrdtest.Eventually(time.Minute, func() error { return b.r.Clean(ctx, true) }); err != nil {
		b.Errorf("clean: %v", err)
	}
	nctx := b.r.in(ctx)
	var left []string
	err = ctrdtest.Eventually(time.Minute, func() error {
		left = nil
		cs, err1 := b.r.client.ContainerService().List(nctx)
		for _, c := range cs {
			left = append(left, "container "+c.ID)
		}
		ts, err2 := b.r.client.TaskService().List(nctx, &tasks.ListTasksRequest{})
		for _, p := range ts.GetTasks() {
			left = append(left, "task "+p.ID)
		}
		err3 := b.r.snapshots().Walk(nctx, func(_ context.Context, i snapshots.Info) error {
			left = append(left, "snapshot "+i.Name)
			return nil
		})
		ls, err4 := b.r.client.LeasesService().List(nctx)
		for _, l := range ls {
			left = append(left, "lease "+l.ID)
		}
		err5 := b.r.client.ContentStore().Walk(nctx, func(i content.Info) error {
			left = append(left, "blob "+i.Digest.String())
			return nil
		})
		if len(left) > 0 {
			return errors.New("left over")
		}
		return errors.Join(err1, err2, err3, err4, err5)
	})
	if err != nil {
		b.Errorf("census: %v: %v", err, left)
	}
	if err := ctrdtest.Eventually(time.Minute, noLogger); err != nil {
		b.Error(err)
	}
	for _, h := range b.r.cgroups.hierarchies() {
		if _, err := os.Stat(filepath.Join(h, b.r.cfg.CgroupRoot)); err == nil {
			b.Errorf("control group left in %s", h)
		}
	}
	if _, err := os.Stat(b.r.runcState()); err == nil {
		b.Errorf("runc's state is left in %s", b.r.runcState())
	}
}

// noLogger returns an error while a logger runs.
func noLogger() error {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	for _, l := range links {
		if exe, _ := os.Readlink(l); exe == loggerPath {
			return fmt.Errorf("logger %s runs", filepath.Base(filepath.Dir(l)))
		}
	}
	return err
}

// local imports a busybox image and returns its reference.
func (b *bench) local(change func(*v1.Config)) string {
	b.Helper()
	const ref = "example/busybox:1"
	path := filepath.Join(b.TempDir(), "image.tar")
	ctrdtest.WriteDockerArchive(b, path, map[string]v1.Image{ref: ctrdtest.BusyboxImage(b, change)})
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := b.r.Import(b.ctx, f); err != nil {
		b.Fatal(err)
	}
	if d, err := b.r.Image(b.ctx, ref); err != nil || d == "" {
		b.Fatalf("imported image: %q, %v", d, err)
	}
	return ref
}

// spec of a new pod, with the image that the reference's record names, whoever pulled it.
func (b *bench) spec(image, args string) pod.ContainerSpec {
	b.Helper()
	name, err := normalize(image)
	if err != nil {
		b.Fatal(err)
	}
	record, err := b.r.client.ImageService().Get(b.r.in(b.ctx), name)
	if err != nil && !errdefs.IsNotFound(err) {
		b.Fatal(err)
	}
	return pod.ContainerSpec{
		Pod: fleet.PodID(fleet.NewID()), Account: "a1", Incarnation: 1, Image: image, Digest: record.Target.Digest.String(), Args: args,
		Hostname: "testpod", LogDir: b.TempDir(), Limits: fleet.Resources{MilliCPU: 500, MemoryMB: 128}, PIDs: 64, ShmMB: 16,
	}
}

// start defines and starts a pod.
func (b *bench) start(s pod.ContainerSpec) {
	b.Helper()
	if err := b.r.Define(b.ctx, s); err != nil {
		b.Fatalf("define: %v", err)
	}
	if err := b.r.Task(b.ctx, s.Pod); err != nil {
		b.Fatalf("task: %v", err)
	}
	at, err := b.r.Start(b.ctx, s.Pod)
	if err != nil {
		b.Fatalf("start: %v", err)
	}
	if time.Since(at).Abs() > 10*time.Second {
		b.Fatalf("started at %v", at)
	}
}

func (b *bench) look(id fleet.PodID) pod.Container {
	b.Helper()
	c, err := b.r.Look(b.ctx, id)
	if err != nil {
		b.Fatalf("look: %v", err)
	}
	return c
}

// finish waits for the process's end.
func (b *bench) finish(id fleet.PodID) pod.Container {
	b.Helper()
	if err := b.r.Wait(b.ctx, id); err != nil {
		b.Fatalf("wait: %v", err)
	}
	c := b.look(id)
	if c.Task != pod.TaskStopped || c.ExitedAt.IsZero() || c.Lost {
		b.Fatalf("after the end: %+v", c)
	}
	return c
}

func (b *bench) remove(id fleet.PodID) {
	b.Helper()
	if err := b.r.Remove(b.ctx, id); err != nil {
		b.Fatalf("remove: %v", err)
	}
	if c := b.look(id); c.Exists {
		b.Fatalf("after remove: %+v", c)
	}
	err := ctrdtest.Eventually(time.Minute, func() error {
		if left := b.held(id); len(left) > 0 {
			return fmt.Errorf("left after remove: %v", left)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// log returns what the container has written, once it holds want.
func (b *bench) log(s pod.ContainerSpec, want string) string {
	b.Helper()
	var text []byte
	err := ctrdtest.Eventually(time.Minute, func() error {
		text, _ = os.ReadFile(filepath.Join(s.LogDir, "container.log"))
		if !strings.Contains(string(text), want) {
			return fmt.Errorf("%q is not in the log", want)
		}
		return nil
	})
	if err != nil {
		b.Fatalf("%v:\n%s", err, text)
	}
	return string(text)
}

// wantFault checks class and sentence of an error.
func wantFault(tb testing.TB, err error, class pod.Class, sentence string) {
	tb.Helper()
	var e *pod.Error
	if !errors.As(err, &e) {
		tb.Fatalf("error %v (%T), want a *pod.Error", err, err)
	}
	if e.Class != class || !strings.Contains(e.Sentence, sentence) {
		tb.Fatalf("class %v, sentence %q, cause %v; want class %v, sentence with %q", e.Class, e.Sentence, e.Err, class, sentence)
	}
}

// registryServer serves images on loopback, through a fault when one is set.
type registryServer struct {
	host string
	bad  atomic.Pointer[badAnswer]
	hits func(r *http.Request)
}

// badAnswer answers instead of the registry.
type badAnswer func(w http.ResponseWriter, r *http.Request, next http.Handler)

// setFault puts a fault before the registry; nil takes it away.
func (s *registryServer) setFault(f badAnswer) { s.bad.Store(&f) }

func newRegistryServer(tb testing.TB) *registryServer {
	s := &registryServer{}
	next := registry.New(registry.Logger(nopLog()))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.hits != nil {
			s.hits(r)
		}
		if f := s.bad.Load(); f != nil && *f != nil {
			(*f)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}))
	tb.Cleanup(srv.Close)
	s.host = strings.TrimPrefix(srv.URL, "http://")
	return s
}

func (s *registryServer) push(tb testing.TB, path string, img v1.Image) string {
	tb.Helper()
	ref, err := name.ParseReference(s.host + "/" + path)
	if err != nil {
		tb.Fatal(err)
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	if err := remote.Write(ref, img, remote.WithTransport(tr)); err != nil {
		tb.Fatal(err)
	}
	return ref.String()
}

func (s *registryServer) pushIndex(tb testing.TB, path string, index v1.ImageIndex) string {
	tb.Helper()
	ref, err := name.ParseReference(s.host + "/" + path)
	if err != nil {
		tb.Fatal(err)
	}
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	if err := remote.WriteIndex(ref, index, remote.WithTransport(tr)); err != nil {
		tb.Fatal(err)
	}
	return ref.String()
}
