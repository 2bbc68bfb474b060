package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const (
	testHost = fleet.HostID("host1")
	testPod  = fleet.PodID("pod1")
)

// wire is a server and a host that are connected as in production. What the host answers is the
// test's: it stands for the agent.
type wire struct {
	testing.TB
	ctx     context.Context
	server  *Server
	session *session
	client  agentrpc.LinkClient
	hosts   sync.WaitGroup
}

func newWire(t *testing.T) *wire {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ca, err := pki.NewCA("cluster-1", time.Now())
	check(t, err)
	store := func(role pki.Role, id string) *pki.Store {
		s, err := pki.OpenStore(t.TempDir())
		check(t, err)
		check(t, s.Enroll(ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now()))
		return s
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	mux, err := agentrpc.NewMux(ln, store(pki.RoleScheduler, "scheduler1"), agentrpc.MuxConfig{Log: log})
	check(t, err)
	w := &wire{TB: t, server: New(Config{Log: log, HostTimeout: time.Second})}
	g := w.server.GRPC()
	served := make(chan error, 1)
	go func() { served <- g.Serve(mux.GRPC()) }()
	conf, err := agentrpc.HostClientTLS(store(pki.RoleHost, string(testHost)))
	check(t, err)
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	check(t, err)
	w.client = agentrpc.NewLinkClient(conn)
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	w.session = &session{server: w.server, host: testHost, done: make(chan struct{}), down: make(chan *agentrpc.Down, downQueue)}
	w.session.welcomed.Store(true)
	w.server.sessions[testHost] = w.session
	t.Cleanup(func() {
		cancel()
		check(t, conn.Close())
		w.hosts.Wait()
		g.Stop()
		check(t, <-served)
		check(t, mux.Close())
	})
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host takes the next order for a tunnel and plays the host in it.
func (w *wire) host(play func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient)) {
	w.hosts.Go(func() {
		select {
		case msg := <-w.session.down:
			ask := msg.GetOpenTunnel()
			stream, err := w.client.Tunnel(w.ctx)
			if err != nil {
				w.Errorf("open a tunnel: %v", err)
				return
			}
			play(ask, stream)
			_ = stream.CloseSend()
			for err == nil {
				_, err = stream.Recv()
			}
		case <-w.ctx.Done():
			w.Error("nobody asked for a tunnel")
		}
	})
}

func send(stream agentrpc.Link_TunnelClient, frames ...*agentrpc.Frame) {
	for _, f := range frames {
		_ = stream.Send(f) // what does not come is missed at the other end
	}
}

func wantError(t testing.TB, what string, err error, code fleet.Code, words string) {
	t.Helper()
	if fleet.CodeOf(err) != code || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, words)
	}
}

func TestRefusalsOfTheHost(t *testing.T) {
	w := newWire(t)
	for code, want := range map[fleet.Code]fleet.Code{
		fleet.CodeNotFound: fleet.CodeNotFound, fleet.CodeNotAllowed: fleet.CodeNotAllowed, fleet.CodeInvalid: fleet.CodeInvalid,
		"": fleet.CodeUnavailable, fleet.CodeUnavailable: fleet.CodeUnavailable, fleet.CodeUnauthorized: fleet.CodeUnavailable, "odd": fleet.CodeUnavailable,
	} {
		refuse := func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
			send(stream, &agentrpc.Frame{Id: ask.GetId(), Error: "it is so", Code: string(code)})
		}
		w.host(refuse)
		_, err := w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"true"}})
		wantError(t, "exec", err, want, "it is so")
		w.host(refuse)
		_, err = w.server.ReadFiles(w.ctx, testHost, testPod, "/x")
		wantError(t, "read", err, want, "it is so")
		w.host(refuse)
		wantError(t, "write", w.server.WriteFiles(w.ctx, testHost, testPod, "/x", strings.NewReader("data")), want, "it is so")
	}
	_, err := w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{})
	wantError(t, "no command", err, fleet.CodeInvalid, "")
	for _, size := range []int{-1, 1 << 16} {
		_, err = w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"x"}, Cols: size})
		wantError(t, "columns", err, fleet.CodeInvalid, "")
		_, err = w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"x"}, Rows: size})
		wantError(t, "rows", err, fleet.CodeInvalid, "")
	}
	_, err = w.server.ReadFiles(w.ctx, "host2", testPod, "/x")
	wantError(t, "another host", err, fleet.CodeUnavailable, "cannot be reached")
}

