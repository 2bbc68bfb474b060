package ipc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const limit = 1 << 20

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair returns two ends of a connection, which the test's end closes.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	a, file, err := Pair()
	must(t, err)
	b, err = Socket(file)
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(a.Close(), b.Close()) }) // the test may have closed them
	return a, b
}

// echo answers with what it was asked and the contents of the files.
func echo(ctx context.Context, m Message, files []*os.File) (Reply, error) {
	defer CloseAll(files)
	switch m.Verb {
	case "refuse":
		return Reply{}, Mark("wrong", fmt.Errorf("refused: %w", syscall.ENOENT))
	case "hang up":
		return Reply{}, ErrHangUp
	case "long":
		return Reply{Value: strings.Repeat("x", limit)}, nil
	case "hang":
		<-ctx.Done()
		return Reply{}, ctx.Err()
	case "file":
		r, w, err := os.Pipe()
		if err == nil {
			_, err = w.WriteString("of a file")
			err = errors.Join(err, w.Close())
		}
		return Reply{FDs: []int{int(r.Fd()), int(r.Fd())}, Sent: func() { _ = r.Close() }}, err
	}
	out := string(m.Body)
	for _, f := range files {
		text, err := io.ReadAll(f)
		if err != nil {
			return Reply{}, err
		}
		out += string(text)
	}
	return Reply{Value: out}, nil
}

// serving returns a connection to a server that ends with the test, or before.
func serving(t *testing.T) (c *Conn, end func() error) {
	t.Helper()
	a, b := pair(t)
	s := &Server{Sock: b, Question: limit, Answer: limit, Within: time.Second, Handle: echo}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	var once sync.Once
	var err error
	end = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	c = NewConn(a, limit)
	t.Cleanup(func() { c.Close(); _ = end() })
	return c, end
}

// TestQuestions: what is asked comes whole, with files, and so does the answer; an error of the other process ends nothing.
func TestQuestions(t *testing.T) {
	c, _ := serving(t)
	for _, n := range []int{1, limit / 2} {
		text, got := strings.Repeat("x", n), ""
		if _, err := c.Call(t.Context(), "say", text, &got); err != nil || got != `"`+text+`"` {
			t.Errorf("%d bytes came back of %d: %v", len(got), n, err)
		}
	}
	r, w, err := os.Pipe()
	must(t, err)
	_, err = w.WriteString("handed over")
	must(t, errors.Join(err, w.Close()))
	var got string
	if _, err := c.Call(t.Context(), "say", 1, &got, int(r.Fd())); err != nil || got != "1handed over" {
		t.Errorf("%q, %v", got, err)
	}
	must(t, r.Close())
	files, err := c.Call(t.Context(), "file", nil, nil)
	if err != nil || len(files) != 2 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, files[0].Fd(), syscall.F_GETFD, 0); errno != 0 || flags&syscall.FD_CLOEXEC == 0 {
		t.Error("a file would be passed on to programs")
	}
	text, err := io.ReadAll(files[0])
	CloseAll(files)
	if err != nil || string(text) != "of a file" {
		t.Errorf("%q, %v", text, err)
	}
	_, err = c.Call(t.Context(), "refuse", nil, nil)
	if !errors.Is(err, fs.ErrNotExist) || Kind(err) != "wrong" || errors.Is(err, ErrDown) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v of kind %q", err, Kind(err))
	}
	if _, err := c.Call(t.Context(), "long", nil, nil); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("an answer of any length: %v", err)
	}
	if _, err := c.Call(t.Context(), "say", strings.Repeat("x", limit), nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("a question of any length: %v", err)
	}
	if _, err := c.Call(t.Context(), "say", 1, nil); err != nil {
		t.Errorf("after all that: %v", err)
	}
	if _, err := c.Call(t.Context(), "say", 1, nil, make([]int, MaxFiles+1)...); !errors.Is(err, ErrTooLong) {
		t.Errorf("any number of files: %v", err)
	}
}

func TestQuestionsAtOnceGetTheirOwnAnswers(t *testing.T) {
	c, _ := serving(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			got := ""
			if _, err := c.Call(t.Context(), "say", i, &got); err != nil || got != fmt.Sprint(i) {
				t.Errorf("%d: %q, %v", i, got, err)
			}
		})
	}
	all.Wait()
}

