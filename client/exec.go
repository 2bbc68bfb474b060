package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/sleep"
)

const (
	execMessage = 4 << 20          // most bytes of one message
	execChunk   = 16 << 10         // bytes of stdin in one message
	execPing    = 30 * time.Second // so that no gateway takes a quiet session for a dead one
	execGoodbye = 2 * time.Second  // for the end of the connection after the end of the process
)

// Exec is a process in a pod's container, over a WebSocket. One goroutine may send while another receives.
type Exec struct {
	address string
	conn    *websocket.Conn
	ctx     context.Context // of the session: it ends with Close
	cancel  context.CancelCauseFunc
	pings   sync.WaitGroup
	ended   atomic.Bool // the frame of channel ExecExit was received
}

// ExecPod starts a process in a running pod's container. The session ends with ctx. What the API refuses before the
// session begins is a *Problem; what it cannot start later is told by the frame of channel ExecExit.
func (c *Client) ExecPod(ctx context.Context, id string, req v2.ExecRequest) (*Exec, error) {
	conn, err := c.upgrade(ctx, "/v2/pods/"+word(id)+"/exec")
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(execMessage)
	session, cancel := context.WithCancelCause(ctx)
	e := &Exec{address: c.Address(), conn: conn, ctx: session, cancel: cancel}
	text, err := json.Marshal(req)
	if err == nil {
		err = conn.Write(session, websocket.MessageText, text)
	}
	if err != nil {
		err = e.lost(err)
		cancel(nil)
		_ = conn.CloseNow()
		return nil, err
	}
	e.pings.Go(e.ping)
	return e, nil
}

// upgrade opens a WebSocket. It makes the handshake as an ordinary call would, so that a refusal is read in full.
func (c *Client) upgrade(ctx context.Context, path string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout,
		&Unreachable{Address: c.Address(), Err: fmt.Errorf("no answer within %v", callTimeout)})
	defer cancel()
	req, err := c.request(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	var conn *websocket.Conn
	_, err = c.failover(req, func(req *http.Request) (*http.Response, error) { //nolint:bodyclose // there is no response
		conn, err = c.dialSocket(req.Context(), req)
		return nil, err
	})
	return conn, err
}