func TestExecSession(t *testing.T) {
	w := newWire(t)
	request := fleet.ExecRequest{Command: []string{"sh", "-c", "x"}, TTY: true, Stdin: true, Cols: 65535, Rows: 2, Term: "vt100"}
	input := bytes.Repeat([]byte("0123456789"), 10_000)
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		e := ask.GetExec()
		if e.GetPodId() != string(testPod) || len(e.GetCommand()) != 3 || !e.GetTty() || !e.GetStdin() || e.GetCols() != 65535 || e.GetRows() != 2 || e.GetTerm() != "vt100" {
			t.Errorf("asked for %v", e)
		}
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		var got []byte
		for ended := false; !ended; {
			f, err := stream.Recv()
			if err != nil {
				t.Errorf("the input ended: %v", err)
				return
			}
			switch fleet.ExecChannel(f.GetChannel()) {
			case fleet.ExecStdin:
				got = append(got, f.GetData()...)
			case fleet.ExecResize:
				send(stream, &agentrpc.Frame{Channel: uint32(fleet.ExecStderr), Data: f.GetData()})
			case fleet.ExecStdinEnd:
				ended = true
			}
		}
		send(stream, &agentrpc.Frame{Channel: uint32(fleet.ExecStdout)}) // a probe is nobody's business
		for piece := range chunks(got) {
			send(stream, &agentrpc.Frame{Channel: uint32(fleet.ExecStdout), Data: piece})
		}
		send(stream, &agentrpc.Frame{Channel: uint32(fleet.ExecExit), Data: []byte(`{"code":7}`), End: true})
	})
	x, err := w.server.Exec(w.ctx, testHost, testPod, request)
	check(t, err)
	check(t, x.Send(fleet.ExecFrame{Channel: fleet.ExecResize, Data: []byte(`{"cols":1,"rows":2}`)}))
	check(t, x.Send(fleet.ExecFrame{Channel: fleet.ExecStdin, Data: input}))
	check(t, x.Send(fleet.ExecFrame{Channel: fleet.ExecStdinEnd}))
	wantError(t, "a channel of the process", x.Send(fleet.ExecFrame{Channel: fleet.ExecStdout, Data: []byte("x")}), fleet.CodeInvalid, "")
	var out, diag []byte
	var last fleet.ExecFrame
	for {
		f, err := x.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		last = f
		switch f.Channel {
		case fleet.ExecStdout:
			out = append(out, f.Data...)
			if len(f.Data) == 0 {
				t.Error("an empty frame came")
			}
		case fleet.ExecStderr:
			diag = append(diag, f.Data...)
		}
	}
	var result fleet.ExecResult
	check(t, json.Unmarshal(last.Data, &result))
	if last.Channel != fleet.ExecExit || result.Code != 7 || !bytes.Equal(out, input) || string(diag) != `{"cols":1,"rows":2}` {
		t.Errorf("%d bytes, %q, last %v", len(out), diag, last)
	}
	if _, err := x.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	check(t, x.Close())
	check(t, x.Close())
}

func chunks(b []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for ; len(b) > 0; b = b[min(len(b), 32<<10):] {
			if !yield(b[:min(len(b), 32<<10)]) {
				return
			}
		}
	}
}

type ending struct {
	play func(stream agentrpc.Link_TunnelClient)
	code fleet.Code
}

// endings are the ways in which a tunnel ends that nobody meant to end, after its first frame and,
// with some, after some data.
func endings(w *wire) map[string]ending {
	data := &agentrpc.Frame{Channel: uint32(fleet.ExecStdout), Data: []byte("data")}
	return map[string]ending{
		"the host closes": {func(s agentrpc.Link_TunnelClient) { send(s, data) }, fleet.CodeUnavailable},
		"the host tells": {func(s agentrpc.Link_TunnelClient) {
			send(s, data, &agentrpc.Frame{Error: "it broke", Code: "not_allowed", End: true})
		}, fleet.CodeNotAllowed},
		"the host is lost":  {func(s agentrpc.Link_TunnelClient) { send(s, data); close(w.session.done); waitEnd(s) }, fleet.CodeUnavailable},
		"the caller leaves": {func(s agentrpc.Link_TunnelClient) { waitEnd(s) }, fleet.CodeInternal},
	}
}

// waitEnd waits until the scheduler has let go of the tunnel.
func waitEnd(s agentrpc.Link_TunnelClient) {
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

func TestTunnelsThatBreak(t *testing.T) {
	for _, name := range []string{"the host closes", "the host tells", "the host is lost", "the caller leaves"} {
		for kind, use := range map[string]func(ctx context.Context, w *wire, opened func()) error{
			"exec": func(ctx context.Context, w *wire, opened func()) error {
				x, err := w.server.Exec(ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"x"}})
				check(w, err)
				defer x.Close()
				opened()
				for err == nil {
					_, err = x.Receive()
				}
				if _, again := x.Receive(); again != err { //nolint:errorlint // it is the same one
					w.Errorf("first %v, then %v", err, again)
				}
				return err
			},
			"read": func(ctx context.Context, w *wire, opened func()) error {
				r, err := w.server.ReadFiles(ctx, testHost, testPod, "/x")
				check(w, err)
				defer r.Close()
				opened()
				_, err = io.Copy(io.Discard, r)
				return err
			},
			"write": func(ctx context.Context, w *wire, opened func()) error {
				return w.server.WriteFiles(ctx, testHost, testPod, "/x", zeros{opened})
			},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				w := newWire(t)
				ctx, stop := context.WithCancel(w.ctx)
				defer stop()
				e := endings(w)[name]
				opened := func() {}
				if name == "the caller leaves" {
					opened = stop
				}
				w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
					send(stream, &agentrpc.Frame{Id: ask.GetId()})
					e.play(stream)
				})
				err := use(ctx, w, opened)
				wantError(t, kind, err, e.code, "")
				if errors.Is(err, context.Canceled) != (name == "the caller leaves") {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// zeros is a stream that does not end by itself.
type zeros struct{ opened func() }

// Read implements io.Reader.
func (z zeros) Read(p []byte) (int, error) {
	z.opened()
	clear(p)
	return len(p), nil
}

func TestReadFiles(t *testing.T) {
	w := newWire(t)
	content := bytes.Repeat([]byte("0123456789"), 50_000)
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		if f := ask.GetFiles(); f.GetWrite() || f.GetPath() != "/a b" || f.GetPodId() != string(testPod) {
			t.Errorf("asked for %v", f)
		}
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		for piece := range chunks(content) {
			send(stream, &agentrpc.Frame{Data: piece})
		}
		send(stream, &agentrpc.Frame{End: true})
	})
	r, err := w.server.ReadFiles(w.ctx, testHost, testPod, "/a b")
	check(t, err)
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	check(t, r.Close())

	stopped := make(chan struct{})
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		defer close(stopped)
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		for stream.Send(&agentrpc.Frame{Data: content[:32<<10]}) == nil {
		}
	})
	r, err = w.server.ReadFiles(w.ctx, testHost, testPod, "/endless")
	check(t, err)
	_, err = io.ReadFull(r, make([]byte, 1<<20))
	check(t, err)
	check(t, r.Close())
	<-stopped
}

