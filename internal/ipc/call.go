package ipc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrDown says that the other process is not there any more, or that what it said was not to be believed.
var ErrDown = errors.New("the process is not running")

// ErrHangUp says that a question is none that may be asked: it is not answered, and its connection ends.
var ErrHangUp = errors.New("this is not to be asked")

// Message is a question, or its answer, which has the same ID.
type Message struct {
	ID   uint64          `json:"id,omitempty"`
	Verb string          `json:"verb,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
	Err  *Error          `json:"err,omitempty"`
}

// Error is an error that crossed the border between two processes. It matches its Errno with errors.Is.
type Error struct {
	Kind  string        `json:"kind,omitempty"` // as given to Mark
	Errno syscall.Errno `json:"errno,omitempty"`
	Text  string        `json:"text"`
}

// Error returns the text.
func (e *Error) Error() string { return e.Text }

// Unwrap returns the error number, when there is one.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

type marked struct {
	error
	kind string
}

func (m *marked) Unwrap() error { return m.error }

// Mark gives an error a kind, a word that Kind finds on both sides.
func Mark(kind string, err error) error { return &marked{err, kind} }

// Kind returns the kind of an error, empty when it has none.
func Kind(err error) string {
	if m, ok := errors.AsType[*marked](err); ok {
		return m.kind
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// Wire makes an error one that can cross.
func Wire(err error) *Error {
	e := &Error{Kind: Kind(err), Text: err.Error()}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Errno = errno
	}
	return e
}

// Write sends a message as a frame; see Send.
func Write(c *net.UnixConn, m Message, limit int, fds ...int) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return Send(c, body, limit, fds...)
}

// Read receives a message; see Receive.
func Read(c *net.UnixConn, limit int) (m Message, files []*os.File, err error) {
	body, files, err := Receive(c, limit)
	if err != nil {
		return Message{}, nil, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		CloseAll(files)
		return Message{}, nil, fmt.Errorf("read a message: %w", err)
	}
	return m, files, nil
}

// Conn asks the process at the other end. Its methods may be called concurrently.
type Conn struct {
	sock  *net.UnixConn
	limit int
	down  chan struct{} // closed when nothing more will be answered

	write sync.Mutex // one frame at a time

	mu      sync.Mutex // guards the fields below
	last    uint64
	waiting map[uint64]chan reply
	fault   error
}

type reply struct {
	Message
	files []*os.File
}

// NewConn asks over a connection, which is then its own, with frames of at most limit bytes.
func NewConn(sock *net.UnixConn, limit int) *Conn {
	c := &Conn{sock: sock, limit: limit, down: make(chan struct{}), waiting: map[uint64]chan reply{}}
	go c.listen() // ends with the connection
	return c
}

func (c *Conn) listen() {
	defer close(c.down)
	for {
		m, files, err := Read(c.sock, c.limit)
		if err == nil {
			err = c.deliver(m, files)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// deliver hands an answer to who waits for it. One that was given up is thrown away.
func (c *Conn) deliver(m Message, files []*os.File) error {
	c.mu.Lock()
	to, known := c.waiting[m.ID], m.ID > 0 && m.ID <= c.last
	delete(c.waiting, m.ID)
	c.mu.Unlock()
	switch {
	case to != nil:
		to <- reply{m, files} // it has room for one
		return nil
	case known:
		CloseAll(files)
		return nil
	}
	CloseAll(files)
	return errors.New("an answer came to what was not asked")
}

// end closes the connection; the first reason counts.
func (c *Conn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		c.fault = fmt.Errorf("%w: %w", ErrDown, why)
	}
	_ = c.sock.Close()
}

// Close ends the connection and waits for its goroutine.
func (c *Conn) Close() {
	c.end(net.ErrClosed)
	<-c.down
}

// Down is closed when nothing more will be answered.
func (c *Conn) Down() <-chan struct{} { return c.down }

// Err is why nothing more will be answered, an ErrDown; nil before.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fault
}

// Call asks a question, verb and ask, which JSON can encode, with descriptors, which stay the caller's. The answer is decoded into
// answer unless that is nil; files that come with it are the caller's to close. It returns when ctx ends: the answer is thrown away
// when it comes. Errors of the other process are *Error; without an answer the error is ErrDown or that of ctx.
func (c *Conn) Call(ctx context.Context, verb string, ask, answer any, fds ...int) ([]*os.File, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	got := make(chan reply, 1)
	id, err := c.begin(got)
	if err == nil {
		err = c.send(ctx, Message{ID: id, Verb: verb, Body: body}, fds)
	}
	if err != nil {
		c.forget(id, got)
		return nil, err
	}
	var r reply
	select {
	case r = <-got:
	case <-c.down:
		select {
		case r = <-got: // it was the last word
		default:
			return nil, c.Err()
		}
	case <-ctx.Done():
		c.forget(id, got)
		return nil, context.Cause(ctx)
	}
	if r.Err != nil {
		CloseAll(r.files)
		return nil, r.Err
	}
	if answer != nil {
		if err := json.Unmarshal(r.Body, answer); err != nil {
			CloseAll(r.files)
			return nil, fmt.Errorf("read the answer: %w", err)
		}
	}
	return r.files, nil
}

func (c *Conn) begin(got chan reply) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return 0, c.fault
	}
	c.last++
	c.waiting[c.last] = got
	return c.last, nil
}

// send writes a question. One that was written in part leaves the connection of no use.
func (c *Conn) send(ctx context.Context, m Message, fds []int) error {
	c.write.Lock()
	defer c.write.Unlock()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	deadline, _ := ctx.Deadline()
	err := c.sock.SetWriteDeadline(deadline)
	if err == nil {
		err = Write(c.sock, m, c.limit, fds...)
	}
	if err == nil || errors.Is(err, ErrTooLong) {
		return err
	}
	select { // a process that has ended may have said why
	case <-c.down:
	case <-ctx.Done():
	}
	c.end(err)
	return c.Err()
}

// forget gives a question up.
func (c *Conn) forget(id uint64, got chan reply) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case r := <-got: // it came in this moment
		CloseAll(r.files)
	default:
	}
}

// Reply is what is answered to a question.
type Reply struct {
	Value any    // JSON can encode it
	FDs   []int  // descriptors that go with it
	Sent  func() // called when it was sent or could not be; nil: nothing
}

// Server answers the process at the other end of a connection, one question after the other.
type Server struct {
	Sock *net.UnixConn
	// Question and Answer are the most bytes of each.
	Question, Answer int
	Idle             time.Duration // how long there may be no question; 0: for ever
	Within           time.Duration // how long the writing of an answer may take
	// Handle answers a question. The files are its to close. Of an error is told what Wire takes of it; ErrHangUp ends the connection.
	Handle func(ctx context.Context, m Message, files []*os.File) (Reply, error)
}

// Serve answers until the connection ends, which is no error between two questions, or ctx does; then the connection is closed.
func (s *Server) Serve(ctx context.Context) error {
	defer func() { _ = s.Sock.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = s.Sock.Close() })
	defer stop()
	for {
		if s.Idle > 0 {
			_ = s.Sock.SetReadDeadline(time.Now().Add(s.Idle))
		}
		m, files, err := Read(s.Sock, s.Question)
		if err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil || s.Idle > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("read a question: %w", err)
		}
		if err := s.answer(ctx, m, files); err != nil {
			if ctx.Err() != nil { // the connection was closed below it
				return nil
			}
			return err
		}
	}
}

func (s *Server) answer(ctx context.Context, m Message, files []*os.File) error {
	r, err := s.Handle(ctx, m, files)
	if r.Sent != nil {
		defer r.Sent()
	}
	if errors.Is(err, ErrHangUp) {
		return err
	}
	out := Message{ID: m.ID}
	if err == nil {
		out.Body, err = json.Marshal(r.Value)
	}
	if err == nil {
		if err = s.say(out, r.FDs); !errors.Is(err, ErrTooLong) {
			return err
		}
		err = errors.New("the answer is too long")
	}
	return s.say(Message{ID: m.ID, Err: Wire(err)}, nil)
}

func (s *Server) say(m Message, fds []int) error {
	if err := s.Sock.SetWriteDeadline(time.Now().Add(s.Within)); err != nil {
		return err
	}
	if err := Write(s.Sock, m, s.Answer, fds...); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}
