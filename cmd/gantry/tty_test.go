package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"gantry/api/v2"
	"gantry/fleet"
)

// openPTY makes a terminal: what a person types is written to the first file, what a program shows is read from it;
// the second is the program's end.
func openPTY(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	raw, err := person.SyscallConn() // Fd would make reads of it hard to end
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var fail error
	if err := raw.Control(func(fd uintptr) {
		if fail = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); fail == nil {
			n, fail = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || fail != nil {
		t.Fatal(err, fail)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return person, program
}

func resize(t *testing.T, f *os.File, cols, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

// screen collects what comes out of a terminal.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func watch(t *testing.T, person *os.File) *screen {
	t.Helper()
	s := &screen{more: make(chan struct{}, 1)}
	var reader sync.WaitGroup
	reader.Go(func() {
		for buf := make([]byte, 4096); ; {
			n, err := person.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			select {
			case s.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = person.Close()
		reader.Wait()
	})
	return s
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the screen shows text.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(time.Minute)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("the screen does not show %q but %q", text, s.String())
		}
	}
}

func typeIn(t *testing.T, person *os.File, keys string) {
	t.Helper()
	if _, err := io.WriteString(person, keys); err != nil {
		t.Fatal(err)
	}
}

// shell is an API whose pods run a pretended shell: it shows its size, and what is typed, byte for byte, until q.
func shell(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		var req v2.ExecRequest
		_, first, err := conn.Read(ctx)
		if err != nil || json.Unmarshal(first, &req) != nil {
			t.Errorf("first message %q %v", first, err)
			return
		}
		say := func(ch fleet.ExecChannel, text string) {
			_ = conn.Write(ctx, websocket.MessageBinary, append([]byte{byte(ch)}, text...))
		}
		say(fleet.ExecStdout, fmt.Sprintf("%q tty %v %dx%d %s\r\n", req.Command, req.TTY, req.Cols, req.Rows, req.Term))
		for {
			_, message, err := conn.Read(ctx)
			if err != nil {
				return
			}
			switch fleet.ExecChannel(message[0]) {
			case fleet.ExecResize:
				say(fleet.ExecStdout, "size "+string(message[1:])+"\r\n")
			case fleet.ExecStdin:
				say(fleet.ExecStdout, fmt.Sprintf("got %q\r\n", message[1:]))
			}
			if strings.Contains(string(message), "q") || fleet.ExecChannel(message[0]) == fleet.ExecStdinEnd {
				say(fleet.ExecExit, `{"code":42}`)
				_ = conn.Close(websocket.StatusNormalClosure, "")
				return
			}
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// typed runs a command line on a terminal and returns its status when it ends.
func typed(t *testing.T, ctx context.Context, url string, tty *os.File, args ...string) <-chan int {
	t.Helper()
	env := map[string]string{"GANTRY_API": url, "GANTRY_API_KEY": "gk_user", "HOME": t.TempDir(), "TERM": "xterm-256color"}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, args, system{
			in: tty, out: tty, err: tty, now: time.Now, terminal: true, width: func() int { return 80 },
			env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		})
	}()
	return ended
}

func settings(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

func TestShellOnATerminal(t *testing.T) {
	for _, line := range []string{"pod exec -it " + podID + " -- top -d 1", "pod ssh " + podID} {
		t.Run(line, func(t *testing.T) {
			person, tty := openPTY(t)
			resize(t, tty, 100, 30)
			before := settings(t, tty)
			screen := watch(t, person)
			ended := typed(t, t.Context(), shell(t).URL, tty, strings.Fields(line)...)
			screen.await(t, "tty true 100x30 xterm-256color")
			resize(t, tty, 120, 40)
			if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil { // as the kernel does in the foreground
				t.Fatal(err)
			}
			screen.await(t, `size {"cols":120,"rows":40}`)
			typeIn(t, person, "\x03")
			screen.await(t, `got "\x03"`)
			typeIn(t, person, "\x04\r")
			screen.await(t, `\x04`)
			screen.await(t, `\r"`)
			typeIn(t, person, "q")
			if code := <-ended; code != 42 {
				t.Errorf("status %d\n%s", code, screen)
			}
			if after := settings(t, tty); after != before {
				t.Errorf("the terminal's settings were %+v and are %+v", before, after)
			}
		})
	}
}

func TestInterruptedShellGivesTheTerminalBack(t *testing.T) {
	person, tty := openPTY(t)
	before := settings(t, tty)
	screen := watch(t, person)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := typed(t, ctx, shell(t).URL, tty, "pod", "exec", "-it", podID, "--", "sh")
	screen.await(t, "tty true")
	interrupt()
	if code := <-ended; code != exitInterrupted || settings(t, tty) != before {
		t.Errorf("status %d, settings %+v, were %+v", code, settings(t, tty), before)
	}
}

func TestPasswordIsAskedForAndNotShown(t *testing.T) {
	person, tty := openPTY(t)
	before := settings(t, tty)
	screen := watch(t, person)
	api := &fakeAPI{answers: map[string][]string{"POST /v2/registries": {`201 {"id":"r3g8k2m7q1w4z9","name":"team"}`}}}
	srv := httptest.NewServer(api)
	defer srv.Close()
	ended := typed(t, t.Context(), srv.URL, tty, "registry", "create", "team", "--username", "robot")
	screen.await(t, "Password: ")
	typeIn(t, person, "hush hush\r")
	if code := <-ended; code != 0 {
		t.Fatalf("status %d\n%s", code, screen)
	}
	screen.await(t, "r3g8k2m7q1w4z9  team")
	if strings.Contains(screen.String(), "hush") || settings(t, tty) != before {
		t.Errorf("the screen shows %q", screen)
	}
	if want := `POST /v2/registries {"name":"team","username":"robot","password":"hush hush"}`; api.seen[0] != want {
		t.Errorf("sent %s", api.seen[0])
	}
}

func TestInterruptEndsThePrompt(t *testing.T) {
	person, tty := openPTY(t)
	before := settings(t, tty)
	screen := watch(t, person)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := typed(t, ctx, "http://127.0.0.1:1", tty, "registry", "create", "team", "--username", "robot")
	screen.await(t, "Password: ")
	interrupt()
	if code := <-ended; code != exitInterrupted || settings(t, tty) != before {
		t.Errorf("status %d", code)
	}
}