func TestWriteFiles(t *testing.T) {
	w := newWire(t)
	content := bytes.Repeat([]byte("0123456789"), 50_000)
	unpacked := make(chan struct{})
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		if f := ask.GetFiles(); !f.GetWrite() || f.GetPath() != "/dir" {
			t.Errorf("asked for %v", f)
		}
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		got := receiveAll(stream)
		if !bytes.Equal(got, content) {
			t.Errorf("%d bytes came", len(got))
		}
		close(unpacked)
		send(stream, &agentrpc.Frame{End: true})
	})
	check(t, w.server.WriteFiles(w.ctx, testHost, testPod, "/dir", bytes.NewReader(content)))
	select {
	case <-unpacked:
	default:
		t.Error("it returned before the host had everything")
	}
}

// receiveAll reads up to the end frame; nil when the tunnel ended without.
func receiveAll(stream agentrpc.Link_TunnelClient) []byte {
	var got []byte
	for {
		f, err := stream.Recv()
		if err != nil {
			return nil
		}
		got = append(got, f.GetData()...)
		if f.GetEnd() {
			return got
		}
	}
}

// TestABrokenArchiveIsNotFinished checks that a body that breaks off is never taken for a whole one.
func TestABrokenArchiveIsNotFinished(t *testing.T) {
	w := newWire(t)
	seen := make(chan []byte, 1)
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		seen <- receiveAll(stream)
	})
	broken := errors.New("the client has gone")
	err := w.server.WriteFiles(w.ctx, testHost, testPod, "/dir", io.MultiReader(strings.NewReader("half"), failing{broken}))
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if got := <-seen; got != nil {
		t.Errorf("the host took %q for a whole stream", got)
	}
}

type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestATunnelThatNobodyOpensIsForgotten: what was asked of a host that does not answer is waited for no more.
func TestATunnelThatNobodyOpensIsForgotten(t *testing.T) {
	w := newWire(t)
	ctx, cancel := context.WithCancel(w.ctx)
	asked := make(chan struct{})
	go func() {
		<-w.session.down
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		if len(w.server.waiting) != 1 {
			t.Errorf("%d tunnels are waited for", len(w.server.waiting))
		}
		close(asked)
		cancel()
	}()
	_, err := w.server.OpenPort(ctx, testHost, testPod, 80)
	wantError(t, "no answer", err, fleet.CodeUnavailable, "did not answer in time")
	<-asked
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if len(w.server.waiting) != 0 {
		t.Errorf("%d tunnels are still waited for", len(w.server.waiting))
	}
}

// TestTheEndOfAnExec: whoever closed it reads that it is closed, and a log that breaks off is not taken for a whole one.
func TestTheEndOfAnExec(t *testing.T) {
	w := newWire(t)
	accept := func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
	}
	hold := make(chan struct{})
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		accept(ask, stream)
		<-hold
	})
	x, err := w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"x"}})
	check(t, err)
	check(t, x.Close())
	if _, err := x.Receive(); err != io.ErrClosedPipe { //nolint:errorlint // it alone, not as the loss of the host
		t.Errorf("after it was closed: %v", err)
	}
	close(hold)
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		accept(ask, stream)
		send(stream, &agentrpc.Frame{Data: []byte(`{"text":"a"}` + "\n" + `{"te`)})
		<-w.session.done
	})
	lines := 0
	err = w.server.Logs(w.ctx, testHost, testPod, fleet.LogQuery{}, func(fleet.LogLine) error {
		lines++
		close(w.session.done) // the host is lost
		return nil
	})
	wantError(t, "a log that breaks off", err, fleet.CodeUnavailable, "while its log was read")
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
}
