package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gantry/client"
)

const drainLook = 2 * time.Second // at most, between two looks at a host that is being emptied

type hostDrainCmd struct {
	hostRef
	KeepRunning bool          `help:"Wait for pods that run rather than move any."`
	Wait        bool          `help:"Wait until the host is empty, and show what is left."`
	Timeout     time.Duration `default:"1h" help:"Give up waiting after this time; the drain goes on."`
}

func (hostDrainCmd) Help() string {
	return `The host gets no new pods. Pods that run, are not locked and keep no data on the host are stopped and started on other
hosts; the drain waits for their owners to end the others. gantry host pods says which and why; gantry host uncordon ends
the drain.

Examples:

    gantry host drain gpu-01 --wait
    gantry host drain gpu-01 --keep-running --wait --timeout 12h`
}

// Run drains a host.
func (cmd hostDrainCmd) Run(ctx context.Context, a *app) error {
	return cmd.on(ctx, a, func(c *client.Client, id string) error {
		host, err := c.DrainHost(ctx, id, cmd.KeepRunning)
		if err == nil && cmd.Wait {
			host, err = a.awaitDrained(ctx, c, host, cmd.Timeout)
		}
		if err != nil {
			return err
		}
		return a.show(host.Raw, func() string {
			if cmd.Wait {
				return fmt.Sprintf("%s (%s) is drained\n", printable(host.Value.ID), printable(host.Value.Name))
			}
			return sayState(host.Value)
		})
	})
}

// awaitDrained looks at a host until no pod holds anything there, and tells what it waits for whenever that changes.
// A short absence of the API is waited through.
func (a *app) awaitDrained(
	ctx context.Context, c *client.Client, host client.Answer[client.Host], within time.Duration,
) (client.Answer[client.Host], error) {
	id := host.Value.ID
	ctx, cancel := context.WithTimeoutCause(ctx, within, &exitError{
		exitTimeout, fmt.Errorf("gave up waiting for host %s after %v; its drain goes on", id, within),
	})
	defer cancel()
	c = c.Once() // this is a loop of its own
	told := ""
	for pause := lookMin; ; pause = min(pause*3/2, drainLook) {
		pods, err := c.HostPods(ctx, id)
		if err == nil {
			host, err = c.Host(ctx, id)
		}
		text := "the API does not answer at the moment\n"
		switch {
		case ctx.Err() != nil:
			return host, context.Cause(ctx)
		case err != nil && !client.Temporary(err):
			return host, err
		case err == nil && host.Value.Duty != "draining":
			return host, &exitError{exitFailed, fmt.Errorf("host %s is not to be emptied any more: it is %s", id, host.Value.State)}
		case err == nil && len(pods.Value.Pods) == 0:
			return host, nil
		case err == nil:
			text = waitedFor(pods.Value.Pods)
		}
		if text != told {
			told = text
			_, _ = a.err.Write([]byte(text))
		}
		wait := pause
		var problem *client.Problem
		if errors.As(err, &problem) {
			wait = max(wait, min(problem.RetryAfter, time.Minute))
		}
		if err := sleep(ctx, wait); err != nil {
			return host, err
		}
	}
}

// waitedFor is a text about the pods that are still there.
func waitedFor(pods []client.HostPod) string {
	lines := &strings.Builder{}
	fmt.Fprintf(lines, "waiting for %s\n", count(len(pods), "pod"))
	for _, p := range pods {
		why := p.Waits
		switch {
		case why == "" && p.Moving:
			why = "it is being moved to another host"
		case why == "":
			why = "it is to be moved to another host"
		}
		fmt.Fprintf(lines, "  %s  %s  %s\n", printable(p.ID), printable(string(p.Status)), printable(why))
	}
	return lines.String()
}
