package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"gantry/internal/ipc"
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
	idle   []*ipc.Conn
	closed bool
}

// NewClient returns a client that opens its connections with dial, at most 16 at a time.
func NewClient(dial func(context.Context) (*net.UnixConn, error)) *Client {
	return &Client{dial: dial, seats: make(chan struct{}, maxAtOnce)}
}

// Access tells what an access key may do.
func (c *Client) Access(ctx context.Context, asked Asked) (Access, error) {
	a, f, err := c.ask(ctx, request{op: opAccess, Asked: asked})
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
	a, f, err := c.ask(ctx, request{op: opOpen, Asked: asked, Volume: volume})
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
		conn.Close()
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
		conn := c.kept()
		fresh := conn == nil
		if fresh {
			sock, err := c.dial(ctx)
			if err != nil {
				return answer{}, nil, fmt.Errorf("reach the agent: %w", err)
			}
			conn = ipc.NewConn(sock, maxAnswer)
		}
		a, f, err := exchange(ctx, conn, r)
		if told, ok := errors.AsType[*ipc.Error](err); err == nil || ok {
			c.keep(conn)
			switch {
			case err == nil:
				return a, f, nil
			case told.Kind == kindNoKey:
				return answer{}, nil, ErrNoKey
			}
			return answer{}, nil, &Refused{told.Text}
		}
		conn.Close()
		if fresh || ctx.Err() != nil {
			return answer{}, nil, fmt.Errorf("ask the agent: %w", err)
		}
	}
}

func (c *Client) kept() *ipc.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == 0 {
		return nil
	}
	conn := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	return conn
}

func (c *Client) keep(conn *ipc.Conn) {
	c.mu.Lock()
	full := c.closed || len(c.idle) >= keepConns
	if !full {
		c.idle = append(c.idle, conn)
	}
	c.mu.Unlock()
	if full {
		conn.Close()
	}
}

func exchange(ctx context.Context, conn *ipc.Conn, r request) (a answer, f *os.File, err error) {
	var body json.RawMessage
	files, err := conn.Call(ctx, r.op, r, &body)
	if err == nil {
		a, err = decodeAnswer(r.op, body)
	}
	if err == nil && len(files) > 1 {
		err = errors.New("more than one folder came")
	}
	if err != nil || len(files) == 0 {
		ipc.CloseAll(files)
		return a, nil, err
	}
	return a, files[0], nil
}
