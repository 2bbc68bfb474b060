// Package cephtest runs a real Ceph cluster of one node for tests: a monitor, a manager, an object store on a sparse file
// and a metadata server, with one file system. It needs root and the programs of Debian's packages ceph-mon, ceph-mgr,
// ceph-osd, ceph-mds, ceph-fuse and ceph-common.
//
// Everything is in one temporary folder and on one address, so that clusters do not meet each other. The daemons
// die with this process; what a killed one left is taken away by the next start.
package cephtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

const (
	// FileSystem is the name of the cluster's file system.
	FileSystem = "cephfs"
	// Folder is the folder in it that the clients Plain and Admin may use. It belongs to root and has mode 0711.
	Folder = "/gantry"
	// Plain is a client that may read and write below Folder, and set neither quotas nor layouts nor snapshots.
	Plain = "gantry"
	// Admin is a client that may also set quotas and layouts below Folder.
	Admin = "gantry-admin"
)

// Names of the daemons, for Freeze and Thaw.
const (
	Mon = "mon"
	Mgr = "mgr"
	OSD = "osd"
	MDS = "mds"
)

const (
	startTime = 90 * time.Second // of the whole cluster; it takes about four
	toolTime  = 30 * time.Second // of one program
)

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	dir  string
	fsid string
	addr string // of all daemons
	port int    // of the monitor
	keys map[string]string

	threads *thread // that starts the daemons

	mu      sync.Mutex // guards what follows
	daemons map[string]*daemon
	mounts  int
	closed  bool
}

// StartT starts a cluster that ends with the test.
func StartT(t testing.TB) *Cluster {
	t.Helper()
	c, err := Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Start starts a cluster in a new folder below dir; empty: that of temporary files. It returns when the file
// system can be mounted. The caller calls Close. The error of a failed start shows the end of what the daemons said.
func Start(dir string) (*Cluster, error) { return StartOn(dir, "127.0.0.1") }

// StartOn is Start on an address of this machine, for clients in other network namespaces.
func StartOn(dir, addr string) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a Ceph cluster needs root: it is mounted to make its folder")
	}
	for _, program := range []string{"ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "monmaptool"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("a program of Ceph is missing, scripts/setup.sh installs it: %w", err)
		}
	}
	if dir == "" {
		dir = os.TempDir()
	}
	if err := sweep(dir); err != nil {
		return nil, fmt.Errorf("what an earlier run left: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	const tries = 3 // another process may take the port that was free
	var faults []error
	for range tries {
		c, err := start(ctx, dir, addr)
		if err == nil {
			return c, nil
		}
		faults = append(faults, err)
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, fmt.Errorf("start a Ceph cluster: %w", errors.Join(faults...))
}

func start(ctx context.Context, parent, addr string) (*Cluster, error) {
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-", tempPrefix, os.Getpid()))
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, addr: addr, fsid: newUUID(), keys: map[string]string{}, daemons: map[string]*daemon{}, threads: newThread()}
	if err = c.write(); err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		err = c.explained(err)
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// run makes the daemons' data and starts them. The object store takes longest, and needs no monitor to be made.
func (c *Cluster) run(ctx context.Context) error {
	osd := newUUID()
	if err := c.tool(ctx, "monmaptool", "--create", "--addv", monName, c.monitor(), "--fsid", c.fsid, c.path("monmap")); err != nil {
		return err
	}
	made := make(chan error, 1)
	go func() {
		made <- c.tool(ctx, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "--monmap", c.path("monmap"))
	}()
	err := c.monitored(ctx, osd)
	if madeErr := <-made; err == nil { // it ends with ctx
		err = madeErr
	}
	if err == nil {
		err = c.daemon(OSD, "0")
	}
	if err == nil {
		err = c.active(ctx)
	}
	if err == nil {
		err = c.folder(ctx)
	}
	return err
}

// monitored starts what needs no object store, and tells the monitor what there will be.
func (c *Cluster) monitored(ctx context.Context, osd string) error {
	err := c.tool(ctx, "ceph-mon", "--mkfs", "-i", monName, "--monmap", c.path("monmap"), "--keyring", c.path("keyring"))
	if err != nil {
		return err
	}
	if err := c.daemon(Mon, monName); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"osd", "new", osd},
		{"osd", "pool", "create", "meta", "8"},
		{"osd", "pool", "create", "data", "8"},
		{"fs", "new", FileSystem, "meta", "data"},
	} {
		if _, err := c.Ceph(ctx, command...); err != nil {
			return err
		}
	}
	if err := c.daemon(Mgr, mgrName); err != nil {
		return err
	}
	return c.daemon(MDS, mdsName)
}

