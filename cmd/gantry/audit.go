package main

import (
	"context"
	"fmt"
	"strings"

	"gantry/client"
)

type auditCmd struct{ auditFlags }

// Run shows who changed what in the account.
func (cmd auditCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.read(ctx, a, c, client.AuditQuery{})
}

type adminAuditCmd struct {
	auditFlags
	Account string `placeholder:"ID" help:"Only lines of this account's keys."`
}

// Run shows who changed what in all accounts.
func (cmd adminAuditCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.read(ctx, a, c, client.AuditQuery{Operator: true, Account: cmd.Account})
}

// auditFlags say which lines to show.
type auditFlags struct {
	From      string `placeholder:"TIME" help:"Lines since then: RFC 3339, a date such as 2026-10-01, or a time ago such as 48h."`
	To        string `placeholder:"TIME" help:"Lines until then."`
	Operation string `placeholder:"NAME" help:"Only lines of this operation, such as createPod."`
	Object    string `placeholder:"ID" help:"Only lines about the object with this id."`
	Limit     int    `default:"100" placeholder:"N" help:"The newest N (1 to 10000); 0: all."`
}

func (cmd auditFlags) read(ctx context.Context, a *app, c *client.Client, q client.AuditQuery) (err error) {
	if !a.forPeople() && a.cli.Output != formatJSON {
		return usage("the audit log is a line each, or with -o json a JSON object each")
	}
	if cmd.Limit < 0 || cmd.Limit > 10_000 {
		return usage("--limit must be 0 to 10000")
	}
	q.Operation, q.Object, q.Limit = cmd.Operation, cmd.Object, cmd.Limit
	if q.From, err = (billingCmd{}).moment("--from", cmd.From, a.now()); err != nil {
		return err
	}
	if q.To, err = (billingCmd{}).moment("--to", cmd.To, a.now()); err != nil {
		return err
	}
	return c.Audit(ctx, q, func(raw []byte, l client.AuditLine) error {
		if !a.forPeople() {
			_, err := fmt.Fprintf(a.out, "%s\n", raw)
			return err
		}
		words := []string{when(&l.At), l.Face, l.Operation, orDash(string(l.ObjectID)), l.AccountID, orDash(l.KeyName), orDash(string(l.Address))}
		if a.cli.Output == formatWide {
			words = append(words, l.KeyID)
		}
		for i := range words {
			words[i] = printable(words[i])
		}
		_, err := fmt.Fprintln(a.out, strings.Join(words, "  "))
		return err
	})
}
