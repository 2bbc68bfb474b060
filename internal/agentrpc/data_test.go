package agentrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/internal/pki"
)

// dataPort is a scheduler's port on which hosts are greeted.
type dataPort struct {
	addr string
	ca   *pki.CA
	host *pki.Store
	got  chan *DataConn // nil: one was refused
}

func newDataPort(t *testing.T, admit func(pki.Identity, *DataHello) error) *dataPort {
	t.Helper()
	checkLeaks(t)
	ca := newCA(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux, err := NewMux(ln, newStore(t, ca, schedulerID), MuxConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := &dataPort{addr: ln.Addr().String(), ca: ca, host: newStore(t, ca, hostID), got: make(chan *DataConn, 16)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := mux.Data().Accept()
			if err != nil {
				return
			}
			d, _ := AcceptData(conn, nil, admit)
			p.got <- d
		}
	}()
	t.Cleanup(func() {
		if err := mux.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return p
}

func dialPlain(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

func anyHost(pki.Identity, *DataHello) error { return nil }

// dial connects a host and returns both ends.
func (p *dataPort) dial(t *testing.T) (host, scheduler *DataConn) {
	t.Helper()
	host, err := DialData(testContext(t), p.host, dialPlain, DataPeer{Addr: p.addr}, &DataHello{Epoch: 7})
	if err != nil {
		t.Fatal(err)
	}
	scheduler = <-p.got
	t.Cleanup(func() { _, _ = host.Close(), scheduler.Close() })
	return host, scheduler
}

// TestASlowReaderHoldsUpNobody: a stream that nobody reads takes its window and no more, and others go on beside it.
func TestASlowReaderHoldsUpNobody(t *testing.T) {
	p := newDataPort(t, func(who pki.Identity, hello *DataHello) error {
		if who != hostID || hello.GetEpoch() != 7 {
			return errors.New("another")
		}
		return nil
	})
	host, scheduler := p.dial(t)
	if host.Peer() != schedulerID || scheduler.Peer() != hostID || !host.Answers(testDeadline) || !scheduler.Idle() {
		t.Fatalf("%v and %v", host.Peer(), scheduler.Peer())
	}
	slow, err := scheduler.Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	far, err := host.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() {
		n, _ := far.Write(make([]byte, 64<<20))
		ended <- n
	}()
	for range 3 {
		quick, err := scheduler.Open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		other, err := host.Accept()
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		go func() { _, _ = other.Write(want); _ = other.CloseWrite() }()
		if got, err := io.ReadAll(quick); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		_ = quick.CloseWrite()
	}
	_ = slow.Reset()
	if n := <-ended; n < 1 || n > StreamWindow {
		t.Errorf("%d bytes were taken that nobody read", n)
	}
}

func TestDataConnectionsAreGreeted(t *testing.T) {
	p := newDataPort(t, func(pki.Identity, *DataHello) error { return errors.New("not this one") })
	if _, err := DialData(testContext(t), p.host, dialPlain, DataPeer{Addr: p.addr}, &DataHello{}); err == nil || !strings.Contains(err.Error(), "not this one") {
		t.Errorf("refused: %v", err)
	}
	<-p.got
	// Whoever is no host of the cluster is not heard, and a host accepts no scheduler of another.
	foreign := newCA(t)
	for name, store := range map[string]*pki.Store{"a scheduler": newStore(t, p.ca, schedulerID), "another cluster's host": newStore(t, foreign, hostID)} {
		if d, err := DialData(testContext(t), store, dialPlain, DataPeer{Addr: p.addr}, &DataHello{}); err == nil {
			t.Errorf("%s was taken", name)
			_ = d.Close()
		}
	}
	select {
	case <-p.got:
		t.Error("one of them was heard")
	default:
	}
	config, err := clientTLS(p.host, ALPNData)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := dialPlain(testContext(t), p.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := shakeHands(testContext(t), raw, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0xff, 0, 0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	if d := <-p.got; d != nil {
		t.Error("a hello of 4 GB was taken")
	}
}

// TestAGreetingEndsWithItsContext: a scheduler that accepts and says nothing holds up nobody.
func TestAGreetingEndsWithItsContext(t *testing.T) {
	p := newDataPort(t, anyHost)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := DialData(ctx, p.host, dialPlain, DataPeer{Addr: ln.Addr().String()}, &DataHello{}); err == nil {
		t.Error("it was connected")
	}
}

func TestMessagesOfAStream(t *testing.T) {
	p := newDataPort(t, anyHost)
	host, scheduler := p.dial(t)
	s, err := scheduler.Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := &OpenTunnel{Target: &OpenTunnel_Port{Port: &PortTarget{PodId: "p", Port: 80}}}
	if err := s.SendAsk(ask); err != nil {
		t.Fatal(err)
	}
	h, err := host.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.RecvAsk(); err != nil || !proto.Equal(got, ask) {
		t.Fatal(got, err)
	}
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 3 << 20} {
		want := &Frame{Data: make([]byte, n), Channel: 3}
		go func() { _ = h.Send(want) }()
		if got, err := s.Recv(); err != nil || !proto.Equal(got, want) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if err := h.Send(&Frame{Data: make([]byte, maxFrame)}); err == nil {
		t.Error("a message that is too large was sent")
	}
	_ = h.CloseSend()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	_ = host.Close()
	<-scheduler.Done()
	if _, err := scheduler.Open(testContext(t)); err == nil {
		t.Error("a stream was opened on what has ended")
	}
}

func FuzzMessages(f *testing.F) {
	var buf bytes.Buffer
	if err := writeMessage(&buf, &Frame{Id: "x", Data: []byte("abc"), End: true}); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte{0, 0, 0, 9, 1})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &Frame{}
		if readMessage(bytes.NewReader(data), 1<<10, m) != nil {
			return
		}
		var again bytes.Buffer
		if err := writeMessage(&again, m); err != nil {
			t.Fatal(err)
		}
		got := &Frame{}
		if err := readMessage(&again, 1<<20, got); err != nil || !proto.Equal(got, m) {
			t.Fatalf("%v became %v: %v", m, got, err)
		}
	})
}
