package door

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxAtOnce = 16
	keepConns = 8
	askWithin = 15 * time.Second // where the caller's context has no earlier deadline
)

// Client asks the agent. Its methods may be called concurrently. Errors of theirs that are neither ErrNoKey nor a *Refused say that
// there was no answer.
type Client struct {
	dial  func(context.Context) (*net.UnixConn, error)
	seats chan struct{}

	mu     sync.Mutex // guards the fields below
	idle   []*net.UnixConn
	closed bool
}

// NewClient returns a client that opens its connections with dial, at most 16 at a time.
func NewClient(dial func(context.Context) (*net.UnixConn, error)) *Client {
	return &Client{dial: dial, seats: make(chan struct{}, maxAtOnce)}
}

// Access tells what an access key may do.
func (c *Client) Access(ctx context.Context, asked Asked) (Access, error) {
	a, f, err := c.ask(ctx, request{Op: opAccess, Asked: asked})
	if f != nil {
		_ = f.Close() // nobody asked for it
	}
	if err != nil {
		return Access{}, err
	}
	return *a.Access, nil
}

// Open returns the folder of a volume that the access key reaches, a mount that is nowhere else. The caller closes it.
func (c *Client) Open(ctx context.Context, asked Asked, volume string) (*os.File, Opened, error) {
	a, f, err := c.ask(ctx, request{Op: opOpen, Asked: asked, Volume: volume})
	switch {
	case err != nil && f != nil:
		_ = f.Close()
		fallthrough
	case err != nil:
		return nil, Opened{}, err
	case f == nil:
		return nil, Opened{}, errors.New("ask the agent: no folder came")
	}
	return f, *a.Opened, nil
}

// Close closes the connections that nobody uses, and later all others.
func (c *Client) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, conn := range idle {
		_ = conn.Close()
	}
}

// ask sends a request and reads its answer. A connection of before may be one to an agent that has ended since: then another is opened.
func (c *Client) ask(ctx context.Context, r request) (answer, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	select {
	case c.seats <- struct{}{}:
		defer func() { <-c.seats }()
	case <-ctx.Done():
		return answer{}, nil, fmt.Errorf("ask the agent: %w", ctx.Err())
	}
	for {
		conn, err := c.kept(), error(nil)
		fresh := conn == nil
		if fresh {
			if conn, err = c.dial(ctx); err != nil {
				return answer{}, nil, fmt.Errorf("reach the agent: %w", err)
			}
		}
		a, f, err := exchange(ctx, conn, r)
		if err != nil {
			_ = conn.Close()
			if fresh || ctx.Err() != nil {
				return answer{}, nil, fmt.Errorf("ask the agent: %w", err)
			}
			continue
		}
		c.keep(conn)
		return a, f, a.err()
	}
}

func (c *Client) kept() *net.UnixConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == 0 {
		return nil
	}
	conn := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	return conn
}

func (c *Client) keep(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= keepConns {
		_ = conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

func exchange(ctx context.Context, conn *net.UnixConn, r request) (answer, *os.File, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return answer{}, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return answer{}, nil, err
	}
	line, files, err := receive(conn)
	var a answer
	if err == nil {
		a, err = decodeAnswer(line, r)
	}
	if err == nil && len(files) > 1 {
		err = errors.New("more than one folder came")
	}
	if err == nil && !stop() { // its deadline may have been set for good
		err = ctx.Err()
	}
	if err != nil || len(files) == 0 {
		closeAll(files)
		return a, nil, err
	}
	return a, files[0], nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// receive reads a line and what files came with it.
func receive(conn *net.UnixConn) (line []byte, files []*os.File, err error) {
	buf, oob := make([]byte, 16<<10), make([]byte, unix.CmsgSpace(4*4))
	for {
		n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
		got, parsed := rights(oob[:max(oobn, 0)]) // less than nothing came where it failed
		files = append(files, got...)
		line = append(line, buf[:max(n, 0)]...)
		switch at := bytes.IndexByte(line, '\n'); {
		case err == nil && parsed != nil:
			err = parsed
		case err == nil && (flags&unix.MSG_CTRUNC != 0 || len(files) > 4):
			err = errors.New("too many files came")
		case err == nil && (len(line) > maxAnswer || at >= 0 && at != len(line)-1):
			err = errors.New("too much came")
		case err == nil && at >= 0:
			return line[:at], files, nil
		case err == nil && n == 0:
			err = errors.New("the agent has closed the connection")
		case err == nil:
			continue
		}
		closeAll(files)
		return nil, nil, err
	}
}

// rights returns the files of a control message.
func rights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var out []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "folder of a volume"))
		}
	}
	return out, nil
}
