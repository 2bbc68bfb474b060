package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gantry/internal/ipc"
	"gantry/internal/sleep"
)

const (
	maxConns    = 64
	serveWithin = 20 * time.Second // of one request
	idleConn    = 10 * time.Minute
	writeWithin = 5 * time.Second
)

// Agent answers what comes through the broker. Implementations are safe for concurrent use. Errors other than ErrNoKey and Refused
// are told without their text.
type Agent interface {
	// Access tells what an access key may do.
	Access(ctx context.Context, asked Asked) (Access, error)
	// Open returns the folder of a volume that the access key reaches. The caller closes it.
	Open(ctx context.Context, asked Asked, volume string) (*os.File, Opened, error)
}

// Listen makes a socket that only this process's user can reach, in a folder that it makes too. What an ended process has left
// there is replaced.
func Listen(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of gantry-s3's socket: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close the folder of gantry-s3's socket to others: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace gantry-s3's socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for gantry-s3: %w", err)
	}
	return l, nil
}

// Serve answers what comes in at l until ctx ends, then closes it. It returns when nothing is answered any more.
func Serve(ctx context.Context, l *net.UnixListener, agent Agent, log *slog.Logger) {
	var open sync.WaitGroup
	defer open.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	seats := make(chan struct{}, maxConns)
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil: // such as too many open files
			log.Error("take a connection of gantry-s3", "err", err)
			_ = sleep.For(ctx, time.Second)
			continue
		}
		if err := ipc.CheckPeer(conn); err != nil {
			log.Warn("a connection to gantry-s3's socket was refused", "err", err)
			_ = conn.Close()
			continue
		}
		select {
		case seats <- struct{}{}:
			open.Go(func() {
				defer func() { <-seats }()
				if err := serve(ctx, conn, agent, log); err != nil && ctx.Err() == nil {
					log.Warn("a connection of gantry-s3 has ended", "err", err)
				}
			})
		default:
			log.Warn("gantry-s3 has too many connections")
			_ = conn.Close()
		}
	}
}

// serve answers one connection until it ends, which is no error between two requests.
func serve(ctx context.Context, conn *net.UnixConn, agent Agent, log *slog.Logger) error {
	server := ipc.Server{
		Sock: conn, Question: maxRequest, Answer: maxAnswer, Idle: idleConn, Within: writeWithin,
		Handle: func(ctx context.Context, m ipc.Message, files []*os.File) (ipc.Reply, error) {
			ipc.CloseAll(files)
			r, err := decodeRequest(m.Verb, m.Body)
			if err != nil {
				return ipc.Reply{}, fmt.Errorf("%w: %w", ipc.ErrHangUp, err)
			}
			return r.serve(ctx, agent, log)
		},
	}
	return server.Serve(ctx)
}

func (r request) serve(ctx context.Context, agent Agent, log *slog.Logger) (ipc.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, serveWithin)
	defer cancel()
	var out ipc.Reply
	var err error
	if r.op == opAccess {
		var access Access
		access, err = agent.Access(ctx, r.Asked)
		out.Value = answer{Access: &access}
	} else {
		var f *os.File
		var opened Opened
		f, opened, err = agent.Open(ctx, r.Asked, r.Volume)
		out.Value = answer{Opened: &opened}
		if f != nil {
			out.FDs, out.Sent = []int{int(f.Fd())}, func() { _ = f.Close() } // the message holds it
		}
	}
	if err != nil {
		if !errors.Is(err, ErrNoKey) {
			log.Warn("a request of gantry-s3 failed", "what", r.op, "volume", r.Volume, "err", err)
		}
		return out, told(err)
	}
	return out, nil
}

// told is what the other side is told of an error.
func told(err error) error {
	var refused *Refused
	switch {
	case errors.Is(err, ErrNoKey):
		return ipc.Mark(kindNoKey, ErrNoKey)
	case errors.As(err, &refused) && refused.Sentence != "":
		return refused
	}
	return errors.New("the host could not do it")
}
