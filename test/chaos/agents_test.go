package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/chaos/lab"
)

const (
	realImage = "docker.io/library/busybox:chaos"
	realGPU   = "NVIDIA A40"
)

// agent is one host with a real agent; all agents share a real containerd.
type agent struct {
	name  string
	place *lab.Place
	data  string
	log   string
	proc  *lab.Proc
	id    string
}

// containerdConfig is one that 1.x and 2.x daemons both read, without what reaches outside its folders.
const containerdConfig = `version = 2
root = %q
state = %q
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",
]
[grpc]
  address = %q
[debug]
  address = ""
[metrics]
  address = ""
[plugins."io.containerd.internal.v1.opt"]
  path = %q
`

func containerdSocket() string { return filepath.Join(suite.lab.RunDir, "containerd.sock") }

func archive() string { return filepath.Join(suite.lab.Dir, "busybox.tar") }

// startRuntime starts the containerd of all agents and makes their image, once.
func startRuntime() error {
	if _, err := os.Stat(archive()); err == nil {
		return nil
	}
	cmd := exec.Command("go", "run", "./test/busyboximage", "--ref", realImage, archive())
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image: %w: %s", err, out)
	}
	place, err := suite.lab.Place("runtime")
	if err != nil {
		return err
	}
	dir := filepath.Join(suite.lab.Dir, "containerd")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), filepath.Join(suite.lab.RunDir, "state"), containerdSocket(), filepath.Join(dir, "opt"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	_, err = place.Start("containerd", lab.Spec{Path: "containerd", Args: []string{"--config", config}, Log: filepath.Join(dir, "log")})
	if err != nil {
		return err
	}
	return until(upTime, func() error {
		conn, err := net.Dial("unix", containerdSocket())
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// addAgent makes a host with a real agent and waits until it is ready.
func (c *cluster) addAgent() (*agent, error) {
	if err := startRuntime(); err != nil {
		return nil, err
	}
	a := &agent{name: fmt.Sprintf("agent-%s-%d", c.name, len(c.agents)+1)}
	a.data, a.log = filepath.Join(suite.lab.Dir, a.name), filepath.Join(suite.lab.Dir, a.name+".log")
	var err error
	if a.place, err = suite.lab.Place(a.name); err != nil {
		return nil, err
	}
	c.agents = append(c.agents, a)
	token, err := c.hostToken(context.Background())
	if err != nil {
		return a, err
	}
	if a.id, err = c.joinHost(a, token); err != nil {
		return a, err
	}
	if err := c.beginAgent(a); err != nil {
		return a, err
	}
	return a, c.hostBecomes(a.id, fleet.HostReady)
}

// joinHost trades a token for an agent's certificate and returns the host's id.
func (c *cluster) joinHost(a *agent, token string) (string, error) {
	file := a.data + ".token"
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTime)
	defer cancel()
	out, errs, err := a.place.Run(ctx, lab.Spec{Path: binary("gantry-agent"), Args: []string{
		"join", "--data-dir", a.data, "--scheduler", c.members[0].link(), "--token-file", file, "--name", a.name, "--timeout", "8s",
	}})
	if err != nil {
		return "", fmt.Errorf("gantry-agent join: %w: %s", err, errs)
	}
	return strings.TrimSpace(out), nil
}

// beginAgent starts an agent's daemon.
func (c *cluster) beginAgent(a *agent) (err error) {
	args := []string{
		"run", "--data-dir", a.data, "--containerd", containerdSocket(), "--image-archive", archive(), "--simulate-gpus", realGPU + ":4",
		"--public-ip", a.place.Addr, "--port-range", "30000-30099", "--overcommit", "10", "--metrics", "",
	}
	for _, link := range c.links() {
		args = append(args, "--scheduler", link)
	}
	a.proc, err = a.place.Start(a.name, lab.Spec{Path: binary("gantry-agent"), Args: args, Log: a.log})
	return err
}

// removeAgents ends the agents' pods as an operator would, so that nothing of them is left in the kernel.
func (c *cluster) removeAgents() error {
	var faults []error
	for _, a := range c.agents {
		if a.proc == nil {
			continue
		}
		a.proc.Resume()
		faults = append(faults, a.proc.Kill())
		ctx, cancel := context.WithTimeout(context.Background(), upTime)
		_, errs, err := a.place.Run(ctx, lab.Spec{
			Path: binary("gantry-agent"), Args: []string{"clean", "--data-dir", a.data, "--containerd", containerdSocket()},
		})
		cancel()
		if err != nil {
			faults = append(faults, fmt.Errorf("clean %s: %w: %s", a.name, err, errs))
		}
	}
	c.agents = nil
	return errors.Join(faults...)
}

// host reads a host's record.
func (c *cluster) host(id string) (admin.Host, error) {
	var h admin.Host
	err := c.admin(http.MethodGet, "/admin/v1/hosts/"+id, nil, &h)
	return h, err
}

func (c *cluster) hostBecomes(id string, want fleet.HostState) error {
	return until(upTime, func() error {
		h, err := c.host(id)
		if err == nil && h.State != want {
			err = fmt.Errorf("host %s is %s, not %s", h.Name, h.State, want)
		}
		return err
	})
}

// marker is a number of seconds that one pod alone sleeps, by which its processes are known.
func marker() string {
	return fmt.Sprintf("86400.%d", marks.Add(1)*1_000_000+int64(os.Getpid()%1_000_000))
}

var marks atomic.Int64

// realPod is the body of a pod for real agents.
func realPod(name, mark string) v2.CreatePodRequest {
	return v2.CreatePodRequest{
		Name: name, GPU: &v2.CreateGPUConfig{ID: realGPU, Count: 1},

		PodSettings: v2.PodSettings{Image: new(realImage), Args: new(`{"entrypoint":["sh","-c"],"cmd":[` + strconv.Quote(`trap "exit 0" TERM; sleep `+mark+` & wait`) + `]}`)},
	}
}

// processes returns the ids of the live processes whose command line ends in a marker: the containers of
// its pod, counted in the kernel and not in anybody's books.
func processes(mark string) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is fine
	var out []int
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
		if strings.HasSuffix(strings.ReplaceAll(string(text), "\x00", " "), "sleep "+mark+" ") {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// runs waits until exactly one process has the marker, and returns it.
func runs(mark string) (pid int, err error) {
	err = until(upTime, func() error {
		found := processes(mark)
		if len(found) != 1 {
			return fmt.Errorf("%d processes of the pod", len(found))
		}
		pid = found[0]
		return nil
	})
	return pid, err
}

// pod reads a pod's record.
func (c *cluster) pod(id string) (v2.Pod, error) {
	var p v2.Pod
	err := until(upTime, func() error {
		var faults []error
		for _, m := range c.members {
			err := c.web.read(context.Background(), ask{base: m.api(), key: c.keys.APIKey, method: http.MethodGet, path: "/v2/pods/" + id, limit: 8 * time.Second}, &p)
			if err == nil {
				return nil
			}
			faults = append(faults, err)
		}
		return errors.Join(faults...)
	})
	return p, err
}

func (c *cluster) podBecomes(id string, want fleet.PodStatus) (v2.Pod, error) {
	var p v2.Pod
	err := until(upTime, func() (err error) {
		if p, err = c.pod(id); err == nil && p.Status != want {
			err = fmt.Errorf("pod %s is %s (%s), not %s", id, p.Status, p.StatusReason, want)
		}
		return err
	})
	return p, err
}

// user makes a call with the first account's key at whatever scheduler answers it.
func (c *cluster) user(method, path string, body, into any) error {
	var faults []error
	for _, m := range c.members {
		err := c.web.read(context.Background(), ask{base: m.api(), key: c.keys.APIKey, method: method, path: path, body: body}, into)
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// startPod makes a pod on a real agent and waits until its process runs.
func (c *cluster) startPod(name string) (p v2.Pod, mark string, pid int, err error) {
	mark = marker()
	if err = c.user(http.MethodPost, "/v2/pods", realPod(name, mark), &p); err != nil {
		return p, mark, 0, err
	}
	if p, err = c.podBecomes(p.ID, fleet.StatusRunning); err != nil {
		return p, mark, 0, err
	}
	pid, err = runs(mark)
	return p, mark, pid, err
}
