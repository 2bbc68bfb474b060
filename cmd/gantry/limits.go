package main

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"gantry/client"
)

// limitsText shows how much an account may have and has; empty when nothing is known of it.
func limitsText(limits client.Limits) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		use := limits[name]
		rows = append(rows, []string{name, strconv.FormatFloat(use.Used, 'f', -1, 64), strconv.FormatInt(use.Limit, 10)})
	}
	if len(rows) == 0 {
		return ""
	}
	return "\n" + table([]string{"LIMIT", "USED", "MOST"}, rows)
}

// limitsOf reads limits as people give them: a number, or default.
func limitsOf(given map[string]string) (map[string]*int64, error) {
	if len(given) == 0 {
		return nil, nil
	}
	out := map[string]*int64{}
	for name, text := range given {
		if text == "default" {
			out[name] = nil
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, usage("--limit %s must be a number, or default", name)
		}
		out[name] = &n
	}
	return out, nil
}

type accountLimitsCmd struct {
	Limit map[string]string `placeholder:"NAME=N" help:"Change a limit, such as pods=2000; NAME=default: what Gantry comes with. May be repeated."`
}

func (accountLimitsCmd) Help() string {
	return `These hold for accounts that have no limits of their own: "gantry account update ACCOUNT --limit" sets those. What an account has
already stays when a limit is lowered.

Examples:

    gantry account limits
    gantry account limits --limit pods=2000 --limit spendPerHour=default`
}

// Run shows or changes the limits of all accounts.
func (cmd accountLimitsCmd) Run(ctx context.Context, a *app) error {
	change, err := limitsOf(cmd.Limit)
	if err != nil {
		return err
	}
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	var limits client.Answer[map[string]int64]
	if len(change) > 0 {
		limits, err = c.SetLimits(ctx, change)
	} else {
		limits, err = c.Limits(ctx)
	}
	if err != nil {
		return err
	}
	return a.show(limits.Raw, func() string {
		var rows [][]string
		for _, name := range slices.Sorted(maps.Keys(limits.Value)) {
			rows = append(rows, []string{name, strconv.FormatInt(limits.Value[name], 10)})
		}
		return table([]string{"LIMIT", "MOST"}, rows)
	})
}
