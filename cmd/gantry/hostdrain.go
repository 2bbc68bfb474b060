package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/internal/sleep"
)

const drainLook = 2 * time.Second // at most, between two looks at a host that is being emptied

type hostDrainCmd struct {
	hostRef
	KeepRunning bool          `help:"Move no pods."`
	Reason      string        `placeholder:"TEXT" help:"What the owners of its pods are told."`
	Deadline    string        `placeholder:"TIME" help:"Stop then what still runs: a time such as 2026-12-01T06:00:00Z, or a duration from now such as 12h."`
	Force       bool          `help:"Stop at once what is not moved. Asks first, and says what that is."`
	DryRun      bool          `help:"Only say what would happen to each pod."`
	Wait        bool          `help:"Wait until the host is empty, and show what is left."`
	Timeout     time.Duration `default:"1h" help:"With --wait: stop waiting after this time. The drain goes on."`
	confirmed
}

// Run drains a host.
func (cmd hostDrainCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	drain, err := cmd.read(a.now())
	if err != nil {
		return err
	}
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		if cmd.DryRun || cmd.Force && !cmd.Yes {
			plan, err := c.PlanDrain(ctx, id, cmd.KeepRunning)
			if err != nil {
				return err
			}
			if cmd.DryRun {
				return a.show(plan.Raw, func() string { return drainPlan(plan.Value.Pods, cmd.Force) })
			}
			if err := cmd.stops(ctx, a, plan.Value.Pods); err != nil {
				return err
			}
		}
		host, err := c.DrainHost(ctx, id, drain)
		if err == nil && cmd.Wait {
			host, err = a.awaitDrained(ctx, c, host, cmd.Timeout)
		}
		return reply(a, host, err, func(host admin.Host) string {
			if cmd.Wait {
				return fmt.Sprintf("%s (%s) is drained\n", printable(host.ID), printable(host.Name))
			}
			return sayState(host)
		})
	})
}

// read makes the body of the command line.
func (cmd hostDrainCmd) read(now time.Time) (admin.DrainHostRequest, error) {
	out := admin.DrainHostRequest{KeepRunning: cmd.KeepRunning, Reason: cmd.Reason, Force: cmd.Force}
	switch {
	case cmd.Force && cmd.Deadline != "":
		return out, usage("--force and --deadline exclude each other")
	case cmd.Force && cmd.KeepRunning:
		return out, usage("--force and --keep-running exclude each other")
	case cmd.Deadline == "":
		return out, nil
	}
	at, err := time.Parse(time.RFC3339, cmd.Deadline)
	if after, bad := time.ParseDuration(cmd.Deadline); bad == nil && after > 0 {
		at, err = now.Add(after), nil
	}
	if err != nil {
		return out, usage("--deadline must be a time such as 2026-12-01T06:00:00Z, or a duration such as 12h")
	}
	out.Deadline = v2.AtOrNull(at)
	return out, nil
}

// stops names the pods that a forced drain stops, if there are any, and asks whether to go on.
func (cmd hostDrainCmd) stops(ctx context.Context, a *app, pods []admin.HostPod) error {
	var stops []admin.HostPod
	for _, p := range pods {
		if p.Stops {
			stops = append(stops, p)
		}
	}
	if len(stops) == 0 {
		return nil
	}
	for _, p := range stops {
		_, _ = fmt.Fprintf(a.err, "%s of account %s is stopped; else %s\n", printable(p.ID), printable(p.AccountID), printable(p.Waits))
	}
	return cmd.confirm(ctx, a, "Stop "+count(len(stops), "pod")+" that "+printable(cmd.Host)+" runs?")
}

// drainPlan tells what happens to each pod.
func drainPlan(pods []admin.HostPod, force bool) string {
	if len(pods) == 0 {
		return "The host has no pods.\n"
	}
	var rows [][]string
	for _, p := range pods {
		what := p.Waits
		switch {
		case p.To != "":
			what = "moves to " + p.To
		case p.Stops && force:
			what = "is stopped (" + what + ")"
		case p.Stops:
			what += "; --force would stop it"
		}
		rows = append(rows, []string{p.ID, p.AccountID, string(p.Status), fmt.Sprint(p.GPUs), string(what)})
	}
	return table([]string{"ID", "ACCOUNT", "STATUS", "GPUS", "WHAT HAPPENS"}, rows)
}

// awaitDrained looks at a host until no pod holds anything there, and tells what it waits for whenever that changes.
// A short absence of the API is waited through.
func (a *app) awaitDrained(
	ctx context.Context, c *client.Client, host client.Answer[admin.Host], within time.Duration,
) (client.Answer[admin.Host], error) {
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
		case err == nil && host.Value.Eligibility != "draining":
			return host, &exitError{exitFailed, fmt.Errorf("host %s is no longer draining: it is %s", id, host.Value.State)}
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
		if err := sleep.For(ctx, wait); err != nil {
			return host, err
		}
	}
}

// waitedFor is a text about the pods that are still there.
func waitedFor(pods []admin.HostPod) string {
	lines := &strings.Builder{}
	fmt.Fprintf(lines, "waiting for %s\n", count(len(pods), "pod"))
	for _, p := range pods {
		why := p.Waits
		switch {
		case p.Moving && p.To != "":
			why = "it is being moved to " + p.To
		case p.To != "":
			why = "it is to be moved to " + p.To
		case why == "":
			why = "it is about to be looked at"
		}
		fmt.Fprintf(lines, "  %s  %s  %s\n", printable(p.ID), printable(string(p.Status)), printable(why))
	}
	return lines.String()
}
