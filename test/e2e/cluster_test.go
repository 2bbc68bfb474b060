package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// leaderOf waits until dev.json names a leader other than not, and returns its process and the others'.
func leaderOf(t *testing.T, d *devtest.Dev, not int) (leader devtest.Process, followers []devtest.Process) {
	t.Helper()
	await(t, func() error {
		info, err := d.Info()
		if err != nil {
			return err
		}
		leader, followers = devtest.Process{}, nil
		for _, p := range info.Processes {
			switch {
			case p.Role != "scheduler":
			case p.Leader:
				leader = p
			default:
				followers = append(followers, p)
			}
		}
		if leader.PID == 0 || leader.PID == not || len(followers) != 2 {
			return fmt.Errorf("leader %+v, %d followers", leader, len(followers))
		}
		return nil
	})
	return leader, followers
}

// at returns a client of one scheduler.
func at(t *testing.T, d *devtest.Dev, p devtest.Process) *client.Client {
	t.Helper()
	info, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	c := must[*client.Client](t)(client.New(p.API, fleet.Secret(info.APIKey), "e2e"))
	t.Cleanup(c.Close)
	return c
}

// TestClusterOfThree is three schedulers and three hosts of networks of their own: every scheduler serves everything,
// the leader is killed, and neither the pods nor what was acknowledged condition.
func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	d, err := suite.site.Start(filepath.Join(t.TempDir(), "cluster"), "--schedulers", "3", "--agents", "3")
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			if err := d.Stop(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			d.PrintLogs(testWriter{t})
		}
	}()
	leader, followers := leaderOf(t, d, 0)
	hosts := map[string]bool{}
	var pods []v2.Pod
	for i, via := range append(followers, leader) {
		// More than half of a host each.
		name := fmt.Sprintf("pod-%d", i)
		body := v2.CreatePodRequest{
			Name: name, GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: 5},

			PodSettings: v2.PodSettings{Image: new(devtest.Image), Ports: []string{"8080/http"}, Args: new(`{"entrypoint":["sh","-c"],"cmd":["trap 'exit 0' TERM; mkdir /w; echo ` + name + ` >/w/name; httpd -f -p 8080 -h /w & wait"]}`)},
		}
		pod := must[client.Answer[v2.Pod]](t)(at(t, d, via).CreatePod(t.Context(), body)).Value
		hosts[string(pod.HostID)] = true
		pods = append(pods, reach(t, d, pod.ID, fleet.StatusRunning))
	}
	if len(hosts) != 3 {
		t.Errorf("the pods are on hosts %v", hosts)
	}
	pagesServed(t, d, append(followers, leader), pods)
	consoleServed(t, d, append(followers, leader))

	if err := syscall.Kill(leader.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A client of a follower waits out the election, it is not refused.
	key := v2.CreatePodRequest{Name: "small", CPU: &v2.CreateCPUConfig{ID: "cpu3c", VCPUCount: 2}, PodSettings: v2.PodSettings{Image: new(devtest.Image), Args: new("sleep 1000")}}
	late := must[client.Answer[v2.Pod]](t)(at(t, d, followers[0]).CreatePod(t.Context(), key)).Value
	next, others := leaderOf(t, d, leader.PID)
	reach(t, d, late.ID, fleet.StatusRunning)
	for _, p := range pods {
		now := must[client.Answer[v2.Pod]](t)(at(t, d, others[1]).Pod(t.Context(), p.ID)).Value
		if now.Status != fleet.StatusRunning || now.Incarnation != p.Incarnation || now.StartedAt == nil || !now.StartedAt.Equal(p.StartedAt.Time) {
			t.Errorf("pod %s after the leader was killed: %+v", p.ID, now)
		}
	}
	pagesServed(t, d, append(others, next), pods)
	list := must[client.Answer[admin.Cluster]](t)(operator(t, d).Cluster(t.Context())).Value
	voters := 0
	for _, m := range list.Members {
		if m.Voter {
			voters++
		}
	}
	if voters != 3 {
		t.Errorf("members: %+v", list.Members)
	}
	stopped = true
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(pods, late) {
		if err := suite.site.NothingLeft(p.ID); err != nil {
			t.Error(err)
		}
	}
}

// pagesServed fetches every pod's page through every scheduler.
func pagesServed(t *testing.T, d *devtest.Dev, schedulers []devtest.Process, pods []v2.Pod) {
	t.Helper()
	info, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range schedulers {
		for _, p := range pods {
			await(t, func() error {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.API+"/name", nil)
				if err != nil {
					return err
				}
				req.Host = fmt.Sprintf("%s-8080.%s", p.ID, info.ProxyDomain)
				res, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					return err
				}
				text, err := io.ReadAll(res.Body)
				if err := errors.Join(err, res.Body.Close()); err != nil {
					return err
				}
				if strings.TrimSpace(string(text)) != p.Name {
					return fmt.Errorf("page of %s at %s: %d %q", p.Name, s.ID, res.StatusCode, text)
				}
				return nil
			})
		}
	}
}

// consoleServed signs in to the console at each scheduler, and uses the session at all of them until its key is deleted.
func consoleServed(t *testing.T, d *devtest.Dev, schedulers []devtest.Process) {
	t.Helper()
	// send sends what the console's page at s would, and returns the answer's status.
	send := func(s devtest.Process, method, path, body string, session *http.Cookie) (int, []*http.Cookie) {
		req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), method, s.API+path, strings.NewReader(body)))
		req.Header.Set("X-Gantry-Console", "1")
		req.Header.Set("Origin", s.API)
		if session != nil {
			req.AddCookie(session)
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode, res.Cookies()
	}
	var sessions []*http.Cookie
	key := must[client.Answer[v2.NewKey]](t)(at(t, d, schedulers[0]).CreateKey(t.Context(), v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "console"}})).Value
	for _, s := range schedulers {
		status, cookies := send(s, http.MethodPost, "/console/session", `{"key":"`+key.Text.Reveal()+`"}`, nil)
		if status != http.StatusNoContent || len(cookies) != 1 {
			t.Fatalf("a login at %s: %d, %d cookies", s.ID, status, len(cookies))
		}
		sessions = append(sessions, cookies[0])
	}
	uses := func(want int) {
		for _, s := range schedulers {
			for _, session := range sessions {
				if status, _ := send(s, http.MethodGet, "/v2/pods", "", session); status != want {
					t.Errorf("a session at %s: %d, want %d", s.ID, status, want)
				}
			}
		}
	}
	uses(http.StatusOK)
	if err := at(t, d, schedulers[1]).DeleteKey(t.Context(), string(key.Key.ID)); err != nil {
		t.Fatal(err)
	}
	uses(http.StatusUnauthorized)
}

// testWriter writes to a test's log.
type testWriter struct{ t *testing.T }

// Write logs the text.
func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}
