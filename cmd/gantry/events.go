package main

import (
	"context"
	"fmt"
	"strings"

	"gantry/client"
)

type eventsCmd struct{ eventFlags }

// Run shows events of the account until Ctrl-C.
func (cmd eventsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.follow(ctx, a, c, false)
}

type hostEventsCmd struct{ eventFlags }

// Run shows events of the fleet until Ctrl-C.
func (cmd hostEventsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.follow(ctx, a, c, true)
}

// eventFlags say which events to show.
type eventFlags struct {
	Kind   []string `placeholder:"KIND" help:"Only events of these kinds, such as pod, worker, endpoint, volume, balance, host; may be repeated."`
	ID     []string `name:"id" placeholder:"ID" help:"Only events of objects with these ids, and of what is part of them; may be repeated."`
	After  string   `placeholder:"EVENT" help:"Begin behind the event with this id, which -o json and -o wide show."`
	Follow bool     `short:"f" default:"true" help:"Stay and show events as they come, until Ctrl-C, which is always so."`
}

func (cmd eventFlags) follow(ctx context.Context, a *app, c *client.Client, operator bool) error {
	if !a.forPeople() && a.cli.Output != formatJSON {
		return usage("events are a line each, or with -o json a JSON object each")
	}
	q := client.EventQuery{Kinds: cmd.Kind, IDs: cmd.ID, After: cmd.After, Operator: operator}
	return c.Events(ctx, q, func(e client.Event) error { return showEvent(a, e) }, func(err error) {
		_, _ = fmt.Fprintf(a.err, "gantry: %s; trying again\n", printable(err.Error()))
	})
}

// showEvent prints one event.
func showEvent(a *app, e client.Event) error {
	if !a.forPeople() {
		_, err := fmt.Fprintf(a.out, "%s\n", e.Raw)
		return err
	}
	switch e.Type {
	case "ready":
		return nil
	case "reset":
		_, err := fmt.Fprintln(a.err, "gantry: events are missing here: they are older than what the API remembers")
		return err
	}
	words := []string{orDash(when(e.At)), fmt.Sprintf("%-14s", e.Kind), fmt.Sprintf("%-8s", e.Type), e.ID}
	for _, word := range []string{string(e.Parent), string(e.Status), string(e.Reason)} {
		if word != "" {
			words = append(words, word)
		}
	}
	if a.cli.Output == formatWide {
		words = append(words, e.EventID)
	}
	for i := range words {
		words[i] = printable(words[i])
	}
	_, err := fmt.Fprintln(a.out, strings.Join(words, "  "))
	return err
}