// dialSocket makes the handshake at one address.
func (c *Client) dialSocket(ctx context.Context, req *http.Request) (*websocket.Conn, error) {
	var refusal error
	http1 := *c.http
	http1.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := c.http.Transport.RoundTrip(r)
		if err == nil && res.StatusCode != http.StatusSwitchingProtocols {
			refusal = readProblem(res)
		}
		return res, err
	})
	conn, _, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPClient: &http1, HTTPHeader: req.Header}) //nolint:bodyclose // Dial closes it
	switch {
	case err == nil:
		return conn, nil
	case refusal != nil:
		return nil, refusal
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, &Unreachable{Address: addressOf(req.URL), Err: err}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// ping keeps the connection in use. That an answer is late says nothing: the process may not read its input.
func (e *Exec) ping() {
	for sleep.For(e.ctx, execPing) == nil {
		ctx, cancel := context.WithTimeout(e.ctx, execPing)
		_ = e.conn.Ping(ctx)
		cancel()
	}
}

// Send sends a frame. It waits while the process does not read its input.
func (e *Exec) Send(f fleet.ExecFrame) error {
	message := append(append(make([]byte, 0, 1+len(f.Data)), byte(f.Channel)), f.Data...)
	if err := e.conn.Write(e.ctx, websocket.MessageBinary, message); err != nil {
		return e.lost(err)
	}
	return nil
}

// Receive returns the next frame, and io.EOF after the frame of channel ExecExit.
func (e *Exec) Receive() (fleet.ExecFrame, error) {
	if e.ended.Load() {
		return fleet.ExecFrame{}, io.EOF
	}
	kind, message, err := e.conn.Read(e.ctx)
	switch {
	case err != nil:
		return fleet.ExecFrame{}, e.lost(err)
	case kind != websocket.MessageBinary || len(message) == 0:
		return fleet.ExecFrame{}, fmt.Errorf("read the exec session of %s: not what this API sends", e.address)
	}
	f := fleet.ExecFrame{Channel: fleet.ExecChannel(message[0]), Data: message[1:]}
	e.ended.Store(f.Channel == fleet.ExecExit)
	return f, nil
}

// Close ends the session; a process that still runs is killed.
func (e *Exec) Close() error {
	if e.ended.Load() { // the API closes now, which is answered by reading it
		late := time.AfterFunc(execGoodbye, func() { e.cancel(nil) })
		_, _, _ = e.conn.Read(e.ctx)
		late.Stop()
	}
	e.cancel(nil)
	err := e.conn.CloseNow()
	e.pings.Wait()
	return err
}

// lost says why the session broke off.
func (e *Exec) lost(err error) error {
	var closed websocket.CloseError
	switch {
	case e.ctx.Err() != nil:
		return context.Cause(e.ctx)
	case errors.As(err, &closed):
		text := fmt.Sprintf("the session was closed with status %d", closed.Code)
		if closed.Reason != "" {
			text += ": " + closed.Reason
		}
		return &Unreachable{Address: e.address, Err: errors.New(text)}
	default:
		return &Unreachable{Address: e.address, Err: err}
	}
}

// ExecStreams are what a process is joined to.
type ExecStreams struct {
	Stdin          io.Reader // nil: nothing is sent
	StopStdin      func()    // makes a Read of Stdin that waits return; called when the process has ended; may be nil
	Stdout, Stderr io.Writer
	Resize         <-chan fleet.ExecSize // new sizes of the terminal; may be nil
}

// Run joins the process to streams until it ends, and closes the session.
func (e *Exec) Run(s ExecStreams) (fleet.ExecResult, error) {
	var pumps sync.WaitGroup
	if s.Stdin != nil {
		pumps.Go(func() { e.sendInput(s.Stdin) })
	}
	if s.Resize != nil {
		pumps.Go(func() { e.sendSizes(s.Resize) })
	}
	result, err := e.receiveAll(s)
	_ = e.Close()
	if s.StopStdin != nil {
		s.StopStdin()
	}
	pumps.Wait()
	return result, err
}

// sendInput sends what is read until its end. A failure to send is left to the receiver to tell, which knows more.
func (e *Exec) sendInput(in io.Reader) {
	buf := make([]byte, execChunk)
	for {
		n, err := in.Read(buf)
		if n > 0 && e.Send(fleet.ExecFrame{Channel: fleet.ExecStdin, Data: buf[:n]}) != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = e.Send(fleet.ExecFrame{Channel: fleet.ExecStdinEnd})
			return
		case err != nil:
			e.cancel(fmt.Errorf("read standard input: %w", err))
			return
		}
	}
}

func (e *Exec) sendSizes(sizes <-chan fleet.ExecSize) {
	for {
		select {
		case <-e.ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			text, err := json.Marshal(size)
			if err != nil || e.Send(fleet.ExecFrame{Channel: fleet.ExecResize, Data: text}) != nil {
				return
			}
		}
	}
}

func (e *Exec) receiveAll(s ExecStreams) (fleet.ExecResult, error) {
	for {
		f, err := e.Receive()
		if err != nil {
			return fleet.ExecResult{}, err
		}
		switch f.Channel {
		case fleet.ExecStdout:
			_, err = s.Stdout.Write(f.Data)
		case fleet.ExecStderr:
			_, err = s.Stderr.Write(f.Data)
		case fleet.ExecExit:
			var result fleet.ExecResult
			if err := json.Unmarshal(f.Data, &result); err != nil {
				return result, fmt.Errorf("read the end of the exec session of %s: not what this API sends: %w", e.address, err)
			}
			return result, nil
		}
		if err != nil {
			return fleet.ExecResult{}, fmt.Errorf("write what the process says: %w", err)
		}
	}
}
