// Package helper makes file system calls that may never return, such as those on a network mount whose server is
// gone, in processes of their own: one call, one process. A call has a deadline. Who exceeds it is killed, and is left
// alone and counted when even that does not end it, as in the kernel's uninterruptible sleep.
//
// The process is the calling program itself, started with other arguments; after the first call one waits for the next. The request
// and its answer go over a connection that is its standard input (internal/ipc): when the caller dies, the process sees its end and
// exits. Nothing is in its arguments or environment.
package helper

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"gantry/internal/ipc"
)

// Func does one operation in the helper process. What it returns becomes JSON; an *os.File goes to the caller of
// CallFD as a descriptor. ctx ends a little before the caller's deadline.
type Func func(ctx context.Context, in json.RawMessage) (any, error)

// request is what a helper process is asked, beside the operation.
type request struct {
	In     json.RawMessage `json:"in"`
	Millis int64           `json:"millis"` // until the deadline
	FD     bool            `json:"fd,omitempty"`
}

// Bounds of what the processes say to each other, in bytes.
const (
	maxRequest = 1 << 20
	maxAnswer  = 1 << 20
	maxAround  = 1 << 10 // of a request, beside what goes into the operation
)

// Main is the helper process: it does the one operation that its standard input asks for, and returns the exit
// status. It ends the process when the caller dies.
func Main(funcs map[string]Func) int {
	conn, err := ipc.Asker()
	var m ipc.Message
	if err == nil {
		var files []*os.File
		m, files, err = ipc.Read(conn, maxRequest)
		ipc.CloseAll(files)
	}
	var r request
	if err == nil {
		err = json.Unmarshal(m.Body, &r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "read the request:", err)
		return 1
	}
	go func() {
		_, _, _ = ipc.Receive(conn, 0) // the caller keeps it open for as long as it lives
		os.Exit(1)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Millis)*time.Millisecond)
	defer cancel()
	var fds []int
	out, err := serve(ctx, funcs[m.Verb], m.Verb, r)
	if file, ok := out.(*os.File); ok && file != nil {
		defer func() { _ = file.Close() }() // the message holds it
		if out = nil; r.FD {
			fds = []int{int(file.Fd())}
		}
	}
	answer := ipc.Message{ID: m.ID}
	if err == nil {
		answer.Body, err = json.Marshal(out)
	}
	if err != nil {
		answer.Err, fds = ipc.Wire(err), nil
	}
	if err := ipc.Write(conn, answer, maxAnswer, fds...); err != nil {
		fmt.Fprintln(os.Stderr, "write the answer:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, f Func, op string, r request) (any, error) {
	if f == nil {
		return nil, fmt.Errorf("no operation %q", op)
	}
	return f(ctx, r.In)
}
