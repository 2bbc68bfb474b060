// Package sidecar keeps a process beside the agent that goes on when the agent ends, is taken over by the next one, and has no
// rights on the host: what it needs is handed to it over a unix socket in a folder of root's. The agent starts it again when it
// ends, or when its program has changed, and tells it all that it has to know.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gantry/internal/ipc"
	"gantry/internal/ipc/process"
	"gantry/internal/sleep"
)

const (
	waitMost     = 5 * time.Second  // of a Call, for a process that stands
	callWithin   = 15 * time.Second // of a Conn's, unless its context ends before
	helloWithin  = 2 * time.Second  // of a process that is found
	fillWithin   = 30 * time.Second
	restartLeast = 50 * time.Millisecond
	restartMost  = 5 * time.Second
	stoodLong    = time.Minute // after which a process that ends is replaced at once
)

// errStarting says that a process was started and is waited for.
var errStarting = errors.New("it was started and does not answer yet")

// errClosed says that the client was closed or removed meanwhile.
var errClosed = errors.New("nobody keeps the process any more")

// Config says which process is kept.
type Config struct {
	// Name is the command of the program, and of the control socket in Dir.
	Name string
	// Program is the path of gantry-net, Dir a folder of this agent's instance, which is made when it is not there. It must be there
	// still when the next agent comes.
	Program, Dir string
	// Open opens the sockets that a process is started with, at most 9; it has them in order. They are kept, and handed to the next
	// process, also by the next agent, so that nothing is lost that waits in them. nil: none.
	Open func(ctx context.Context) (fds []int, err error)
	// Right says whether these, which may be none, are still what Open would open. It has to be there when Open is.
	Right func(fds []int) bool
	// Fill tells a process that was started or found all it has to know, before any Call gets through. nil: nothing.
	Fill func(ctx context.Context, c *Conn) error
	Log  *slog.Logger
}

// Client is the agent's side. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu    sync.Mutex
	conn  *Conn         // filled; nil: there is none now
	ready chan struct{} // closed when conn is there
	fault error         // why there is none
	stop  func()        // ends keep and waits for it; nil: nobody keeps the process

	sockets []int // of keep
}

// New makes a client. Nothing is started or taken over before the first Call.
func New(cfg Config) *Client { return &Client{cfg: cfg, ready: make(chan struct{})} }

// Call asks the process for something: verb and ask, which JSON can encode, with files, which stay the caller's. The answer is
// decoded into answer unless that is nil. A process that ends meanwhile is asked once more when the next one is there, so whatever
// is asked for has to bear repetition. An error of the process's own is returned as it is.
func (c *Client) Call(ctx context.Context, verb string, ask, answer any, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	for range 2 {
		conn, err := c.Conn(ctx)
		if err != nil {
			return err
		}
		err = conn.Call(ctx, verb, ask, answer, files...)
		if !errors.Is(err, ipc.ErrDown) {
			return err
		}
		conn.Close()
		c.gone(conn, err)
	}
	return fmt.Errorf("%w: it ended twice", ipc.ErrDown)
}

// Poke is a Call of nothing: it returns when a process stands that knows all.
func (c *Client) Poke(ctx context.Context) error { return c.Call(ctx, verbHello, nil, nil) }

// Conn waits for a process that knows all. It is for who tells what differs, which only this process bears.
func (c *Client) Conn(ctx context.Context) (*Conn, error) {
	c.begin() //nolint:contextcheck // the process outlives who asks first
	timer := time.NewTimer(waitMost)
	defer timer.Stop()
	for {
		c.mu.Lock()
		conn, ready := c.conn, c.ready
		c.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-ready:
		case <-timer.C:
			return nil, c.down()
		case <-ctx.Done():
			return nil, errors.Join(c.down(), ctx.Err())
		}
	}
}

// down is ipc.ErrDown, and why.
func (c *Client) down() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.fault, ipc.ErrDown) {
		return c.fault
	}
	return errors.Join(ipc.ErrDown, c.fault)
}

// gone forgets a connection that is of no use any more.
func (c *Client) gone(conn *Conn, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn && conn != nil {
		c.conn, c.ready = nil, make(chan struct{})
	}
	c.fault = why
}

// begin has a goroutine keep the process.
func (c *Client) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		c.keep(ctx)
	}()
}

// Close lets go of the process, which goes on.
func (c *Client) Close() {
	c.mu.Lock()
	stop := c.stop
	c.stop = nil
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
	c.gone(nil, errClosed)
}

// Remove ends the process, whoever started it; none is no error.
func (c *Client) Remove(ctx context.Context) error {
	c.Close()
	if err := c.cfg.end(ctx, true); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(c.cfg.Dir, c.cfg.socket())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keep has a process stand until ctx ends.
func (c *Client) keep(ctx context.Context) {
	defer func() {
		drop(c.sockets)
		c.sockets = nil
	}()
	wait, said := process.Backoff{Least: restartLeast, Most: restartMost, Stood: stoodLong}, ""
	for ctx.Err() == nil {
		stood := time.Duration(0)
		conn, err := c.obtain(ctx)
		if err == nil {
			err = c.fill(ctx, conn)
		}
		if err == nil {
			c.publish(conn)
			said = ""
			began := time.Now()
			select {
			case <-conn.Down():
				err = ipc.ErrDown
			case <-ctx.Done():
			}
			stood = time.Since(began)
		}
		if conn != nil {
			conn.Close()
			c.gone(conn, err)
		}
		if ctx.Err() != nil {
			return
		}
		c.gone(nil, err)
		again := wait.Next(stood)
		level := slog.LevelError
		if text := fmt.Sprint(err); text == said {
			level = slog.LevelDebug
		} else {
			said = text
		}
		c.cfg.Log.Log(ctx, level, "a process of the network does not stand; it is started again", "process", c.cfg.Name, "stood", stood, "in", again, "err", err)
		_ = sleep.For(ctx, again)
	}
}

func (c *Client) fill(ctx context.Context, conn *Conn) error {
	if c.cfg.Fill == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fillWithin)
	defer cancel()
	if err := c.cfg.Fill(ctx, conn); err != nil {
		return fmt.Errorf("tell it what it has to know: %w", err)
	}
	return nil
}

func (c *Client) publish(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.fault = conn, nil
	close(c.ready)
}

// Conn is a connection to the process.
type Conn struct {
	*ipc.Conn
	pid int // of the process, as the kernel says

	mu sync.Mutex // one question at a time
}

// PID is the process's.
func (c *Conn) PID() int { return c.pid }

// Call is like Client's, of this process alone. A process that leaves a question without an answer is asked nothing more.
func (c *Conn) Call(ctx context.Context, verb string, ask, answer any, files ...*os.File) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	got, err := c.ask(ctx, verb, ask, answer, numbers(files))
	ipc.CloseAll(got)
	return err
}

// ask is Call, as long as its context lasts, which has a deadline. Files that come with the answer are the caller's to close.
func (c *Conn) ask(ctx context.Context, verb string, ask, answer any, fds []int) ([]*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	files, err := c.Conn.Call(ctx, verb, ask, answer, fds...)
	if err != nil && ctx.Err() != nil {
		c.Close()
		err = errors.Join(ipc.ErrDown, err)
	}
	return files, err
}
