package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	hosts        = 3
	reachTimeout = 60 * time.Second
	port         = 8000
	suffix       = "gantry.internal"

	// clear is in every page that the pods serve: nobody may read it on the wire between hosts.
	clear = "this-crosses-the-wire-encrypted"

	// server serves a page that says whose it is.
	server = `mkdir /tmp/w; i=0; while [ $i -lt 50 ]; do echo ` + clear + `; i=$((i+1)); done >/tmp/w/long; ` +
		`echo "$GANTRY_POD_ID ` + clear + `" >/tmp/w/index.html; httpd -p 8000 -h /tmp/w; trap 'exit 0' TERM; sleep 1000 & wait`
)

// world is a gantry dev with three hosts and two accounts whose networks have the same addresses.
type world struct {
	site  *devtest.Site
	dev   *devtest.Dev
	ops   *client.Client
	hosts []admin.Host
	users [2]*user
}

// user is an account with its pods.
type user struct {
	name string
	key  fleet.Secret
	c    *client.Client
	pods []v2.Pod
}

// start starts everything; it ends with the test, and leaves nothing.
func start(t testing.TB) *world {
	t.Helper()
	w := &world{}
	var err error
	w.site, err = devtest.NewSite()
	must(t, err)
	clean := func(what string, f func() error) {
		t.Cleanup(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	clean("remove the site", w.site.Remove)
	before, err := w.site.Census("")
	must(t, err)
	clean("census", func() error {
		after, err := w.site.Census("")
		left := slices.DeleteFunc(after, func(thing string) bool { return slices.Contains(before, thing) })
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %s", strings.Join(left, "; "))
		}
		return err
	})
	w.dev, err = w.site.Start(filepath.Join(w.site.Dir, "dev"), "--agents", fmt.Sprint(hosts))
	if w.dev != nil {
		clean("dev", w.dev.Stop)
	}
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			w.dev.PrintLogs(logWriter{t})
		}
	})
	w.connect(t)
	return w
}

type logWriter struct{ t testing.TB }

// Write logs.
func (l logWriter) Write(p []byte) (int, error) { l.t.Log(string(p)); return len(p), nil }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect makes the second account. Both get networks of the one range that there is.
func (w *world) connect(t testing.TB) {
	t.Helper()
	info, err := w.dev.Info()
	must(t, err)
	w.ops, err = w.dev.Admin()
	must(t, err)
	t.Cleanup(w.ops.Close)
	pool := "10.64.0.0/16"
	_, err = w.ops.UpdateNetworkSettings(t.Context(), admin.UpdateNetworkRequest{Pool: &pool})
	must(t, err)
	account, err := w.ops.CreateAccount(t.Context(), "second")
	must(t, err)
	key, err := w.ops.CreateAccountKey(t.Context(), account.Value.ID, admin.CreateAccountKeyRequest{KeyFields: v2.KeyFields{Name: "all"}, Preset: "all"})
	must(t, err)
	for i, secret := range []fleet.Secret{fleet.Secret(info.APIKey), key.Value.Text.Secret()} {
		c, err := client.New(info.API, secret, "overlay test")
		must(t, err)
		t.Cleanup(c.Close)
		w.users[i] = &user{name: string(rune('a' + i)), key: secret, c: c}
	}
	list, err := w.ops.Hosts(t.Context())
	must(t, err)
	w.hosts = list.Value.Hosts
	slices.SortFunc(w.hosts, func(a, b admin.Host) int { return strings.Compare(a.Name, b.Name) })
}

// populate makes the pods of both accounts, each on the host that its account's list names for it.
func (w *world) populate(t testing.TB, places [2][]int) {
	t.Helper()
	for h := range w.hosts {
		for _, other := range w.hosts {
			_, err := w.ops.CordonHost(t.Context(), other.ID)
			must(t, err)
		}
		_, err := w.ops.UncordonHost(t.Context(), w.hosts[h].ID)
		must(t, err)
		for i, u := range w.users {
			for _, at := range places[i] {
				if at == h {
					u.pods = append(u.pods, w.create(t, u, fmt.Sprintf("node-%d", len(u.pods))))
				}
			}
		}
	}
	for _, host := range w.hosts {
		_, err := w.ops.UncordonHost(t.Context(), host.ID)
		must(t, err)
	}
	for _, u := range w.users {
		for i := range u.pods {
			u.pods[i] = w.runs(t, u, u.pods[i].ID)
		}
	}
}

func (w *world) create(t testing.TB, u *user, name string) v2.Pod {
	t.Helper()
	made, err := u.c.CreatePod(t.Context(), v2.CreatePodRequest{
		Name: name, GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: 1},

		PodSettings: v2.PodSettings{Image: new(devtest.Image), GlobalNetworking: new(true), Args: new(`{"entrypoint":["sh","-c"],"cmd":[` + quoted(server) + `]}`)},
	})
	must(t, err)
	t.Cleanup(func() { _ = u.c.DeletePod(context.Background(), made.Value.ID) }) // it may be gone
	return made.Value
}

