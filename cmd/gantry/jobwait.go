package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"gantry/api/v2"
	"gantry/client"
	"gantry/internal/sleep"
)

// jobFailed is a job that ended without a result.
type jobFailed struct{ job v2.Job }

func (e *jobFailed) Error() string {
	out := fmt.Sprintf("job %s is %s", e.job.ID, e.job.Status)
	if why := first(errorLine(e.job.Error), e.job.Reason); why != "" {
		out += ": " + why
	}
	if trace := parseError(e.job.Error).Traceback; strings.TrimSpace(trace) != "" {
		out += "\n" + strings.TrimRight(trace, "\n")
	}
	return out
}

// failureOf is the error of a job that has ended without a result.
func failureOf(j v2.Job) error {
	if j.Status == "COMPLETED" {
		return nil
	}
	return &exitError{exitFailed, &jobFailed{j}}
}

// awaitOutput waits for a job and shows what it yields; for programs its record, also when it failed.
func (a *app) awaitOutput(ctx context.Context, c *client.Client, endpoint string, job client.Answer[v2.Job], within time.Duration) error {
	if !v2.JobEnded(job.Value.Status) { // said before the wait, so that the job can be found whatever happens now
		_, _ = fmt.Fprintf(a.err, "job %s\n", printable(job.Value.ID))
	}
	job, err := a.awaitJob(ctx, c, endpoint, job, within)
	if err != nil {
		return err
	}
	err = failureOf(job.Value)
	if !a.forPeople() {
		return a.several([]error{a.showRaw(job.Raw), err})
	}
	if err != nil {
		return err
	}
	text, err := outputText(job.Value.Output)
	if err == nil {
		_, err = fmt.Fprint(a.out, text)
	}
	return err
}

// healthAfter is from which pause on between two looks the endpoint is looked at, too.
const healthAfter = 100 * time.Millisecond

// awaitJob looks at a job until it has ended, and shows on one line why it has not. A short absence of the API is waited through. The
// answer is the last record seen, also with an error.
func (a *app) awaitJob(ctx context.Context, c *client.Client, endpoint string, job client.Answer[v2.Job], within time.Duration) (client.Answer[v2.Job], error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, &exitError{
		exitTimeout, fmt.Errorf("gave up waiting for job %s after %v; it goes on", job.Value.ID, within),
	})
	defer cancel()
	c = c.Once() // this is a loop of its own, which shows that the API is away
	line := &liveLine{app: a, began: a.now()}
	defer line.done()
	var apart error // why the API did not answer the last look
	queue := ""
	for pause := lookMin; !v2.JobEnded(job.Value.Status); pause = min(pause*5/4, lookMax) {
		wait := pause
		var problem *client.Problem
		if errors.As(apart, &problem) {
			wait = max(wait, min(problem.RetryAfter, time.Minute))
		}
		if err := sleep.For(ctx, wait); err != nil {
			return job, context.Cause(ctx)
		}
		next, err := c.Job(ctx, endpoint, job.Value.ID)
		switch {
		case err == nil:
			job, apart = next, nil
		case ctx.Err() != nil:
			return job, context.Cause(ctx)
		case client.Temporary(err):
			apart = err
		default:
			return job, err
		}
		if pause > healthAfter && apart == nil {
			queue = queueText(ctx, c, endpoint, queue)
		}
		line.showJob(job.Value, queue, apart)
	}
	return job, nil
}

// queueText says how many jobs wait and what the workers do; last when the API does not say.
func queueText(ctx context.Context, c *client.Client, endpoint, last string) string {
	health, err := c.EndpointHealth(ctx, endpoint)
	if err != nil {
		return last
	}
	return fmt.Sprintf("queue: %d  workers: %s", health.Value.Jobs.InQueue, workersText(health.Value.Workers))
}

// showJob shows why a job has not ended. On no terminal a line is written when more than numbers have changed.
func (l *liveLine) showJob(j v2.Job, queue string, apart error) {
	reason := j.Reason
	if apart != nil {
		reason = "the API does not answer at the moment"
	}
	key := strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, join(j.Status, reason))
	if j.Status != "IN_QUEUE" {
		queue = ""
	}
	l.show(key, j.Status, reason, queue)
}
