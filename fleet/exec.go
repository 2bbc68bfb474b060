package fleet

// ExecRequest asks for a process in a running pod's container.
type ExecRequest struct {
	Command []string // at least one word
	TTY     bool
	Stdin   bool
	Cols    int    // with TTY; 0: 80
	Rows    int    // with TTY; 0: 24
	Term    string // TERM of the process, with TTY
}

// ExecChannel says what an ExecFrame carries.
type ExecChannel uint8

// The channels. The first three follow the file descriptors.
const (
	ExecStdin    ExecChannel = iota // bytes for the process
	ExecStdout                      // bytes from the process; everything with TTY
	ExecStderr                      // bytes from the process
	ExecExit                        // the last frame: ExecResult as JSON
	ExecResize                      // ExecSize as JSON, for the terminal
	ExecStdinEnd                    // the end of stdin
)

// ExecFrame is a piece of an exec session.
type ExecFrame struct {
	Channel ExecChannel
	Data    []byte
}

// ExecResult tells how the process ended. Error is set when it could not run, or was lost.
type ExecResult struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// ExecSize is the size of a terminal in characters.
type ExecSize struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// ExecSession is a running exec. One goroutine may send while another receives.
type ExecSession interface {
	Send(f ExecFrame) error
	// Receive returns io.EOF after the frame of channel ExecExit.
	Receive() (ExecFrame, error)
	// Close ends the session; a process that still runs is killed.
	Close() error
}
