package main

import (
	"context"

	"gantry/api/admin"
	"gantry/client"
)

type accountSuspendCmd struct {
	accountRef
	Reason   string `required:"" placeholder:"TEXT" help:"Why. Whoever uses a key of the account is told."`
	StopPods bool   `help:"Stop its pods, too, as though their owner had."`
}

// Run suspends an account.
func (cmd accountSuspendCmd) Run(ctx context.Context, a *app) error {
	return cmd.on(ctx, a, func(c *client.Client, id string) error {
		account, err := c.SuspendAccount(ctx, id, cmd.Reason, cmd.StopPods)
		if err != nil {
			return err
		}
		return a.show(account.Raw, func() string { return accountTable([]admin.OperatorAccount{account.Value}) })
	})
}

type accountResumeCmd struct {
	accountRef
}

// Run ends a suspension.
func (cmd accountResumeCmd) Run(ctx context.Context, a *app) error {
	return cmd.on(ctx, a, func(c *client.Client, id string) error {
		account, err := c.ResumeAccount(ctx, id)
		if err != nil {
			return err
		}
		return a.show(account.Raw, func() string { return accountTable([]admin.OperatorAccount{account.Value}) })
	})
}

// suspendedText says why and since when an account is suspended; empty when it is not.
func suspendedText(s *admin.Suspended) string {
	if s == nil {
		return ""
	}
	return "since " + when(&s.At) + ": " + s.Reason
}
