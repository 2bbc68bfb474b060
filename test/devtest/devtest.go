// Package devtest runs a whole Gantry, as gantry dev starts it, for tests and benchmarks: the real
// binaries in bin/, a real containerd, an image built offline. It needs root. What it started is
// gone after Stop, and Census tells what is not.
package devtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

// What every Dev offers.
const (
	Image   = "docker.io/library/busybox:e2e"
	GPUType = "NVIDIA H100 80GB HBM3"

	// Sleeper is a shell line that does nothing until it is told to end.
	Sleeper = `trap "exit 0" TERM; sleep 1000 & wait`

	upTimeout = 60 * time.Second
)

// Site is where Devs run: a folder, the binaries and an image archive. Remove removes the folder.
type Site struct {
	Dir     string
	Archive string
	Up      time.Duration // how long a Dev may take to come up; 0: a minute
	root    string
}

// NewSite makes a folder and builds the image archive. The working folder must be two below the
// repository's, as that of every package in test/ is.
func NewSite() (*Site, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root: it starts containers")
	}
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	s := &Site{root: filepath.Dir(filepath.Dir(wd))}
	if s.Dir, err = os.MkdirTemp("", "gantry-e2e-"); err != nil {
		return nil, err
	}
	s.Archive = filepath.Join(s.Dir, "busybox.tar")
	build := exec.Command("go", "run", "./test/busyboximage", "--ref", Image, s.Archive)
	build.Dir = s.root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the image: %w: %s", err, out), s.Remove())
	}
	return s, nil
}

// SiteAt is a site whose programs are in bin below root, and whose folder and image archive are there already.
func SiteAt(root, dir, archive string) *Site { return &Site{Dir: dir, Archive: archive, root: root} }

// Remove removes the folder.
func (s *Site) Remove() error { return os.RemoveAll(s.Dir) }

// Binary returns the path of a program in bin/.
func (s *Site) Binary(name string) string { return filepath.Join(s.root, "bin", name) }

// Dev is a running gantry dev.
type Dev struct {
	Dir  string
	site *Site
	cmd  *exec.Cmd
	out  *lockedBuffer
	done chan struct{} // closed when the process has ended
	err  error         // of the process, once done
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Start runs gantry dev on a folder, which may be one of before, and waits until it is up.
func (s *Site) Start(dir string, extra ...string) (*Dev, error) {
	args := append([]string{
		"dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--simulate-gpus", GPUType + ":8", "--image-archive", s.Archive,
	}, extra...)
	d := &Dev{
		Dir: dir, site: s, cmd: exec.Command(s.Binary("gantry"), args...), out: &lockedBuffer{}, done: make(chan struct{}),
	}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(s.Dir, "state"), "XDG_CONFIG_HOME="+filepath.Join(s.Dir, "config"))
	if err := os.Remove(filepath.Join(dir, "dev.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := d.begin(); err != nil {
		return nil, err
	}
	if err := Until(cmp.Or(s.Up, upTimeout), func() error { _, err := d.Info(); return err }); err != nil {
		return nil, fmt.Errorf("gantry dev did not come up: %w", errors.Join(err, d.Stop()))
	}
	return d, nil
}

// begin starts the process so that it is told to end when this one dies, also in a panic or a test's
// timeout. The kernel ties that to the starting thread, which is kept for it.
func (d *Dev) begin() error {
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(d.done)
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.err = d.cmd.Wait()
		}
	}()
	return <-started
}

// Stop ends gantry dev as Ctrl-C does.
func (d *Dev) Stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.done:
	case <-time.After(upTimeout):
		return errors.New("gantry dev did not end")
	}
	if d.err != nil {
		return fmt.Errorf("gantry dev: %w\n%s", d.err, d.out)
	}
	return nil
}

// Kill kills gantry dev itself, and nothing that it started.
func (d *Dev) Kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.done
}

// Argument returns the value of a flag of a running daemon.
func (d *Dev) Argument(role, flag string) (string, error) {
	pid, err := d.PID(role)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", err
	}
	args := strings.Split(string(data), "\x00")
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1], nil
	}
	return "", fmt.Errorf("%s has no %s", role, flag)
}

// PrintLogs writes the ends of the daemons' logs.
func (d *Dev) PrintLogs(w io.Writer) {
	const tail = 60
	files, _ := filepath.Glob(filepath.Join(d.Dir, "log", "*.log")) // the pattern is fine
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			data = []byte(err.Error())
		}
		lines := strings.Split(string(data), "\n")
		_, _ = fmt.Fprintf(w, "--- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-tail):], "\n"))
	}
}

// Info is dev.json.
type Info struct {
	API, APIKey, AdminKey, DataCenterID, ProxyDomain string
	Processes                                        []Process
}

// Process is one daemon of a Dev.
type Process struct {
	Role, ID string
	PID      int
	API      string
	Leader   bool
}

// Info reads dev.json.
func (d *Dev) Info() (Info, error) {
	var info Info
	data, err := os.ReadFile(filepath.Join(d.Dir, "dev.json"))
	if err != nil {
		return info, err
	}
	return info, json.Unmarshal(data, &info)
}

// PID returns the process id that dev.json names for a role.
func (d *Dev) PID(role string) (int, error) {
	info, err := d.Info()
	if err != nil {
		return 0, err
	}
	for _, p := range info.Processes {
		if p.Role == role {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("dev.json names no %s", role)
}

// Kill9 kills a daemon and waits until gantry dev has started another one.
func (d *Dev) Kill9(role string) error {
	old, err := d.PID(role)
	if err != nil {
		return err
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		return err
	}
	return Until(upTimeout, func() error {
		pid, err := d.PID(role)
		if err != nil {
			return err
		}
		if pid == old {
			return fmt.Errorf("no new %s", role)
		}
		return syscall.Kill(pid, 0)
	})
}

// Client returns a client with the ordinary account's key.
func (d *Dev) Client() (*client.Client, error) {
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	return client.New(info.API, fleet.Secret(info.APIKey), "devtest")
}

// Admin returns a client with the operator's key.
func (d *Dev) Admin() (*client.Client, error) {
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	return client.New(info.API, fleet.Secret(info.AdminKey), "devtest")
}

// Command returns a run of the command line against this Dev, which ends with ctx.
func (d *Dev) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, d.site.Binary("gantry"), args...)
	cmd.Env = append(os.Environ(), "GANTRY_API="+info.API, "GANTRY_API_KEY="+info.APIKey)
	return cmd, nil
}

// Until repeats a check until it passes or the time is over.
func Until(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond) // between two looks at a condition
	}
}

// CPUPod describes a CPU pod that runs a shell line.
func CPUPod(name, script string) v2.CreatePodRequest {
	return v2.CreatePodRequest{
		Name: name, CPU: &v2.CreateCPUConfig{ID: "cpu3c", VCPUCount: 2},

		PodSettings: v2.PodSettings{Image: new(Image), Args: new(`{"entrypoint":["sh","-c"],"cmd":[` + strconv.Quote(script) + `]}`)},
	}
}
