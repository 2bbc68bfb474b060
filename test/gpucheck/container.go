package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/agent/ctrd"
	"gantry/agent/logs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/userns"
)

// script is what the container runs.
const script = `for n in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/*; do if [ -c "$n" ]; then echo "node $n"; fi; done
env | grep ^NVIDIA_
nvidia-smi -L
cudaprobe`

const daemonTimeout = 30 * time.Second

// containerd is a daemon of our own.
type containerd struct {
	cmd    *exec.Cmd
	socket string
	log    string
}

func startContainerd(ctx context.Context, parts, dir string) (*containerd, error) {
	d := &containerd{socket: filepath.Join(dir, "c.sock"), log: filepath.Join(dir, "containerd.log")}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", \"io.containerd.nri.v1.nri\", \"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.socket, d.socket+".ttrpc")
	path := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	out, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	d.cmd = exec.Command(filepath.Join(parts, "containerd"), "--config", path)
	d.cmd.Env = append(os.Environ(), "PATH="+parts+":"+os.Getenv("PATH"))
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	for deadline := time.Now().Add(daemonTimeout); ; {
		if _, err := os.Stat(d.socket); err == nil {
			return d, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			text, _ := os.ReadFile(d.log)
			return nil, errors.Join(fmt.Errorf("containerd did not start: %s", text), d.stop())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (d *containerd) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(daemonTimeout, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	_ = d.cmd.Wait()
	return nil
}

// checker runs containers with one GPU.
type checker struct {
	settings
	dir     string
	rt      *ctrd.Runtime
	ref     string
	digest  string
	devices pod.Devices
	gpu     fleet.GPU
	all     []fleet.GPU
}

// container runs one, prints what it printed, and says whether it saw what it should. base is the first id of its user
// namespace; 0: it has none.
func (c checker) container(ctx context.Context, how string, base uint32) (err error) {
	id := fleet.PodID(fleet.NewID())
	spec := pod.ContainerSpec{
		Pod: id, Account: "gpucheck", Incarnation: 1, Image: c.ref, Digest: c.digest, Env: map[string]string{}, Hostname: "gpucheck",
		LogDir: filepath.Join(c.dir, "log-"+string(id)), Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 2000}, PIDs: 1000, ShmMB: 64,
		IDBase: base, CPUs: c.devices.NUMA, Devices: c.devices,
	}
	for _, e := range testEnv(c.settings) {
		name, value, _ := strings.Cut(e, "=")
		spec.Env[name] = value
	}
	if err := os.Mkdir(spec.LogDir, 0o700); err != nil {
		return err
	}
	if base != 0 {
		spec.NetNS = filepath.Join(c.dir, "net")
		held, err := userns.New(base, unix.CLONE_NEWNET)
		if err != nil {
			return err
		}
		defer func() { _ = held.Close() }()
		if err := userns.Pin(held.Net, spec.NetNS); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, userns.Unpin(spec.NetNS)) }()
	}
	text, err := c.run(ctx, spec)
	fmt.Printf("a container %s:\n%s", how, indent(text))
	if err != nil {
		return fmt.Errorf("a container %s: %w", how, err)
	}
	if err := c.verify(text); err != nil {
		return fmt.Errorf("a container %s: %w", how, err)
	}
	return nil
}

// run runs a container to its end and returns what it printed.
func (c checker) run(ctx context.Context, spec pod.ContainerSpec) (text string, err error) {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, c.rt.Remove(last, spec.Pod))
	}()
	if err := c.rt.Define(ctx, spec); err != nil {
		return "", err
	}
	if err := c.rt.Task(ctx, spec.Pod); err != nil {
		return "", err
	}
	if _, err := c.rt.Start(ctx, spec.Pod); err != nil {
		return "", err
	}
	if err := c.rt.Wait(ctx, spec.Pod); err != nil {
		return "", err
	}
	end, err := c.rt.Look(ctx, spec.Pod)
	if err != nil {
		return "", err
	}
	if err := c.rt.Remove(ctx, spec.Pod); err != nil { // its log is whole then
		return "", err
	}
	lines, err := logs.Tail(ctx, spec.LogDir, 1000, time.Time{})
	for _, l := range lines {
		text += l.Text + "\n"
	}
	if err == nil && end.ExitCode != 0 {
		err = fmt.Errorf("it ended with exit code %d", end.ExitCode)
	}
	return text, err
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    " + line)
	}
	return b.String()
}
