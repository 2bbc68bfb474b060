// Package podlog has the logs of a host's pods, a folder each: it writes the system's lines, reads what was written, and
// bounds what is kept of pods that have left the host. What containers write comes from gantry-logger (agent/logs).
package podlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gantry/agent/logs"
	"gantry/fleet"
)

const (
	tailTimeout = 2 * time.Second
	// MaxTail is how many bytes Tail returns at most.
	MaxTail = 16 << 10
)

// Logs implements pod.SystemLog on a folder per pod.
type Logs struct {
	root string
	log  *slog.Logger
	// present reports whether a pod is on the host.
	present func(fleet.PodID) bool

	mu      sync.Mutex // guards writers, and serialises writes to each
	writers map[fleet.PodID]*logs.Writer
}

// New has the logs below root. present reports whether a pod is on the host: the log of one that has left is kept while there is
// room.
func New(root string, present func(fleet.PodID) bool, log *slog.Logger) *Logs {
	return &Logs{root: root, present: present, log: log, writers: map[fleet.PodID]*logs.Writer{}}
}

// Dir returns the pod's log folder.
func (l *Logs) Dir(id fleet.PodID) string { return filepath.Join(l.root, string(id)) }

// Prepare makes the pod's log folder.
func (l *Logs) Prepare(id fleet.PodID) error {
	if err := os.MkdirAll(l.Dir(id), 0o700); err != nil {
		return fmt.Errorf("make the pod's log folder: %w", err)
	}
	return nil
}

// System appends a system line. A line that cannot be written is lost, and the agent's own log says so.
func (l *Logs) System(id fleet.PodID, line string) {
	l.write(id, func(w *logs.Writer) error { return w.WriteLine(logs.System, line) })
}

// Begin marks that a run of the container begins.
func (l *Logs) Begin(id fleet.PodID, incarnation uint64) {
	l.write(id, func(w *logs.Writer) error { return w.MarkRun(incarnation) })
}

func (l *Logs) write(id fleet.PodID, what func(*logs.Writer) error) {
	if err := l.system(id, what); err != nil {
		l.log.Warn("write a pod's system log", "pod", id, "err", err)
	}
}

func (l *Logs) system(id fleet.PodID, what func(*logs.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.writers[id]
	if w == nil {
		if err := l.Prepare(id); err != nil {
			return err
		}
		var err error
		if w, err = logs.NewWriter(l.Dir(id), logs.SystemSeries, logs.WriterOptions{}); err != nil {
			return err
		}
		l.writers[id] = w
	}
	return what(w)
}

// Tail returns the last lines that the container wrote since a time.
func (l *Logs) Tail(id fleet.PodID, n int, since time.Time) string {
	ctx, cancel := context.WithTimeout(context.Background(), tailTimeout)
	defer cancel()
	lines, err := logs.Tail(ctx, l.Dir(id), n, since)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.log.Warn("read a pod's log", "pod", id, "err", err)
	}
	text := make([]string, len(lines))
	for i, line := range lines {
		text[i] = line.Text
	}
	tail := strings.Join(text, "\n")
	return strings.ToValidUTF8(tail[max(0, len(tail)-MaxTail):], "")
}

// release closes the file of a pod's system lines. The caller holds mu.
func (l *Logs) release(id fleet.PodID) {
	if w := l.writers[id]; w != nil {
		delete(l.writers, id)
		if err := w.Close(); err != nil {
			l.log.Warn("close a pod's system log", "pod", id, "err", err)
		}
	}
}

// Remove removes the pod's log folder.
func (l *Logs) Remove(id fleet.PodID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(id)
	if err := os.RemoveAll(l.Dir(id)); err != nil {
		return fmt.Errorf("remove the pod's logs: %w", err)
	}
	return nil
}

// Close closes every file.
func (l *Logs) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for id, w := range l.writers {
		errs = append(errs, w.Close())
		delete(l.writers, id)
	}
	return errors.Join(errs...)
}

// Span finds which part of a pod's log is asked for: all of it, or the run before the newest.
func (l *Logs) Span(id fleet.PodID, previous bool) (logs.Span, error) {
	if !previous {
		return logs.Span{}, nil
	}
	span, found, err := logs.PreviousRun(l.Dir(id))
	if err == nil && !found {
		err = fleet.NotAllowed("the pod's host has no log of an earlier run of its container")
	}
	return span, err
}

// Read streams the selected lines of a part of a pod's log.
func (l *Logs) Read(ctx context.Context, id fleet.PodID, q fleet.LogQuery, within logs.Span, sink fleet.LogSink) error {
	opt := logs.Options{Source: logs.Source(q.Source), Since: q.Since, Tail: q.Tail, Follow: q.Follow, Within: within}
	if q.After != "" {
		after, err := logs.ParseID(q.After)
		if err != nil {
			return fleet.Invalid("Last-Event-ID", "must be the id of an earlier event")
		}
		opt.After = after
	}
	err := logs.Read(ctx, l.Dir(id), opt, func(line logs.Line) error {
		return sink(fleet.LogLine{ID: line.ID().String(), Source: string(line.Source()), Line: line.Text, At: line.Time})
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was logged yet
	}
	return err
}
