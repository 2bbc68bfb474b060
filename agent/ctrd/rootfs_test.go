package ctrd

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/userns"
	"gantry/storage/disk"
)

// layer packs files, by their names.
func layer(t *testing.T, files map[string]tar.Header, bodies map[string]string) v1.Layer {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for name, h := range files {
		h.Name, h.Size = name, int64(len(bodies[name]))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, bodies[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lower returns the folders of a pod's image on the host.
func (b *bench) lower(id fleet.PodID) []string {
	b.Helper()
	view, err := b.r.snapshots().Mounts(b.r.in(b.ctx), string(id))
	b.must(err)
	out, err := lowerFolders(view)
	b.must(err)
	return out
}

// upper is the folder of what a container has changed.
func (b *bench) upper(id fleet.PodID) string {
	return filepath.Join(b.r.cfg.RootDir, ".disks", string(id), "upper")
}

// rootTraces lists what is mounted or stored of roots.
func (b *bench) rootTraces() []string {
	b.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	b.must(err)
	var out []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && (strings.HasPrefix(f[4], b.r.cfg.RootDir+"/") || strings.HasPrefix(f[4], b.r.cfg.RunDir+"/")) {
			out = append(out, "mount "+f[4])
		}
	}
	ids, err := b.r.rooted()
	b.must(err)
	for _, id := range ids {
		out = append(out, "root "+string(id))
	}
	for _, name := range entries(filepath.Join(b.r.cfg.RunDir, lowerFolder)) {
		out = append(out, "layers "+name)
	}
	return out
}

func (b *bench) noTraces() {
	b.Helper()
	if left := b.rootTraces(); len(left) > 0 {
		b.Errorf("left: %v", left)
	}
}

// ways runs a test once for each way in which the kernel takes an overlay's folders.
func (b *bench) ways(t *testing.T, f func(t *testing.T)) {
	for name, old := range map[string]bool{"open folders": false, "named folders": true} {
		t.Run(name, func(t *testing.T) {
			b.r.oldKernel.Store(old)
			f(t)
			if b.r.oldKernel.Load() != old {
				t.Error("this kernel takes no open folders")
			}
			b.noTraces()
		})
	}
}

func TestRootIsAnOverlayOfOurs(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	b.ways(t, func(t *testing.T) {
		s := b.spec(ref, `sh -c "test -e /made && echo kept; echo x > /made; echo y > /www/index.html; grep ' / ' /proc/self/mountinfo; sleep 600"`)
		for round := range 2 {
			s.LogDir = t.TempDir()
			b.start(s)
			line := b.log(s, " - overlay ")
			if strings.Contains(line, "kept") {
				t.Error("what a container wrote outlives it")
			}
			if strings.Contains(line, "shared:") || !strings.Contains(line, "nodev") || !strings.Contains(line, "nosuid") {
				t.Errorf("root: %s", line)
			}
			for _, name := range []string{"made", "www/index.html"} {
				if _, err := os.Stat(filepath.Join(b.upper(s.Pod), name)); err != nil {
					t.Error(err)
				}
			}
			if text, err := os.ReadFile(filepath.Join(b.lower(s.Pod)[0], "www/index.html")); err != nil || string(text) != "hello\n" {
				t.Errorf("round %d: the image has %q, %v", round, text, err)
			}
			b.remove(s.Pod)
		}
	})
}

// TestOverlayOfManyLayers has as many as images may have, in folders whose names are together longer
// than the kernel takes for one mount.
func TestOverlayOfManyLayers(t *testing.T) {
	top := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{top}, names...)...) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const layers = 127
	var o overlay
	for i := range layers {
		name := strconv.Itoa(layers - i)
		dir := at("snapshots", strings.Repeat("long", 20), name, "fs")
		must(os.MkdirAll(dir, 0o755))
		must(os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		must(os.WriteFile(filepath.Join(dir, "top"), []byte(name), 0o644))
		o.lower = append(o.lower, dir)
	}
	held, err := userns.New(testBase, 0)
	must(err)
	defer held.Close()
	must(os.MkdirAll(at("run", lowerFolder), 0o700))
	for i, users := range []*os.File{nil, held.User, nil, held.User} {
		r := &Runtime{cfg: Config{RunDir: at("run")}}
		r.oldKernel.Store(i >= 2)
		o.users, o.target, o.upper, o.work = users, at("root"), at("upper"), at("work")
		for _, dir := range []string{o.target, o.upper, o.work} {
			must(os.RemoveAll(dir))
			must(os.Mkdir(dir, 0o755))
		}
		must(r.mountOverlay(o))
		text, err := os.ReadFile(at("root", "top"))
		if err != nil || string(text) != strconv.Itoa(layers) || len(entries(o.target)) != layers+1 {
			t.Errorf("%q, %v, %d entries", text, err, len(entries(o.target)))
		}
		if uid := ownerOf(t, at("root", "1")); (uid != 0) != (users != nil) {
			t.Errorf("a file is of %d", uid)
		}
		must(unmountAll(o.target))
		if left := entries(at("run", lowerFolder)); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestAgentDiesWithinDefine(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for _, base := range []uint32{0, testBase} {
		s := b.spec(ref, "sleep 600")
		b.give(&s, base)
		b.halfDefine(s)
		next := b.agent()
		c, err := next.Look(b.ctx, s.Pod)
		if err != nil || !c.Exists || c.Incarnation != 0 {
			t.Errorf("a root without a record: %+v, %v", c, err)
		}
		if ids, err := next.List(b.ctx); err != nil || !slices.Contains(ids, s.Pod) {
			t.Errorf("list: %v, %v", ids, err)
		}
		b.start(s) // over what is left
		b.remove(s.Pod)
		b.halfDefine(s)
		b.must(next.Remove(b.ctx, s.Pod))
		b.noTraces()
		b.halfDefine(s)
		b.must(os.Mkdir(filepath.Join(b.r.cfg.RunDir, volumeFolder, "other"), 0o700))
		b.must(next.Clean(b.ctx, false))
		b.noTraces()
		b.must(b.r.Define(b.ctx, s))
		b.r.forget(s.Pod)
		b.must(next.Task(b.ctx, s.Pod)) // the next agent goes on from there
		_, err = next.Start(b.ctx, s.Pod)
		b.must(err)
		b.remove(s.Pod)
		b.must(next.Close())
	}
	b.noTraces()
}

// halfDefine does what Define does until the record.
func (b *bench) halfDefine(s pod.ContainerSpec) {
	b.Helper()
	ctx := b.r.in(b.ctx)
	name, err := normalize(s.Image)
	b.must(err)
	found, err := b.r.client.ImageService().Get(ctx, name)
	b.must(err)
	img, err := b.r.describe(ctx, found.Target.Digest)
	b.must(err)
	p, err := b.r.plan(s, img)
	b.must(err)
	defer p.close()
	b.must(b.r.makeRoot(ctx, p))
}

func TestLayersThatADeadAgentLeftAreUnmounted(t *testing.T) {
	b := setup(t)
	dir := filepath.Join(b.r.cfg.RunDir, lowerFolder, "1")
	b.must(os.Mkdir(dir, 0o700))
	for range 2 {
		b.must(unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	b.must(b.agent().Close())
	b.noTraces()
}

func TestRootThatIsGoneIsMadeAgain(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	for name, lose := range map[string]func(){
		"reboot": func() { b.must(unmountAll(b.r.rootDir(s.Pod))) },
		"older version": func() {
			b.must(b.r.dropRoot(b.r.in(b.ctx), s.Pod))
			_, err := b.r.snapshots().Prepare(b.r.in(b.ctx), string(s.Pod), "")
			b.must(err)
		},
	} {
		b.must(b.r.Define(b.ctx, s))
		b.r.forget(s.Pod)
		lose()
		wantFault(t, b.r.Task(b.ctx, s.Pod), pod.Retry, "is made again")
		if c := b.look(s.Pod); c.Exists {
			t.Fatalf("%s: %+v", name, c)
		}
		b.start(s)
		b.remove(s.Pod)
	}
}

func TestRootThatIsStillReadIsRemoved(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	b.start(s)
	f, err := os.Open(filepath.Join(b.r.rootDir(s.Pod), "www/index.html"))
	b.must(err)
	defer f.Close()
	b.remove(s.Pod)
	b.noTraces()
	if text, err := io.ReadAll(f); err != nil || string(text) != "hello\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// heldDisks are disks that are looked at when one is removed.
type heldDisks struct {
	plainDisks
	removed func(name string)
}

func (d heldDisks) Remove(ctx context.Context, name string) error {
	d.removed(name)
	return d.plainDisks.Remove(ctx, name)
}

// TestRootThatAnotherMountNamespaceCopied: a program that was started in a mount namespace of its own while the
// container ran has a copy of the root's mount. It goes before the disk does, which would be in use for ever.
func TestRootThatAnotherMountNamespaceCopied(t *testing.T) {
	held := ""
	var other *exec.Cmd
	b := setup(t, func(c *Config) {
		c.Disks = heldDisks{plainDisks{filepath.Join(c.RootDir, ".disks")}, func(name string) {
			if other == nil {
				return
			}
			text, err := os.ReadFile("/proc/" + strconv.Itoa(other.Process.Pid) + "/mountinfo")
			if err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, name) && strings.Contains(line, " - overlay ") {
					held += line
				}
			}
		}}
	})
	s := b.spec(b.local(nil), "sleep 600")
	b.start(s)
	cmd := exec.Command("unshare", "-m", "sh", "-c", "echo ready; read line")
	in, err := cmd.StdinPipe()
	b.must(err)
	out, err := cmd.StdoutPipe()
	b.must(err)
	b.must(cmd.Start())
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	b.must(err)
	other = cmd
	b.remove(s.Pod)
	other = nil
	b.must(in.Close())
	_ = cmd.Wait() // it read nothing
	if held != "" {
		t.Errorf("still held: %s", held)
	}
}

// TestSnapshotOfADeadDaemonIsNotInTheWay: a daemon that is killed at the wrong moment leaves a folder with the number
// of the next snapshot.
func TestSnapshotOfADeadDaemonIsNotInTheWay(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "true")
	roots, err := b.r.folders(b.r.in(b.ctx))
	b.must(err)
	made := 0
	for _, root := range roots {
		if !strings.HasSuffix(root, "overlayfs") {
			continue
		}
		for n := range 20 {
			if os.Mkdir(filepath.Join(root, "snapshots", strconv.Itoa(n)), 0o700) == nil {
				b.must(os.Mkdir(filepath.Join(root, "snapshots", strconv.Itoa(n), "fs"), 0o700))
				made++
			}
		}
	}
	if made == 0 {
		t.Fatalf("no snapshots below %v", roots)
	}
	b.must(b.r.Define(b.ctx, s))
	b.remove(s.Pod)
}

func TestCleanLeavesNoFolderOfTheBoot(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	b.give(&s, testBase)
	for range 2 { // it goes on after that
		b.start(s)
		b.must(b.r.Clean(b.ctx, false))
		if _, err := os.Lstat(b.r.cfg.RunDir); !os.IsNotExist(err) {
			t.Errorf("left: %v, %v", entries(b.r.cfg.RunDir), err)
		}
	}
}

func TestDiskOfTheContainerIsLimited(t *testing.T) {
	dir, err := os.MkdirTemp("", "gd")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := disk.Open(disk.Config{Dir: filepath.Join(dir, "disks"), Mechanism: disk.Loop})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := setup(t, func(c *Config) { c.Disks = pool })
	s := b.spec(b.local(nil), `sh -c "fallocate -l 950000000 /big && echo fits; dd if=/dev/zero of=/more bs=1M count=400; ls -l /more; rm /big; echo there-is-room; sleep 600"`)
	s.DiskGB = 1
	for _, base := range []uint32{0, testBase} {
		s.LogDir = t.TempDir()
		b.give(&s, base)
		b.start(s)
		text := b.log(s, "there-is-room")
		for _, want := range []string{"stdout F fits", "No space left on device"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
		u, err := b.r.Usage(b.ctx, s.Pod)
		if err != nil || u.Disk < 10e6 || u.DiskSize < 1e9 {
			t.Errorf("usage %+v, %v", u, err)
		}
		b.remove(s.Pod)
		if names, err := pool.Names(); err != nil || len(names) > 0 {
			t.Errorf("disks %v, %v", names, err)
		}
	}
}

func TestDevicesAreGivenByBinding(t *testing.T) {
	b := setup(t)
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil), layer(t, map[string]tar.Header{
		"node": {Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 10, Devminor: 229},
	}, nil))
	b.must(err)
	b.load("example/node:1", img)
	node, driver := filepath.Join(t.TempDir(), "node"), filepath.Join(t.TempDir(), "libcuda.so.1.2")
	b.must(unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))))
	b.must(os.Chmod(node, 0o666))
	b.must(os.WriteFile(driver, []byte("driver\n"), 0o755))
	s := b.spec("example/node:1", `sh -c "true < /dev/nvidia0 && echo got-device; true < /node || echo node-refused; cat /usr/local/nvidia/lib64/libcuda.so.1;
		echo x > /usr/local/nvidia/lib64/libcuda.so.1 || echo read-only; env; echo end-of-test"`)
	s.Env = map[string]string{"NVIDIA_DRIVER_CAPABILITIES": "all", "LD_LIBRARY_PATH": "/own"}
	s.Devices = pod.Devices{
		Nodes: []pod.DeviceNode{{Host: node, Path: "/dev/nvidia0", Major: 10, Minor: 229}},
		Files: []pod.Mount{{Source: driver, Target: "/usr/local/nvidia/lib64/libcuda.so.1"}},
		Env:   []string{"NVIDIA_VISIBLE_DEVICES=void", "PATH=/usr/local/nvidia/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"},
	}
	s.CPUs = "0"
	for _, base := range []uint32{0, testBase} {
		s.LogDir = t.TempDir()
		b.give(&s, base)
		b.start(s)
		b.finish(s.Pod)
		text := b.log(s, "end-of-test")
		for _, want := range []string{
			"got-device", "node-refused", "stdout F driver", "read-only", "NVIDIA_VISIBLE_DEVICES=void",
			"F PATH=/usr/local/nvidia/bin:/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/own",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("base %d: no %q in %s", base, want, text)
			}
		}
		if strings.Contains(text, "NVIDIA_DRIVER") {
			t.Errorf("base %d: the owner asked for a device: %s", base, text)
		}
		b.remove(s.Pod)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(driver, &st); err != nil || st.Uid != 0 {
		t.Errorf("driver %+v, %v", st, err)
	}
}
