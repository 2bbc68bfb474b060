package volumes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/cephtest"
	"gantry/test/devtest"
)

// start starts everything; it ends with the test, and leaves nothing.
func start(t testing.TB) *world {
	t.Helper()
	w := &world{}
	site, err := devtest.NewSite()
	if err != nil {
		t.Fatal(err)
	}
	w.site = site
	clean := func(what string, f func() error) {
		t.Cleanup(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	clean("remove the site", site.Remove)
	before, err := site.Census("")
	if err != nil {
		t.Fatal(err)
	}
	clean("census", func() error {
		after, err := site.Census("")
		left := slices.DeleteFunc(after, func(thing string) bool { return slices.Contains(before, thing) })
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		return err
	})
	// The hosts have networks of their own: the storage is at an address of the machine that they can reach. The range is
	// for tests of networks (RFC 2544).
	addr := fmt.Sprintf("198.19.%d.%d", rand.IntN(256), 1+rand.IntN(254))
	ip := func(verb string) error { return quiet(exec.Command("ip", "address", verb, addr+"/32", "dev", "lo")) }
	if err := ip("add"); err != nil {
		t.Fatal(err)
	}
	clean("address", func() error { return ip("delete") })
	stored := make(chan error, 1)
	go func() {
		var err error
		w.ceph, err = cephtest.StartOn("", addr)
		stored <- err
	}()
	w.dev, err = site.Start(filepath.Join(site.Dir, "dev"), "--agents", "2")
	if serr := <-stored; serr == nil {
		clean("Ceph", w.ceph.Close)
	} else {
		err = errors.Join(err, serr)
	}
	if w.dev != nil {
		clean("dev", w.dev.Stop)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.dev.PrintLogs(logWriter{t})
		}
	})
	w.connect(t)
	w.addBackend(t)
	return w
}

type logWriter struct{ t testing.TB }

// Write logs.
func (l logWriter) Write(p []byte) (int, error) { l.t.Log(string(p)); return len(p), nil }

var _ io.Writer = logWriter{}

func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

