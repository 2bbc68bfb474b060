package hostile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"gantry/agent/ctrd"
	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/logs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/userns"
	"gantry/storage/disk"
)

// base is the first of the ids that the containers of these tests have on the host.
const base = 0x30000000

var programs struct{ logger, attacker string }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gh")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		programs.logger, programs.attacker = filepath.Join(dir, "gantry-logger"), filepath.Join(dir, "attacker")
		for path, pkg := range map[string]string{programs.logger: "gantry/cmd/gantry-logger", programs.attacker: "gantry/test/hostile/attacker"} {
			cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, pkg)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// host is a machine that runs pods: a private containerd, and disks of a few GB.
type host struct {
	testing.TB
	ctx   context.Context
	d     *ctrdtest.Daemon
	r     *ctrd.Runtime
	disks *disk.Pool
	dir   string
	pods  int
}

func newHost(tb testing.TB) *host {
	tb.Helper()
	d := ctrdtest.StartDaemon(tb)
	dir, err := os.MkdirTemp("", "gd")
	must(tb, err)
	h := &host{TB: tb, d: d, dir: dir}
	log := slog.New(slog.NewTextHandler(tb.Output(), nil))
	h.disks, err = disk.Open(disk.Config{Dir: filepath.Join(dir, "disks"), Mechanism: "loop", Log: log})
	must(tb, err)
	h.r, err = ctrd.New(ctrd.Config{
		Socket: d.Socket, Namespace: "hostile", LoggerPath: programs.logger, RuncRoot: d.RuncRoot(),
		CgroupRoot: "gantry-hostile-" + filepath.Base(d.Dir), RootDir: filepath.Join(dir, "roots"), RunDir: filepath.Join(dir, "run"),
		Disks: h.disks, Logs: logs.WriterOptions{MaxBytes: 1 << 20, Keep: 2}, MaxImageBytes: 64 << 20, Log: log,
	})
	must(tb, err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	h.ctx = ctx
	tb.Cleanup(func() {
		defer cancel()
		tb.Helper()
		if err := ctrdtest.Eventually(time.Minute, func() error { return h.r.Clean(ctx, true) }); err != nil {
			tb.Errorf("clean: %v", err)
		}
		if err := h.r.Close(); err != nil {
			tb.Error(err)
		}
		h.census()
		must(tb, os.RemoveAll(dir))
	})
	return h
}

// census checks that nothing of the host is left: no mount, no loop device.
func (h *host) census() {
	h.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(h, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, h.dir+"/") {
			h.Errorf("left: mount %s", strings.TrimSpace(line))
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	must(h, err)
	for _, f := range files {
		if back, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(back), h.dir+"/") {
			h.Errorf("left: %s of %s", f, strings.TrimSpace(string(back)))
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// load gives the host an image, and returns its digest; the error is what the host says of it.
func (h *host) load(ref string, img v1.Image) (string, error) {
	h.Helper()
	path := filepath.Join(h.TempDir(), "image.tar")
	ctrdtest.WriteDockerArchive(h, path, map[string]v1.Image{ref: img})
	f, err := os.Open(path)
	must(h, err)
	defer func() { _ = f.Close() }()
	if _, err := h.r.Import(h.ctx, f); err != nil {
		return "", err
	}
	return h.r.Image(h.ctx, ref)
}

func (h *host) mustLoad(ref string, img v1.Image) string {
	h.Helper()
	digest, err := h.load(ref, img)
	must(h, err)
	return digest
}

// spec is a pod of an image in user and network namespaces of its own, as the agent makes them.
func (h *host) spec(digest string, cmd ...string) pod.ContainerSpec {
	h.Helper()
	h.pods++
	id := fleet.PodID(fleet.NewID())
	first := uint32(base + h.pods*userns.Size)
	held, err := userns.New(first, unix.CLONE_NEWNET)
	must(h, err)
	netns := filepath.Join(h.dir, "net-"+string(id))
	must(h, userns.Pin(held.Net, netns))
	held.Close()
	h.Cleanup(func() { must(h, userns.Unpin(netns)) })
	return pod.ContainerSpec{
		Pod: id, Account: "a1", Incarnation: 1, Image: "hostile", Digest: digest, Args: args(h, cmd...), Hostname: "hostile", NetNS: netns,
		LogDir: h.TempDir(), Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 256}, DiskGB: 1, PIDs: 256, ShmMB: 16, IDBase: first,
	}
}

// args is a command as a pod's args name it.
func args(tb testing.TB, cmd ...string) string {
	tb.Helper()
	text, err := json.Marshal(map[string][]string{"cmd": cmd})
	must(tb, err)
	return string(text)
}

// start runs a pod; the error is the first that the host met.
func (h *host) start(s pod.ContainerSpec) error {
	h.Helper()
	if err := h.r.Define(h.ctx, s); err != nil {
		return err
	}
	if err := h.r.Task(h.ctx, s.Pod); err != nil {
		return err
	}
	_, err := h.r.Start(h.ctx, s.Pod)
	return err
}

// run runs a pod to its end and returns what it wrote and how it ended. It is removed.
func (h *host) run(s pod.ContainerSpec) (string, pod.Container) {
	h.Helper()
	must(h, h.start(s))
	must(h, h.r.Wait(h.ctx, s.Pod))
	c, err := h.r.Look(h.ctx, s.Pod)
	must(h, err)
	h.remove(s)
	return h.written(s), c
}

func (h *host) remove(s pod.ContainerSpec) {
	h.Helper()
	must(h, h.r.Remove(h.ctx, s.Pod))
}

// written is the pod's log until now.
func (h *host) written(s pod.ContainerSpec) string {
	h.Helper()
	text, err := os.ReadFile(filepath.Join(s.LogDir, "container.log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Fatal(err)
	}
	return string(text)
}

// wait returns what the pod has written once it holds want.
func (h *host) wait(s pod.ContainerSpec, want string) string {
	h.Helper()
	text := ""
	err := ctrdtest.Eventually(time.Minute, func() error {
		if text = h.written(s); !strings.Contains(text, want) {
			return fmt.Errorf("the pod has not written %q but %q", want, text)
		}
		return nil
	})
	must(h, err)
	return text
}

// other runs a small pod beside an attack: the host must still be of use to it.
func (h *host) other() {
	h.Helper()
	digest, err := h.r.Image(h.ctx, "example/plain:1")
	must(h, err)
	if digest == "" {
		digest = h.mustLoad("example/plain:1", ctrdtest.BusyboxImage(h, nil))
	}
	began := time.Now()
	text, c := h.run(h.spec(digest, "echo", "fine"))
	if c.ExitCode != 0 || !strings.Contains(text, "fine") {
		h.Errorf("a pod beside the attack ended with %+v and wrote %q", c, text)
	}
	if took := time.Since(began); took > 2*time.Minute {
		h.Errorf("a pod beside the attack took %v", took)
	}
}

// entry is a file of a layer.
type entry struct {
	tar.Header
	body string
}

// image is busybox with layers on top, each a list of entries, and the attacker in /evil.
func image(tb testing.TB, change func(*v1.Config), layers ...[]entry) v1.Image {
	tb.Helper()
	attacker, err := os.ReadFile(programs.attacker)
	must(tb, err)
	img := ctrdtest.BusyboxImage(tb, change)
	layers = slices.Insert(layers, 0, []entry{
		{Header: tar.Header{Typeflag: tar.TypeDir, Name: "evil/", Mode: 0o755}},
		{Header: tar.Header{Typeflag: tar.TypeDir, Name: "mnt/", Mode: 0o777}},
		{Header: tar.Header{Typeflag: tar.TypeReg, Name: "evil/attacker", Mode: 0o755}, body: string(attacker)},
	})
	for _, entries := range layers {
		img, err = mutate.AppendLayers(img, layer(tb, entries))
		must(tb, err)
	}
	return img
}

func layer(tb testing.TB, entries []entry) v1.Layer {
	tb.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, e := range entries {
		e.Size = int64(len(e.body))
		must(tb, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.body)
		must(tb, err)
	}
	must(tb, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestSpeed))
	must(tb, err)
	return l
}
