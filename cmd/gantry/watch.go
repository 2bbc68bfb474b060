package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"gantry/client"
	"gantry/internal/sleep"
)

const watchEvery = 2 * time.Second

// watchable lists the last words of commands that --watch goes with.
func watchable() []string {
	return []string{"list", "get", "show", "status", "members", "pods", "gpus", "cpus", "datacenters", "templates", "ps", "billing"}
}

// perform runs a command; with --watch again and again, and prints what it prints whenever that changes. An API that is
// away for a moment is told and waited for.
func (a *app) perform(ctx context.Context, command func() error) error {
	if !a.cli.Watch {
		return command()
	}
	out, every := a.out, a.lookEvery
	if every == 0 {
		every = watchEvery
	}
	defer func() { a.out = out }()
	last := ""
	for {
		var text bytes.Buffer
		a.out = &text
		err := command()
		switch {
		case err != nil && !client.Temporary(err):
			return err
		case err != nil:
			_, _ = fmt.Fprintf(a.err, "gantry: %s; trying again\n", printable(err.Error()))
		case text.String() != last:
			last = text.String()
			if a.screenWidth != nil && a.screenWidth() > 0 {
				last = "\x1b[H\x1b[2J" + last
			}
			if _, err := io.WriteString(out, last); err != nil {
				return err
			}
			last = text.String()
		}
		if err := sleep.For(ctx, every); err != nil {
			return err
		}
	}
}
