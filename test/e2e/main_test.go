package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// page fetches a pod's page through the proxy.
func page(t *testing.T, d *devtest.Dev, pod string, port int, path string) (string, int, error) {
	t.Helper()
	info, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, info.API+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = fmt.Sprintf("%s-%d.%s", pod, port, info.ProxyDomain)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return string(body), res.StatusCode, err
}

func TestCPUPodServesHTTPThroughItsWholeLife(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("web", `trap "exit 0" TERM; echo "hello from $GREETING"; httpd -f -v -p 8080 -h /www & wait`)
	body.Ports, body.Env = []string{"8080/http"}, map[string]string{"GREETING": "the test"}
	pod := create(t, d, body)
	if pod.Status != fleet.StatusProvisioning || pod.HostID == "" {
		t.Errorf("201 answered %s on host %q: a host must be reserved", pod.Status, pod.HostID)
	}
	running := reach(t, d, pod.ID, fleet.StatusRunning)
	if running.Runtime == nil || running.StartedAt == nil || running.Cost <= 0 {
		t.Errorf("running pod: runtime %v, started %v, cost %v", running.Runtime, running.StartedAt, running.Cost)
	}
	await(t, func() error {
		text, code, err := page(t, d, pod.ID, 8080, "/")
		if err != nil || code != http.StatusOK || !strings.Contains(text, "Hello from a pod") {
			return fmt.Errorf("page: %d %q %w", code, text, err)
		}
		return nil
	})
	if _, code, _ := page(t, d, pod.ID, 8081, "/"); code != http.StatusNotFound {
		t.Errorf("a port that the pod does not list answers %d", code)
	}
	logHas(t, d, pod.ID, "hello from the test")

	act(t, d, pod.ID, fleet.ActionStop)
	stopped := reach(t, d, pod.ID, fleet.StatusExited)
	if stopped.Runtime != nil || stopped.Cost != 0 {
		t.Errorf("stopped pod: runtime %v, cost %v", stopped.Runtime, stopped.Cost)
	}
	if _, code, _ := page(t, d, pod.ID, 8080, "/"); code != http.StatusBadGateway {
		t.Errorf("a stopped pod's page answers %d, want 502", code)
	}
	logHas(t, d, pod.ID, "hello from the test") // kept after the exit

	act(t, d, pod.ID, fleet.ActionStart)
	again := reach(t, d, pod.ID, fleet.StatusRunning)
	if again.Incarnation != running.Incarnation+1 {
		t.Errorf("incarnation %d after %d", again.Incarnation, running.Incarnation)
	}
	act(t, d, pod.ID, fleet.ActionRestart)
	await(t, func() error {
		p, err := user(t, d).Pod(t.Context(), pod.ID)
		if err != nil || p.Value.Status != fleet.StatusRunning || p.Value.Incarnation != again.Incarnation+1 {
			return fmt.Errorf("after the restart: %+v, %w", p.Value, err)
		}
		return nil
	})
	if err := user(t, d).DeletePod(t.Context(), pod.ID); err != nil {
		t.Fatal(err)
	}
	reach(t, d, pod.ID, fleet.StatusTerminated)
	await(t, func() error { return suite.site.NothingLeft(pod.ID) })
}

// logHas waits until the pod's log holds a container line.
func logHas(t *testing.T, d *devtest.Dev, pod, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	found := false
	err := user(t, d).PodLogs(ctx, pod, client.LogQuery{Follow: true, Source: "container", Tail: 100}, client.LogEvents{
		Line: func(l client.LogLine) error {
			if strings.Contains(l.Line, want) {
				found = true
				cancel()
			}
			return nil
		},
	})
	if !found {
		t.Fatalf("the log has no line with %q: %v", want, err)
	}
}

func TestGPUPodOnSimulatedGPUs(t *testing.T) {
	t.Parallel()
	d := suite.dev
	pod := create(t, d, v2.CreatePodRequest{
		Name: "train", GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: 2},

		PodSettings: v2.PodSettings{Image: new(devtest.Image), Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}, GlobalNetworking: new(true), Args: new(`sh -c "env; ` + "trap 'exit 0' TERM; sleep 1000 & wait" + `"`)},
	})
	at := reach(t, d, pod.ID, fleet.StatusRunning).GlobalNetworking
	logHas(t, d, pod.ID, "RUNPOD_GPU_COUNT=2")
	if out := inside(t, d, pod.ID, "sh", "-c", "ip addr show podnet1; nslookup "+at.InternalDNS); at.IP == "" || strings.Count(out, at.IP) != 2 {
		t.Errorf("the pod's place in the private network is %+v; it says %q", at, out)
	}
	var lines []string
	err := user(t, d).PodLogs(t.Context(), pod.ID, client.LogQuery{Tail: 200}, client.LogEvents{
		Line: func(l client.LogLine) error { lines = append(lines, l.Line); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "NVIDIA_") {
			t.Errorf("the container got %s", line)
		}
	}
	hosts, err := operator(t, d).Hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if raw := string(hosts.Raw); !strings.Contains(raw, `"simulated":true`) && !strings.Contains(raw, `"simulated": true`) {
		t.Errorf("the host's record does not say that its GPUs are simulated: %s", raw)
	}
}

func TestNoRoomSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := user(t, suite.dev).CreatePod(t.Context(), v2.CreatePodRequest{Name: "big", GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: 9}, PodSettings: v2.PodSettings{Image: new(devtest.Image)}})
	p, ok := err.(*client.Problem) //nolint:errorlint // it is never wrapped
	if !ok || p.Status != http.StatusBadRequest || p.Code != "no_capacity" || len(p.Excluded) == 0 ||
		!strings.HasPrefix(p.Detail, "There are no longer any instances available") {
		t.Errorf("answer %+v", err)
	}
}

func TestOneSentenceWithinSeconds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		pod          v2.CreatePodRequest
		code         int
	}{
		{"exit code 3", "the container ended with exit code 3", devtest.CPUPod("exit3", "echo last words; exit 3"), 3},
		{"a command that does not exist", `command "/no/such/program" was not found in the image`, func() v2.CreatePodRequest {
			p := devtest.CPUPod("nocmd", "")
			p.Args = new("/no/such/program")
			return p
		}(), -1},
		{
			"out of memory", "the container was killed for lack of memory (limit ",
			devtest.CPUPod("oom", "dd if=/dev/zero of=/dev/null ibs=1G obs=8G count=6; exit $?"), -2,
		},
		{"an image that does not exist", "does not exist", func() v2.CreatePodRequest {
			p := devtest.CPUPod("noimage", "")
			p.Image = new(registry(t) + "/no/such:1")
			return p
		}(), -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pod := create(t, suite.dev, c.pod)
			failed := reach(t, suite.dev, pod.ID, fleet.StatusError)
			if !strings.Contains(string(failed.StatusReason), c.reason) {
				t.Errorf("reason %q, want %q", failed.StatusReason, c.reason)
			}
			if c.code >= 0 && (failed.ExitCode == nil || *failed.ExitCode != c.code) {
				t.Errorf("exit code %v, want %d", failed.ExitCode, c.code)
			}
			if failed.Cost != 0 {
				t.Errorf("a pod in ERROR costs %v", failed.Cost)
			}
			if c.code == 3 && !strings.Contains(string(failed.LogTail), "last words") {
				t.Errorf("log tail %q", failed.LogTail)
			}
		})
	}
}

func TestKilledDaemonIsNotNoticedByPods(t *testing.T) {
	for i, role := range []string{"agent", "scheduler", "containerd"} {
		t.Run(role, func(t *testing.T) {
			d := suite.dev
			marker := fmt.Sprintf("86400.%d", i+1)
			body := devtest.CPUPod("survivor", `i=0; while [ ! -e /tmp/end ]; do i=$((i+1)); echo tick $i; sleep 0.05; done & trap "exit 0" TERM; sleep `+marker+" & wait")
			body.Ports = []string{"8080/http"}
			pod := create(t, d, body)
			before := reach(t, d, pod.ID, fleet.StatusRunning)
			var pid int
			await(t, func() (err error) { pid, err = devtest.ProcessOf("sleep " + marker); return err })

			kill9(t, d, role)

			await(t, func() error { return operator(t, d).Healthy(t.Context()) })
			after := reach(t, d, pod.ID, fleet.StatusRunning)
			if got, err := devtest.ProcessOf("sleep " + marker); got != pid {
				t.Fatalf("the container's process is %d, was %d: %v", got, pid, err)
			}
			if after.Incarnation != before.Incarnation || !after.StartedAt.Equal(before.StartedAt.Time) {
				t.Errorf("incarnation %d, was %d; started %v, was %v", after.Incarnation, before.Incarnation, after.StartedAt, before.StartedAt)
			}
			ticksGoOn(t, d, pod.ID)

			// What comes next works: a new pod, and the exit of this one.
			other := create(t, d, devtest.CPUPod("next", devtest.Sleeper))
			reach(t, d, other.ID, fleet.StatusRunning)
			act(t, d, pod.ID, fleet.ActionTerminate)
			reach(t, d, pod.ID, fleet.StatusTerminated)
			await(t, func() error { return suite.site.NothingLeft(pod.ID) })
		})
	}
}

// ticksGoOn checks that the numbered lines of a pod's log have no gap and go on.
func ticksGoOn(t *testing.T, d *devtest.Dev, pod string) {
	t.Helper()
	ticksOrLines(t, d, pod, "tick %d", 4)
}

// ticksOrLines follows a log until it has seen at least so many lines of a form, the last of which is
// fresh, and checks that their numbers have no gap.
func ticksOrLines(t *testing.T, d *devtest.Dev, pod, form string, least int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	last, seen, done := 0, 0, false
	err := user(t, d).PodLogs(ctx, pod, client.LogQuery{Follow: true, Source: "container", Tail: 5000}, client.LogEvents{
		Line: func(l client.LogLine) error {
			var n int
			if _, err := fmt.Sscanf(l.Line, form, &n); err != nil {
				return nil //nolint:nilerr // another line
			}
			if last != 0 && n != last+1 {
				return fmt.Errorf("number %d after %d", n, last)
			}
			if last, seen = n, seen+1; time.Since(l.At.Time) < time.Second && seen >= least {
				done = true
				cancel()
			}
			return nil
		},
	})
	if !done {
		t.Errorf("%d lines, then: %v", seen, err)
	}
}

