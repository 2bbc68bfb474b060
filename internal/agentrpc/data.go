package agentrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"google.golang.org/protobuf/proto"

	"gantry/internal/pki"
)

const (
	dataGreeting = 5 * time.Second // for a hello, and for its answer
	dataStreams  = 1 << 14         // that one scheduler may have open on a host
	maxGreeting  = 4 << 10         // bytes
	maxFrame     = 4 << 20         // bytes of a message on a stream; most are of 32 KiB
	// dataPing is how often both ends look whether the other is there, and how far it is.
	dataPing = 30 * time.Second
)

// DataConn is a host's data connection, at either end. Streams share it, each with a window of its own, so that one that is read slowly
// holds up none of the others. It is safe for concurrent use.
type DataConn struct {
	peer pki.Identity
	mux  *yamux.Session
}

// Frames carries messages between a scheduler and something on a host, of a data connection's stream or of the call Tunnel. One goroutine
// may send while another receives.
type Frames interface {
	Send(f *Frame) error
	Recv() (*Frame, error)
	CloseSend() error
}

// DataStream is one stream of a data connection, as bytes or as frames.
type DataStream struct{ *yamux.Stream }

// Window is memory for what a stream's far end may have sent that nobody has read.
type Window = yamux.MemoryManager

// DataPeer is with whom a host wants a data connection: a scheduler, or the gateway of an id.
type DataPeer struct {
	Addr    string // host:port
	Gateway string // empty: a scheduler
}

// config accepts only who is meant.
func (p DataPeer) config(store *pki.Store) (*tls.Config, error) {
	if p.Gateway == "" {
		return clientTLS(store, ALPNData)
	}
	return clientOf(store, ALPNData, pki.GatewayName, func(leaf, ca *x509.Certificate, now time.Time) error {
		return pki.VerifyGateway(leaf, ca, p.Gateway, now)
	})
}

// DialData makes a data connection of a host, presenting the certificate in store and accepting only the peer that is meant, of the same
// cluster. dial makes the connection without TLS. ctx bounds all of it and has no effect afterwards.
func DialData(ctx context.Context, store *pki.Store, dial func(context.Context, string) (net.Conn, error), to DataPeer, hello *DataHello) (*DataConn, error) {
	config, err := to.config(store)
	if err != nil {
		return nil, err
	}
	raw, err := dial(ctx, to.Addr)
	if err != nil {
		return nil, err
	}
	Thin(raw, peerUnconfirmed)
	conn, err := shakeHands(ctx, raw, config)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	who, err := verifiedIdentity(conn.ConnectionState())
	if err == nil {
		err = writeMessage(conn, hello)
	}
	welcome := &DataWelcome{}
	if err == nil {
		err = readMessage(conn, maxGreeting, welcome)
	}
	if err == nil && welcome.GetRefused() != "" {
		err = errors.New(Shortened(welcome.GetRefused(), maxGreeting))
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newDataConn(conn, who, nil, yamux.Server)
}

// AcceptData greets a host on a connection of Mux.Data. window gives each stream its memory; nil: there is no bound. admit refuses the host with an error, which it is told. On an error the
// connection is closed.
func AcceptData(conn net.Conn, window func() (Window, error), admit func(who pki.Identity, hello *DataHello) error) (*DataConn, error) {
	who, err := ConnIdentity(conn)
	if err == nil && who.Role != pki.RoleHost {
		err = fmt.Errorf("%s has no data connections", who)
	}
	hello := &DataHello{}
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(dataGreeting))
		err = readMessage(conn, maxGreeting, hello)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	welcome := &DataWelcome{}
	if err = admit(who, hello); err != nil {
		welcome.Refused = err.Error()
	}
	_ = conn.SetDeadline(time.Now().Add(dataGreeting))
	if err = errors.Join(err, writeMessage(conn, welcome)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	_ = conn.SetDeadline(time.Time{})
	Thin(conn, peerUnconfirmed)
	return newDataConn(conn, who, window, yamux.Client)
}

func newDataConn(conn net.Conn, who pki.Identity, window func() (Window, error), end func(net.Conn, *yamux.Config, func() (Window, error)) (*yamux.Session, error)) (*DataConn, error) {
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard // what an end does wrong ends the connection
	config.MaxIncomingStreams, config.MaxStreamWindowSize = dataStreams, StreamWindow
	config.KeepAliveInterval, config.MeasureRTTInterval = dataPing, dataPing
	mux, err := end(conn, config, window)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &DataConn{peer: who, mux: mux}, nil
}

// Peer is who is at the other end.
func (d *DataConn) Peer() pki.Identity { return d.peer }

// Open opens a stream; of a scheduler's end.
func (d *DataConn) Open(ctx context.Context) (*DataStream, error) {
	s, err := d.mux.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return &DataStream{s}, nil
}

// Accept waits for the next stream that the scheduler opens; of a host's end.
func (d *DataConn) Accept() (*DataStream, error) {
	s, err := d.mux.AcceptStream()
	if err != nil {
		return nil, err
	}
	return &DataStream{s}, nil
}

// Idle reports whether no stream is open.
func (d *DataConn) Idle() bool { return d.mux.NumStreams() == 0 }

// Done is closed when the connection has ended.
func (d *DataConn) Done() <-chan struct{} { return d.mux.CloseChan() }

// Answers reports whether the other end answers in time.
func (d *DataConn) Answers(within time.Duration) bool {
	answered := make(chan error, 1)
	go func() { // ends with the connection at the latest
		_, err := d.mux.Ping()
		answered <- err
	}()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err := <-answered:
		return err == nil
	case <-timer.C:
		return false
	}
}

