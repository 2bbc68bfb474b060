package containerfs

import (
	"context"
	"io"
)

// ExecSpec says which process to start in a container. User, environment, capabilities and limits
// are those of the container itself.
type ExecSpec struct {
	Command []string // at least one word
	TTY     bool
	Stdin   bool
	Cols    int    // with TTY; 0: 80
	Rows    int    // with TTY; 0: 24
	Term    string // TERM of the process, with TTY; empty: xterm
}

// Process is a process that was started in a container. One goroutine may use each of its streams;
// the other methods are safe for concurrent use.
type Process interface {
	// Stdin is nil without ExecSpec.Stdin. A write waits for the process to read; Close tells it that
	// nothing more comes.
	Stdin() io.WriteCloser
	// Stdout has everything with a TTY. It ends when the process has ended and everything was read.
	// Nothing is read from the process before it is read here.
	Stdout() io.Reader
	// Stderr is nil with a TTY.
	Stderr() io.Reader
	// Resize sets the size of the terminal in characters, each 1 to 65535.
	Resize(ctx context.Context, cols, rows int) error
	// Wait returns the exit code when the process has ended; 128 and the signal's number when it was
	// killed.
	Wait(ctx context.Context) (code int, err error)
	// Close kills the process if it still runs, and removes what the runtime keeps of it.
	Close() error
}

// NotStartedError says why a command could not be started. Code is what a shell would exit with.
type NotStartedError struct {
	Code     int // 127: not found; 126: may not or cannot be executed
	Sentence string
	Err      error
}

// Error returns the sentence.
func (e *NotStartedError) Error() string { return e.Sentence }

// Unwrap returns the cause.
func (e *NotStartedError) Unwrap() error { return e.Err }
