package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"gantry/client"
)

type billingCmd struct {
	Kind   string `arg:"" optional:"" enum:"all,pods,serverless,endpoints,network-volumes,volumes,clusters" default:"all" help:"What for: all, pods, serverless, endpoints, network-volumes or clusters."`
	ID     string `name:"id" placeholder:"ID" help:"Only this pod, endpoint, network volume or cluster."`
	Last   int    `placeholder:"N" help:"The last N buckets, the present one among them."`
	Bucket string `enum:"hour,day,week,month,year" default:"day" help:"Length of a bucket: hour, day, week, month or year."`
	Start  string `placeholder:"TIME" help:"Charges since then: RFC 3339, a date such as 2026-10-01, or a time ago such as 48h."`
	End    string `placeholder:"TIME" help:"Charges until then."`
}

// Run shows charges.
func (cmd billingCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	q := client.BillingQuery{Kind: cmd.Kind, ID: cmd.ID, LastN: cmd.Last, Bucket: cmd.Bucket}
	switch q.Kind {
	case "volumes":
		q.Kind = "network-volumes"
	case "all":
		q.Kind = ""
	}
	var err error
	if q.Start, err = cmd.moment("--start", cmd.Start, a.now()); err != nil {
		return err
	}
	if q.End, err = cmd.moment("--end", cmd.End, a.now()); err != nil {
		return err
	}
	switch {
	case cmd.Last < 0:
		return usage("--last must be 1 or more")
	case cmd.Last > 0 && (cmd.Start != "" || cmd.End != ""):
		return usage("--last excludes --start and --end")
	case cmd.ID != "" && (q.Kind == "" || q.Kind == "endpoints"):
		return usage("--id goes with pods, serverless, network-volumes or clusters")
	}
	bill, err := c.Billing(ctx, q)
	return reply(a, bill, err, billTable)
}

// moment reads a time of the command line; zero when it is not given.
func (billingCmd) moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, nil
	}
	at, err := moment(text, now)
	if err != nil {
		return at, usage("%s must be a time in RFC 3339, a date such as 2026-10-01, or a time ago such as 48h", flag)
	}
	return at, nil
}

// billTable shows a row for each record and one for the totals, with a column for each component that was charged.
func billTable(b client.Billing) string {
	var parts []string
	for name, amount := range b.Metadata.Totals {
		if name != totalAmount && amount != 0 {
			parts = append(parts, name)
		}
	}
	slices.Sort(parts)
	named := slices.ContainsFunc(b.Records, func(r client.BillingRecord) bool { return r.ID != "" })
	heading := []string{"FROM", "TO"}
	if named {
		heading = append(heading, "ID")
	}
	heading = append(heading, "TOTAL")
	for _, name := range parts {
		heading = append(heading, partName(name))
	}
	row := func(cells []string, amounts map[string]float64) []string {
		cells = append(cells, dollars(amounts[totalAmount]))
		for _, name := range parts {
			cells = append(cells, dollars(amounts[name]))
		}
		return cells
	}
	rows := [][]string{heading}
	for _, r := range b.Records {
		cells := []string{bucketTime(r.Start), bucketTime(r.End)}
		if named {
			cells = append(cells, orDash(r.ID))
		}
		rows = append(rows, row(cells, r.Amounts))
	}
	last := []string{bucketTime(b.Metadata.Query.Start), bucketTime(b.Metadata.Query.End)}
	if named {
		last = append(last, "all")
	}
	rows = append(rows, row(last, b.Metadata.Totals))
	for i := len(heading) - 1 - len(parts); i < len(heading); i++ {
		alignRight(rows, i)
	}
	return table(rows[0], rows[1:])
}

const totalAmount = "totalAmount"

// partName makes the heading of a component of its name: "podGpuAmount" is "POD GPU".
func partName(name string) string {
	var out strings.Builder
	for i, r := range strings.TrimSuffix(name, "Amount") {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte(' ')
		}
		out.WriteRune(r)
	}
	return strings.ToUpper(out.String())
}

func bucketTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04")
}
