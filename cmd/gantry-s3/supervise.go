package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/internal/ipc/process"
	"gantry/internal/scrape"
	"gantry/internal/sleep"
)

const (
	restartLeast = 100 * time.Millisecond
	restartMost  = 10 * time.Second
	stoodLong    = time.Minute      // after which a serving process that ends is replaced at once
	stopWithin   = 25 * time.Second // requests that go on have drainWithin of it
)

// supervisor is the process with rights. It does nothing with what clients send: it keeps the listener, and starts what serves.
type supervisor struct {
	conf   servingConfig
	who    identity
	listen *os.File
	socket string // of the agent
	tls    func() (servingTLS, error)
	scrape func() (scrape.Material, error)
	log    *slog.Logger

	served atomic.Bool // once
}

// run has a process serve until ctx ends. It fails when the first one cannot be confined.
func (s *supervisor) run(ctx context.Context) error {
	wait := process.Backoff{Least: restartLeast, Most: restartMost, Stood: stoodLong}
	for {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
			return nil
		}
		if !s.served.Load() {
			return err
		}
		stood := time.Since(began)
		again := wait.Next(stood)
		s.log.Error("the serving process exited; restarting it", "stood", stood, "in", again, "err", err)
		_ = sleep.For(ctx, again)
	}
}

// once starts a serving process and waits for its end, which it asks for when ctx ends.
func (s *supervisor) once(ctx context.Context) error {
	here, there, err := ipc.Pair()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"gantry-s3", confineCommand}, Env: []string{}, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: []*os.File{s.listen, there},
		SysProcAttr: s.confined(),
	}
	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that started a process for the end of its parent.
		runtime.LockOSThread()
		err := cmd.Start()
		_ = there.Close()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		_ = here.Close()
		return refusedBy(err)
	}
	answered := make(chan struct{})
	go func() { // ends with the connection
		defer close(answered)
		s.answer(context.WithoutCancel(ctx), here, s.ready) // it asks also while it ends
	}()
	defer func() {
		_ = here.Close()
		<-answered
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = s.stop(cmd.Process, ended)
	}
	if err == nil {
		err = errors.New("it ended by itself")
	}
	return fmt.Errorf("the serving process: %w", err)
}

func (s *supervisor) ready() {
	if s.served.CompareAndSwap(false, true) {
		s.log.Info("serving S3", "addr", s.conf.Addr, "tls", s.conf.TLS, "region", s.conf.Region, "uid", s.who.uid)
		_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	}
}

// stop lets the process finish what it answers.
func (s *supervisor) stop(p *os.Process, ended <-chan error) error {
	_ = p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		_ = p.Kill()
		return <-ended
	}
}

// confined is a process with a view of its own of everything, in which it is root of nothing but the files of volumes.
func (s *supervisor) confined() *syscall.SysProcAttr {
	own := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: id, Size: 1},
			{ContainerID: volumeIDs, HostID: volumeIDs, Size: volumeIDsTo - volumeIDs},
		}
	}
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET |
			unix.CLONE_NEWCGROUP,
		UidMappings: own(s.who.uid), GidMappings: own(s.who.gid), GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0}, Setsid: true, Pdeathsig: syscall.SIGKILL,
	}
}

// refusedBy says why the kernel did not start the process.
func refusedBy(err error) error {
	why := "it could not be started"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		why = "the host allows no (more) user namespaces: /proc/sys/user/max_user_namespaces"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		why = "the kernel refuses a user namespace with the ids of network volumes (2147483648 to 4294836223); in a container, they have to be given to it"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		why = "the kernel has no user namespaces"
	}
	return fmt.Errorf("gantry-s3 cannot confine its serving process: %s: %w", why, err)
}
