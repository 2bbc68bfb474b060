package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/chaos/lab"
)

// gantry runs the command line as an operator's.
func (c *cluster) gantry(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), upTime)
	defer cancel()
	_, errs, err := c.clients.Run(ctx, lab.Spec{
		Path: binary("gantry"), Args: args,
		Env: []string{"GANTRY_API=" + c.members[0].api(), "GANTRY_API_KEY=" + c.keys.AdminKey, "HOME=" + suite.lab.Dir},
	})
	if err != nil {
		t.Fatalf("gantry %s: %v: %s", strings.Join(args, " "), err, errs)
	}
}

// simPodRuns makes a pod on a simulated host and waits until it runs.
func (c *cluster) simPodRuns(t *testing.T, name string) v2.Pod {
	t.Helper()
	var p v2.Pod
	must(t, c.user(http.MethodPost, "/v2/pods", simPod(name), &p))
	p, err := c.podBecomes(p.ID, fleet.StatusRunning)
	must(t, err)
	return p
}

// ranOnce fails unless each pod runs as often as is said.
func (c *cluster) ranOnce(want map[string]int) error {
	runs, err := c.simRuns()
	for pod, n := range want {
		if runs[pod] != n {
			err = errors.Join(err, fmt.Errorf("pod %s runs %d times, want %d", pod, runs[pod], n))
		}
	}
	return err
}

func TestRow17RestoredFromAnOldBackup(t *testing.T) {
	c, err := startCluster("restore", 1, 3)
	must(t, err)
	defer func() {
		c.stopHosts()
		if t.Failed() {
			c.printLogs(testWriter{t})
		}
	}()
	m := c.members[0]
	kept, gone := c.simPodRuns(t, "kept"), c.simPodRuns(t, "gone-since")
	before, err := c.view(m)
	must(t, err)
	file := filepath.Join(suite.lab.Dir, "copy")
	c.gantry(t, "snapshot", "save", file)
	c.gantry(t, "snapshot", "inspect", file)

	// What the copy does not know: another pod, another name, an end.
	since := c.simPodRuns(t, "made-since")
	name := "renamed-since"
	must(t, c.user(http.MethodPatch, "/v2/pods/"+kept.ID, v2.UpdatePodRequest{Name: &name}, nil))
	must(t, c.user(http.MethodDelete, "/v2/pods/"+gone.ID, nil, nil))
	await(t, upTime, func() error { return c.ranOnce(map[string]int{kept.ID: 1, gone.ID: 0, since.ID: 1}) })
	must(t, m.proc.Kill())

	old := m.data
	m.data, m.id = filepath.Join(m.disk.Dir, "restored"), ""
	must(t, m.tool("restore", file, "--data-dir", m.data, "--seal-key", filepath.Join(old, "seal.key"), "--address", m.link(), "--name", m.name))
	must(t, c.begin(m))
	await(t, upTime, c.whole)
	after, err := c.view(m)
	must(t, err)
	if after.ID == before.ID || after.Lineage <= before.Lineage {
		t.Errorf("the restored cluster is %s, lineage %d; it was %s, %d", after.ID, after.Lineage, before.ID, before.Lineage)
	}
	await(t, upTime, c.simsConnected)
	await(t, upTime, func() error { return c.ranOnce(map[string]int{kept.ID: 1, gone.ID: 0, since.ID: 0}) })
	shown, err := c.podBecomes(kept.ID, fleet.StatusRunning)
	must(t, err)
	if shown.Incarnation < kept.Incarnation || shown.HostID != kept.HostID || shown.Name != kept.Name {
		t.Errorf("the pod that ran on is %s on %s, incarnation %d; it was %s on %s, %d", shown.Name, shown.HostID, shown.Incarnation, kept.Name, kept.HostID, kept.Incarnation)
	}
	if ended, err := c.podBecomes(gone.ID, fleet.StatusExited); err != nil || !strings.Contains(string(ended.StatusReason), "restor") {
		t.Errorf("the pod that had ended is %s (%s), %v", ended.Status, ended.StatusReason, err)
	}
	if p, err := c.tryPod(since.ID); err == nil {
		t.Errorf("the pod of after the copy is known: %s", p.Status)
	}
	fresh := c.simPodRuns(t, "made-after")
	must(t, c.ranOnce(map[string]int{kept.ID: 1, gone.ID: 0, since.ID: 0, fresh.ID: 1}))

	// The old data comes back: hosts that followed the new lineage do not follow it.
	must(t, m.proc.Kill())
	m.data, m.id = old, ""
	must(t, c.begin(m))
	await(t, upTime, func() error { _, err := c.view(m); return err })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for _, f := range c.sims {
			if n := f.Count().Connected; n > 0 {
				t.Fatalf("%d hosts follow a scheduler of an older lineage", n)
			}
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	must(t, c.ranOnce(map[string]int{kept.ID: 1, fresh.ID: 1}))
	must(t, c.simFaults())
	must(t, m.proc.Kill())
}

// tryPod reads a pod once.
func (c *cluster) tryPod(id string) (v2.Pod, error) {
	var p v2.Pod
	return p, c.user(http.MethodGet, "/v2/pods/"+id, nil, &p)
}
