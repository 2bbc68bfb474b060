package tunnels

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/agent/containerfs"
	"gantry/agent/logs"
	"gantry/agent/podlog"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// rest reads a tunnel to the scheduler's last frame, and what comes after it.
func (d *desk) rest(t *tunnelEnd) (text string, last *agentrpc.Frame) {
	d.Helper()
	for {
		f, err := t.Recv()
		switch {
		case errors.Is(err, io.EOF):
			close(t.leave)
			return text, last
		case err != nil:
			d.Fatal(err)
		case last != nil:
			d.Errorf("after the last frame came %v", f)
		case f.GetEnd():
			last = f
		}
		text += string(f.GetData())
	}
}

// TestAPortThroughATunnel: both directions, each to its own end, and no longer than the tunnel or its session.
func TestAPortThroughATunnel(t *testing.T) {
	d := newDesk(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	defer ln.Close()
	port := func(number int) *agentrpc.OpenTunnel {
		return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Port{Port: &agentrpc.PortTarget{PodId: "pod1", Port: int32(number)}}}
	}
	number := ln.Addr().(*net.TCPAddr).Port
	open := func(ctx context.Context) (*tunnelEnd, net.Conn) {
		t.Helper()
		tunnel, first := d.open(ctx, port(number))
		if first.GetError() != "" {
			t.Fatal(first)
		}
		c, err := ln.Accept()
		d.must(err)
		d.must(c.SetDeadline(time.Now().Add(time.Minute)))
		return tunnel, c
	}
	tunnel, c := open(d.ctx)
	d.must(tunnel.Send(&agentrpc.Frame{Data: []byte("how are ")}))
	d.must(tunnel.Send(&agentrpc.Frame{Data: []byte("you?"), End: true}))
	asked, err := io.ReadAll(c)
	d.must(err)
	answer := strings.Repeat("well ", frameSize)
	_, err = io.WriteString(c, answer)
	d.must(errors.Join(err, c.Close()))
	got := ""
	for ended := false; !ended; {
		f, err := tunnel.Recv()
		d.must(err)
		got += string(f.GetData())
		if ended = f.GetEnd(); ended != (len(f.GetData()) == 0) {
			t.Errorf("got the frame %v", f)
		}
	}
	close(tunnel.leave)
	if string(asked) != "how are you?" || got != answer {
		t.Errorf("the pod read %q, and %d bytes came back", asked, len(got))
	}
	for name, end := range map[string]func(*tunnelEnd, context.CancelFunc){
		"the scheduler lets go": func(t *tunnelEnd, _ context.CancelFunc) { close(t.leave) },
		"the session ends":      func(_ *tunnelEnd, stop context.CancelFunc) { stop() },
	} {
		ctx, stop := context.WithCancel(d.ctx)
		tunnel, c := open(ctx)
		end(tunnel, stop)
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the pod reads %v", name, err)
		}
		d.must(c.Close())
		stop()
	}
	d.must(ln.Close())
	tunnel, first := d.open(d.ctx, port(number))
	close(tunnel.leave)
	if first.GetError() != "nothing accepts connections on that port of the pod" {
		t.Errorf("told %v", first)
	}
	d.served.Wait()
}

