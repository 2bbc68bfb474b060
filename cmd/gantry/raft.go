package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type raftCmd struct {
	Members  raftMembersCmd  `cmd:"" help:"List the schedulers and how they are."`
	Add      raftAddCmd      `cmd:"" help:"Create a token with which one new scheduler may join, once."`
	Remove   raftRemoveCmd   `cmd:"" help:"Remove a scheduler for good."`
	Promote  actCmd          `cmd:"" help:"Give a scheduler a vote."`
	Demote   actCmd          `cmd:"" help:"Make a scheduler a non-voter; it keeps its copy of the state."`
	Transfer raftTransferCmd `cmd:"" help:"Transfer leadership to another scheduler."`
	Clock    raftClockCmd    `cmd:"" help:"Show the schedulers' clocks and the log's time, and confirm them."`
	CA       raftCACmd       `cmd:"" name:"ca" help:"Show and rotate the cluster's CA, and show when certificates expire."`
}

// memberRef names a scheduler.
type memberRef struct {
	Member string `arg:"" placeholder:"MEMBER" help:"Id of the scheduler, or its name where only one has it."`
}

var members = noun[admin.Member, admin.Cluster]{
	kind: "scheduler", all: (*client.Client).Cluster,
	items: func(cluster admin.Cluster) []admin.Member {
		return slices.DeleteFunc(slices.Clone(cluster.Members), func(m admin.Member) bool { return m.RemovedAt != nil })
	},
	thing: func(m admin.Member) thing { return thing{m.ID, m.Name} },
}

// changeMember makes a command about a scheduler, to which the API answers nothing.
func changeMember(done string, f func(*client.Client, context.Context, string) error) func(context.Context, *app, *client.Client, string) error {
	return func(ctx context.Context, a *app, c *client.Client, ref string) error {
		return members.on(ctx, c, ref, func(id string) error {
			if err := f(c, ctx, id); err != nil {
				return err
			}
			return a.done(done, id)
		})
	}
}

type raftMembersCmd struct {
	All bool `help:"Show also those that were removed."`
}

// Run lists schedulers.
func (cmd raftMembersCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	cluster, err := c.Cluster(ctx)
	return reply(a, cluster, err, func(cluster admin.Cluster) string {
		var rows [][]string
		for _, m := range cluster.Members {
			if m.RemovedAt == nil || cmd.All {
				rows = append(rows, []string{
					m.ID, m.Name, m.Address, role(m), reach(m), fmt.Sprint(m.Applied), fmt.Sprint(m.Lag), clockOf(m), orDash(m.Version), orDash(m.Problem),
				})
			}
		}
		return table([]string{"ID", "NAME", "ADDRESS", "ROLE", "REACHED", "APPLIED", "BEHIND", "CLOCK", "VERSION", "PROBLEM"}, rows) +
			fmt.Sprintf("Cluster %s, feature level %d\n", printable(cluster.ID), cluster.Level) + heldText(cluster.Clock)
	})
}

// role is what a scheduler is in the cluster.
func role(m admin.Member) string {
	switch {
	case m.RemovedAt != nil:
		return "removed"
	case m.Leader:
		return "leader"
	case m.Voter:
		return "voter"
	case m.NonVoter:
		return "non-voter"
	}
	return "catching up"
}

// reach tells whether a scheduler answers.
func reach(m admin.Member) string {
	switch {
	case m.RemovedAt != nil:
		return "-"
	case m.Reachable || m.Leader:
		return "yes"
	case m.SilentMs > 0:
		return fmt.Sprintf("no, for %v", (time.Duration(m.SilentMs) * time.Millisecond).Round(time.Second))
	}
	return "no"
}

type raftAddCmd struct {
	NonVoter bool          `help:"The new scheduler gets a copy of the state and no vote, until it is promoted."`
	Replaces string        `placeholder:"MEMBER" help:"Scheduler that is removed once the new one votes: its id or name."`
	TTL      time.Duration `name:"ttl" default:"1h" help:"How long the token may be used."`
}

// Run makes a join token for a scheduler.
func (cmd raftAddCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.TTL < time.Minute || cmd.TTL > 168*time.Hour {
		return usage("--ttl must be 1m to 168h")
	}
	if cmd.NonVoter && cmd.Replaces != "" {
		return usage("--non-voter and --replaces exclude each other: a scheduler is replaced by one that votes")
	}
	replaces, err := members.id(ctx, c, cmd.Replaces)
	if err != nil {
		return err
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	token, err := c.CreateMemberToken(ctx, admin.CreateMemberTokenRequest{NonVoter: cmd.NonVoter, Replaces: replaces, TTLSeconds: int(cmd.TTL / time.Second)})
	if err != nil {
		return err
	}
	about := "The token lets one scheduler join"
	if at := when(&token.Value.ExpiresAt); at != "" {
		about += ", until " + at
	}
	return a.showSecret(token.Raw, token.Value.Token.Reveal(), about+". On its machine, before gantry-scheduler run:\n\n    "+joinCommand("gantry-scheduler join", cluster.Value)+"\n")
}

// joinCommand is what makes a new machine a scheduler or a gateway of the cluster.
func joinCommand(command string, cluster admin.Cluster) string {
	out := &strings.Builder{}
	out.WriteString(command + " --data-dir DIR --token-file FILE --address HOST:PORT")
	for _, m := range cluster.Members {
		if m.RemovedAt == nil && (m.Reachable || m.Leader) {
			out.WriteString(" --scheduler " + printable(m.Address))
		}
	}
	return out.String()
}

type raftRemoveCmd struct {
	memberRef
	confirmed
	Force bool `help:"Remove it although the voters that answer are no majority without it. The last voter stays even so."`
}

// Run removes a scheduler.
func (cmd raftRemoveCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return changeMember("removed", func(c *client.Client, ctx context.Context, id string) error {
		cluster, err := c.Cluster(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(cluster.Value.Members, func(m admin.Member) bool { return m.ID == id && m.RemovedAt == nil })
		if at < 0 {
			return &exitError{exitNotFound, fmt.Errorf("no scheduler has the id or name %s", printable(cmd.Member))}
		}
		m := cluster.Value.Members[at]
		question := fmt.Sprintf("Remove the scheduler %s (%s, %s) for good?", printable(m.Name), printable(id), role(m))
		if err := cmd.confirm(ctx, a, question); err != nil {
			return err
		}
		return c.RemoveMember(ctx, id, cmd.Force)
	})(ctx, a, c, cmd.Member)
}

type raftTransferCmd struct {
	Member string `arg:"" optional:"" placeholder:"MEMBER" help:"Id or name of the scheduler that is to lead; else the most up-to-date one."`
}

// Run hands leadership on.
func (cmd raftTransferCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.Member != "" {
		return changeMember("leadership goes to", (*client.Client).TransferLeadership)(ctx, a, c, cmd.Member)
	}
	if err := c.TransferLeadership(ctx, ""); err != nil || !a.forPeople() {
		return err
	}
	_, err := fmt.Fprintln(a.out, "leadership was handed on")
	return err
}
