package ctrd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// disown makes the daemon forget a running pod: its bundle is not where a new daemon looks, its
// container's record is deleted.
func (b *bench) disown(id fleet.PodID) {
	b.Helper()
	b.d.Kill()
	bundle := filepath.Join(b.d.Dir, "state", bundleOwner, b.r.cfg.Namespace, string(id))
	aside := filepath.Join(b.d.Dir, "aside")
	b.must(os.Rename(bundle, aside))
	b.d.Start()
	err := ctrdtest.Eventually(time.Minute, func() error {
		err := b.r.client.ContainerService().Delete(b.r.in(b.ctx), string(id))
		return err
	})
	b.must(err)
	b.must(os.Rename(aside, bundle))
}

func TestForgottenShimIsFoundAndEnded(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for name, end := range map[string]func(*Runtime, fleet.PodID) error{
		"remove": func(r *Runtime, id fleet.PodID) error { return r.Remove(b.ctx, id) },
		"clean":  func(r *Runtime, _ fleet.PodID) error { return r.Clean(b.ctx, false) },
	} {
		t.Run(name, func(t *testing.T) {
			s := b.spec(ref, `sh -c "trap '' TERM; sleep 600 & sleep 600"`)
			b.start(s)
			pid := b.look(s.Pod).PID
			b.disown(s.Pod)
			if err := alive(pid); err == nil {
				t.Fatal("the process did not outlive its record")
			}
			next := b.agent()
			defer next.Close()
			c, err := next.Look(b.ctx, s.Pod)
			if err != nil || !c.Exists || c.Incarnation != 0 {
				t.Errorf("look: %+v, %v", c, err)
			}
			if ids, err := next.List(b.ctx); err != nil || !slices.Contains(ids, s.Pod) {
				t.Errorf("list: %v, %v", ids, err)
			}
			if err := end(next, s.Pod); err != nil {
				t.Fatal(err)
			}
			if err := alive(pid); err != nil {
				t.Error(err)
			}
			if c, err := next.Look(b.ctx, s.Pod); err != nil || c.Exists {
				t.Errorf("afterwards: %+v, %v", c, err)
			}
			b.start(s) // nothing stands in the way of the same name
			b.remove(s.Pod)
		})
	}
}

