package main

import (
	"context"
	"fmt"

	"gantry/api/admin"
	"gantry/client"
)

type raftCACmd struct {
	Show   viewCmd     `cmd:"" help:"Show the cluster's CA, the progress of its rotation, and when certificates of hosts and schedulers expire."`
	Rotate caRotateCmd `cmd:"" help:"Replace the cluster's CA. The rotation runs by itself and interrupts no connection."`
	Finish caFinishCmd `cmd:"" help:"Finish the current step of a rotation without the hosts that delay it. They must join again."`
}

// caText shows the CAs, the step of a replacement, and the certificates.
func caText(ca admin.CAStatus) string {
	var rows [][]string
	for _, x := range ca.CAs {
		rows = append(rows, []string{x.Digest, x.State, when(&x.NotBefore), when(&x.NotAfter)})
	}
	out := table([]string{"CA", "STATE", "BEGINS", "ENDS"}, rows)
	if ca.Step != "" {
		out += caStep(ca) + "\n"
	}
	rows = nil
	for _, n := range ca.Nodes {
		rows = append(rows, []string{n.Kind, n.ID, n.Name, caOf(ca, n), orDash(when(n.EndsAt)), orDash(n.Waits)})
	}
	out += "\n" + table([]string{"KIND", "ID", "NAME", "SIGNED BY", "CERTIFICATE ENDS", "WAITED FOR BECAUSE"}, rows)
	if more := ca.Total - len(ca.Nodes); more > 0 {
		out += fmt.Sprintf("and %d more\n", more)
	}
	return out
}

// caOf shows which CA signed a node's certificate.
func caOf(ca admin.CAStatus, n admin.CANode) string {
	for _, x := range ca.CAs {
		if x.Digest == string(n.CA) && n.CA != "" {
			return fmt.Sprintf("%.12s", x.Digest)
		}
	}
	if n.CA == "" {
		return "-"
	}
	return "a CA that is not trusted"
}

// caStep says in a line how far the replacement is.
func caStep(ca admin.CAStatus) string {
	text := "The next CA is being made known; it signs as soon as all know it."
	if ca.Step == "renews" {
		text = "The new CA signs; certificates are being renewed, and then the old CA is trusted no more."
	}
	text += fmt.Sprintf(" Waits for %d of %d.", ca.Waiting, ca.Total)
	if end := when(ca.EndsBy); end != "" {
		text += " Ends at the latest " + end + ", when no certificate of the old CA is valid any more."
	}
	return text
}

type caRotateCmd struct{ confirmed }

// Run begins the replacement.
func (cmd caRotateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if err := cmd.confirm(ctx, a, "Replace the cluster's CA? After a restore from an older snapshot, all hosts have to join again."); err != nil {
		return err
	}
	ca, err := c.RotateCA(ctx)
	return reply(a, ca, err, func(admin.CAStatus) string { return "The rotation began; gantry raft ca show shows its progress.\n" })
}

type caFinishCmd struct{ confirmed }

// Run ends the present step.
func (cmd caFinishCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	ca, err := c.CA(ctx)
	if err != nil {
		return err
	}
	if ca.Value.Step == "" {
		return usage("the cluster's CA is not being replaced")
	}
	_, _ = a.err.Write([]byte(caText(ca.Value)))
	if err := cmd.confirm(ctx, a, fmt.Sprintf("Go on without the %d that are waited for? They have to join again.", ca.Value.Waiting)); err != nil {
		return err
	}
	ca, err = c.FinishCA(ctx, string(ca.Value.Step))
	return reply(a, ca, err, func(admin.CAStatus) string { return "The step was ended; gantry raft ca show shows the progress.\n" })
}
