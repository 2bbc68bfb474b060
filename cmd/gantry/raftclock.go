package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type raftClockCmd struct {
	Show    viewCmd         `cmd:"" help:"Show the schedulers' clocks and the log's time."`
	Confirm clockConfirmCmd `cmd:"" help:"Confirm that the leader's clock is right; the log's time is set to it."`
}

// clockText tells of the log's time and of every scheduler's clock.
func clockText(cluster admin.Cluster) string {
	clock := cluster.Clock
	text := fmt.Sprintf("Leader's clock: %s\nLog's time:     %s\n", clock.Time.UTC().Format(time.RFC3339), clock.LogTime.UTC().Format(time.RFC3339))
	var rows [][]string
	for _, m := range cluster.Members {
		if m.RemovedAt == nil {
			rows = append(rows, []string{m.ID, m.Name, role(m), clockOf(m)})
		}
	}
	text += table([]string{"ID", "NAME", "ROLE", "CLOCK"}, rows)
	if clock.Held == "" {
		return text + "The clocks are right.\n"
	}
	return text + heldText(clock)
}

// clockOf is how far a scheduler's clock is from the leader's.
func clockOf(m admin.Member) string {
	switch {
	case m.RemovedAt != nil || m.ClockMs == nil:
		return "-"
	case m.Leader:
		return "0s"
	}
	off := time.Duration(*m.ClockMs) * time.Millisecond
	if off.Abs() >= time.Minute {
		off = off.Round(time.Second)
	}
	return signed(off)
}

// signed writes a duration with its sign.
func signed(d time.Duration) string {
	if d > 0 {
		return "+" + d.String()
	}
	return d.String()
}

// heldText says what is held back and why; empty: nothing is.
func heldText(clock admin.Clock) string {
	if clock.Held == "" {
		return ""
	}
	apart := clock.Time.Sub(clock.LogTime.Time).Round(time.Second)
	return fmt.Sprintf("HELD BACK: %s (%s). No charge is settled, no pod ended for want of credit, and nothing old is purged.\n"+
		"See docs/operations.md, \"Clocks\".\n", printable(clock.Held), signed(apart))
}

type clockConfirmCmd struct{ confirmed }

// Run confirms the leader's clock as it is shown.
func (cmd clockConfirmCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	_, _ = a.err.Write([]byte(clockText(cluster.Value)))
	seen := cluster.Value.Clock.Time
	if err := cmd.confirm(ctx, a, fmt.Sprintf("Is it %s now, and shall everything be charged up to then?", seen.UTC().Format(time.RFC3339))); err != nil {
		return err
	}
	if err := c.ConfirmClock(ctx, seen.Time); err != nil || a.cli.Output == "json" {
		return err
	}
	_, err = fmt.Fprintln(a.out, "The log's time is the leader's.")
	return err
}
