package tunnels

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gantry/agent/containerfs"
	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// host runs commands on this machine and has a folder as root of its only pod.
type host struct {
	root  string
	ended chan struct{}
	fault error

	mu    sync.Mutex
	procs []*process
	swept int
}

func (h *host) Exec(_ context.Context, id fleet.PodID, incarnation uint64, s containerfs.ExecSpec) (containerfs.Process, error) {
	if h.fault != nil {
		return nil, h.fault
	}
	if id != "pod1" || incarnation != 3 {
		return nil, fmt.Errorf("asked for incarnation %d of %s", incarnation, id)
	}
	p := &process{cmd: exec.Command(s.Command[0], s.Command[1:]...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err [4]error
	if s.Stdin {
		p.stdin, err[0] = p.cmd.StdinPipe()
	}
	p.stdout, err[1] = p.cmd.StdoutPipe()
	p.stderr, err[2] = p.cmd.StderrPipe()
	err[3] = p.cmd.Start()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.procs = append(h.procs, p)
	return p, errors.Join(err[:]...)
}

func (h *host) Root(_ context.Context, _ fleet.PodID, incarnation uint64) (*containerfs.Root, error) {
	if h.fault != nil || incarnation != 3 {
		return nil, errors.Join(h.fault, fmt.Errorf("incarnation %d", incarnation))
	}
	dir, err := os.Open(h.root)
	return containerfs.NewRoot(dir, h.ended, nil), err
}

func (h *host) SweepExecs(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.swept++
	return h.fault
}

// process is one of this machine.
type process struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr io.Reader
	once           sync.Once
	done           chan struct{}
	size           [2]int
}

func (p *process) Stdin() io.WriteCloser { return p.stdin }
func (p *process) Stdout() io.Reader     { return p.stdout }
func (p *process) Stderr() io.Reader     { return p.stderr }

func (p *process) Resize(_ context.Context, cols, rows int) error {
	p.size = [2]int{cols, rows}
	return nil
}

func (p *process) Wait(context.Context) (int, error) {
	p.once.Do(func() {
		_ = p.cmd.Wait()
		close(p.done)
	})
	<-p.done
	return p.cmd.ProcessState.ExitCode(), nil
}

func (p *process) Close() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_, err := p.Wait(context.Background())
	return err
}

// ended reports whether the process has ended and was looked after.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// scheduler takes tunnels and hands them to the test.
type scheduler struct {
	agentrpc.UnimplementedLinkServer
	tunnels chan *tunnelEnd
}

type tunnelEnd struct {
	agentrpc.Link_TunnelServer
	leave chan struct{}
}

// Tunnel implements agentrpc.LinkServer.
func (s *scheduler) Tunnel(stream agentrpc.Link_TunnelServer) error {
	t := &tunnelEnd{stream, make(chan struct{})}
	s.tunnels <- t
	select {
	case <-t.leave:
	case <-stream.Context().Done():
	}
	return nil
}

