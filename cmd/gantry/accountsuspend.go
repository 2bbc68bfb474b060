package main

import (
	"context"

	"gantry/api/admin"
	"gantry/client"
)

type accountSuspendCmd struct {
	accountRef
	Reason   string `required:"" placeholder:"TEXT" help:"Reason, which is shown to users of the account's keys."`
	StopPods bool   `help:"Also stop its pods, as their owner could."`
}

// Run suspends an account.
func (cmd accountSuspendCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return accounts.on(ctx, c, cmd.Account, func(id string) error {
		account, err := c.SuspendAccount(ctx, id, cmd.Reason, cmd.StopPods)
		return accounts.show(a, account, err)
	})
}

// suspendedText says why and since when an account is suspended; empty when it is not.
func suspendedText(s *admin.Suspended) string {
	if s == nil {
		return ""
	}
	return "since " + when(&s.At) + ": " + s.Reason
}
