package ctrd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"gantry/agent/containerfs"
	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	execPrefix  = "gantry-" // begins the ids of all processes that are made here
	execRetry   = 200 * time.Millisecond
	execTimeout = 15 * time.Second // for one call that ends a process
	hangUp      = time.Second      // between SIGHUP and SIGKILL for what has a terminal

	notFoundCode      = 127
	notExecutableCode = 126

	defaultCols = 80
	defaultRows = 24
	maxSide     = 1<<16 - 1
	defaultTerm = "xterm"
)

var errNotRunning = fleet.NotAllowed("the pod does not run")

// Exec starts a process in the container of a pod's incarnation, with the container's own user,
// environment, capabilities and limits. A container of another incarnation or one that does not run is
// refused with not_allowed; a command that cannot be started is an *containerfs.NotStartedError. A command
// is not started when ctx has ended, and is ended again when ctx ends while it starts: that may take the
// runtime long, during which Exec does not return. The process ends with Close, and nothing of it is left then.
func (r *Runtime) Exec(ctx context.Context, id fleet.PodID, incarnation uint64, s containerfs.ExecSpec) (containerfs.Process, error) {
	ctx = r.in(ctx)
	if err := checkExec(s); err != nil {
		return nil, err
	}
	_, config, err := r.running(ctx, id, incarnation)
	if err != nil {
		return nil, err
	}
	process, err := execProcess(config, s)
	if err != nil {
		return nil, fault("read the container's settings", err)
	}
	p := &execution{
		r: r, pod: id, id: execPrefix + fleet.NewID(), tty: s.TTY, done: make(chan struct{}),
	}
	if p.folder, err = r.makeFifos(id, p.id, s); err != nil {
		return nil, fault("make the pipes of a command", err)
	}
	if err := p.start(ctx, incarnation, process, s); err != nil {
		return nil, errors.Join(err, p.closeIn(context.WithoutCancel(ctx)))
	}
	return p, nil
}

func checkExec(s containerfs.ExecSpec) error {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return &fleet.Error{Code: fleet.CodeInvalid, Msg: "the command must have at least one word"}
	}
	for _, word := range append([]string{s.Term}, s.Command...) {
		if strings.ContainsRune(word, 0) {
			return &fleet.Error{Code: fleet.CodeInvalid, Msg: "the command must not contain a zero byte"}
		}
	}
	if s.Cols < 0 || s.Rows < 0 || s.Cols > maxSide || s.Rows > maxSide {
		return errSize
	}
	return nil
}

var errSize = &fleet.Error{Code: fleet.CodeInvalid, Msg: "a side of a terminal must be 1 to 65535 characters"}

// running returns the process of a pod's container and the settings that it was made with, if that
// container is of the incarnation and runs.
func (r *Runtime) running(ctx context.Context, id fleet.PodID, incarnation uint64) (*tasktypes.Process, *specs.Spec, error) {
	c, err := r.client.ContainerService().Get(ctx, string(id))
	if errdefs.IsNotFound(err) {
		return nil, nil, errNotRunning
	}
	if err != nil {
		return nil, nil, fault("find the container", err)
	}
	if c.Labels[labelPod] != string(id) || c.Labels[labelIncarnation] != strconv.FormatUint(incarnation, 10) {
		return nil, nil, errNotRunning
	}
	p, err := r.process(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil, nil, errNotRunning
	}
	if err != nil {
		return nil, nil, fault("tell the state of the process", err)
	}
	if p.Status != tasktypes.Status_RUNNING || p.Pid == 0 {
		return nil, nil, errNotRunning
	}
	config := &specs.Spec{}
	if err := typeurl.UnmarshalTo(c.Spec, config); err != nil || config.Process == nil {
		return nil, nil, fault("read the container's settings", errors.Join(err, errors.New("no process in them")))
	}
	return p, config, nil
}

// execProcess derives the settings of a process from those of its container.
func execProcess(config *specs.Spec, s containerfs.ExecSpec) (*anypb.Any, error) {
	p := *config.Process
	p.Args, p.Terminal, p.CommandLine, p.ConsoleSize = s.Command, s.TTY, "", nil
	if s.TTY {
		term := s.Term
		if term == "" {
			term = defaultTerm
		}
		env := make([]string, 0, len(p.Env)+1)
		for _, kv := range p.Env {
			if !strings.HasPrefix(kv, "TERM=") {
				env = append(env, kv)
			}
		}
		cols, rows := size(s)
		env = append(env, "TERM="+term)
		p.Env, p.ConsoleSize = env, &specs.Box{Width: uint(cols), Height: uint(rows)}
	}
	packed, err := typeurl.MarshalAnyToProto(&p)
	if err != nil {
		return nil, fmt.Errorf("encode a process: %w", err)
	}
	return packed, nil
}