// impostor runs a process whose command line is a shim's.
func (b *bench) impostor(namespace, id, address string) *exec.Cmd {
	b.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Args = []string{"/opt/containerd-shim-runc-v2", "-c", "read forever", "sh", "-namespace", namespace, "-id", id, "-address", address}
	in, err := cmd.StdinPipe()
	b.must(err)
	b.must(cmd.Start())
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestOnlyOurOwnShimsAreTouched(t *testing.T) {
	b := setup(t)
	id := fleet.PodID(fleet.NewID())
	ours := b.impostor(b.r.cfg.Namespace, string(id), b.d.Socket)
	var others []*exec.Cmd
	other := fleet.PodID(fleet.NewID())
	for _, c := range [][3]string{
		{b.r.cfg.Namespace + "2", string(id), b.d.Socket},
		{b.r.cfg.Namespace, string(id) + "2", b.d.Socket + "2"},
		{b.r.cfg.Namespace, string(other), filepath.Join(b.d.Dir, "other.sock")},
	} {
		others = append(others, b.impostor(c[0], c[1], c[2]))
	}
	err := ctrdtest.Eventually(time.Minute, func() error {
		all, err := b.r.shims()
		seen := map[int]bool{}
		for _, s := range all {
			seen[s.pid] = true
		}
		if err != nil || !seen[ours.Process.Pid] || seen[others[0].Process.Pid] || !seen[others[1].Process.Pid] || !seen[others[2].Process.Pid] {
			return errors.Join(fmt.Errorf("not all shims are seen, or too many: %v", seen), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []fleet.PodID{id, other} {
		if err := b.r.Remove(b.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.r.Clean(b.ctx, false); err != nil {
		t.Fatal(err)
	}
	if err := alive(ours.Process.Pid); err != nil {
		t.Error(err)
	}
	for i, c := range others {
		if alive(c.Process.Pid) == nil {
			t.Errorf("shim %d of somebody else was ended", i)
		}
	}
}

func TestBundleOfADeadDaemonIsNotInTheWay(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	b.must(b.r.Define(b.ctx, s))
	bundle := filepath.Join(b.d.Dir, "state", bundleOwner, b.r.cfg.Namespace, string(s.Pod))
	for _, dir := range []string{bundle, hidden(bundle)} {
		b.must(os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711))
		b.must(os.WriteFile(filepath.Join(dir, "address"), nil, 0o600))
	}
	wantFault(t, b.r.Task(b.ctx, s.Pod), pod.Retry, "could not create the process")
	b.must(b.r.Task(b.ctx, s.Pod))
	b.remove(s.Pod)
	if _, err := os.Lstat(hidden(bundle)); err == nil {
		t.Error("the hidden bundle is left")
	}
}

// TestABundleWithoutAShimIsRemoved plays a daemon that was killed between the two. The next one finds
// the container, cannot clean up after its shim, and leaves the bundle.
func TestABundleWithoutAShimIsRemoved(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "sleep 600")
	b.must(b.r.Define(b.ctx, s))
	bundle := filepath.Join(b.d.Dir, "state", bundleOwner, b.r.cfg.Namespace, string(s.Pod))
	work := filepath.Join(b.d.Dir, "root", bundleOwner, b.r.cfg.Namespace, string(s.Pod))
	b.must(errors.Join(
		os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o711), os.MkdirAll(work, 0o711),
		os.Symlink(work, filepath.Join(bundle, "work")), os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o600),
	))
	b.d.Restart()
	next := b.agent() // it has seen no shim
	defer next.Close()
	b.must(ctrdtest.Eventually(time.Minute, func() error { return next.Remove(b.ctx, s.Pod) }))
	for _, path := range []string{bundle, work} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

func TestCleanRemovesWhatLiesAround(t *testing.T) {
	b := setup(t)
	state := filepath.Join(b.r.runcState(), "p1")
	b.must(os.MkdirAll(state, 0o700))
	b.must(os.WriteFile(filepath.Join(state, "state.json"), []byte("{}"), 0o600))
	hierarchy := b.r.cgroups.hierarchies()[0]
	group := filepath.Join(hierarchy, b.r.cgroups.path("p2"))
	b.must(os.MkdirAll(filepath.Join(group, "inner"), 0o755))
	view, err := os.MkdirTemp("", b.r.viewFolder())
	b.must(err)
	b.must(mount.All([]mount.Mount{{Type: "tmpfs", Source: "tmpfs"}}, view))
	if err := b.r.Clean(b.ctx, false); err != nil {
		t.Error(err)
	}
	for _, path := range []string{b.r.runcState(), group, filepath.Join(hierarchy, b.r.cfg.CgroupRoot), view} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
			_ = syscall.Unmount(path, syscall.MNT_DETACH)
			_ = os.Remove(path)
		}
	}
}

func TestCleanRemovesTheTopControlGroupAlone(t *testing.T) {
	b := setup(t)
	hierarchy := b.r.cgroups.hierarchies()[0]
	top := filepath.Join(hierarchy, b.r.cfg.CgroupRoot)
	b.must(os.Mkdir(top, 0o755)) // the namespace's own folder is gone already
	if err := b.r.Clean(b.ctx, false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(top); err == nil {
		t.Error("the empty top group is left")
		_ = os.Remove(top)
	}
}

func TestEffectIsNotTorn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := effect(ctx, func(inner context.Context) error {
		cancel()
		if _, ok := inner.Deadline(); !ok {
			t.Error("an effect without deadline")
		}
		return inner.Err()
	})
	if err != nil {
		t.Errorf("a begun effect: %v", err)
	}
	err = effect(ctx, func(context.Context) error { t.Error("begun after the end"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an effect after the end: %v", err)
	}
	b := setup(t)
	wantFault(t, b.r.Task(ctx, "none"), pod.Retry, sentenceAway)
}

func TestClientLogsThroughUs(t *testing.T) {
	var out bytes.Buffer
	to := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, entry := newClientLog(to)
	defer c.close()
	log.L.WithError(errors.New("broken")).Error("global")
	log.G(log.WithLogger(t.Context(), entry)).Infof("get %s", "https://user:secret@r.example/v2/x?token=secret")
	log.G(t.Context()).Debug("chatter")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || strings.Contains(out.String(), "secret") {
		t.Fatalf("%s", out.String())
	}
	for i, want := range []string{`"said":"global","severity":"error","err":"broken"`, `"said":"get https://r.example/v2/x"`} {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], `"level":"DEBUG"`) {
			t.Errorf("%s", lines[i])
		}
	}
	c.close()
	out.Reset()
	log.L.Error("late")
	if out.Len() > 0 {
		t.Errorf("after the end: %s", out.String())
	}
}
