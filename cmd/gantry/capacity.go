package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
)

type adminPlacementCmd struct {
	Get viewCmd              `cmd:"" help:"Show the share of hosts that is reserved for their GPUs."`
	Set adminPlacementSetCmd `cmd:"" help:"Change the share of hosts that is reserved for their GPUs."`
}

type adminPlacementSetCmd struct {
	NoticeSeconds int `placeholder:"N" help:"Seconds that an interruptible pod may go on once another takes its place, at most 600; 30 when not given."`

	KeepPercent int `required:"" placeholder:"N" help:"Percent of a free GPU's share of its host's cores and memory that pods without GPUs leave to it, 0 to 100; 0 keeps nothing."`
}

// Run changes the setting.
func (cmd adminPlacementSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.KeepPercent < 0 || cmd.KeepPercent > 100 {
		return usage("--keep-percent must be 0 to 100")
	}
	p, err := c.SetPlacement(ctx, admin.PlacementSettings{KeepPercent: cmd.KeepPercent, NoticeSeconds: cmd.NoticeSeconds})
	return reply(a, p, err, placementSheet)
}

func placementSheet(p admin.PlacementSettings) string {
	return sheet([][2]string{
		{"Kept for each free GPU", fmt.Sprintf("%d %% of its share of the host's cores and memory", p.KeepPercent)},
		{"Notice of interruptible pods", cmp.Or(time.Duration(p.NoticeSeconds)*time.Second, fleet.DefaultNotice).String()},
	})
}

// capacityText shows what there is room for, and what is in the way.
func capacityText(all admin.Capacity) string {
	var rows [][]string
	for _, g := range all.GPUs {
		row := []string{g.Type}
		for _, n := range []int{g.Total, g.Free, g.Most, g.Fit.Eight, g.Fit.Four, g.Fit.Two, g.Fit.One} {
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, append(row, strandedText(g.Stranded)))
	}
	text := table([]string{"TYPE", "GPUS", "FREE", "MOST", "8 GPUS", "4 GPUS", "2 GPUS", "1 GPU", "STRANDED"}, rows)
	if len(all.Stranded) == 0 {
		return text
	}
	rows = nil
	for _, s := range all.Stranded {
		rows = append(rows, []string{s.HostID, s.Name, s.Type, fmt.Sprint(s.GPUs), s.Short, orDash(strings.Join(s.Pods, ", "))})
	}
	return text + "\n" + table([]string{"HOST", "NAME", "TYPE", "STRANDED", "SHORT OF", "HELD BY"}, rows)
}

// strandedText tells how many GPUs are stranded, and by what.
func strandedText(by admin.StrandedCounts) string {
	total, out := 0, []string{}
	for _, why := range []struct {
		name string
		gpus int
	}{{"cpu", by.CPU}, {"memory", by.Memory}, {"disk", by.Disk}} {
		if why.gpus > 0 {
			total += why.gpus
			out = append(out, fmt.Sprintf("%s %d", why.name, why.gpus))
		}
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(out, ", "))
}