func size(s containerfs.ExecSpec) (cols, rows int) {
	cols, rows = s.Cols, s.Rows
	if cols == 0 {
		cols = defaultCols
	}
	if rows == 0 {
		rows = defaultRows
	}
	return cols, rows
}

// start makes the process known to the runtime and then starts it. In between it looks at the
// container once more: a process that was made known to another one cannot be started in this one. And
// it looks whether anybody still waits for the process.
func (p *execution) start(ctx context.Context, incarnation uint64, process *anypb.Any, s containerfs.ExecSpec) error {
	if err := p.open(); err != nil {
		return fault("open the pipes of a command", err)
	}
	req := &tasks.ExecProcessRequest{
		ContainerID: string(p.pod), ExecID: p.id, Terminal: s.TTY, Spec: process, Stdout: p.path(fifoOut), Stderr: p.path(fifoErr), Stdin: p.path(fifoIn),
	}
	if !s.Stdin {
		req.Stdin = ""
	}
	if s.TTY {
		req.Stderr = ""
	}
	err := effect(ctx, func(unbroken context.Context) error {
		if _, err := p.r.client.TaskService().Exec(unbroken, req); err != nil {
			return native(err)
		}
		if _, _, err := p.r.running(unbroken, p.pod, incarnation); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := p.r.client.TaskService().Start(unbroken, &tasks.StartRequest{ContainerID: string(p.pod), ExecID: p.id})
		return native(err)
	})
	if err != nil {
		return p.startFault(ctx, incarnation, err)
	}
	p.started = true
	if err := ctx.Err(); err != nil {
		return fault("start the command", err)
	}
	if s.TTY {
		cols, rows := size(s)
		_ = p.Resize(ctx, cols, rows) // some runtimes do not know the size that they were given
	}
	if s.Stdin {
		if err := p.openStdin(ctx); err != nil {
			return fault("open the pipes of a command", err)
		}
	}
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stopWatch = stop
	p.watched.Go(func() { p.watch(watched) })
	return nil
}

// startFault tells why a process did not start.
func (p *execution) startFault(ctx context.Context, incarnation uint64, err error) error {
	var refused *fleet.Error
	if errors.As(err, &refused) {
		return refused
	}
	if away(err) {
		return fault("start the command", err)
	}
	if m := runcExec.FindStringSubmatch(err.Error()); m != nil {
		switch {
		case strings.Contains(m[2], "executable file not found"), strings.Contains(m[2], "no such file"):
			return &containerfs.NotStartedError{Code: notFoundCode, Sentence: "the command was not found in the pod", Err: err}
		default:
			return &containerfs.NotStartedError{Code: notExecutableCode, Sentence: "the command may not or cannot be executed in the pod", Err: err}
		}
	}
	if text := err.Error(); strings.Contains(text, "chdir to cwd") || strings.Contains(text, "exec format error") {
		return &containerfs.NotStartedError{Code: notExecutableCode, Sentence: "the command cannot be executed in the pod", Err: err}
	}
	if _, _, now := p.r.running(ctx, p.pod, incarnation); now != nil {
		return now // it has ended meanwhile
	}
	return fault("start the command", err)
}

// watch waits for the end of the process, also over an absence of the daemon.
func (p *execution) watch(ctx context.Context) {
	for {
		code, err := p.r.waitExec(ctx, p.pod, p.id)
		if err == nil || !away(err) || ctx.Err() != nil || p.r.life.Err() != nil {
			p.ended(code, err)
			return
		}
		select {
		case <-ctx.Done():
		case <-p.r.life.Done():
		case <-time.After(execRetry):
		}
	}
}

func (r *Runtime) waitExec(ctx context.Context, id fleet.PodID, exec string) (int, error) {
	resp, err := r.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: string(id), ExecID: exec})
	if err != nil {
		return 0, native(err)
	}
	return int(resp.ExitStatus), nil
}

// execState returns what the runtime knows of a process that was made here.
func (r *Runtime) execState(ctx context.Context, id fleet.PodID, exec string) (*tasktypes.Process, error) {
	resp, err := r.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: string(id), ExecID: exec})
	if err != nil {
		return nil, native(err)
	}
	return resp.Process, nil
}

