package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
)

// byName returns the members of a record of limits by their names.
func byName[T any](limits any) map[string]T {
	out := map[string]T{}
	if text, err := json.Marshal(limits); err == nil {
		_ = json.Unmarshal(text, &out) // a record of limits has no other members
	}
	return out
}

// limitsText shows how much an account may have and has; empty when nothing is known of it.
func limitsText(limits v2.AccountLimits) string {
	if limits == (v2.AccountLimits{}) {
		return ""
	}
	var rows [][]string
	all := byName[v2.LimitUse](limits)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		rows = append(rows, []string{name, strconv.FormatFloat(all[name].Used, 'f', -1, 64), strconv.FormatInt(all[name].Limit, 10)})
	}
	return "\n" + table([]string{"LIMIT", "USED", "MOST"}, rows)
}

// limitsOf reads limits as people give them: a number, or default. It is nil where none are given.
func limitsOf(given map[string]string) (*admin.LimitChanges, error) {
	if len(given) == 0 {
		return nil, nil
	}
	change := map[string]*int64{}
	for name, text := range given {
		if text == "default" {
			change[name] = nil
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil, usage("--limit %s must be a number, or default", name)
		}
		change[name] = &n
	}
	text, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	var out admin.LimitChanges
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&out); err != nil {
		return nil, usage("--limit names a limit that there is not; they are %s", strings.Join(slices.Sorted(maps.Keys(byName[int64](admin.DefaultLimits{}))), ", "))
	}
	return &out, nil
}

type accountLimitsCmd struct {
	Limit map[string]string `placeholder:"NAME=N" help:"Change a limit, such as pods=2000; NAME=default: what Gantry comes with. May be repeated."`
}

// Run shows or changes the limits of all accounts.
func (cmd accountLimitsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	change, err := limitsOf(cmd.Limit)
	if err != nil {
		return err
	}
	var limits client.Answer[admin.DefaultLimits]
	if change != nil {
		limits, err = c.SetLimits(ctx, *change)
	} else {
		limits, err = c.Limits(ctx)
	}
	return reply(a, limits, err, func(limits admin.DefaultLimits) string {
		var rows [][]string
		all := byName[int64](limits)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			rows = append(rows, []string{name, strconv.FormatInt(all[name], 10)})
		}
		return table([]string{"LIMIT", "MOST"}, rows)
	})
}