// desk is an agent's tunnels, connected with a scheduler.
type desk struct {
	testing.TB
	ctx    context.Context
	host   *host
	t      *Tunnels
	conn   *grpc.ClientConn
	sched  *scheduler
	served sync.WaitGroup
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	d := &desk{TB: t, host: &host{root: t.TempDir(), ended: make(chan struct{})}, sched: &scheduler{tunnels: make(chan *tunnelEnd)}}
	book, err := ledger.Open(filepath.Join(t.TempDir(), "ledger.db"))
	d.must(err)
	addr := func(map[netip.Addr]bool) (netip.Addr, error) { return netip.MustParseAddr("127.0.0.1"), nil }
	_, err = book.SetFull(1, []pod.Assignment{
		{Pod: "pod1", Incarnation: 3, Goal: fleet.GoalRun},
		{Pod: "stopped", Incarnation: 1, Goal: fleet.GoalStop},
		{Pod: "waiting", Incarnation: 1, Goal: fleet.GoalRun},
		{Pod: "ended", Incarnation: 1, Goal: fleet.GoalRun},
	}, addr)
	d.must(err)
	d.must(book.Begin(pod.Assignment{Pod: "pod1", Incarnation: 3}, "boot"))
	d.must(book.Begin(pod.Assignment{Pod: "stopped", Incarnation: 1}, "boot"))
	d.must(book.Begin(pod.Assignment{Pod: "waiting", Incarnation: 1}, "boot"))
	_, err = book.Apply(1, 2, []pod.Assignment{{Pod: "waiting", Incarnation: 2, Goal: fleet.GoalRun}}, nil, addr)
	d.must(err)
	d.must(book.Begin(pod.Assignment{Pod: "ended", Incarnation: 1}, "boot"))
	d.must(book.End("ended", pod.Ended{Incarnation: 1, Event: fleet.EventExited}))
	_, err = book.Apply(2, 3, []pod.Assignment{{Pod: "again", Incarnation: 1, Goal: fleet.GoalRun}}, nil, addr)
	d.must(err)
	d.must(book.Begin(pod.Assignment{Pod: "again", Incarnation: 1}, "boot"))
	d.must(book.End("again", pod.Ended{Incarnation: 1, Event: fleet.EventExited}))
	_, err = book.Apply(3, 4, []pod.Assignment{{Pod: "again", Incarnation: 2, Goal: fleet.GoalRun}}, nil, addr)
	d.must(err)
	d.must(book.Begin(pod.Assignment{Pod: "again", Incarnation: 2}, "boot"))
	d.t = New(Config{Ledger: book, Inside: d.host, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	g := grpc.NewServer()
	agentrpc.RegisterLinkServer(g, d.sched)
	done := make(chan error, 1)
	go func() { done <- g.Serve(ln) }()
	d.conn, err = grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	d.must(err)
	var cancel context.CancelFunc
	d.ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		cancel()
		d.served.Wait()
		d.must(d.conn.Close())
		g.Stop()
		d.must(<-done)
		d.must(book.Close())
		for _, p := range d.host.procs {
			if !p.ended() {
				t.Errorf("process %d runs", p.cmd.Process.Pid)
			}
		}
	})
	return d
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// open asks for a tunnel and returns it with its first frame.
func (d *desk) open(ctx context.Context, ask *agentrpc.OpenTunnel) (*tunnelEnd, *agentrpc.Frame) {
	d.Helper()
	ask.Id = "tunnel"
	d.served.Go(func() { d.t.serve(ctx, d.conn, ask) })
	t := <-d.sched.tunnels
	first, err := t.Recv()
	d.must(err)
	if first.GetId() != "tunnel" {
		d.Errorf("the first frame is %v", first)
	}
	return t, first
}

func execOf(words ...string) *agentrpc.OpenTunnel {
	return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Exec{Exec: &agentrpc.ExecTarget{PodId: "pod1", Command: words, Stdin: true}}}
}

func filesOf(path string, write bool) *agentrpc.OpenTunnel {
	return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Files{Files: &agentrpc.FileTarget{PodId: "pod1", Path: path, Write: write}}}
}

// result reads an exec to its end.
func (d *desk) result(t *tunnelEnd) (out, diag string, r fleet.ExecResult) {
	d.Helper()
	for {
		f, err := t.Recv()
		d.must(err)
		switch fleet.ExecChannel(f.GetChannel()) {
		case fleet.ExecStdout:
			out += string(f.GetData())
		case fleet.ExecStderr:
			diag += string(f.GetData())
		case fleet.ExecExit:
			d.must(json.Unmarshal(f.GetData(), &r))
			close(t.leave)
			return out, diag, r
		}
	}
}

func TestExecThroughATunnel(t *testing.T) {
	d := newDesk(t)
	tunnel, first := d.open(d.ctx, execOf("sh", "-c", "cat; echo oops >&2; exit 4"))
	if first.GetError() != "" {
		t.Fatal(first)
	}
	text := strings.Repeat("0123456789", 30_000)
	go func() {
		_ = tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecResize), Data: []byte(`{"cols":5,"rows":6}`)})
		_ = tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecResize), Data: []byte(`no size`)})
		for i := 0; i < len(text); i += 10_000 {
			_ = tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecStdin), Data: []byte(text[i : i+10_000])})
		}
		_ = tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecStdinEnd)})
	}()
	out, diag, r := d.result(tunnel)
	d.served.Wait()
	if out != text || diag != "oops\n" || r != (fleet.ExecResult{Code: 4}) || d.host.procs[0].size != [2]int{5, 6} {
		t.Errorf("%d bytes, %q, %+v, size %v", len(out), diag, r, d.host.procs[0].size)
	}
	d.host.fault = &containerfs.NotStartedError{Code: 127, Sentence: "not there"}
	tunnel, first = d.open(d.ctx, execOf("nosuch"))
	if _, _, r := d.result(tunnel); first.GetError() != "" || r != (fleet.ExecResult{Code: 127, Error: "not there"}) {
		t.Errorf("%v, then %+v", first, r)
	}
}