func (w *world) connect(t testing.TB) {
	t.Helper()
	var err error
	if w.user, err = w.dev.Client(); err == nil {
		t.Cleanup(w.user.Close)
		if w.ops, err = w.dev.Admin(); err == nil {
			t.Cleanup(w.ops.Close)
			w.info, err = w.dev.Info()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// addBackend makes the Ceph file system one that network volumes can be on.
func (w *world) addBackend(t testing.TB) {
	t.Helper()
	hosts, err := w.ops.Hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ops.SetHostRoles(t.Context(), hosts.Value.Hosts[1].ID, []string{"storage"}); err != nil {
		t.Fatal(err)
	}
	_, err = w.ops.CreateBackend(t.Context(), admin.CreateBackendRequest{
		ID: "ceph", DataCenterID: w.info.DataCenterID, Type: tier, Kind: "cephfs",
		BackendSettings: admin.BackendSettings{
			Ceph: &admin.CephBackend{Monitors: w.ceph.Monitors(), FileSystem: "cephfs", Path: "/gantry", User: "gantry", AdminUser: "gantry-admin"},
			Key:  v2.Hidden(w.ceph.Key("gantry")), AdminKey: v2.Hidden(w.ceph.Key("gantry-admin")),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// volume makes a volume and waits until its storage is there.
func (w *world) volume(t testing.TB, name string, size int) v2.NetworkVolume {
	t.Helper()
	made, err := w.user.CreateVolume(t.Context(), v2.CreateNetworkVolumeRequest{Name: name, Size: size, DataCenter: w.info.DataCenterID, Type: tier})
	if err != nil {
		t.Fatal(err)
	}
	out := made.Value
	await(t, func() error {
		v, err := w.user.Volume(t.Context(), out.ID)
		if out = v.Value; err != nil || out.Status != "READY" {
			return fmt.Errorf("volume %+v, %w", out, err)
		}
		return nil
	})
	return out
}

// body asks for a pod with the volume.
func (w *world) body(name, volume string, gpus int) v2.CreatePodRequest {
	return v2.CreatePodRequest{
		Name: name, GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: gpus},

		PodSettings: v2.PodSettings{Image: new(devtest.Image), Args: new(endsAtOnce), Mounts: &v2.Mounts{Network: []v2.NetworkMount{{VolumeID: volume, Path: mountPath}}}},
	}
}

// endsAtOnce are the arguments of a pod that nobody has to kill: the kernel gives the first process no signal that it does not
// ask for.
const endsAtOnce = `{"entrypoint":["sh","-c"],"cmd":["trap 'exit 0' TERM; sleep 1000 & wait"]}`

// create makes a pod with the volume and that many GPUs, of which a host has eight.
func (w *world) create(t testing.TB, name, volume string, gpus int) v2.Pod {
	t.Helper()
	made, err := w.user.CreatePod(t.Context(), w.body(name, volume, gpus))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.user.DeletePod(context.Background(), made.Value.ID) }) // it may be gone
	return made.Value
}

// pod makes one that takes more than half of a host, and waits until it runs.
func (w *world) pod(t testing.TB, name, volume string) v2.Pod {
	t.Helper()
	return w.runs(t, w.create(t, name, volume, 5).ID)
}

func (w *world) runs(t testing.TB, id string) v2.Pod {
	t.Helper()
	var out v2.Pod
	await(t, func() error {
		p, err := w.user.Pod(t.Context(), id)
		if out = p.Value; err != nil || out.Status != fleet.StatusRunning {
			return fmt.Errorf("pod %s is %s (%s), %w", id, out.Status, out.StatusReason, err)
		}
		return nil
	})
	return out
}

// remove terminates a pod and waits until nothing of it is left.
func (w *world) remove(t testing.TB, id string) {
	t.Helper()
	if err := w.user.DeletePod(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return w.site.NothingLeft(id) })
}

// run runs a shell command in a pod, and returns what it printed and its exit code.
func (w *world) run(t testing.TB, pod v2.Pod, command string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	cmd, err := w.dev.Command(ctx, "pod", "exec", pod.ID, "--", "sh", "-c", command)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// must is run of a command that succeeds.
func (w *world) must(t testing.TB, pod v2.Pod, command string) string {
	t.Helper()
	text, code := w.run(t, pod, command)
	if code != 0 {
		t.Fatalf("%s: %s: exit code %d: %s", pod.Name, command, code, text)
	}
	return text
}

// says fails while a command does not print exactly that.
func (w *world) says(t testing.TB, pod v2.Pod, command, want string) error {
	t.Helper()
	if text, code := w.run(t, pod, command); text != want || code != 0 {
		return fmt.Errorf("%s: %s: exit code %d: %q, want %q", pod.Name, command, code, text, want)
	}
	return nil
}

// stillThe fails when a pod was started again.
func (w *world) stillThe(t testing.TB, pods ...v2.Pod) {
	t.Helper()
	for _, pod := range pods {
		p, err := w.user.Pod(t.Context(), pod.ID)
		if err != nil || p.Value.Status != fleet.StatusRunning || p.Value.Incarnation != pod.Incarnation || !p.Value.StartedAt.Equal(pod.StartedAt.Time) {
			t.Errorf("%s is not what it was: %+v, %v", pod.Name, p.Value, err)
		}
	}
}

// freeze stops the servers of the file system where they are; they go on when the returned function is called, at the
// latest when the test ends.
func (w *world) freeze(t testing.TB) (heal func()) {
	t.Helper()
	daemons := []string{cephtest.MDS, cephtest.OSD, cephtest.Mon}
	frozen := true
	heal = func() {
		if !frozen {
			return
		}
		frozen = false
		for _, d := range daemons {
			if err := w.ceph.Thaw(d); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(heal)
	for _, d := range daemons {
		if err := w.ceph.Freeze(d); err != nil {
			t.Fatal(err)
		}
	}
	return heal
}

func await(t testing.TB, check func() error) {
	t.Helper()
	if err := devtest.Until(reachTimeout, check); err != nil {
		t.Fatalf("after %v: %v", reachTimeout, err)
	}
}

// TestMain fails early where what the tests need is missing.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "volumes: needs root: it makes containers, mounts and network namespaces")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
