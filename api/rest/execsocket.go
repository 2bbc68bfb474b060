package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

// maxMisses is how many pings in a row may stay without an answer.
const maxMisses = 2

// noCode is the exit code of what has none.
const noCode = -1

// message is what a client sent.
type message struct {
	kind websocket.MessageType
	data []byte
}

func newExecSocket(conn *websocket.Conn, rules execRules, p pace) *execSocket {
	return &execSocket{
		conn: conn, rules: rules, pace: p, in: make(chan message), gone: make(chan struct{}), done: make(chan struct{}), dead: make(chan struct{}),
	}
}

// execSocket is one exec session with its client. Its goroutines end before hold returns: read and ping when the socket is
// closed, send and receive when the session is.
type execSocket struct {
	conn  *websocket.Conn
	rules execRules
	pace  pace

	in      chan message
	gone    chan struct{} // closed when nothing more comes from the client
	done    chan struct{} // closed when what comes is not taken any more
	dead    chan struct{} // closed when the client does not answer any more
	waiting atomic.Bool   // a message was read and is not taken yet: pongs behind it are not seen
}

// start starts the process.
type start func(ctx context.Context, req fleet.ExecRequest) (fleet.ExecSession, error)

// hold serves the client until the process ends, the client leaves or is refused. It returns what went wrong; the client was told of it.
func (s *execSocket) hold(ctx context.Context, refused <-chan error, begin start) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { s.read(ctx) })
	all.Go(func() { s.ping(ctx) })
	err := s.serve(ctx, refused, begin)
	close(s.done)
	status := websocket.StatusNormalClosure
	if errors.Is(err, errClosing) {
		status = websocket.StatusGoingAway
	}
	if err != nil {
		s.say(ctx, lastWords(err))
	}
	_ = s.conn.Close(status, "") // it is closed either way
	cancel()
	all.Wait()
	return err
}

// serve returns why the client has still to be told how the process ended; nil when it has not.
func (s *execSocket) serve(ctx context.Context, refused <-chan error, begin start) error {
	req, err := s.first(refused)
	if err != nil {
		return err
	}
	session, err := begin(ctx, req)
	if err != nil {
		return err
	}
	faults, ended := make(chan error, 1), make(chan error, 1)
	stop := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { faults <- s.send(session, req, stop) })
	both.Go(func() { ended <- s.receive(ctx, session) })
	defer func() {
		close(stop)
		_ = session.Close() // a process that still runs is killed
		both.Wait()
	}()
	select {
	case err := <-ended:
		return err
	case err := <-faults:
		return err
	case <-s.gone:
		return nil
	case err := <-refused:
		return err
	case <-ctx.Done():
		return errClosing
	}
}

// lastWords is the last frame of a session that failed.
func lastWords(err error) fleet.ExecFrame {
	p := problem.From(err, "")
	data, merr := json.Marshal(fleet.ExecResult{Code: noCode, Error: strings.Join(append([]string{p.Detail}, p.Errors...), " ")})
	if merr != nil { // cannot happen: a number and a text
		data = []byte(`{}`)
	}
	return fleet.ExecFrame{Channel: fleet.ExecExit, Data: data}
}

// first waits for the message that asks for a process.
func (s *execSocket) first(refused <-chan error) (fleet.ExecRequest, error) {
	late := time.NewTimer(s.pace.first)
	defer late.Stop()
	select {
	case m := <-s.in:
		return readExec(m, s.rules.request)
	case <-late.C:
		return fleet.ExecRequest{}, malformed("the first message did not come in time")
	case <-s.gone:
		return fleet.ExecRequest{}, errClosing
	case err := <-refused:
		return fleet.ExecRequest{}, err
	}
}

// readExec reads the first message.
func readExec(m message, r *rule) (fleet.ExecRequest, error) {
	if m.kind != websocket.MessageText {
		return fleet.ExecRequest{}, malformed("the first message must be text")
	}
	var in v2.ExecRequest
	if err := decode(m.data, r, &in); err != nil {
		return fleet.ExecRequest{}, err
	}
	return fleet.ExecRequest(in), nil
}

// readFrame reads a message after the first; false: it means nothing to the process and is dropped.
func readFrame(m message, req fleet.ExecRequest, size *rule) (fleet.ExecFrame, bool, error) {
	if m.kind != websocket.MessageBinary || len(m.data) == 0 {
		return fleet.ExecFrame{}, false, malformed("a message after the first must be binary and begin with a channel")
	}
	f := fleet.ExecFrame{Channel: fleet.ExecChannel(m.data[0]), Data: m.data[1:]}
	switch f.Channel {
	case fleet.ExecStdin, fleet.ExecStdinEnd:
		if !req.Stdin {
			return f, false, malformed("the session has no input")
		}
		return f, f.Channel == fleet.ExecStdinEnd || len(f.Data) > 0, nil
	case fleet.ExecResize:
		var to v2.ExecSize
		if err := decode(f.Data, size, &to); err != nil {
			return f, false, err
		}
		return f, req.TTY, nil
	}
	return f, false, malformed("a client has no such channel")
}

// read passes on what the client sends, until the socket ends.
func (s *execSocket) read(ctx context.Context) {
	defer close(s.gone)
	for {
		kind, data, err := s.conn.Read(ctx)
		if err != nil {
			return
		}
		s.waiting.Store(true)
		select {
		case s.in <- message{kind, data}:
		case <-s.done: // it goes on for the sake of the closing handshake
		case <-s.dead:
			return
		}
		s.waiting.Store(false)
	}
}

// ping closes the socket when the client does not answer any more.
func (s *execSocket) ping(ctx context.Context) {
	tick := time.NewTicker(s.pace.ping)
	defer tick.Stop()
	for misses := 0; misses < maxMisses; {
		select {
		case <-tick.C:
		case <-s.gone:
			return
		case <-s.done:
			return
		}
		if s.alive(ctx) {
			misses = 0
		} else {
			misses++
		}
	}
	close(s.dead)
	_ = s.conn.CloseNow()
}

// alive reports whether the client answers, or may have answered behind a message that waits.
func (s *execSocket) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.pace.pong)
	defer cancel()
	err := s.conn.Ping(ctx)
	return err == nil || errors.Is(err, context.DeadlineExceeded) && s.waiting.Load()
}

// send gives the process what the client sends, and returns what is wrong with it.
func (s *execSocket) send(session fleet.ExecSession, req fleet.ExecRequest, stop <-chan struct{}) error {
	for {
		var m message
		select {
		case m = <-s.in:
		case <-stop:
			return nil
		}
		f, wanted, err := readFrame(m, req, s.rules.size)
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		if err := session.Send(f); err != nil {
			<-stop // the process has ended or was lost: receive tells how
			return nil
		}
	}
}

// receive gives the client what the process writes. It returns nil when the last frame was sent or the client is gone.
func (s *execSocket) receive(ctx context.Context, session fleet.ExecSession) error {
	for {
		f, err := session.Receive()
		if errors.Is(err, io.EOF) {
			return fleet.Unavailable("the process was lost", err)
		}
		if err != nil {
			return err
		}
		if !s.say(ctx, f) || f.Channel == fleet.ExecExit {
			return nil
		}
	}
}

// say sends a frame and reports whether the client took it in time.
func (s *execSocket) say(ctx context.Context, f fleet.ExecFrame) bool {
	ctx, cancel := context.WithTimeout(ctx, streamWrite)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageBinary, append([]byte{byte(f.Channel)}, f.Data...)) == nil
}
