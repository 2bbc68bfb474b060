package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// terminalOf returns the terminal that a stream is, nil when it is none.
func terminalOf(stream any) *os.File {
	if f, ok := stream.(*os.File); ok && isTerminal(f) {
		return f
	}
	return nil
}

func terminalWidth(f *os.File) int {
	if size := terminalSize(f); size.Cols > 0 {
		return size.Cols
	}
	return 80
}

// terminalSize returns zeros when the terminal does not know its size.
func terminalSize(f *os.File) fleet.ExecSize {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return fleet.ExecSize{}
	}
	return fleet.ExecSize{Cols: int(size.Col), Rows: int(size.Row)}
}

// setTerminal changes the settings of a terminal and returns what puts them back.
func setTerminal(f *os.File, change func(*unix.Termios)) (restore func(), err error) {
	before, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's settings: %w", err)
	}
	after := *before
	change(&after)
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETSW, &after); err != nil {
		return nil, fmt.Errorf("change the terminal's settings: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETSW, before) }, nil
}

// raw is what cfmakeraw(3) does: every key goes through as it is, Ctrl-C, too.
func raw(t *unix.Termios) {
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB
	t.Cflag |= unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
}

// hidden shows the end of a line and nothing else of it.
func hidden(t *unix.Termios) {
	t.Lflag &^= unix.ECHO
	t.Lflag |= unix.ICANON | unix.ISIG
	t.Iflag |= unix.ICRNL
}

const maxHidden = 64 << 10 // bytes of a line

// readHidden asks for one line from a terminal, which it does not show.
func readHidden(ctx context.Context, f *os.File, ask func()) (string, error) {
	restore, err := setTerminal(f, hidden)
	if err != nil {
		return "", err
	}
	defer restore()
	ask()
	in, err := newInput(f)
	if err != nil {
		return "", err
	}
	defer in.close()
	defer context.AfterFunc(ctx, in.stop)()
	var line []byte
	for buf := make([]byte, 1); len(line) < maxHidden; {
		n, err := in.Read(buf)
		switch {
		case n == 1 && buf[0] == '\n', errors.Is(err, io.EOF):
			return string(line), nil
		case err != nil:
			return "", fmt.Errorf("read from the terminal: %w", err)
		}
		line = append(line, buf[:n]...)
	}
	return "", errors.New("the line is too long")
}

// input reads a file, such as standard input, until it is stopped. A read that waits in the kernel could not be ended.
type input struct {
	file *os.File
	wake [2]int // a pipe: closed at its writing end by stop
	once sync.Once
}

func newInput(f *os.File) (*input, error) {
	in := &input{file: f}
	if err := unix.Pipe2(in.wake[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	return in, nil
}

// Read returns io.EOF after stop.
func (in *input) Read(p []byte) (int, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(in.wake[0]), Events: unix.POLLIN}, {Fd: int32(in.file.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for input: %w", err)
		case fds[0].Revents != 0:
			return 0, io.EOF
		}
		n, err := unix.Read(int(in.file.Fd()), p)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EIO): // the terminal is gone
			return 0, io.EOF
		case err != nil:
			return 0, fmt.Errorf("read %s: %w", in.file.Name(), err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// stop ends the reading. It may be called more than once, and while a Read waits.
func (in *input) stop() { in.once.Do(func() { _ = unix.Close(in.wake[1]) }) }

// close gives the pipe back; nobody may be reading.
func (in *input) close() {
	in.stop()
	_ = unix.Close(in.wake[0])
}

// stdinBody is standard input as the body of a request: closing it ends a read that waits.
func (a *app) stdinBody() (io.ReadCloser, error) {
	f, ok := a.in.(*os.File)
	if !ok {
		return io.NopCloser(a.in), nil
	}
	in, err := newInput(f)
	return inputBody{in}, err
}

// inputBody keeps the pipe of its input until the program ends: a Read may still look at it.
type inputBody struct{ *input }

func (b inputBody) Close() error {
	b.stop()
	return nil
}

// watchSize sends the size of a terminal whenever it changes, until stop.
func watchSize(f *os.File) (sizes <-chan fleet.ExecSize, stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	out, done := make(chan fleet.ExecSize), make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		defer close(out)
		for {
			select {
			case <-done:
				return
			case <-changed:
			}
			size := terminalSize(f)
			if size.Cols == 0 || size.Rows == 0 {
				continue
			}
			select {
			case <-done:
				return
			case out <- size:
			}
		}
	})
	return out, func() {
		signal.Stop(changed)
		close(done)
		watcher.Wait()
	}
}
