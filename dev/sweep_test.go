package dev

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gantry/test/program"
)

// testNamespace is also the name of the control groups above those of the containers.
const testNamespace = "gantry-dev-test"

// realContainerd starts the machine's containerd the way dev does.
func realContainerd(t *testing.T, b *bench) *dev {
	t.Helper()
	path, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatalf("containerd is not installed: %v", err)
	}
	b.cfg.Binaries.Containerd = path
	if err := b.cfg.check(); err != nil {
		t.Fatal(err)
	}
	f, err := openFolder(b.cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.close() })
	d := &dev{cfg: b.cfg, folder: f, env: childEnv(os.Environ()), wake: make(chan struct{}, 1)}
	ctx := context.Background()
	if err := d.startContainerd(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.containerd.stop()
		_ = d.sweep(ctx)
	})
	if err := d.await(ctx, d.containerd, "containerd", d.containerdAnswers); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dev) ctr(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("ctr", append([]string{"--address", d.containerdSocket(), "--namespace", testNamespace}, args...)...)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestPrivateContainerdKeepsToItsFolders(t *testing.T) {
	b := newBench(t)
	d := realContainerd(t, b)
	plugins := d.ctr(t, "plugins", "ls")
	for line := range strings.Lines(plugins) {
		if fields := strings.Fields(line); strings.Contains(line, " cri ") && fields[len(fields)-1] == "ok" {
			t.Errorf("a plugin that nothing uses is on: %s", line)
		}
	}
	if !strings.Contains(plugins, "overlayfs") {
		t.Errorf("plugins:\n%s", plugins)
	}
	d.containerd.stop()
	if err := d.sweep(context.Background()); err != nil {
		t.Errorf("something was left: %v", err)
	}
	b.nothingLeft()
}

func TestSweepTakesAwayWhatIsLeft(t *testing.T) {
	b := newBench(t)
	d := realContainerd(t, b)
	root := filepath.Join(b.dir, "rootfs")
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("busybox-static is not installed: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	program.Write(t, filepath.Join(root, "bin", "busybox"), string(busybox))
	d.ctr(t, "run", "--detach", "--rootfs", "--runc-root", filepath.Join(b.dir, "runc"), root, "left-over", "/bin/busybox", "sleep", "600")
	left := shims(d.containerdSocket())
	if len(left) != 1 {
		t.Fatalf("shims: %v", left)
	}
	inside := descendants(left[0].PID)
	if _, err := os.Stat(left[0].socket); err != nil {
		t.Errorf("the shim's socket: %v", err)
	}
	d.containerd.stop()
	err = d.sweep(context.Background())
	if err == nil || !strings.Contains(err.Error(), "was left running") {
		t.Errorf("got %v", err)
	}
	if again := d.sweep(context.Background()); again != nil {
		t.Errorf("still something to take away: %v", again)
	}
	if len(inside) == 0 {
		t.Error("the container had no process")
	}
	if _, err := os.Stat(left[0].socket); err == nil {
		t.Error("the shim's socket is left")
	}
	for _, p := range append(inside, left[0].identity) {
		if p.alive() {
			t.Errorf("process %+v is left", p)
		}
	}
	if mounts, err := mountsBelow([]string{b.dir}); err != nil || len(mounts) > 0 {
		t.Errorf("mounts %q are left: %v", mounts, err)
	}
	removeCgroups(t, "left-over")
}

// removeCgroups removes the empty groups of a container whose shim was killed before it could.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, _ := filepath.Glob(filepath.Join(root, testNamespace, name))
		for _, g := range groups {
			if err := errors.Join(os.Remove(g), os.Remove(filepath.Dir(g))); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestShimWithoutContainerIsEnded(t *testing.T) {
	b := newBench(t)
	d := realContainerd(t, b)
	// How a real one comes to be forgotten cannot be staged; this one has its name, its arguments and no child.
	program := filepath.Join(b.dir, "bin", "containerd-shim-fake")
	if err := os.Symlink(filepath.Join(b.dir, "bin", "gantry-agent"), program); err != nil {
		t.Fatal(err)
	}
	forgotten := exec.Command(program, "-namespace", testNamespace, "-id", "forgotten", "-address", d.containerdSocket())
	if err := forgotten.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = forgotten.Process.Kill()
		_ = forgotten.Wait()
	})
	b.wait("the shim", func() bool { return len(shims(d.containerdSocket())) == 1 })
	left := shims(d.containerdSocket())[0]
	d.containerd.stop()
	if err := d.sweep(context.Background()); err != nil {
		t.Errorf("got %v", err)
	}
	if left.alive() || !strings.Contains(b.out.String(), "without a container") {
		t.Errorf("the shim is left, or nothing was said:\n%s", b.out)
	}
	if _, err := os.Stat(left.socket); err == nil {
		t.Error("the shim's socket is left")
	}
}

func TestMountPathsAreUnescaped(t *testing.T) {
	if got := unescapeMount(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("got %q", got)
	}
}

func TestProcessIdentity(t *testing.T) {
	me, err := identify(os.Getpid())
	if err != nil || !me.alive() {
		t.Fatalf("%+v %v", me, err)
	}
	other := me
	other.Start++
	if other.alive() {
		t.Error("another start is the same process")
	}
	if err := other.end(context.Background(), 0); err != nil {
		t.Errorf("ending a process that is gone: %v", err)
	}
	if err := other.kill(context.Background()); err != nil {
		t.Errorf("killing a process that is gone: %v", err)
	}
}
