package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	goreg "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// registry starts an image registry on loopback and returns its address.
func registry(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(goreg.New(goreg.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func run1(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func TestImageIsPulledFromARegistry(t *testing.T) {
	t.Parallel()
	ref := registry(t) + "/team/busybox:1"
	dir := t.TempDir()
	run1(t, "tar", "-xf", suite.site.Archive, "-C", dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || index == empty.Index || len(manifest.Manifests) == 0 {
		t.Fatalf("the archive has no image: %v", err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
	body := devtest.CPUPod("pulled", devtest.Sleeper)
	body.Image = &ref
	pod := create(t, suite.dev, body)
	running := reach(t, suite.dev, pod.ID, fleet.StatusRunning)
	if running.Steps[fleet.StepPulling].IsZero() || running.Steps[fleet.StepPulled].Before(running.Steps[fleet.StepPulling].Time) {
		t.Errorf("steps %v", running.Steps)
	}
	again := create(t, suite.dev, body)
	if second := reach(t, suite.dev, again.ID, fleet.StatusRunning); !second.Steps[fleet.StepPulling].IsZero() {
		t.Error("an image that is on the host was pulled again")
	}
}

// TestPodReachesOutAndNotTheHost gives the machine a neighbour in a namespace of its own.
func TestPodReachesOutAndNotTheHost(t *testing.T) {
	const ns, hostEnd, farEnd = "e2e-outside", "e2eout0", "e2eout1"
	const hostAddr, farAddr = "198.18.77.1", "198.18.77.2"
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() }) // takes the link along
	run1(t, "ip", "netns", "add", ns)
	run1(t, "ip", "link", "add", hostEnd, "type", "veth", "peer", "name", farEnd, "netns", ns)
	run1(t, "ip", "addr", "add", hostAddr+"/30", "dev", hostEnd)
	run1(t, "ip", "link", "set", hostEnd, "up")
	run1(t, "ip", "-n", ns, "addr", "add", farAddr+"/30", "dev", farEnd)
	run1(t, "ip", "-n", ns, "link", "set", farEnd, "up")

	www := t.TempDir()
	if err := os.WriteFile(filepath.Join(www, "index.html"), []byte("from outside\n"), 0o644); err != nil { //nolint:gosec // served
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	far := exec.CommandContext(ctx, "ip", "netns", "exec", ns, "busybox", "httpd", "-f", "-p", farAddr+":8099", "-h", www)
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = far.Wait() }()
	near := httptest.NewUnstartedServer(http.NotFoundHandler())
	ln, err := net.Listen("tcp", hostAddr+":0")
	if err != nil {
		t.Fatal(err)
	}
	near.Listener = ln
	near.Start()
	defer near.Close()

	pod := create(t, suite.dev, devtest.CPUPod("out", fmt.Sprintf(
		`get() { printf "GET / HTTP/1.0\r\n\r\n" | nc -w 2 $1 $2; }; `+
			`for i in 1 2 3 4 5 6 7 8; do get %s 8099 | grep outside && break; sleep 0.2; done; `+
			`get %s %d | grep HTTP && echo host reached || echo host refused; %s`,
		farAddr, hostAddr, ln.Addr().(*net.TCPAddr).Port, devtest.Sleeper)))
	reach(t, suite.dev, pod.ID, fleet.StatusRunning)
	logHas(t, suite.dev, pod.ID, "from outside")
	logHas(t, suite.dev, pod.ID, "host refused")
}

// TestUpgradeThroughTheProxy speaks to a server in a pod that changes protocols, as WebSockets do.
func TestUpgradeThroughTheProxy(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("socket", `cat > /tmp/serve <<'END'
#!/bin/sh
while read -r line; do [ "${#line}" -gt 1 ] || break; done
printf 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n'
exec cat
END
chmod +x /tmp/serve
trap "exit 0" TERM
nc -ll -p 8080 -e /tmp/serve & wait`)
	body.Ports = []string{"8080/http"}
	pod := create(t, d, body)
	reach(t, d, pod.ID, fleet.StatusRunning)
	info, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	api, err := url.Parse(info.API)
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return echo(api.Host, fmt.Sprintf("%s-8080.%s", pod.ID, info.ProxyDomain)) })
}

// echo upgrades a connection and checks that bytes come back.
func echo(addr, host string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c, "GET /chat HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host)
	if err != nil {
		return err
	}
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	for _, word := range []string{"first\n", "second, a little later\n"} {
		if _, err := io.WriteString(c, word); err != nil {
			return err
		}
		back, err := r.ReadString('\n')
		if err != nil || back != word {
			return fmt.Errorf("sent %q, got %q: %w", word, back, err)
		}
	}
	return nil
}

// TestLogOfTheRunBefore runs a pod that crashes twice, and one that was started again while the agent was away.
func TestLogOfTheRunBefore(t *testing.T) {
	t.Parallel()
	d := suite.dev
	pod := create(t, d, devtest.CPUPod("crasher", "echo run of $(date +%s.%N); exit 3"))
	reach(t, d, pod.ID, fleet.StatusError)
	previous := func() (string, string, int) {
		return cli(t, d, "pod", "logs", pod.ID, "--previous", "--source", "container")
	}
	if out, errs, code := previous(); code != 4 || out != "" || !strings.Contains(errs, "no log of an earlier run") {
		t.Errorf("after one run: exit code %d, %q, %q", code, out, errs)
	}
	var runs []string
	for n := 1; ; n++ {
		out, errs, code := cli(t, d, "pod", "logs", pod.ID, "--source", "container")
		runs = strings.SplitAfter(strings.TrimSuffix(out, "\n"), "\n")
		if code != 0 || len(runs) != n {
			t.Fatalf("after run %d: exit code %d, %q, %q", n, code, out, errs)
		}
		if n == 3 {
			break
		}
		act(t, d, pod.ID, fleet.ActionStart)
		await(t, func() error {
			answer, err := user(t, d).Pod(t.Context(), pod.ID)
			p := answer.Value
			if err == nil && (p.Status != fleet.StatusError || int(p.Incarnation) != n+1) {
				err = fmt.Errorf("%s in start %d", p.Status, p.Incarnation)
			}
			return err
		})
	}
	if out, errs, code := previous(); code != 0 || out != runs[1] {
		t.Errorf("the run before: exit code %d, %q, want %q, %q", code, out, runs[1], errs)
	}
	all, _, _ := cli(t, d, "pod", "logs", pod.ID, "--previous")
	if strings.Count(all, "[system] ") < 3 || strings.Count(all, "run of ") != 1 {
		t.Errorf("with the lines of the system: %q", all)
	}
	if _, errs, code := cli(t, d, "pod", "logs", pod.ID, "--previous", "-f"); code != 2 {
		t.Errorf("to be followed: exit code %d, %s", code, errs)
	}
}

func TestLogsFollowAndResume(t *testing.T) {
	t.Parallel()
	d := suite.dev
	pod := create(t, d, devtest.CPUPod("talker", `trap "exit 0" TERM; i=0; while sleep 0.02; do i=$((i+1)); echo line $i; done`))
	reach(t, d, pod.ID, fleet.StatusRunning)
	ticksOrLines(t, d, pod.ID, "line %d", 20)
	if err := user(t, d).PodLogs(t.Context(), pod.ID, client.LogQuery{Tail: 5}, client.LogEvents{Line: func(client.LogLine) error { return nil }}); err != nil {
		t.Errorf("a log without follow: %v", err)
	}
}