func TestTunnelsIntoAPodAreRefused(t *testing.T) {
	d := newDesk(t)
	refused := func(ask *agentrpc.OpenTunnel, code fleet.Code, words string) {
		t.Helper()
		tunnel, first := d.open(d.ctx, ask)
		close(tunnel.leave)
		if first.GetCode() != string(code) || !strings.Contains(first.GetError(), words) {
			t.Errorf("%v: %v, want %s with %q", ask, first, code, words)
		}
	}
	for id, code := range map[string]fleet.Code{
		"stopped": fleet.CodeNotAllowed, "waiting": fleet.CodeNotAllowed, "ended": fleet.CodeNotAllowed, "unknown": fleet.CodeNotFound,
	} {
		e, f := execOf("true"), filesOf("/", false)
		e.GetExec().PodId, f.GetFiles().PodId = id, id
		refused(e, code, "")
		refused(f, code, "")
	}
	refused(filesOf("/nothing", false), fleet.CodeNotFound, "no such file or folder in the pod")
	refused(filesOf("/nothing", true), fleet.CodeNotFound, "no such file or folder in the pod")
	refused(filesOf("relative", true), fleet.CodeInvalid, "absolute")
	refused(filesOf("/proc/self", false), fleet.CodeNotAllowed, "kernel")
	for err, want := range map[error][2]string{
		fleet.NotAllowed("the pod does not run"):      {string(fleet.CodeNotAllowed), "the pod does not run"},
		&pod.Error{Sentence: "it is away"}:            {string(fleet.CodeUnavailable), "it is away"},
		errors.New("words that are not for a caller"): {string(fleet.CodeUnavailable), "the pod's host could not do it"},
	} {
		d.host.fault = err
		for _, ask := range []*agentrpc.OpenTunnel{execOf("true"), filesOf("/", false), filesOf("/", true)} {
			refused(ask, fleet.Code(want[0]), want[1])
		}
	}
	d.host.fault = errors.New("words that are not for a caller")
	tunnel, first := d.open(d.ctx, execOf("true"))
	close(tunnel.leave)
	if strings.Contains(first.GetError(), "words") {
		t.Errorf("told: %v", first)
	}
	d.host.fault = &containerfs.NotStartedError{Code: 127, Sentence: "there is no such program"}
	tunnel, first = d.open(d.ctx, execOf("true"))
	if _, _, r := d.result(tunnel); first.GetError() != "" || r.Code != 127 || r.Error != "there is no such program" {
		t.Errorf("a command that does not start: %v, %+v", first, r)
	}
	refused(&agentrpc.OpenTunnel{}, "", "does not know that kind of tunnel")
	d.t.Inside = nil
	refused(execOf("true"), fleet.CodeUnavailable, "reaches into no container")
	_, err := d.t.Ledger.SetFull(5, nil, nil)
	d.must(err)
	refused(execOf("true"), fleet.CodeNotFound, "not on this host")
}

func TestExecsOfAPodAreBounded(t *testing.T) {
	d := newDesk(t)
	var open []*tunnelEnd
	for range maxExecs {
		tunnel, first := d.open(d.ctx, execOf("cat"))
		if first.GetError() != "" {
			t.Fatal(first)
		}
		open = append(open, tunnel)
	}
	tunnel, first := d.open(d.ctx, execOf("cat"))
	close(tunnel.leave)
	if first.GetCode() != string(fleet.CodeNotAllowed) || len(d.host.procs) != maxExecs {
		t.Errorf("one too many: %v", first)
	}
	for _, o := range open {
		close(o.leave)
	}
	d.served.Wait()
	tunnel, first = d.open(d.ctx, execOf("true"))
	if first.GetError() != "" {
		t.Errorf("after the others: %v", first)
	}
	d.result(tunnel)
}

// TestExecEndsWithItsTunnel has the process ended, whatever the streams are doing.
func TestExecEndsWithItsTunnel(t *testing.T) {
	for name, words := range map[string][]string{
		"idle": {"sleep", "500"}, "floods": {"cat", "/dev/zero"}, "reads": {"cat"}, "reads nothing": {"sleep", "501"},
	} {
		for how, end := range map[string]func(t *tunnelEnd, stop context.CancelFunc){
			"scheduler leaves": func(t *tunnelEnd, _ context.CancelFunc) { close(t.leave) },
			"agent stops":      func(_ *tunnelEnd, stop context.CancelFunc) { stop() },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				d := newDesk(t)
				ctx, stop := context.WithCancel(d.ctx)
				defer stop()
				tunnel, _ := d.open(ctx, execOf(words...))
				if name == "reads nothing" { // more than the pipe and the tunnel hold
					sent := make(chan struct{})
					go func() {
						defer close(sent)
						for tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecStdin), Data: make([]byte, 16<<10)}) == nil {
						}
					}()
					defer func() { <-sent }()
				}
				end(tunnel, stop)
				d.served.Wait()
				if !d.host.procs[0].ended() {
					t.Error("the process runs on")
				}
			})
		}
	}
}

