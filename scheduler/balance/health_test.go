package balance

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"gantry/fleet"
)

// pipe is a connection to a worker.
type pipe struct{ net.Conn }

// CloseWrite implements fleet.Stream.
func (pipe) CloseWrite() error { return nil }

// TestAnAnswerWithoutEnd: a worker whose answer never ends costs a scheduler a few KiB, and is unhealthy.
func TestAnAnswerWithoutEnd(t *testing.T) {
	sent := make(chan int, 1)
	b := New(Config{Log: slog.New(slog.DiscardHandler), Open: func(context.Context, fleet.HostID, fleet.PodID, int) (fleet.Stream, error) {
		ours, theirs := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			n, _ := io.WriteString(theirs, "HTTP/1.1 200 OK\r\n")
			for line := "X-Long: " + strings.Repeat("a", 1000) + "\r\n"; n < 64<<20; {
				m, err := io.WriteString(theirs, line)
				if n += m; err != nil {
					break
				}
			}
			sent <- n
		}()
		return pipe{ours}, nil
	}})
	state, text, late := b.ask(t.Context(), "host0000000001", "pod00000000001", fleet.Serving{Port: 80, Health: 80, Path: "/ping"})
	if state != Unhealthy || late || !strings.Contains(text, "/ping on port 80 breaks off") {
		t.Errorf("state %d, %q, late %v", state, text, late)
	}
	if n := <-sent; n > 64<<10 {
		t.Errorf("%d bytes were read", n)
	}
}
