package tunnels

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/agent/containerfs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// starved starts commands as a container without processor time does: once the runtime has begun,
// nothing stops it.
type starved struct {
	*host
	begun   chan context.Context
	release chan struct{}
}

func (s starved) Exec(ctx context.Context, _ fleet.PodID, _ uint64, _ containerfs.ExecSpec) (containerfs.Process, error) {
	s.begun <- ctx
	<-s.release
	return nil, &pod.Error{Sentence: "it was too slow", Err: ctx.Err()}
}

// TestASessionDoesNotWaitForItsTunnels: until the next session the host cannot be reached, by anybody.
func TestASessionDoesNotWaitForItsTunnels(t *testing.T) {
	d := newDesk(t)
	slow := starved{d.host, make(chan context.Context, 1), make(chan struct{})}
	d.t.Inside = slow
	ended := d.t.Begin(d.conn)
	ctx, end := context.WithCancel(d.ctx)
	defer end()
	ask := execOf("true")
	ask.Id = "tunnel"
	if answer, err := d.t.Take(ctx, &agentrpc.Down_OpenTunnel{OpenTunnel: ask}); answer != nil || err != nil {
		t.Errorf("answered %v, %v", answer, err)
	}
	tunnel := <-d.sched.tunnels
	starting := <-slow.begun
	end()
	ended()
	select {
	case <-starting.Done():
	case <-time.After(time.Minute):
		t.Error("the command was not told that its session has ended")
	}
	if d.t.Wait(20 * time.Millisecond) {
		t.Error("the tunnel is said to have ended")
	}
	close(slow.release)
	if !d.t.Wait(10 * time.Second) {
		t.Error("the tunnel has not ended")
	}
	close(tunnel.leave)
}

type late struct{ *host }

func (l late) Exec(ctx context.Context, id fleet.PodID, incarnation uint64, s containerfs.ExecSpec) (containerfs.Process, error) {
	<-ctx.Done()
	return l.host.Exec(ctx, id, incarnation, s)
}

// TestACommandThatStartsTooLateIsEnded: who asked has been told that it did not start.
func TestACommandThatStartsTooLateIsEnded(t *testing.T) {
	d := newDesk(t)
	d.t.Inside, d.t.startWithin = late{d.host}, 20*time.Millisecond
	tunnel, first := d.open(d.ctx, execOf("sleep", "500"))
	close(tunnel.leave)
	if first.GetCode() != string(fleet.CodeUnavailable) || !strings.Contains(first.GetError(), "in time") {
		t.Errorf("told %v", first)
	}
	d.served.Wait()
	if len(d.host.procs) != 1 || !d.host.procs[0].ended() {
		t.Error("the process runs")
	}
}

// never is a host on which a program turns out not to be there, too late.
type never struct{ *host }

func (n never) Exec(ctx context.Context, _ fleet.PodID, _ uint64, _ containerfs.ExecSpec) (containerfs.Process, error) {
	<-ctx.Done()
	return nil, &containerfs.NotStartedError{Code: 127, Sentence: "there is no such program"}
}

// TestWhyACommandDidNotStartIsToldThoughItIsLate.
func TestWhyACommandDidNotStartIsToldThoughItIsLate(t *testing.T) {
	d := newDesk(t)
	d.t.Inside, d.t.startWithin = never{d.host}, time.Millisecond
	tunnel, first := d.open(d.ctx, execOf("x"))
	if _, _, r := d.result(tunnel); first.GetError() != "" || r.Code != 127 {
		t.Errorf("told %v, %+v", first, r)
	}
}

func TestSeats(t *testing.T) {
	s := seats{most: 2, host: 3, what: "things"}
	take := func(id fleet.PodID, want fleet.Code) {
		t.Helper()
		if err := s.take(id); want == "" && err != nil || want != "" && fleet.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", id, err, want)
		}
	}
	for range 2 {
		take("a", "")
		take("a", "")
		take("a", fleet.CodeNotAllowed)
		take("b", "")
		take("c", fleet.CodeUnavailable)
		s.leave("a")
		take("c", "")
		for _, id := range []fleet.PodID{"a", "b", "c"} {
			s.leave(id)
		}
		if len(s.taken) != 0 || s.total != 0 {
			t.Errorf("left: %v, %d", s.taken, s.total)
		}
	}
}

