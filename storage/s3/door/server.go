package door

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

const (
	maxConns    = 64
	serveWithin = 20 * time.Second // of one request
	idleConn    = 10 * time.Minute
	writeWithin = 5 * time.Second
)

// Agent answers what comes through the door. Implementations are safe for concurrent use. Errors other than ErrNoKey and Refused
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
		if err := checkPeer(conn); err != nil {
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

// checkPeer refuses users other than root and the process's own.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var who *unix.Ucred
	var got error
	if err := raw.Control(func(fd uintptr) { who, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if got != nil {
		return got
	}
	if who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		return fmt.Errorf("it is user %d's", who.Uid)
	}
	return nil
}

// serve answers one connection until it ends, which is no error between two requests.
func serve(ctx context.Context, conn *net.UnixConn, agent Agent, log *slog.Logger) error {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReaderSize(conn, maxRequest)
	for ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(idleConn))
		line, err := in.ReadSlice('\n')
		if len(line) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		r, err := decodeRequest(line)
		if err != nil {
			return err
		}
		if err := r.serve(ctx, conn, agent, log); err != nil {
			return err
		}
	}
	return nil
}

func (r request) serve(ctx context.Context, conn *net.UnixConn, agent Agent, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, serveWithin)
	defer cancel()
	var a answer
	var f *os.File
	var err error
	if r.Op == opAccess {
		var access Access
		access, err = agent.Access(ctx, r.Asked)
		a.Access = &access
	} else {
		var opened Opened
		f, opened, err = agent.Open(ctx, r.Asked, r.Volume)
		a.Opened = &opened
	}
	if f != nil {
		defer func() { _ = f.Close() }() // the message holds it
	}
	if err != nil {
		a = failed(err)
		if !a.NoKey {
			log.Warn("a request of gantry-s3 failed", "what", r.Op, "volume", r.Volume, "err", err)
		}
		f = nil
	}
	return send(conn, a, f)
}

func failed(err error) answer {
	var refused *Refused
	switch {
	case errors.Is(err, ErrNoKey):
		return answer{NoKey: true}
	case errors.As(err, &refused) && refused.Sentence != "":
		return answer{Refused: refused.Sentence}
	}
	return answer{Refused: "the host could not do it"}
}

// send writes an answer. The file goes with its first byte.
func send(conn *net.UnixConn, a answer, f *os.File) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(line) >= maxAnswer {
		if line, err = json.Marshal(answer{Refused: "the answer is too long"}); err != nil {
			return err
		}
		f = nil
	}
	line = append(line, '\n')
	if err := conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	if f != nil {
		n, _, err := conn.WriteMsgUnix(line[:1], unix.UnixRights(int(f.Fd())), nil)
		if err != nil {
			return fmt.Errorf("send a volume's folder: %w", err)
		}
		line = line[n:]
	}
	if _, err := conn.Write(line); err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}
