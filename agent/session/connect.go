package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const (
	connectTimeout = 1500 * time.Millisecond // of a connection with its handshake
	helloTimeout   = 3 * time.Second         // until the welcome, or a beat before it
	greetMost      = time.Minute             // the same, of a scheduler that says that it is at work
	lossyTimeout   = 1200 * time.Millisecond // as helloTimeout, of a first try on a network that loses packets
	keepaliveTime  = 10 * time.Second
	// unconfirmed is how long a scheduler may leave unconfirmed what it was sent. It is below the time after
	// which the host counts as silent: a new connection is there before.
	unconfirmed = 2500 * time.Millisecond
	// While a network loses packets, connections that make no progress get another one beside them.
	besideAfter = 250 * time.Millisecond
	besideMost  = 4
)

// errSilence says that nothing was heard of the scheduler for too long.
var errSilence = errors.New("nothing was heard of the scheduler for too long")

// Dialer opens the network connection to a scheduler.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// DialTCP is the Dialer of every real agent.
func DialTCP(ctx context.Context, addr string) (net.Conn, error) {
	return agentrpc.DialThin(ctx, addr, unconfirmed)
}

// connect prepares a connection that presents the host's certificate.
func connect(addr string, store *pki.Store, dial Dialer) (*grpc.ClientConn, error) {
	creds, err := agentrpc.HostCredentials(store)
	if err != nil {
		return nil, err
	}
	return newClient(addr, dial, creds)
}

func newClient(addr string, dial Dialer, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: unconfirmed}),
		grpc.WithInitialWindowSize(agentrpc.StreamWindow), grpc.WithInitialConnWindowSize(agentrpc.ConnWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
}

// connectLossy is connect on a network that has just lost packets: connections are begun one beside another
// until one stands, which is taken. What is wrong with one that failed is what its first call tells.
func connectLossy(ctx context.Context, addr string, store *pki.Store, dial Dialer) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	settled := make(chan *grpc.ClientConn, besideMost)
	var begun []*grpc.ClientConn
	defer func() {
		for _, conn := range begun {
			_ = conn.Close()
		}
	}()
	for {
		conn, err := connect(addr, store, dial)
		if err != nil {
			return nil, err
		}
		begun = append(begun, conn)
		go settle(ctx, conn, settled)
		more := time.NewTimer(besideAfter)
		if len(begun) == besideMost {
			more.Stop()
		}
		select {
		case conn = <-settled:
			more.Stop()
			begun = slices.DeleteFunc(begun, func(c *grpc.ClientConn) bool { return c == conn })
			return conn, nil
		case <-more.C:
		}
	}
}

// settle tells when a connection stands or has failed, at the latest when ctx ends.
func settle(ctx context.Context, conn *grpc.ClientConn, settled chan<- *grpc.ClientConn) {
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			break
		}
	}
	settled <- conn
}

// greet begins a session. end ends it when no welcome comes in time.
func greet(ctx context.Context, end context.CancelCauseFunc, conn *grpc.ClientConn, hello *agentrpc.Hello, limit time.Duration) (agentrpc.Link_SessionClient, *agentrpc.Welcome, error) {
	tooLate := errors.New("the scheduler did not answer in time")
	late := time.AfterFunc(limit, func() { end(tooLate) })
	defer late.Stop()
	last := time.AfterFunc(greetMost, func() { end(tooLate) })
	defer last.Stop()
	stream, err := agentrpc.NewLinkClient(conn).Session(ctx)
	if err != nil {
		return nil, nil, cause(ctx, err)
	}
	// A beat says that many hosts came at once, and that it is not this one's turn yet.
	welcome, err := agentrpc.Greet(ctx, stream, hello, func() { late.Reset(limit) })
	if err != nil {
		return nil, nil, named(cause(ctx, err), stream)
	}
	if !late.Stop() {
		return nil, nil, tooLate
	}
	return stream, welcome, nil
}

// cause is why ctx ended, or else err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// notLeading is the error of a scheduler that has named another one.
type notLeading struct {
	error
	leader string
}

// Unwrap returns the scheduler's own error.
func (e *notLeading) Unwrap() error { return e.error }

// named adds to the error with which a call ended which leader its trailer names, if any.
func named(err error, call interface{ Trailer() metadata.MD }) error {
	return withLeader(err, call.Trailer())
}

func withLeader(err error, trailer metadata.MD) error {
	if leader := agentrpc.LeaderHint(trailer); isAddress(leader) {
		return &notLeading{err, leader}
	}
	return err
}

// leaderOf returns the address of the leader that an error names, or "".
func leaderOf(err error) string {
	var e *notLeading
	if errors.As(err, &e) {
		return e.leader
	}
	return ""
}
