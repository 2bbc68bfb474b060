// Package lab is a network of machines on this one: each place is a network namespace with one address, and a bridge
// in a further namespace joins them. Programs are started in places, and places are cut off from each other with
// nftables. It needs root.
//
// The namespaces have no names: the kernel takes them away with the last process in them, also when this one is
// killed. Programs die with this process. What is left in folders and mounts is taken away by the next lab.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tempPrefix = "gantry-chaos-" // of folders in /tmp and /run; the process id follows
	subnet     = "10.213.7."
	shellTime  = 20 * time.Second // for ip and nft
)

// Lab is the network. Its folders are named after this process.
type Lab struct {
	Dir    string // for data
	RunDir string // for sockets: a short path

	hub *Place // holds the bridge

	mu     sync.Mutex // guards what follows
	places []*Place
	procs  []*Proc
	mounts []interface{ Close() error }
}

// New takes away what dead labs left, and makes an empty lab.
func New() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root: it makes network namespaces")
	}
	if err := sweep(); err != nil {
		return nil, fmt.Errorf("what an earlier run left: %w", err)
	}
	name := fmt.Sprint(tempPrefix, os.Getpid())
	l := &Lab{Dir: filepath.Join(os.TempDir(), name), RunDir: filepath.Join("/run", name)}
	for _, dir := range []string{l.Dir, l.RunDir} {
		if err := os.Mkdir(dir, 0o711); err != nil {
			return nil, err
		}
	}
	var err error
	if l.hub, err = l.enter("hub"); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.hub.ip("link set lo up", "link add lan type bridge", "link set lan up"); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close ends every program, takes away every mount and folder, and gives the namespaces up.
func (l *Lab) Close() error {
	l.mu.Lock()
	procs, mounts, places := l.procs, l.mounts, l.places
	l.procs, l.mounts, l.places = nil, nil, nil
	l.mu.Unlock()
	var faults []error
	for _, p := range procs {
		p.Resume()
		faults = append(faults, p.Kill())
	}
	for _, m := range mounts {
		faults = append(faults, m.Close())
	}
	for _, p := range places {
		p.leave()
	}
	faults = append(faults, clear(l.Dir, l.RunDir))
	return errors.Join(faults...)
}

// Keep makes Close close something after the programs have ended.
func (l *Lab) Keep(c interface{ Close() error }) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mounts = append(l.mounts, c)
}

// Place is one machine of the network.
type Place struct {
	Name string
	Addr string // IPv4

	lab  *Lab
	ns   int // open at the namespace
	work chan func()
	gone chan struct{} // closed when the thread has ended

	mu  sync.Mutex
	cut map[string]bool // rules that hold
}

// Place adds a machine to the network.
func (l *Lab) Place(name string) (*Place, error) {
	p, err := l.enter(name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	n := len(l.places)
	l.mu.Unlock()
	p.Addr = fmt.Sprint(subnet, n)
	outer := fmt.Sprintf("v%d", n)
	err = l.hub.ip(
		fmt.Sprintf("link add %s type veth peer name eth0 netns /proc/%d/fd/%d", outer, os.Getpid(), p.ns),
		fmt.Sprintf("link set %s master lan up", outer),
	)
	if err == nil {
		err = p.ip("link set lo up", "addr add "+p.Addr+"/24 dev eth0", "link set eth0 up")
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// enter makes a namespace and a thread that stays in it: the kernel kills the programs that the thread
// started when it ends, which is when this process does.
func (l *Lab) enter(name string) (*Place, error) {
	p := &Place{Name: name, lab: l, ns: -1, work: make(chan func()), gone: make(chan struct{}), cut: map[string]bool{}}
	made := make(chan error, 1)
	go func() {
		defer close(p.gone)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			p.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		made <- err
		if err != nil {
			return
		}
		for f := range p.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.places = append(l.places, p)
	return p, nil
}

func (p *Place) leave() {
	close(p.work)
	<-p.gone
	_ = unix.Close(p.ns)
}

// do runs f on the place's thread, which must not be held up for long.
func (p *Place) do(f func()) {
	done := make(chan struct{})
	p.work <- func() { defer close(done); f() }
	<-done
}

// ip runs lines of the ip command in the place.
func (p *Place) ip(lines ...string) error {
	return p.shell(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// shell runs a short command in the place.
func (p *Place) shell(stdin, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), shellTime)
	defer cancel()
	_, errs, err := p.Run(ctx, Spec{Path: name, Args: args, Stdin: stdin})
	if err != nil {
		return fmt.Errorf("%s %s in %s: %w: %s", name, strings.Join(args, " "), p.Name, err, errs)
	}
	return nil
}

// Spec is a program to run.
type Spec struct {
	Path  string
	Args  []string
	Env   []string // beside this process's own
	Stdin string   // of Run
	Log   string   // of Start: file that gets what it prints

	Watchdog time.Duration // of Start: it is asked to feed a watchdog, as systemd's WatchdogSec; 0: it is not
}

func (s Spec) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.Path, s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs a program to its end.
func (p *Place) Run(ctx context.Context, s Spec) (stdout, stderr string, err error) {
	cmd := s.command(ctx)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(s.Stdin), &out, &errs
	p.do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	return out.String(), errs.String(), err
}