func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func (w *world) runs(t testing.TB, u *user, id string) v2.Pod {
	t.Helper()
	var out v2.Pod
	await(t, func() error {
		p, err := u.c.Pod(t.Context(), id)
		if out = p.Value; err != nil || out.Status != fleet.StatusRunning {
			return fmt.Errorf("pod %s is %s (%s), %w", id, out.Status, out.StatusReason, err)
		}
		return nil
	})
	return out
}

func await(t testing.TB, check func() error) {
	t.Helper()
	if err := devtest.Until(reachTimeout, check); err != nil {
		t.Fatal(err)
	}
}

// run runs a shell command in a pod, and returns what it printed and its exit code.
func (w *world) run(ctx context.Context, u *user, pod v2.Pod, command string) (string, int, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	cmd, err := w.dev.Command(ctx, "pod", "exec", pod.ID, "--", "sh", "-c", command)
	if err != nil {
		return "", 0, err
	}
	cmd.Env = append(cmd.Env, "GANTRY_API_KEY="+u.key.Reveal())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return out.String(), cmd.ProcessState.ExitCode(), nil
}

// allReach fails unless each pod of an account gets from each other one, by each of its names, that one's page.
func (w *world) allReach(t testing.TB, u *user) error {
	t.Helper()
	faults := make([]error, len(u.pods))
	var wg sync.WaitGroup
	for i, from := range u.pods {
		wg.Go(func() { faults[i] = w.reaches(t.Context(), u, from, u.pods) })
	}
	wg.Wait()
	return errors.Join(faults...)
}

func (w *world) reaches(ctx context.Context, u *user, from v2.Pod, pods []v2.Pod) error {
	var script, want strings.Builder
	for _, to := range pods {
		for _, name := range []string{to.GlobalNetworking.IP, to.ID + "." + suffix, to.Name + "." + suffix} {
			fmt.Fprintf(&script, `printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 %s %d | tail -n 1 | grep . || echo %s does not answer; `, name, port, name)
			fmt.Fprintf(&want, "%s %s\n", to.ID, clear)
		}
	}
	got, _, err := w.run(ctx, u, from, script.String())
	if err == nil && got != want.String() {
		err = fmt.Errorf("%s of %s got\n%swant\n%s", from.Name, u.name, got, want.String())
	}
	return err
}

// namespace is the name of a pod's network namespace.
func namespace(t testing.TB, pod v2.Pod) string {
	t.Helper()
	found, err := filepath.Glob("/run/netns/gantry-*-" + pod.ID)
	if err != nil || len(found) != 1 {
		t.Fatalf("the network namespace of %s: %v, %v", pod.ID, found, err)
	}
	return filepath.Base(found[0])
}

// islands are the network namespaces of the hosts, in the order of their numbers.
func (w *world) islands(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("/run/netns/gantry-dev-*-[0-9]")
	must(t, err)
	mine := slices.DeleteFunc(found, func(path string) bool { return !strings.Contains(path, w.island(t)) })
	if len(mine) != hosts {
		t.Fatalf("network namespaces of hosts: %v", mine)
	}
	slices.Sort(mine)
	for i := range mine {
		mine[i] = filepath.Base(mine[i])
	}
	return mine
}

// address is a pod's address in its account's network.
func address(t testing.TB, pod v2.Pod) netip.Addr {
	t.Helper()
	addr, err := netip.ParseAddr(pod.GlobalNetworking.IP)
	if err != nil || !pod.GlobalNetworking.Enabled {
		t.Fatalf("%s has no address: %+v", pod.Name, pod.GlobalNetworking)
	}
	return addr
}

// makePrivate has the hosts reach each other without encryption, and waits until they do.
func (w *world) makePrivate(t testing.TB) {
	t.Helper()
	centers, err := w.ops.Centers(t.Context())
	must(t, err)
	center := centers.Value.DataCenters[0]
	body := center.Body()
	body.Underlay = "private"
	_, err = w.ops.PutCenter(t.Context(), center.ID, body)
	must(t, err)
	await(t, func() error {
		shown, err := w.ops.HostNetwork(t.Context(), w.hosts[0].ID)
		if err == nil && !slices.ContainsFunc(shown.Value.Tunnels, func(p admin.HostTunnel) bool { return p.Plain }) {
			err = fmt.Errorf("host 1 reaches no other without encryption: %+v", shown.Value.Tunnels)
		}
		return err
	})
	await(t, func() error { return w.allReach(t, w.users[0]) })
}