// TestALogThroughATunnel: what is asked for of it, of pods that are here or left their log, until the scheduler lets go.
func TestALogThroughATunnel(t *testing.T) {
	d := newDesk(t)
	d.t.Logs = podlog.New(t.TempDir(), func(fleet.PodID) bool { return true }, slog.New(slog.DiscardHandler))
	defer func() { d.must(d.t.Logs.Close()) }()
	ask := func(target *agentrpc.LogTarget) (*tunnelEnd, *agentrpc.Frame) {
		return d.open(d.ctx, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Logs{Logs: target}})
	}
	refused := func(target *agentrpc.LogTarget, words string) {
		t.Helper()
		tunnel, first := ask(target)
		close(tunnel.leave)
		if first.GetCode() != string(fleet.CodeNotAllowed) || !strings.Contains(first.GetError(), words) {
			t.Errorf("%v: %v", target, first)
		}
	}
	told := func(what string, target *agentrpc.LogTarget, want ...string) {
		t.Helper()
		tunnel, first := ask(target)
		text, last := d.rest(tunnel)
		if first.GetError() != "" || last.GetError() != "" || strings.Count(text, "\n") != len(want) {
			t.Errorf("%s: %v, %q, %v", what, first, text, last)
		}
		for _, words := range want {
			if !strings.Contains(text, `"`+words+`"`) {
				t.Errorf("%s: %q is not in %q", what, words, text)
			}
		}
	}
	refused(&agentrpc.LogTarget{PodId: "unknown", Tail: 5}, "has no log of it")
	told("of a pod that has said nothing", &agentrpc.LogTarget{PodId: "waiting", Tail: 5})
	d.t.Logs.System("left", "here once")
	told("of a pod that left its log", &agentrpc.LogTarget{PodId: "left", Tail: 5}, "here once")
	d.t.Logs.Begin("pod1", 1)
	d.t.Logs.System("pod1", "one")
	refused(&agentrpc.LogTarget{PodId: "pod1", Tail: 5, Previous: true}, "earlier run")
	for between := time.Now(); !time.Now().After(between.Add(time.Microsecond)); { // another moment than that of the line before
	}
	since := time.Now()
	d.t.Logs.Begin("pod1", 2)
	d.t.Logs.System("pod1", "two")
	d.t.Logs.System("pod1", "three")
	told("all", &agentrpc.LogTarget{PodId: "pod1", Tail: 1 << 30}, "one", "two", "three")
	told("the end", &agentrpc.LogTarget{PodId: "pod1", Tail: 1}, "three")
	told("since a moment", &agentrpc.LogTarget{PodId: "pod1", SinceNs: since.UnixNano()}, "two", "three")
	told("the run before, whose end is not waited for", &agentrpc.LogTarget{PodId: "pod1", Tail: 5, Previous: true, Follow: true}, "one")
	told("of the container", &agentrpc.LogTarget{PodId: "pod1", Tail: 5, Source: string(logs.FromContainer)})
	tunnel, first := ask(&agentrpc.LogTarget{PodId: "pod1", Tail: 5, After: "x"})
	if _, last := d.rest(tunnel); first.GetError() != "" || last.GetError() != "the log could not be read" {
		t.Errorf("after what is no line: %v, %v", first, last)
	}
	tunnel, _ = ask(&agentrpc.LogTarget{PodId: "pod1", Tail: 1, Follow: true})
	for _, want := range []string{"three", "four"} {
		f, err := tunnel.Recv()
		d.must(err)
		if !strings.Contains(string(f.GetData()), `"`+want+`"`) {
			t.Errorf("%s comes as %v", want, f)
		}
		if want == "three" {
			d.t.Logs.System("pod1", "four")
		}
	}
	close(tunnel.leave)
	d.served.Wait()
}

// dying is a process whose output cannot be read to its end.
type dying struct {
	containerfs.Process
	output io.Reader
	code   int
	wait   error
	closed error
}

func (p *dying) Stdin() io.WriteCloser             { return nil }
func (p *dying) Stdout() io.Reader                 { return p.output }
func (p *dying) Stderr() io.Reader                 { return nil }
func (p *dying) Wait(context.Context) (int, error) { return p.code, p.wait }
func (p *dying) Close() error                      { return p.closed }

// dyingHost starts such a process.
type dyingHost struct {
	Inside
	process *dying
}

