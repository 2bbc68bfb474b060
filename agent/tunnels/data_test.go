package tunnels

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// dataConn connects the desk's tunnels with a scheduler by a data connection, whose end ends stop.
func (d *desk) dataConn() (scheduler *agentrpc.DataConn, stop func()) {
	d.Helper()
	ca, err := pki.NewCA("cluster-1", time.Now())
	d.must(err)
	store := func(role pki.Role, id string) *pki.Store {
		s, err := pki.OpenStore(d.TempDir())
		d.must(err)
		d.must(s.Enroll(ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now()))
		return s
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	mux, err := agentrpc.NewMux(ln, store(pki.RoleScheduler, "s1"), agentrpc.MuxConfig{Log: slog.New(slog.DiscardHandler)})
	d.must(err)
	type end struct {
		conn *agentrpc.DataConn
		err  error
	}
	taken := make(chan end, 1)
	go func() {
		conn, err := mux.Data().Accept()
		if err != nil {
			taken <- end{nil, err}
			return
		}
		got, err := agentrpc.AcceptData(conn, nil, func(pki.Identity, *agentrpc.DataHello) error { return nil })
		taken <- end{got, err}
	}()
	host, err := agentrpc.DialData(d.ctx, store(pki.RoleHost, "h1"), func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}, agentrpc.DataPeer{Addr: ln.Addr().String()}, &agentrpc.DataHello{Epoch: 1})
	d.must(err)
	got := <-taken
	d.must(got.err)
	ctx, cancel := context.WithCancel(d.ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.t.Serve(ctx, host) }()
	stop = func() {
		cancel()
		_ = host.Close()
		<-done
	}
	d.Cleanup(func() { stop(); _ = got.conn.Close(); d.t.Wait(10 * time.Second); d.must(mux.Close()) })
	return got.conn, stop
}

func (d *desk) askOn(conn *agentrpc.DataConn, ask *agentrpc.OpenTunnel) (*agentrpc.DataStream, *agentrpc.Frame) {
	d.Helper()
	s, err := conn.Open(d.ctx)
	d.must(err)
	d.must(s.SendAsk(ask))
	first, err := s.Recv()
	d.must(err)
	return s, first
}

// TestAPortOnADataConnection: both directions, each to its own end; what breaks off on one side does on the other.
func TestAPortOnADataConnection(t *testing.T) {
	d := newDesk(t)
	conn, stop := d.dataConn()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	d.must(err)
	defer ln.Close()
	port := func(pod string) *agentrpc.OpenTunnel {
		return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Port{Port: &agentrpc.PortTarget{PodId: pod, Port: int32(ln.Addr().(*net.TCPAddr).Port)}}}
	}
	open := func() (*agentrpc.DataStream, *net.TCPConn) {
		s, first := d.askOn(conn, port("pod1"))
		if first.GetError() != "" {
			t.Fatal(first)
		}
		c, err := ln.Accept()
		d.must(err)
		d.must(c.SetDeadline(time.Now().Add(time.Minute)))
		return s, c.(*net.TCPConn)
	}
	s, c := open()
	asked, answer := strings.Repeat("how are you? ", 100_000), strings.Repeat("well ", 300_000)
	go func(s *agentrpc.DataStream) { _, _ = io.WriteString(s, asked); _ = s.CloseWrite() }(s)
	got, err := io.ReadAll(c)
	d.must(err)
	if string(got) != asked {
		t.Errorf("the pod got %d bytes", len(got))
	}
	go func(c *net.TCPConn) { _, _ = io.WriteString(c, answer); _ = c.Close() }(c)
	if got, err = io.ReadAll(s); err != nil || string(got) != answer {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	s, c = open()
	_ = s.Reset()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the scheduler let go the pod reads %v", err)
	}
	_ = c.Close()
	s, c = open()
	d.must(c.SetLinger(0))
	d.must(c.Close())
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after the pod broke off: %v", err)
	}
	for _, pod := range []string{"", "unknown", "stopped", "waiting"} {
		s, first := d.askOn(conn, port(pod))
		if first.GetError() != "the pod does not run here" {
			t.Errorf("pod %q: %v", pod, first)
		}
		_ = s.Reset()
	}
	_, c = open()
	stop()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the pod's connection outlives the data connection")
	}
	_ = c.Close()
}

// TestCommandsOnADataConnection end with their stream.
func TestCommandsOnADataConnection(t *testing.T) {
	d := newDesk(t)
	conn, stop := d.dataConn()
	s, first := d.askOn(conn, execOf("sh", "-c", "echo hello; exit 3"))
	if first.GetError() != "" {
		t.Fatal(first)
	}
	said := ""
	for {
		f, err := s.Recv()
		d.must(err)
		if f.GetChannel() == uint32(fleet.ExecStdout) {
			said += string(f.GetData())
		}
		if f.GetEnd() {
			if said != "hello\n" || !strings.Contains(string(f.GetData()), `3`) {
				t.Errorf("%q, %s", said, f.GetData())
			}
			break
		}
	}
	_ = s.Reset()
	s, _ = d.askOn(conn, execOf("sleep", "1000"))
	_ = s.Reset()
	_, _ = d.askOn(conn, execOf("sleep", "1000"))
	if s, first := d.askOn(conn, &agentrpc.OpenTunnel{}); first.GetError() != "this host does not know that kind of tunnel" {
		t.Error(first)
	} else {
		_ = s.Reset()
	}
	stop() // that all processes have ended is looked at by the desk
}
