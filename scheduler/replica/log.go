package replica

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// logger hands Raft's log on to slog, one level lower: its Info is how Raft works, its Warn is an
// election, and its Error is a member that does not answer. What it says over and over, as it does
// ten times a second of a member that is away, is handed on once in repeatAfter.
type logger struct {
	hclog.Logger // answers what is not overridden below, with nothing
	to           *slog.Logger
	said         *said
}

// repeatAfter is how long a message is not repeated.
const repeatAfter = 10 * time.Second

// said remembers when messages were last handed on. Raft's messages are constant texts, so they are
// few.
type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newLogger(to *slog.Logger) *logger {
	return &logger{hclog.NewNullLogger(), to, &said{at: map[string]time.Time{}}}
}

// recently reports whether a message was handed on a short time ago, and if not, that it is now.
func (s *said) recently(msg string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.at[msg]) < repeatAfter {
		return true
	}
	s.at[msg] = now
	return false
}

func (l *logger) log(level slog.Level, msg string, args []any) {
	if l.to.Enabled(context.Background(), level) && !l.said.recently(msg, time.Now()) {
		l.to.With("what", msg).Log(context.Background(), level, "raft", args...)
	}
}

// Trace drops the message.
func (l *logger) Trace(string, ...any) {}

// Debug drops the message.
func (l *logger) Debug(string, ...any) {}

// Info logs at debug.
func (l *logger) Info(msg string, args ...any) { l.log(slog.LevelDebug, msg, args) }

// Warn logs at info.
func (l *logger) Warn(msg string, args ...any) { l.log(slog.LevelInfo, msg, args) }

// Error logs at warn.
func (l *logger) Error(msg string, args ...any) { l.log(slog.LevelWarn, msg, args) }

// Log logs by the level.
func (l *logger) Log(level hclog.Level, msg string, args ...any) {
	switch level {
	case hclog.Info:
		l.Info(msg, args...)
	case hclog.Warn:
		l.Warn(msg, args...)
	case hclog.Error:
		l.Error(msg, args...)
	}
}

// With returns a logger that adds args.
func (l *logger) With(args ...any) hclog.Logger { return &logger{l.Logger, l.to.With(args...), l.said} }

// Named returns the logger itself: there is one name.
func (l *logger) Named(string) hclog.Logger { return l }

// ResetNamed returns the logger itself.
func (l *logger) ResetNamed(string) hclog.Logger { return l }