func TestFilesThroughATunnel(t *testing.T) {
	d := newDesk(t)
	big := strings.Repeat("0123456789", 100_000)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	d.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "dir/big", Mode: 0o600, Size: int64(len(big))}))
	_, err := io.WriteString(w, big)
	d.must(errors.Join(err, w.Close()))
	write := func(data []byte, end bool) (*tunnelEnd, *agentrpc.Frame) {
		t.Helper()
		tunnel, first := d.open(d.ctx, filesOf("/", true))
		if first.GetError() != "" {
			t.Fatal(first)
		}
		for len(data) > 0 {
			n := min(len(data), frameSize)
			d.must(tunnel.Send(&agentrpc.Frame{Data: data[:n]}))
			data = data[n:]
		}
		if !end {
			return tunnel, nil
		}
		d.must(tunnel.Send(&agentrpc.Frame{End: true}))
		last, err := tunnel.Recv()
		d.must(err)
		close(tunnel.leave)
		return tunnel, last
	}
	if _, last := write(packed.Bytes(), true); !last.GetEnd() || last.GetError() != "" {
		t.Errorf("the answer is %v", last)
	}
	if _, last := write(packed.Bytes()[:5000], true); last.GetCode() != string(fleet.CodeInvalid) {
		t.Errorf("half an archive: %v", last)
	}
	tunnel, _ := write(packed.Bytes()[:5000], false) // its end never comes
	close(tunnel.leave)
	d.served.Wait()
	if left, _ := filepath.Glob(filepath.Join(d.host.root, "dir", ".gantry-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	tunnel, _ = d.open(d.ctx, filesOf("/dir", false))
	var got bytes.Buffer
	for ended := false; !ended; {
		f, err := tunnel.Recv()
		d.must(err)
		got.Write(f.GetData())
		if ended = f.GetEnd(); f.GetError() != "" {
			t.Errorf("got %v", f)
		}
	}
	close(tunnel.leave)
	r := tar.NewReader(&got)
	_, err = r.Next()
	d.must(err)
	h, err := r.Next()
	d.must(err)
	if text, err := io.ReadAll(r); err != nil || h.Name != "dir/big" || string(text) != big {
		t.Errorf("%s with %d bytes, %v", h.Name, len(text), err)
	}
}

func TestTransfersEndWithTheirTunnelOrPod(t *testing.T) {
	for name, end := range map[string]func(d *desk, t *tunnelEnd, stop context.CancelFunc){
		"scheduler leaves": func(_ *desk, t *tunnelEnd, _ context.CancelFunc) { close(t.leave) },
		"agent stops":      func(_ *desk, _ *tunnelEnd, stop context.CancelFunc) { stop() },
		"pod ends": func(d *desk, t *tunnelEnd, _ context.CancelFunc) {
			close(d.host.ended)
			for {
				f, err := t.Recv()
				if err != nil {
					d.Errorf("no last frame: %v", err)
				}
				if err != nil || f.GetEnd() {
					if err == nil && f.GetCode() != string(fleet.CodeNotAllowed) {
						d.Errorf("the last frame is %v", f)
					}
					close(t.leave)
					return
				}
			}
		},
	} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, write %v", name, write), func(t *testing.T) {
				d := newDesk(t)
				d.must(os.WriteFile(filepath.Join(d.host.root, "huge"), nil, 0o600))
				d.must(os.Truncate(filepath.Join(d.host.root, "huge"), 1<<40))
				ctx, stop := context.WithCancel(d.ctx)
				defer stop()
				tunnel, _ := d.open(ctx, filesOf("/", write))
				end(d, tunnel, stop)
				d.served.Wait()
			})
		}
	}
}

func TestSweepsAreRepeatedUntilTheyWork(t *testing.T) {
	h := &host{fault: errors.New("away")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	faults := 0
	SweepExecs(ctx, h, func(error) {
		if faults++; faults == 2 {
			cancel()
		}
	})
	if h.swept != 2 {
		t.Errorf("%d sweeps", h.swept)
	}
	SweepExecs(ctx, h, func(error) { t.Error("the end of the agent is told as a fault") })
	SweepExecs(t.Context(), nil, nil)
}

// A pod's ports are reached while it is to run and has begun, and not a moment longer.
func TestOnlyAPodThatIsToRunIsReached(t *testing.T) {
	d := newDesk(t)
	for id, want := range map[fleet.PodID]bool{"pod1": true, "stopped": false, "waiting": false, "unknown": false} {
		if addr, ok := d.t.address(id); ok != want {
			t.Errorf("%s: reached at %s: %v", id, addr, ok)
		}
	}
	if incarnation, err := d.t.wanted("again"); err != nil || incarnation != 2 {
		t.Errorf("one that ended and was started again: %d, %v", incarnation, err)
	}
	tunnel, first := d.open(d.ctx, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Port{Port: &agentrpc.PortTarget{PodId: "stopped", Port: 80}}})
	close(tunnel.leave)
	if first.GetError() != "the pod does not run here" {
		t.Errorf("told %v", first)
	}
}
