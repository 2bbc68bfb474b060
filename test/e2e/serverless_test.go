package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/test/devtest"
	"gantry/test/program/workerimage"
)

// endpoint makes a queue endpoint of one worker at most.
func endpoint(t *testing.T, d *devtest.Dev, image string, more ...string) (id string, remove func()) {
	t.Helper()
	id = done[made](t, d, "", "POST", "/v2/serverless", fmt.Sprintf(
		`{"name":"echo","type":"QUEUE","image":%q,"cpu":[{"id":"cpu3c","vcpuCount":2}],"scaling":{"type":"QUEUE_DELAY","queueDelay":1},"workers":{"max":1,"idleTimeout":1}%s}`,
		image, strings.Join(more, ""))).ID
	return id, func() { ask(t, d, "", "DELETE", "/v2/serverless/"+id, "") }
}

type job struct {
	ID, Status string
	Output     map[string]any
}

// ended waits until a job has ended.
func ended(t *testing.T, d *devtest.Dev, endpoint string, j job) job {
	t.Helper()
	await(t, func() error {
		if j = done[job](t, d, "", "GET", "/v2/"+endpoint+"/status/"+j.ID, ""); j.Status == "IN_QUEUE" || j.Status == "IN_PROGRESS" {
			time.Sleep(50 * time.Millisecond) // the endpoint's limit on requests
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	return j
}

// TestAServerlessJobFromZeroToZero: a worker in a real container, in the ways of three libraries, answers at an endpoint that had none, and
// is gone when it idled out.
func TestAServerlessJobFromZeroToZero(t *testing.T) {
	t.Parallel()
	d := suite.dev
	try := func(library string) {
		id, remove := endpoint(t, d, workerimage.Serve(t, "--handler echo --library "+library))
		defer remove()
		got := ended(t, d, id, done[job](t, d, "", "POST", "/v2/"+id+"/runsync", `{"input":{"a":"b"}}`))
		if got.Status != "COMPLETED" || got.Output["a"] != "b" {
			t.Errorf("%s: %+v", library, got)
		}
		if pods := done[struct{ Pods []made }](t, d, "", "GET", "/v2/pods", ""); strings.Contains(fmt.Sprint(pods), id) {
			t.Errorf("workers are among the pods: %v", pods)
		}
		await(t, func() error {
			if _, text := ask(t, d, "", "GET", "/v2/"+id+"/health", ""); !strings.Contains(text, `"idle":0`) || !strings.Contains(text, `"running":0`) {
				time.Sleep(50 * time.Millisecond)
				return fmt.Errorf("it still has workers: %s", text)
			}
			return nil
		})
	}
	try("1.6")
	try("1.7.12")
	try("1.10")
}

type jobCounts struct{ Completed, Failed, Retried int }

// TestAJobOutlivesWhatDies: whatever is killed while a worker is at a job, the job completes, once. It is given out again at most once,
// as its endpoint's policy says: where its worker was lost, and where its host was away for long enough to count as lost.
func TestAJobOutlivesWhatDies(t *testing.T) {
	d := suite.dev
	id, remove := endpoint(t, d, workerimage.Serve(t, "--handler sleep"))
	defer remove()
	shim := func() {
		all := done[struct{ Workers []made }](t, d, "", "GET", "/v2/serverless/"+id+"/workers", "").Workers
		if len(all) != 1 {
			t.Fatalf("workers: %v", all)
		}
		pids := must[[]int](t)(devtest.ProcessesWith("containerd-shim", all[0].ID))
		if len(pids) != 1 {
			t.Fatalf("shims of worker %s: %v", all[0].ID, pids)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	daemon := func(role string) func() { return func() { kill9(t, d, role) } }
	var before jobCounts
	for _, c := range []struct {
		dies  string
		kill  func()
		least int // times that the job is given out again
	}{
		{"agent", daemon("agent"), 0}, {"scheduler", daemon("scheduler"), 0}, {"containerd", daemon("containerd"), 0}, {"shim", shim, 1},
	} {
		j := done[job](t, d, "", "POST", "/v2/"+id+"/run", `{"input":{"seconds":4}}`)
		await(t, func() error {
			if j = done[job](t, d, "", "GET", "/v2/"+id+"/status/"+j.ID, ""); j.Status != "IN_PROGRESS" {
				time.Sleep(50 * time.Millisecond)
				return fmt.Errorf("%+v", j)
			}
			return nil
		})
		c.kill()
		await(t, func() error { return operator(t, d).Healthy(t.Context()) })
		await(t, func() error {
			if code, text := ask(t, d, "", "GET", "/v2/"+id+"/health", ""); code != http.StatusOK {
				return errors.New(text)
			}
			return nil
		})
		if got := ended(t, d, id, j); got.Status != "COMPLETED" {
			t.Errorf("%s: %+v", c.dies, got)
		}
		now := done[struct{ Jobs jobCounts }](t, d, "", "GET", "/v2/"+id+"/health", "").Jobs
		again := now.Retried - before.Retried
		if now.Completed != before.Completed+1 || now.Failed != 0 || again < c.least || again > 1 {
			t.Errorf("%s: %+v, before %+v", c.dies, now, before)
		}
		before = now
	}
}

// processOf returns the process of an endpoint's only worker; 0: it has none.
func processOf(t *testing.T, endpoint string) int {
	t.Helper()
	all := must[[]string](t)(filepath.Glob("/proc/[0-9]*/environ"))
	for _, file := range all {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(env, []byte("RUNPOD_ENDPOINT_ID="+endpoint+"\x00")) {
			return must[int](t)(strconv.Atoi(filepath.Base(filepath.Dir(file))))
		}
	}
	return 0
}

// isFrozen reports whether the kernel holds a process still, by its control group.
func isFrozen(pid int) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch kind, path, _ := strings.Cut(rest, ":"); kind {
		case "freezer":
			state, err := os.ReadFile("/sys/fs/cgroup/freezer" + path + "/freezer.state")
			return err == nil && strings.TrimSpace(string(state)) == "FROZEN"
		case "":
			if state, err := os.ReadFile("/sys/fs/cgroup" + path + "/cgroup.events"); err == nil {
				return strings.Contains(string(state), "frozen 1")
			}
		}
	}
	return false
}

// TestFlashBoot: a worker that idled out stands still and answers the next job, in the same process; a deleted endpoint leaves none.
func TestFlashBoot(t *testing.T) {
	t.Parallel()
	d := suite.dev
	id, remove := endpoint(t, d, workerimage.Serve(t, "--handler echo --library 1.10"), `,"flashboot":"FLASHBOOT"`)
	defer remove()
	ask := func() {
		t.Helper()
		begin := time.Now()
		if got := ended(t, d, id, done[job](t, d, "", "POST", "/v2/"+id+"/runsync", `{"input":{"a":"b"}}`)); got.Status != "COMPLETED" || got.Output["a"] != "b" {
			t.Errorf("%+v", got)
		}
		t.Log("answered in ", time.Since(begin))
	}
	ask()
	pid := processOf(t, id)
	if pid == 0 {
		t.Fatal("the worker has no process")
	}
	for range 3 {
		await(t, func() error {
			if !isFrozen(pid) {
				return errors.New("it is not frozen")
			}
			return nil
		})
		ask()
		if now := processOf(t, id); now != pid {
			t.Errorf("process %d answers, not %d", now, pid)
		}
	}
	remove()
	await(t, func() error {
		if now := processOf(t, id); now != 0 {
			return fmt.Errorf("process %d is left", now)
		}
		return nil
	})
}

// TestABalancedRequestFromZeroToZero: a request starts a real container, whose own server answers it, and which is gone when nobody asks.
func TestABalancedRequestFromZeroToZero(t *testing.T) {
	t.Parallel()
	d := suite.dev
	info := must[devtest.Info](t)(d.Info())
	id := done[made](t, d, "", "POST", "/v2/serverless", fmt.Sprintf(
		`{"name":"web","type":"LOAD_BALANCER","image":%q,"cpu":[{"id":"cpu3c","vcpuCount":2}],"scaling":{"type":"REQUEST_COUNT","requestCount":4},`+
			`"workers":{"max":1,"idleTimeout":1},"env":{"PORT":"8080"},`+
			`"args":"{\"entrypoint\":[\"sh\",\"-c\"],\"cmd\":[\"trap 'exit 0' TERM; mkdir /w; echo ok >/w/ping; echo $PORT $PORT_HEALTH $HEALTH_CHECK_PATH >/w/name; httpd -f -p $PORT -h /w & wait\"]}"}`,
		devtest.Image)).ID
	defer ask(t, d, "", "DELETE", "/v2/serverless/"+id, "")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, info.API+"/name", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = id + "." + info.ProxyDomain
	req.Header.Set("Authorization", "Bearer "+info.APIKey)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK || strings.TrimSpace(string(text)) != "8080 8080 /ping" {
		t.Errorf("%d %q %v", res.StatusCode, text, err)
	}
	if res.Header.Get("X-Gantry-Worker-Id") == "" {
		t.Error("it does not say who answered")
	}
	await(t, func() error {
		if _, text := ask(t, d, "", "GET", "/v2/"+id+"/health", ""); !strings.Contains(text, `"idle":0`) || !strings.Contains(text, `"running":0`) {
			time.Sleep(50 * time.Millisecond)
			return fmt.Errorf("it still has workers: %s", text)
		}
		return nil
	})
}