func (h dyingHost) Exec(context.Context, fleet.PodID, uint64, containerfs.ExecSpec) (containerfs.Process, error) {
	return h.process, nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// recorder is a tunnel that keeps what is sent, and from which the scheduler goes after the last frame.
type recorder struct {
	agentrpc.Link_TunnelClient
	in, out []*agentrpc.Frame
	ended   chan struct{}
}

func (r *recorder) Send(f *agentrpc.Frame) error {
	if r.out = append(r.out, f); f.GetEnd() && len(r.out) == 2 {
		close(r.ended)
	}
	return nil
}

func (r *recorder) CloseSend() error { return nil }

func (r *recorder) Recv() (*agentrpc.Frame, error) {
	if len(r.in) == 0 {
		<-r.ended
		return nil, io.EOF
	}
	f := r.in[0]
	r.in = r.in[1:]
	return f, nil
}

// TestTheEndOfACommandIsToldOnce: how it ended, or that the host lost it; what cannot be killed is said in the agent's log.
func TestTheEndOfACommandIsToldOnce(t *testing.T) {
	d := newDesk(t)
	away := errors.New("away")
	for name, c := range map[string]struct {
		process *dying
		last    string // the data and the error of the last frame
		says    string
	}{
		"well":               {&dying{output: strings.NewReader(""), code: 3}, `{"code":3}`, ""},
		"it is lost":         {&dying{output: strings.NewReader(""), wait: away}, `{"code":255,"error":"the command was lost"}`, ""},
		"its output is lost": {&dying{output: failing{away}}, "the pod's host could not do it", "reach into a pod"},
		"it does not die":    {&dying{output: strings.NewReader(""), closed: away}, `{"code":0}`, "kill a command in a pod"},
	} {
		said := &bytes.Buffer{}
		d.t.Inside, d.t.Log = dyingHost{process: c.process}, slog.New(slog.NewTextHandler(said, nil))
		stream := &recorder{ended: make(chan struct{}), in: []*agentrpc.Frame{
			{Channel: uint32(fleet.ExecStdin), Data: []byte("nobody reads it")}, {Channel: uint32(fleet.ExecStdinEnd)},
		}}
		err := d.t.exec(d.ctx, stream, execOf("x"))
		if (err != nil) != (name == "its output is lost") || len(stream.out) != 2 || string(stream.out[1].GetData())+stream.out[1].GetError() != c.last {
			t.Errorf("%s: %v, told %v", name, err, stream.out)
		}
		if said.Len() > 0 != (c.says != "") || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s: said %q", name, said)
		}
	}
}

// full is a process that takes no input and writes nothing.
type full struct {
	containerfs.Process
	wrote, ended chan struct{}
}

func (p *full) Stdin() io.WriteCloser { return p }
func (p *full) Stdout() io.Reader     { return p }
func (p *full) Stderr() io.Reader     { return nil }

func (p *full) Write(b []byte) (int, error) {
	close(p.wrote)
	<-p.ended
	return 0, io.ErrClosedPipe
}

func (p *full) Read([]byte) (int, error) {
	<-p.ended
	return 0, io.EOF
}

func (p *full) Close() error {
	close(p.ended)
	return nil
}

type fullHost struct {
	Inside
	process *full
}

func (h fullHost) Exec(context.Context, fleet.PodID, uint64, containerfs.ExecSpec) (containerfs.Process, error) {
	return h.process, nil
}

// TestASchedulerThatLeavesAFullProcessIsNoticed, though nothing more is received for it and it says nothing.
func TestASchedulerThatLeavesAFullProcessIsNoticed(t *testing.T) {
	d := newDesk(t)
	p := &full{wrote: make(chan struct{}), ended: make(chan struct{})}
	d.t.Inside = fullHost{process: p}
	tunnel, _ := d.open(d.ctx, execOf("x"))
	d.must(tunnel.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecStdin), Data: []byte("x")}))
	<-p.wrote
	close(tunnel.leave)
	select {
	case <-p.ended:
	case <-d.ctx.Done():
		t.Error("the process runs on")
	}
}

// TestFilesAreReachedThroughAProgram, where there is one, which has the seat for as long as it lives.
func TestFilesAreReachedThroughAProgram(t *testing.T) {
	d := newDesk(t)
	d.t.Program = &containerfs.Program{Argv: []string{filepath.Join(t.TempDir(), "none")}}
	for _, write := range []bool{false, true} {
		tunnel, first := d.open(d.ctx, filesOf("/", write))
		close(tunnel.leave)
		d.served.Wait()
		if first.GetCode() != string(fleet.CodeUnavailable) || d.t.files.total != 0 {
			t.Errorf("write %v: %v, and %d seats are taken", write, first, d.t.files.total)
		}
	}
	left := 0
	s := &seat{leave: func() { left++ }}
	leave := s.lend()
	if s.end(); left != 0 {
		t.Error("a seat that was lent is given back")
	}
	if leave(); left != 1 {
		t.Error("the program cannot give it back")
	}
	own := &seat{leave: func() { left++ }}
	if own.end(); left != 2 {
		t.Error("a seat that was not lent is not given back")
	}
}

