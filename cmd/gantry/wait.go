package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/internal/sleep"
)

// The wait between two looks at a pod grows, so that a start of milliseconds is seen at once and a pull of minutes
// stays within the API's rate limits.
const (
	lookMin = 25 * time.Millisecond
	lookMax = time.Second
)

// goal is what a command waits for.
type goal struct {
	reached     func(v2.Pod) bool
	lost        []fleet.PodStatus // from which it will not be reached any more
	incarnation uint64            // statuses of an earlier one say nothing; 0: any
}

func untilRunning() goal {
	return goal{
		reached: func(p v2.Pod) bool { return p.Status == fleet.StatusRunning && p.StatusReason != "stopping" },
		lost:    []fleet.PodStatus{fleet.StatusError, fleet.StatusExited, fleet.StatusTerminated},
	}
}

// podFailed is a pod that did not become what was waited for.
type podFailed struct{ pod v2.Pod }

func (e *podFailed) Error() string {
	out := fmt.Sprintf("pod %s is %s", e.pod.ID, e.pod.Status)
	if e.pod.StatusReason != "" {
		out += ": " + printable(e.pod.StatusReason)
	}
	if e.pod.ExitCode != nil && !strings.Contains(string(e.pod.StatusReason), fmt.Sprint(*e.pod.ExitCode)) {
		out += fmt.Sprintf(" (exit code %d)", *e.pod.ExitCode)
	}
	if tail := logTail(e.pod.LogTail); tail != "" {
		out += "\n" + strings.TrimRight(tail, "\n")
	}
	return out
}

// await looks at a pod until the goal is reached, showing its progress. A short absence of the API is waited through.
// The answer is the last record seen, also with an error.
func (a *app) await(ctx context.Context, c *client.Client, pod client.Answer[v2.Pod], g goal, within time.Duration) (client.Answer[v2.Pod], error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, &exitError{
		exitTimeout,
		fmt.Errorf("gave up waiting for pod %s after %v", pod.Value.ID, within),
	})
	defer cancel()
	c = c.Once() // this is a loop of its own, which shows that the API is away
	line := &liveLine{app: a, began: a.now()}
	defer line.done()
	var apart error // why the API did not answer the last look
	for pause := lookMin; ; pause = min(pause*5/4, lookMax) {
		line.showPod(pod.Value, apart)
		if current := pod.Value.Incarnation >= g.incarnation; apart == nil && current {
			if g.reached(pod.Value) {
				return pod, nil
			}
			if slices.Contains(g.lost, pod.Value.Status) {
				return pod, &exitError{exitFailed, &podFailed{pod.Value}}
			}
		}
		wait := pause
		var problem *client.Problem
		if errors.As(apart, &problem) {
			wait = max(wait, min(problem.RetryAfter, time.Minute))
		}
		if err := sleep.For(ctx, wait); err != nil {
			return pod, err
		}
		next, err := c.Pod(ctx, pod.Value.ID)
		switch {
		case err == nil:
			pod, apart = next, nil
		case ctx.Err() != nil:
			return pod, context.Cause(ctx)
		case client.Temporary(err):
			apart = err
		default:
			return pod, err
		}
	}
}

// liveLine shows what a command waits for: one line that changes on a terminal, elsewhere a line for each change.
type liveLine struct {
	app   *app
	began time.Time
	last  string // key of what was shown last
	shown bool   // a line is on the terminal
}

// show shows parts and the time so far. Elsewhere than on a terminal, it does so when key is another than the last.
func (l *liveLine) show(key string, parts ...string) {
	text := join(append(parts, fmt.Sprintf("%.1f s", l.app.now().Sub(l.began).Seconds()))...)
	switch {
	case l.app.terminal:
		l.draw(text)
	case key != l.last:
		l.last = key
		_, _ = fmt.Fprintln(l.app.err, printable(text))
	}
}

// draw replaces the line on the terminal, cut to its width.
func (l *liveLine) draw(text string) {
	text = printable(text)
	if width := l.app.width() - 1; utf8.RuneCountInString(text) > width {
		text = string([]rune(text)[:max(0, width)])
	}
	_, _ = fmt.Fprintf(l.app.err, "\r\x1b[K%s", text)
	l.shown = true
}

// done takes the line off the terminal: what follows says how it ended.
func (l *liveLine) done() {
	if l.shown {
		_, _ = fmt.Fprint(l.app.err, "\r\x1b[K")
	}
}

// showPod shows how a pod comes up. apart is why its record could not be read anew.
func (l *liveLine) showPod(p v2.Pod, apart error) {
	text, doing := first(p.Name, p.ID)+"  "+statusText(p), progressText(p.Progress)
	if apart != nil {
		doing = "the API does not answer at the moment"
	}
	key := text + doing
	if g := p.Progress; g != nil && apart == nil && g.PullTotal > 0 {
		key = fmt.Sprint(text, g.Activity, g.PullDone*10/g.PullTotal)
	}
	l.show(key, text, doing)
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "  ")
}

// progressText shows what a host does for a pod; empty when it says nothing.
func progressText(p *v2.Progress) string {
	if p == nil {
		return ""
	}
	text := printable(p.Activity)
	switch {
	case p.PullTotal > 0:
		text = join(text, bytesText(p.PullDone)+" of "+bytesText(p.PullTotal))
	case p.PullDone > 0:
		text = join(text, bytesText(p.PullDone))
	}
	return text
}