// Close ends the connection and all of its streams.
func (d *DataConn) Close() error { return d.mux.Close() }

// Read implements io.Reader. It returns io.EOF at an end that the other side meant, and only then: what breaks off is
// io.ErrUnexpectedEOF.
func (s *DataStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // errors of broken connections wrap it
		err = fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err) //nolint:errorlint // the same
	}
	return n, err
}

// Send implements Frames.
func (s *DataStream) Send(f *Frame) error { return writeMessage(s, f) }

// SendAsk is the first message of a stream, the scheduler's.
func (s *DataStream) SendAsk(ask *OpenTunnel) error { return writeMessage(s, ask) }

// RecvAsk receives what SendAsk sent.
func (s *DataStream) RecvAsk() (*OpenTunnel, error) {
	ask := &OpenTunnel{}
	return ask, readMessage(s, maxFrame, ask)
}

// Recv implements Frames.
func (s *DataStream) Recv() (*Frame, error) {
	f := &Frame{}
	if err := readMessage(s, maxFrame, f); err != nil {
		return nil, err
	}
	return f, nil
}

// CloseSend implements Frames.
func (s *DataStream) CloseSend() error { return s.CloseWrite() }

// writeMessage writes a message with its length before it, in one piece.
func writeMessage(w io.Writer, m proto.Message) error {
	data, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 64), m)
	if err != nil {
		return err
	}
	if len(data)-4 > maxFrame {
		return errors.New("the message is too large")
	}
	binary.BigEndian.PutUint32(data, uint32(len(data)-4)) //nolint:gosec // bounded
	_, err = w.Write(data)
	return err
}

// readMessage reads what writeMessage wrote. Memory grows only with what has come.
func readMessage(r io.Reader, most int, m proto.Message) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > uint32(most) { //nolint:gosec // a constant
		return errors.New("a message is too large")
	}
	data := make([]byte, 0, min(n, 64<<10))
	for uint32(len(data)) < n { //nolint:gosec // at most n
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		room := data[len(data):min(cap(data), int(n))]
		got, err := io.ReadFull(r, room)
		data = data[:len(data)+got]
		if err != nil {
			return io.ErrUnexpectedEOF
		}
	}
	return proto.Unmarshal(data, m)
}
