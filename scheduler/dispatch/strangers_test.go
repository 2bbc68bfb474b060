package dispatch

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/internal/agentrpc"
)

// nobody dials without a certificate.
func (y *yard) nobody() *grpc.ClientConn {
	y.Helper()
	conf := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{agentrpc.ALPNGRPC}, MinVersion: tls.VersionTLS13}
	conn, err := grpc.NewClient("passthrough:///"+y.addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	check(y, err)
	y.Cleanup(func() { check(y, conn.Close()) })
	return conn
}

// everyRole runs a test at a leader and at a follower.
func everyRole(t *testing.T, f func(*yard)) {
	for name, follows := range map[string]bool{"leader": false, "follower": true} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			y.follows.Store(follows)
			f(y)
		})
	}
}

// TestALargeMessageWithoutACertificateIsNotRead: of a mebibyte nothing is kept, and no token is looked up for it.
func TestALargeMessageWithoutACertificateIsNotRead(t *testing.T) {
	everyRole(t, func(y *yard) {
		conn := y.nobody()
		_, err := agentrpc.NewJoinClient(conn).Join(y.ctx, &agentrpc.JoinRequest{Csr: make([]byte, 1<<20)})
		if status.Code(err) != codes.ResourceExhausted {
			y.Errorf("join: %v", err)
		}
		y.barriers.Store(0)
		_, err = agentrpc.NewPeerClient(conn).JoinMember(y.ctx, &agentrpc.JoinMemberRequest{Csr: make([]byte, 1<<20)})
		if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unimplemented { // the yard is no member
			y.Errorf("join of a member: %v", err)
		}
		if n := y.barriers.Load(); n != 0 {
			y.Errorf("%d look-ups", n)
		}
	})
}

// TestOnlyJoinsAreOpen: every other call is refused before its message is read.
func TestOnlyJoinsAreOpen(t *testing.T) {
	everyRole(t, func(y *yard) {
		conn := y.nobody()
		large := make([]byte, 1<<20)
		calls := map[string]func() error{
			"renew": func() error {
				_, err := agentrpc.NewJoinClient(conn).Renew(y.ctx, &agentrpc.RenewRequest{Csr: large})
				return err
			},
			"rejoin": func() error {
				_, err := agentrpc.NewPeerClient(conn).Rejoin(y.ctx, &agentrpc.RejoinRequest{Csr: large})
				return err
			},
			"status": func() error {
				_, err := agentrpc.NewPeerClient(conn).Status(y.ctx, &agentrpc.StatusRequest{})
				return err
			},
			"S3": func() error {
				_, err := agentrpc.NewLinkClient(conn).S3Access(y.ctx, &agentrpc.S3AccessRequest{})
				return err
			},
			"session": func() error {
				s, err := agentrpc.NewLinkClient(conn).Session(y.ctx)
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
			"jobs": func() error {
				s, err := agentrpc.NewLinkClient(conn).Jobs(y.ctx)
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
			"tunnel": func() error {
				s, err := agentrpc.NewLinkClient(conn).Tunnel(y.ctx)
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
			"unknown": func() error {
				return conn.Invoke(y.ctx, "/no.Such/Call", &agentrpc.StatusRequest{}, &agentrpc.StatusResponse{})
			},
		}
		for name, call := range calls {
			if err := call(); status.Code(err) != codes.PermissionDenied {
				y.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestStrangersCostNoMemory: many calls without a certificate that announce large messages and send all but their ends are broken
// off, those above the number of calls before their first byte, and the heap stays small meanwhile.
func TestStrangersCostNoMemory(t *testing.T) {
	everyRole(t, func(y *yard) {
		const streams, size = 16, 60 << 20
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		before := heap()
		var most uint64
		var calls sync.WaitGroup
		refused := make(chan string, streams)
		for range streams {
			pr, pw := io.Pipe()
			calls.Go(func() { refused <- y.announce(tr, agentrpc.Join_Join_FullMethodName, pr) })
			calls.Go(func() { pour(pw, size) })
		}
		told := 0
		for range streams {
			if <-refused == "8" { // ResourceExhausted
				told++
			}
			most = max(most, heap())
		}
		calls.Wait()
		if told == 0 || y.ctx.Err() != nil {
			y.Errorf("%d calls were told why; %v", told, y.ctx.Err())
		}
		if most > before+32<<20 {
			y.Errorf("the heap grew from %d MB to %d MB", before>>20, most>>20)
		}
	})
}

// announce makes a call that never ends by itself, and returns the status with which the server ended it.
func (y *yard) announce(tr http.RoundTripper, method string, body *io.PipeReader) string {
	defer func() { _ = body.Close() }() // ends who writes
	ctx, cancel := context.WithCancel(y.ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+y.addr+method, body)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	if code := resp.Header.Get("Grpc-Status"); code != "" {
		return code
	}
	return resp.Trailer.Get("Grpc-Status")
}

// pour announces a message and sends all of it but its end.
func pour(to *io.PipeWriter, size int) {
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(size))
	if _, err := to.Write(head); err != nil {
		return
	}
	zeros := make([]byte, 1<<16)
	for sent := 0; sent < size-len(zeros); sent += len(zeros) {
		if _, err := to.Write(zeros); err != nil {
			return
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAHostsLargestMessageIsBounded: a certificate opens the way for what a host has to say, and no more.
func TestAHostsLargestMessageIsBounded(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	s, err := g.client.Session(y.ctx)
	check(y, err)
	_ = s.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: &agentrpc.Hello{MachineId: string(make([]byte, maxMessage))}}})
	if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted {
		y.Errorf("a message of more than %d bytes: %v", maxMessage, err)
	}
}