func TestExitWhileTheAgentIsDeadIsDelivered(t *testing.T) {
	d := suite.dev
	pod := create(t, d, devtest.CPUPod("mortal", `while [ ! -e /tmp/x ]; do sleep 0.02; n=$((n+1)); [ $n -lt 40 ] || exit 7; done`))
	reach(t, d, pod.ID, fleet.StatusRunning)
	kill9(t, d, "agent")
	failed := reach(t, d, pod.ID, fleet.StatusError)
	if failed.ExitCode == nil || *failed.ExitCode != 7 {
		t.Errorf("exit code %v (%s), want 7", failed.ExitCode, failed.StatusReason)
	}
}

func TestAcknowledgedPodsSurviveTheScheduler(t *testing.T) {
	d := suite.dev
	var ids []string
	for i := range 5 {
		ids = append(ids, create(t, d, devtest.CPUPod(fmt.Sprintf("kept-%d", i), devtest.Sleeper)).ID)
	}
	kill9(t, d, "scheduler")
	await(t, func() error { return operator(t, d).Healthy(t.Context()) })
	for _, id := range ids {
		reach(t, d, id, fleet.StatusRunning)
	}
}

func TestManyAtOnce(t *testing.T) {
	d := suite.dev
	op := operator(t, d)
	kept := must[client.Answer[admin.PlacementSettings]](t)(op.Placement(t.Context())).Value
	// They are more than the host has beside what it keeps for its GPUs.
	must[client.Answer[admin.PlacementSettings]](t)(op.SetPlacement(t.Context(), admin.PlacementSettings{}))
	t.Cleanup(func() {
		if _, err := op.SetPlacement(context.Background(), kept); err != nil {
			t.Error(err)
		}
	})
	var wg sync.WaitGroup
	for i := range 12 {
		pod := create(t, d, devtest.CPUPod(fmt.Sprintf("many-%d", i), devtest.Sleeper))
		wg.Go(func() { reach(t, d, pod.ID, fleet.StatusRunning) })
	}
	wg.Wait()
}

func TestDevFolderKeepsKeysAndPods(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	d, err := suite.site.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "dev.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("dev.json has mode %v, %v", info.Mode(), err)
	}
	c := user(t, d)
	made, err := c.CreatePod(t.Context(), devtest.CPUPod("kept", devtest.Sleeper))
	if err != nil {
		t.Fatal(err)
	}
	before := reach(t, d, made.Value.ID, fleet.StatusRunning)
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := suite.site.NothingLeft(before.ID); err != nil {
		t.Error(err)
	}
	if d, err = suite.site.Start(dir); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	second, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	if first.APIKey != second.APIKey || first.AdminKey != second.AdminKey || first.DataCenterID != second.DataCenterID {
		t.Error("the keys or the data center changed")
	}
	c = user(t, d)
	await(t, func() error {
		p, err := c.Pod(t.Context(), before.ID)
		if err != nil || p.Value.Status != fleet.StatusRunning || p.Value.Incarnation != before.Incarnation+1 {
			return fmt.Errorf("after the restart: %s, incarnation %d, was %d; %w", p.Value.Status, p.Value.Incarnation, before.Incarnation, err)
		}
		return nil
	})
	// The other dev of this suite has never heard of the pod.
	if _, err := user(t, suite.dev).Pod(t.Context(), before.ID); !client.IsNotFound(err) {
		t.Errorf("another dev knows the pod: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	d := suite.dev
	out, errs, code := cli(t, d, "pod", "create", "typed", devtest.Image, "--cpu", "cpu3c", "--vcpu", "2", "--wait", "-o", "json", "--", "sleep", "1000")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var pod v2.Pod
	if err := json.Unmarshal([]byte(out), &pod); err != nil || pod.Status != fleet.StatusRunning {
		t.Fatalf("create --wait -o json printed %s, %v", out, err)
	}
	if out, _, code = cli(t, d, "pod", "get", "typed", "-v"); code != 0 || !strings.Contains(out, "networked") {
		t.Errorf("pod get -v: %d\n%s", code, out)
	}
	if _, _, code = cli(t, d, "pod", "get", "nobody"); code != 3 {
		t.Errorf("an unknown pod gives exit code %d, want 3", code)
	}
	if _, _, code = cli(t, d, "pod", "create", "x", devtest.Image, "--cpu", "cpu3c", "--vcpu", "3"); code != 2 && code != 4 {
		t.Errorf("an impossible vCPU count gives exit code %d", code)
	}
	if _, errs, code = cli(t, d, "pod", "delete", "typed", "--wait"); code != 0 {
		t.Errorf("delete: %d %s", code, errs)
	}
	if diff := cmp.Diff(error(nil), devtest.Until(reachTimeout, func() error { return suite.site.NothingLeft(pod.ID) })); diff != "" {
		t.Error(diff)
	}
}