func TestTunnelsOfAHostAreBounded(t *testing.T) {
	d := newDesk(t)
	if d.t.execs.host != 512 || d.t.files.host != 64 {
		t.Errorf("at most %d and %d", d.t.execs.host, d.t.files.host)
	}
	d.t.execs.host, d.t.files.host = 1, 1
	d.must(os.WriteFile(filepath.Join(d.host.root, "huge"), nil, 0o600))
	d.must(os.Truncate(filepath.Join(d.host.root, "huge"), 1<<40))
	for _, ask := range []func() *agentrpc.OpenTunnel{
		func() *agentrpc.OpenTunnel { return execOf("cat") }, func() *agentrpc.OpenTunnel { return filesOf("/", false) },
	} {
		one, first := d.open(d.ctx, ask())
		if first.GetError() != "" {
			t.Fatal(first)
		}
		two, first := d.open(d.ctx, ask())
		if first.GetCode() != string(fleet.CodeUnavailable) || !strings.Contains(first.GetError(), "the pod's host") {
			t.Errorf("one too many: %v", first)
		}
		close(one.leave)
		close(two.leave)
		d.served.Wait()
	}
}

// TestAWriterThatLeavesIsNoticed also while nothing is read of what it sent.
func TestAWriterThatLeavesIsNoticed(t *testing.T) {
	d := newDesk(t)
	stream, err := agentrpc.NewLinkClient(d.conn).Tunnel(d.ctx)
	d.must(err)
	d.must(stream.Send(&agentrpc.Frame{Id: "tunnel"}))
	tunnel := <-d.sched.tunnels
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	in := receive(stream, cancel)
	for range 2 {
		d.must(tunnel.Send(&agentrpc.Frame{Data: make([]byte, frameSize)}))
	}
	close(tunnel.leave)
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Error("it was not noticed")
	}
	if !errors.Is(context.Cause(ctx), errLetGo) {
		t.Errorf("the cause is %v", context.Cause(ctx))
	}
	if n, err := (&frameReader{ctx: ctx, frames: in.frames}).Read(make([]byte, 10)); n != 0 || !errors.Is(err, errLetGo) {
		t.Errorf("read %d, %v", n, err)
	}
	in.leave(stream)
}

// TestARefusedArchiveIsDropped: what still comes of it is taken and does not stand in the way, and
// nothing of the pod is held meanwhile.
func TestARefusedArchiveIsDropped(t *testing.T) {
	d := newDesk(t)
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	d.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}))
	tunnel, first := d.open(d.ctx, filesOf("/", true))
	if first.GetError() != "" {
		t.Fatal(first)
	}
	d.must(tunnel.Send(&agentrpc.Frame{Data: packed.Bytes()}))
	last, err := tunnel.Recv()
	if err != nil || last.GetCode() != string(fleet.CodeInvalid) {
		t.Errorf("told %v, %v", last, err)
	}
	for range 200 { // more than the tunnel holds
		d.must(tunnel.Send(&agentrpc.Frame{Data: make([]byte, frameSize)}))
	}
	for end := time.Now().Add(time.Minute); ; {
		d.t.files.mu.Lock()
		n := d.t.files.total
		d.t.files.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the transfer is not over")
		}
	}
	close(tunnel.leave)
}

// TestTransfersOfAStoppedAgentSayNothing checks that an end that is meant is no fault.
func TestTransfersOfAStoppedAgentSayNothing(t *testing.T) {
	d := newDesk(t)
	var mu sync.Mutex
	var said bytes.Buffer
	d.t.Log = slog.New(slog.NewTextHandler(locked{&mu, &said}, nil))
	for _, write := range []bool{false, true} {
		d.must(os.WriteFile(filepath.Join(d.host.root, "huge"), nil, 0o600))
		d.must(os.Truncate(filepath.Join(d.host.root, "huge"), 1<<40))
		ctx, stop := context.WithCancel(d.ctx)
		d.open(ctx, filesOf("/", write))
		stop()
		d.served.Wait()
	}
	mu.Lock()
	defer mu.Unlock()
	if said.Len() > 0 {
		t.Error(fmt.Sprint("said: ", said.String()))
	}
}

type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

// Write implements io.Writer.
func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}
