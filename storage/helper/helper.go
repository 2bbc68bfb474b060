// Package helper makes file system calls that may never return, such as those on a network mount whose server is
// gone, in processes of their own: one call, one process. A call has a deadline. Who exceeds it is killed, and is left
// alone and counted when even that does not end it, as in the kernel's uninterruptible sleep.
//
// The process is the calling program itself, started with other arguments; after the first call one waits for the next. Requests go through its standard input, which stays
// open: when the caller dies, the process sees its end and exits. Nothing is in its arguments or environment.
package helper

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Func does one operation in the helper process. What it returns becomes JSON; an *os.File goes to the caller of
// CallFD as a descriptor. ctx ends a little before the caller's deadline.
type Func func(ctx context.Context, in json.RawMessage) (any, error)

// request is what a helper process reads.
type request struct {
	Op     string          `json:"op"`
	In     json.RawMessage `json:"in"`
	Millis int64           `json:"millis"` // until the deadline
	FD     bool            `json:"fd,omitempty"`
}

// answer is what it writes, once.
type answer struct {
	Out json.RawMessage `json:"out,omitempty"`
	Err *Error          `json:"err,omitempty"`
}

// Bounds of what goes through the pipes, in bytes.
const (
	maxRequest = 1 << 20
	maxAnswer  = 1 << 20
)

// socketFD is where a helper process finds the socket for a descriptor.
const socketFD = 3

// Error is an error that crossed the border between the processes. It matches its Errno with errors.Is.
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

// wire makes an error one that can cross.
func wire(err error) *Error {
	e := &Error{Kind: Kind(err), Text: err.Error()}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Errno = errno
	}
	return e
}

// Main is the helper process: it does the one operation that its standard input asks for, and returns the exit
// status. It ends the process when the caller dies.
func Main(funcs map[string]Func) int {
	unix.CloseOnExec(socketFD) // programs that are started here may live for long
	in := bufio.NewReader(io.LimitReader(os.Stdin, maxRequest))
	line, err := in.ReadBytes('\n')
	var r request
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "read the request:", err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the caller keeps it open for as long as it lives
		os.Exit(1)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Millis)*time.Millisecond)
	defer cancel()
	text, err := json.Marshal(serve(ctx, r, funcs))
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "write the answer:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, r request, funcs map[string]Func) answer {
	f := funcs[r.Op]
	if f == nil {
		return answer{Err: &Error{Text: fmt.Sprintf("no operation %q", r.Op)}}
	}
	out, err := f(ctx, r.In)
	if file, ok := out.(*os.File); ok && file != nil && err == nil {
		out = nil
		if r.FD {
			err = unix.Sendmsg(socketFD, []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0)
		}
		_ = file.Close() // the message holds it
	}
	if err != nil {
		return answer{Err: wire(err)}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return answer{Err: wire(err)}
	}
	return answer{Out: text}
}
