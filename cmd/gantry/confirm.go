package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// confirmed is a command that is not taken back.
type confirmed struct {
	Yes bool `short:"y" help:"Do not ask."`
}

// confirm asks on the terminal whether to go on. Where there is none, --yes has to say so.
func (c confirmed) confirm(ctx context.Context, a *app, question string) error {
	if !c.Yes && terminalOf(a.in) == nil {
		return usage("%s There is no terminal to ask on: add --yes", question)
	}
	return c.ask(ctx, a, question)
}

// ask asks on the terminal whether to go on. Where there is none, as in scripts, it goes on.
func (c confirmed) ask(ctx context.Context, a *app, question string) error {
	f := terminalOf(a.in)
	if c.Yes || f == nil {
		return nil
	}
	_, _ = fmt.Fprintf(a.err, "%s Type yes to go on: ", question)
	in, err := newInput(f)
	if err != nil {
		return err
	}
	defer in.close()
	defer context.AfterFunc(ctx, in.stop)()
	line, err := bufio.NewReader(io.LimitReader(in, 1024)).ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read from the terminal: %w", err)
	case strings.TrimSpace(line) != "yes":
		return &exitError{exitRefused, errors.New("nothing was done")}
	}
	return nil
}
