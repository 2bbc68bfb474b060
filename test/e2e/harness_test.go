// Package e2e drives the real binaries, as gantry dev starts them, with a real containerd, runc,
// network namespaces and nftables. It needs root.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
	"gantry/test/modelhub"
)

const reachTimeout = 90 * time.Second

// suite is what all tests share: a site and one gantry dev on it.
var suite struct {
	site *devtest.Site
	dev  *devtest.Dev
	hub  *modelhub.Hub // that it fetches models from
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "e2e:", err); return 1 }
	var err error
	if suite.site, err = devtest.NewSite(); err != nil {
		return fail(err)
	}
	defer func() {
		if err := suite.site.Remove(); err != nil {
			code = fail(err)
		}
	}()
	before, err := suite.site.Census("")
	if err != nil {
		return fail(err)
	}
	suite.hub = modelhub.New()
	defer suite.hub.Close()
	if suite.dev, err = suite.site.Start(filepath.Join(suite.site.Dir, "dev"), "--model-hub", suite.hub.URL); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := suite.dev.Stop(); err != nil {
		code = fail(err)
	}
	after, err := suite.site.Census("")
	if err != nil {
		return fail(err)
	}
	for _, thing := range after {
		if !slices.Contains(before, thing) {
			code = fail(fmt.Errorf("left behind: %s", thing))
		}
	}
	if code != 0 {
		suite.dev.PrintLogs(os.Stderr)
	}
	return code
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func user(t *testing.T, d *devtest.Dev) *client.Client {
	t.Helper()
	c := must[*client.Client](t)(d.Client())
	t.Cleanup(c.Close)
	return c
}

func operator(t *testing.T, d *devtest.Dev) *client.Client {
	t.Helper()
	c := must[*client.Client](t)(d.Admin())
	t.Cleanup(c.Close)
	return c
}

func kill9(t *testing.T, d *devtest.Dev, role string) {
	t.Helper()
	if err := d.Kill9(role); err != nil {
		t.Fatal(err)
	}
}

// cli runs the command line and returns what it printed and its exit code.
func cli(t *testing.T, d *devtest.Dev, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	cmd := must[*exec.Cmd](t)(d.Command(ctx, args...))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func await(t *testing.T, check func() error) {
	t.Helper()
	if err := devtest.Until(reachTimeout, check); err != nil {
		t.Fatalf("after %v: %v", reachTimeout, err)
	}
}

// create makes a pod, which is deleted, with everything that it has, when the test ends.
func create(t *testing.T, d *devtest.Dev, body v2.CreatePodRequest) v2.Pod {
	t.Helper()
	c := user(t, d)
	pod := must[client.Answer[v2.Pod]](t)(c.CreatePod(t.Context(), body)).Value
	cleanUp(t, d, pod.ID)
	return pod
}

// cleanUp deletes a pod when the test ends, and waits until nothing of it is left.
func cleanUp(t *testing.T, d *devtest.Dev, id string) {
	c := user(t, d)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), reachTimeout)
		defer cancel()
		err := c.DeletePod(ctx, id)
		var p *client.Problem
		if err != nil && (!errors.As(err, &p) || p.Status != http.StatusConflict) {
			t.Errorf("delete %s: %v", id, err)
		}
		if err := devtest.Until(reachTimeout, func() error { return suite.site.NothingLeft(id) }); err != nil {
			t.Error(err)
		}
	})
}

// reach waits until a pod has a status.
func reach(t *testing.T, d *devtest.Dev, id string, want fleet.PodStatus) v2.Pod {
	t.Helper()
	c := user(t, d)
	var pod v2.Pod
	await(t, func() error {
		answer, err := c.Pod(t.Context(), id)
		if err != nil {
			return err
		}
		if pod = answer.Value; pod.Status != want {
			return fmt.Errorf("pod %s is %s (%s), want %s", id, pod.Status, pod.StatusReason, want)
		}
		return nil
	})
	return pod
}

func act(t *testing.T, d *devtest.Dev, id string, action fleet.Trigger) {
	t.Helper()
	must[client.Answer[v2.Pod]](t)(user(t, d).ActPod(t.Context(), id, action))
}
