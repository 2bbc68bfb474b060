package dev

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const maxAgents = 16

// DefaultDataCenter is the data center of a folder for which none was named.
const DefaultDataCenter = "dev-1"

// Config says what to run, and where.
type Config struct {
	DataDir       string   // made when it is not there; only ever used by dev
	Listen        string   // HOST:PORT of the public API
	DataCenter    string   // empty: the folder's own, else DefaultDataCenter
	SimulateGPUs  []string // "TYPE:COUNT" each
	Containerd    string   // socket of a containerd to use; empty: start one
	ImageArchives []string // files that the agent imports
	SampleWorker  string   // program that the agent gets as SampleImage; it runs a worker when called with SampleCommand; empty: none
	Schedulers    int      // 1, 3 or 5; 0: as many as the folder has, else 1
	Gateways      int      // beside the schedulers; those that the folder has stay
	Agents        int      // each of several is a host with a network of its own; 0: as the folder has, else 1
	Overcommit    int      // offer processors, memory and disk so many times; 0 leaves it to the agent
	ModelHub      string   // address that agents fetch models from; empty: they keep none
	SchedulerArgs []string // beside those that dev gives
	S3            string   // HOST:PORT at which network volumes are served over S3; empty: nowhere
	Binaries      Binaries
	StateHome     string    // folder of the pointer to the last dev.json; empty: none is written
	Out           io.Writer // what people read
	Log           *slog.Logger
	Version       string

	tune tuning
}

// Binaries are the programs that dev runs.
type Binaries struct {
	Scheduler, Agent, Logger string
	Net                      string
	Containerd               string // not needed when Config.Containerd is set
	S3                       string // needed for Config.S3; empty: not found
}

// tuning holds the times that tests shorten; zero values mean the defaults.
type tuning struct {
	backoffMin, backoffMax time.Duration // between two starts of a child that dies
	backoffReset           time.Duration // a child that lived this long starts at backoffMin again
	ready                  time.Duration // for each part to come up
	grace                  time.Duration // between SIGTERM and SIGKILL
	clean                  time.Duration // for the agent to take away what its pods left
	shims                  time.Duration // for shims without a container to end by themselves
	runRoot                string        // where the short folder for sockets is made
}

func (t tuning) orDefaults() tuning {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&t.backoffMin, 100*time.Millisecond)
	set(&t.backoffMax, 5*time.Second)
	set(&t.backoffReset, 10*time.Second)
	set(&t.ready, 60*time.Second)
	set(&t.grace, 15*time.Second)
	set(&t.clean, 60*time.Second)
	set(&t.shims, 5*time.Second)
	if t.runRoot == "" {
		t.runRoot = "/run"
	}
	return t
}

// binaryPath is where the tools that containerd and the agent call are, even for a user whose PATH lacks them.
const binaryPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// FindBinaries looks for each program beside self and then in path, a list as in $PATH, extended by the usual folders
// of system programs. Its error names everything that is missing.
func FindBinaries(self, path string, ownContainerd bool) (Binaries, error) {
	var b Binaries
	want := []struct {
		name string
		at   *string
	}{{"gantry-scheduler", &b.Scheduler}, {"gantry-agent", &b.Agent}, {"gantry-logger", &b.Logger}, {"gantry-net", &b.Net}}
	if ownContainerd {
		want = append(want, struct {
			name string
			at   *string
		}{"containerd", &b.Containerd})
	}
	dirs := append([]string{filepath.Dir(self)}, filepath.SplitList(path+":"+binaryPath)...)
	var missing []string
	for _, w := range want {
		if *w.at = find(w.name, dirs); *w.at == "" {
			missing = append(missing, w.name)
		}
	}
	b.S3 = find("gantry-s3", dirs)
	if len(missing) > 0 {
		return b, fmt.Errorf("%s not found, neither beside %s nor in PATH", strings.Join(missing, ", "), self)
	}
	return b, nil
}

func find(name string, dirs []string) string {
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found
		}
	}
	return ""
}

func (c *Config) checkS3() error {
	if c.S3 == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.S3); err != nil {
		return bad("address %q for S3: must be HOST:PORT", c.S3)
	}
	if c.Binaries.S3 == "" {
		return bad("gantry-s3 not found, neither beside this program nor in PATH")
	}
	return nil
}

// check makes paths absolute and finds what cannot work before anything is started.
func (c *Config) check() error {
	if os.Geteuid() != 0 {
		return errors.New("gantry dev needs root: it starts containers and changes networks; run it with sudo")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil || c.DataDir == "" {
		return bad("data folder %q: not a path", c.DataDir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	// One folder, one name: the lock, the mounts and the short folder for sockets go by it.
	if c.DataDir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return bad("listen address %q: must be HOST:PORT", c.Listen)
	}
	if !slices.Contains([]int{0, 1, 3, 5}, c.Schedulers) {
		return bad("%d schedulers: must be 1, 3 or 5", c.Schedulers)
	}
	if c.Gateways < 0 || c.Gateways > maxGateways {
		return bad("%d gateways: must be 0 to %d", c.Gateways, maxGateways)
	}
	if c.Agents < 0 || c.Agents > maxAgents {
		return bad("%d agents: must be 1 to %d", c.Agents, maxAgents)
	}
	for i, file := range c.ImageArchives {
		if c.ImageArchives[i], err = filepath.Abs(file); err != nil {
			return bad("image archive %s: %v", file, err)
		}
		if info, err := os.Stat(file); err != nil {
			return bad("image archive: %v", err)
		} else if !info.Mode().IsRegular() {
			return bad("image archive %s: not a file", file)
		}
	}
	if c.Containerd != "" {
		if c.Containerd, err = filepath.Abs(strings.TrimPrefix(c.Containerd, "unix://")); err != nil {
			return bad("containerd socket: %v", err)
		}
		if info, err := os.Stat(c.Containerd); err != nil {
			return bad("containerd socket: %v", err)
		} else if info.Mode().Type() != os.ModeSocket {
			return bad("containerd socket %s: not a socket", c.Containerd)
		}
	}
	c.tune = c.tune.orDefaults()
	return c.checkS3()
}

// ConfigError is a setting that cannot be used; nothing was started.
type ConfigError struct{ msg string }

// Error says which setting, and why.
func (e *ConfigError) Error() string { return e.msg }

func bad(format string, args ...any) error { return &ConfigError{fmt.Sprintf(format, args...)} }