// TestAnswersThatNobodyWaitsFor: a late answer is nobody's, and its files are closed; one to no question ends the connection.
func TestAnswersThatNobodyWaitsFor(t *testing.T) {
	a, b := pair(t)
	c := NewConn(a, limit)
	defer c.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no longer wanted")
	go func() {
		if _, _, err := Read(b, limit); err == nil {
			cancel(why)
		}
	}()
	if _, err := c.Call(ctx, "say", 1, nil); !errors.Is(err, why) || c.Err() != nil {
		t.Fatalf("a question that was given up: %v, %v", err, c.Err())
	}
	r, w, err := os.Pipe()
	must(t, err)
	must(t, Write(b, Message{ID: 1, Body: json.RawMessage("1")}, limit, int(w.Fd())))
	must(t, w.Close())
	if _, err := io.ReadAll(r); err != nil { // it ends when the copy of w is closed
		t.Error(err)
	}
	must(t, r.Close())
	must(t, Write(b, Message{ID: 7}, limit))
	<-c.Down()
	if _, err := c.Call(t.Context(), "say", 1, nil); !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), "not asked") {
		t.Errorf("after an answer to no question: %v", err)
	}
}

// TestNoAnswer: a question ends with its context, and with the other process; a server ends with its context or after idleness.
func TestNoAnswer(t *testing.T) {
	c, end := serving(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "hang", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	must(t, end())
	if _, err := c.Call(t.Context(), "say", 1, nil); !errors.Is(err, ErrDown) {
		t.Errorf("after the end: %v", err)
	}
	c.Close() // again
	hung, end := serving(t)
	if _, err := hung.Call(t.Context(), "hang up", nil, nil); !errors.Is(err, ErrDown) || !errors.Is(end(), ErrHangUp) {
		t.Errorf("a question that may not be asked: %v, %v", err, end())
	}
	_, b := pair(t)
	if err := (&Server{Sock: b, Idle: time.Millisecond, Handle: echo}).Serve(t.Context()); err != nil {
		t.Errorf("idle: %v", err)
	}
}

// TestAProcessThatDoesNotRead: whoever writes to it waits no longer than it may.
func TestAProcessThatDoesNotRead(t *testing.T) {
	a, _ := pair(t)
	c := NewConn(a, 8<<20)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Call(ctx, "say", strings.Repeat("x", limit), nil); err == nil {
		t.Error("it was asked")
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Call(soon, "say", 1, nil); !errors.Is(err, ErrDown) {
		t.Errorf("after half a question: %v", err)
	}
}

// TestHostileWords: what is no message ends the connection.
func TestHostileWords(t *testing.T) {
	for _, words := range [][]byte{
		binary.BigEndian.AppendUint32(nil, limit+1), {255, 255, 255, 255}, {0, 0, 0, 3, 'x', 'y', 'z'}, {0, 0}, {0, 0, 0, 9, '{'}, {0, 0, 0, 0}, []byte("\x00\x00\x00\x04{}{}"),
	} {
		a, b := pair(t)
		_, err := a.Write(words)
		must(t, errors.Join(err, a.CloseWrite()))
		err = (&Server{Sock: b, Question: limit, Answer: limit, Within: time.Second, Handle: echo}).Serve(t.Context())
		if answer, _ := io.ReadAll(a); len(answer) > 0 || err == nil {
			t.Errorf("%x: answered %q, %v", words, answer, err)
		}
	}
}

// TestFilesThatWereCutOff: more files than a frame may have are refused, and none of them stays open.
func TestFilesThatWereCutOff(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	must(t, err)
	fds := make([]int, MaxFiles+1)
	for i := range fds {
		fds[i] = int(w.Fd())
	}
	_, _, err = a.WriteMsgUnix([]byte{0, 0, 0, 1, '1'}, syscall.UnixRights(fds...), nil)
	must(t, errors.Join(err, w.Close()))
	if _, files, err := Receive(b, limit); err == nil || len(files) > 0 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if _, err := io.ReadAll(r); err != nil { // it ends when every copy of w is closed
		t.Error(err)
	}
	must(t, r.Close())
}

func TestPeersOfOtherUsers(t *testing.T) {
	a, _ := pair(t)
	if err := CheckPeer(a); err != nil {
		t.Errorf("of this process: %v", err)
	}
	who, err := Peer(a)
	if err != nil || int(who.Pid) != os.Getpid() {
		t.Errorf("%+v, %v", who, err)
	}
	null, err := os.Open(os.DevNull)
	must(t, err)
	if _, err := Socket(null); err == nil {
		t.Error("a file that is no socket became a connection")
	}
}

// FuzzFrames: nothing that comes over a connection breaks who reads it.
func FuzzFrames(f *testing.F) {
	body, err := json.Marshal(Message{ID: 1, Verb: "say", Err: &Error{Text: "x", Errno: syscall.ENOENT}})
	must(f, err)
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 4, 'n', 'u', 'l', 'l'})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		here, there := pair(t)
		_, err := there.Write(b)
		must(t, errors.Join(err, there.Close()))
		c := NewConn(here, 1<<16)
		<-c.Down()
		if c.Close(); c.Err() == nil {
			t.Error("a connection has ended without a reason")
		}
	})
}
