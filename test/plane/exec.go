package plane

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"gantry/fleet"
)

// The exit codes of a program that failed and of one that is not there.
const (
	codeFailed  = 3
	codeNoEntry = 127
)

// Exec starts one of a few pretended programs: echo writes its words; cat writes what it reads; fail writes to
// its error output and exits with 3; size writes its terminal's size, and every new one; hang does
// nothing until it is killed. Others are not there.
func (h *hosts) Exec(_ context.Context, host fleet.HostID, _ fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error) {
	if err := h.reach(host); err != nil {
		return nil, err
	}
	h.change(func() { h.open++ })
	s := &session{hosts: h, req: req, more: make(chan struct{}, 1)}
	switch req.Command[0] {
	case "echo":
		s.say(fleet.ExecStdout, strings.Join(req.Command[1:], " ")+"\n")
		s.exit(fleet.ExecResult{})
	case "fail":
		s.say(fleet.ExecStderr, "failed\n")
		s.exit(fleet.ExecResult{Code: codeFailed})
	case "size":
		s.size(fleet.ExecSize{Cols: req.Cols, Rows: req.Rows})
	case "cat", "hang":
	default:
		s.exit(fleet.ExecResult{Code: codeNoEntry, Error: "there is no such program"})
	}
	return s, nil
}

func (h *hosts) sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

// session is a pretended process.
type session struct {
	hosts *hosts
	req   fleet.ExecRequest

	mu     sync.Mutex
	out    []fleet.ExecFrame
	ended  bool // the frame of channel ExecExit is in out, or was received
	closed bool
	more   chan struct{} // has a value when out or closed has changed
}

func (s *session) say(on fleet.ExecChannel, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.closed {
		return
	}
	s.out = append(s.out, fleet.ExecFrame{Channel: on, Data: []byte(text)})
	s.ended = on == fleet.ExecExit
	s.wake()
}

// wake tells the receiver; the caller holds mu, or is alone.
func (s *session) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *session) exit(how fleet.ExecResult) {
	data, err := json.Marshal(how)
	if err != nil { // cannot happen: a number and a text
		data = []byte(`{}`)
	}
	s.say(fleet.ExecExit, string(data))
}

func (s *session) size(to fleet.ExecSize) {
	data, err := json.Marshal(to)
	if err == nil {
		s.say(fleet.ExecStdout, string(data)+"\n")
	}
}

// Send takes input.
func (s *session) Send(f fleet.ExecFrame) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return os.ErrClosed
	case f.Channel == fleet.ExecStdin && s.req.Command[0] == "cat":
		s.say(fleet.ExecStdout, string(f.Data))
	case f.Channel == fleet.ExecStdinEnd && s.req.Command[0] == "cat":
		s.exit(fleet.ExecResult{})
	case f.Channel == fleet.ExecResize && s.req.Command[0] == "size":
		var to fleet.ExecSize
		if err := json.Unmarshal(f.Data, &to); err != nil {
			return err
		}
		s.size(to)
	}
	return nil
}

// Receive returns what the process wrote, then how it ended, then io.EOF.
func (s *session) Receive() (fleet.ExecFrame, error) {
	for {
		s.mu.Lock()
		switch {
		case s.closed:
			s.mu.Unlock()
			return fleet.ExecFrame{}, errors.New("the session is closed")
		case len(s.out) > 0:
			f := s.out[0]
			s.out = s.out[1:]
			s.mu.Unlock()
			return f, nil
		case s.ended:
			s.mu.Unlock()
			return fleet.ExecFrame{}, io.EOF
		}
		s.mu.Unlock()
		<-s.more
	}
}

// Close kills the process.
func (s *session) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.wake()
	s.mu.Unlock()
	if first {
		s.hosts.change(func() { s.hosts.open-- })
	}
	return nil
}