// active waits until the metadata server serves the file system. It asks that process itself: right after it was started again
// the monitor still says so of the one before.
func (c *Cluster) active(ctx context.Context) error {
	var status struct {
		State string `json:"state"`
	}
	for {
		err := c.ask(ctx, MDS, map[string]any{"prefix": "status"}, &status)
		if err == nil && status.State == "up:active" {
			return nil
		}
		if err := c.ended(Mon, OSD, MDS); err != nil {
			return err
		}
		if waitErr := sleep.For(ctx, 20*time.Millisecond); waitErr != nil {
			return fmt.Errorf("the metadata server does not become active: %w", errors.Join(waitErr, err))
		}
	}
}

// maker is the client that makes Folder.
const maker = "mnt"

// folder makes Folder. Its client has ended then: the metadata server, when it starts again, would wait for one that went
// without a word.
func (c *Cluster) folder(ctx context.Context) error {
	at := c.path(maker)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	// A client may try to mount once more after it was unmounted here: it is not to abort then, and leave its session.
	err := c.launch(maker, "ceph-fuse", "--conf", c.path("ceph.conf"), "-f", "--name", "client.admin", "--client_mountpoint", "/",
		"--client_die_on_failed_dentry_invalidate", "false", at)
	if err == nil {
		err = c.mounted(ctx, maker)
	}
	if err != nil {
		return err
	}
	err = os.Mkdir(at+Folder, 0o711) //nolint:gosec // others go through it to what is theirs
	if err == nil {
		err = os.Chmod(at+Folder, 0o711) //nolint:gosec // whatever the process's mask took away
	}
	// While the client mounts once more the mount is busy.
	return errors.Join(err, unix.Unmount(at, unix.MNT_DETACH), c.left(maker))
}

// Ceph runs the program ceph as the cluster's administrator and returns what it wrote.
func (c *Cluster) Ceph(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ceph", append([]string{"--conf", c.path("ceph.conf"), "--connect-timeout", "25"}, args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("ceph %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// tool runs a program with the cluster's configuration.
func (c *Cluster) tool(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append([]string{"--conf", c.path("ceph.conf")}, args...)...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// Monitors returns the addresses of the monitors, as host:port.
func (c *Cluster) Monitors() []string { return []string{fmt.Sprintf("%s:%d", c.addr, c.port)} }

// monitor is the monitor's address in the form of Ceph that leaves nothing to be tried.
func (c *Cluster) monitor() string { return fmt.Sprintf("[v2:%s:%d]", c.addr, c.port) }

// Conf returns the path of a configuration file with which Ceph's programs reach the cluster as its administrator.
func (c *Cluster) Conf() string { return c.path("ceph.conf") }

// Key returns the secret of the clients Plain and Admin, and of those that AddClient made; empty for others.
func (c *Cluster) Key(client string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[client]
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// Close ends the daemons and removes the cluster's folder. It may be repeated. Mounts of the cluster elsewhere fail
// from then on; they are their makers' to undo.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var faults []error
	for _, d := range c.daemons {
		faults = append(faults, d.kill())
	}
	c.threads.end()
	faults = append(faults, clear(c.dir))
	return errors.Join(faults...)
}