// signalExec sends a signal to a process and, where the kernel can, to what it started and did not
// set apart. A process that has ended is success.
func (r *Runtime) signalExec(ctx context.Context, id fleet.PodID, exec string, signal syscall.Signal) error {
	p, err := r.execState(ctx, id, exec)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.Status != tasktypes.Status_RUNNING || p.Pid == 0 {
		return nil
	}
	r.signalGroup(ctx, id, exec, int(p.Pid), signal)
	_, err = r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: string(id), ExecID: exec, Signal: uint32(signal)}) //nolint:gosec // small
	if err = native(err); err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if now, stateErr := r.execState(ctx, id, exec); errdefs.IsNotFound(stateErr) || stateErr == nil && now.Status != tasktypes.Status_RUNNING {
		return nil
	}
	return err
}

// signalGroup signals the process group that a process leads. Every process that runc starts leads
// one. The daemon is asked again while the process is held, so that the number is not another's by now.
func (r *Runtime) signalGroup(ctx context.Context, id fleet.PodID, exec string, pid int, signal syscall.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if p, err := r.execState(ctx, id, exec); err != nil || p.Status != tasktypes.Status_RUNNING || int(p.Pid) != pid {
		return
	}
	_ = unix.PidfdSendSignal(fd, signal, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP) // kernels before 6.9 cannot
}

// endExec kills a process if it runs, waits for its end, and has the runtime forget it. What it still
// writes is dropped. A process that is not there is success.
func (r *Runtime) endExec(ctx context.Context, id fleet.PodID, exec string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), execTimeout)
	defer cancel()
	if err := r.signalExec(ctx, id, exec, syscall.SIGKILL); err != nil {
		return fault("end a command", err)
	}
	if p, err := r.execState(ctx, id, exec); err == nil && p.Status == tasktypes.Status_RUNNING {
		if _, err := r.waitExec(ctx, id, exec); err != nil && !errdefs.IsNotFound(err) {
			return fault("end a command", err)
		}
	}
	_, err := r.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: string(id), ExecID: exec})
	if err = native(err); err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if _, stateErr := r.execState(ctx, id, exec); errdefs.IsNotFound(stateErr) {
		return nil
	}
	return fault("end a command", err)
}

// Root opens the root folder of the container of a pod's incarnation, if it runs.
func (r *Runtime) Root(ctx context.Context, id fleet.PodID, incarnation uint64) (*containerfs.Root, error) {
	ctx = r.in(ctx)
	p, _, err := r.running(ctx, id, incarnation)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(int(p.Pid), unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, fault("open the pod's process", err)
	}
	process := os.NewFile(uintptr(fd), "process of a pod")
	dir, ids, err := r.rootOf(ctx, id, incarnation, process, int(p.Pid))
	if err != nil {
		return nil, errors.Join(err, process.Close())
	}
	ended := make(chan struct{})
	go func() {
		if awaitEnd(process) {
			close(ended)
		}
	}()
	return containerfs.NewRoot(dir, ended, process.Close).WithIDs(ids), nil
}

// rootOf opens the root folder of a process that is held, and reads whose files are whose there. It makes
// sure that both are that process's: the daemon named its number before and after it was held, and it
// lived when the root was open.
func (r *Runtime) rootOf(ctx context.Context, id fleet.PodID, incarnation uint64, process *os.File, pid int) (*os.File, containerfs.IDs, error) {
	again, _, err := r.running(ctx, id, incarnation)
	if err != nil {
		return nil, containerfs.IDs{}, err
	}
	if int(again.Pid) != pid {
		return nil, containerfs.IDs{}, errNotRunning
	}
	fd, err := unix.Open(procFolder+"/"+strconv.Itoa(pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil, containerfs.IDs{}, errNotRunning
	}
	const failed = "the pod's files cannot be opened"
	if err != nil {
		return nil, containerfs.IDs{}, &pod.Error{Class: pod.Retry, Sentence: failed, Err: err}
	}
	dir := os.NewFile(uintptr(fd), "root of a pod")
	ids, err := containerfs.ReadIDs(pid)
	if hasEnded(process) {
		return nil, containerfs.IDs{}, errors.Join(errNotRunning, dir.Close())
	}
	if err != nil {
		return nil, containerfs.IDs{}, errors.Join(&pod.Error{Class: pod.Retry, Sentence: failed, Err: err}, dir.Close())
	}
	return dir, ids, nil
}

// awaitEnd waits until a process has ended, and reports false when its handle was closed before.
func awaitEnd(process *os.File) bool {
	raw, err := process.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(readable) == nil
}

func hasEnded(process *os.File) bool {
	raw, err := process.SyscallConn()
	if err != nil {
		return true
	}
	ended := true
	err = raw.Control(func(fd uintptr) { ended = readable(fd) })
	return ended || err != nil
}

// readable reports whether the process behind a handle has ended.
func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor is small
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}