// broken is a tunnel of which one sending fails, and all after it.
type broken struct {
	agentrpc.Link_TunnelClient
	fails int // the sending that does; from 1 on
	over  chan struct{}

	mu   sync.Mutex // guards the fields below
	sent int
	end  func()
}

var errBroken = errors.New("the tunnel broke")

func (b *broken) Send(f *agentrpc.Frame) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent++; f.GetEnd() || b.sent >= b.fails {
		b.end()
	}
	if b.sent >= b.fails {
		return errBroken
	}
	return nil
}

func (b *broken) CloseSend() error {
	b.end()
	return nil
}

func (b *broken) Recv() (*agentrpc.Frame, error) {
	<-b.over
	return nil, io.EOF
}

// TestATunnelThatBreaksIsAnError, whichever sending fails.
func TestATunnelThatBreaksIsAnError(t *testing.T) {
	d := newDesk(t)
	d.t.Logs = podlog.New(t.TempDir(), func(fleet.PodID) bool { return true }, slog.New(slog.DiscardHandler))
	defer func() { d.must(d.t.Logs.Close()) }()
	d.t.Logs.System("pod1", "a line")
	d.must(os.WriteFile(filepath.Join(d.host.root, "file"), make([]byte, 3*frameSize), 0o600))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	defer ln.Close()
	port := func(id string) *agentrpc.OpenTunnel {
		return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Port{Port: &agentrpc.PortTarget{PodId: id, Port: int32(ln.Addr().(*net.TCPAddr).Port)}}}
	}
	log := func(id string) *agentrpc.OpenTunnel {
		return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Logs{Logs: &agentrpc.LogTarget{PodId: id, Tail: 5}}}
	}
	network := &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Network{Network: &agentrpc.NetworkTarget{}}}
	elsewhere := execOf("true")
	elsewhere.GetExec().PodId = "unknown"
	for name, c := range map[string]struct {
		open opener
		ask  *agentrpc.OpenTunnel
		most int // sendings
	}{
		"a port":                   {d.t.port, port("pod1"), 3},
		"a port that is refused":   {d.t.port, port("unknown"), 1},
		"a log":                    {d.t.podLog, log("pod1"), 3},
		"a log that is refused":    {d.t.podLog, log("unknown"), 1},
		"a command":                {d.t.exec, execOf("echo", "x"), 2},
		"one that is refused":      {d.t.exec, elsewhere, 1},
		"files":                    {d.t.transfer, filesOf("/file", false), 3},
		"files that are not there": {d.t.transfer, filesOf("/nothing", false), 1},
		"a folder":                 {d.t.transfer, filesOf("/", true), 1},
		"no network":               {d.t.network, network, 1},
	} {
		for n := 1; n <= c.most; n++ {
			s := &broken{fails: n, over: make(chan struct{})}
			s.end = sync.OnceFunc(func() { close(s.over) })
			if err := c.open(d.ctx, s, c.ask); err == nil || s.sent < n {
				t.Errorf("%s, at sending %d of %d: %v", name, n, s.sent, err)
			}
		}
	}
}

// TestWhatIsSaidOfATunnel: why it broke, in the log of who looks closely, and nothing of one that ended as it should.
func TestWhatIsSaidOfATunnel(t *testing.T) {
	d := newDesk(t)
	for name, c := range map[string]struct {
		err  error
		ends bool // the session
		says bool
	}{
		"well": {}, "the scheduler let go": {err: io.EOF}, "it broke": {err: errBroken, says: true}, "the session ended": {err: errBroken, ends: true},
	} {
		log := &bytes.Buffer{}
		d.t.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		ctx, cancel := context.WithCancel(d.ctx)
		d.t.kinds[reflect.TypeFor[*agentrpc.OpenTunnel_Logs]()] = func(_ context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
			err := stream.Send(&agentrpc.Frame{Id: ask.GetId()})
			if c.ends {
				cancel()
			}
			return errors.Join(err, c.err)
		}
		d.served.Go(func() { d.t.serve(ctx, d.conn, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Logs{}}) })
		tunnel := <-d.sched.tunnels
		close(tunnel.leave)
		d.served.Wait()
		cancel()
		if strings.Contains(log.String(), "tunnel ended") != c.says {
			t.Errorf("%s: said %q", name, log)
		}
	}
}
