package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gantry/client"
	"gantry/fleet"
)

// Exit statuses; the help of the program lists them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitUnavailable = 5
	exitNoRoom      = 6
	exitTimeout     = 7
	exitForeign     = 8
	exitInterrupted = 130
)

// usageError is a command line that cannot be run.
type usageError struct {
	message string
	command string // the part that was understood
}

func (e *usageError) Error() string { return e.message }

func usage(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// exitError is an error with an exit status of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitCode returns the exit status that tells err to a program.
func exitCode(err error) int {
	var own *exitError
	var bad *usageError
	var problem *client.Problem
	var gone *client.Unreachable
	var process processExit
	var foreign *client.Foreign
	switch {
	case errors.As(err, &foreign):
		return exitForeign
	case err == nil:
		return exitOK
	case errors.As(err, &process):
		return int(process)
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &bad):
		return exitUsage
	case errors.As(err, &problem):
		return problemCode(problem)
	case errors.As(err, &gone):
		return exitUnavailable
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitFailed
	}
}

func problemCode(p *client.Problem) int {
	switch p.Status {
	case http.StatusNotFound:
		return exitNotFound
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusConflict:
		return exitRefused
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		switch p.Code {
		case fleet.CodeNoCapacity:
			return exitNoRoom
		case fleet.CodeInUse:
			return exitRefused
		}
		return exitUsage
	}
	if p.Temporary() {
		return exitUnavailable
	}
	return exitFailed
}

// explain tells err to a person and returns the exit status.
func (a *app) explain(err error) int {
	code := exitCode(err)
	var process processExit
	if err == nil || code == exitInterrupted || errors.As(err, &process) {
		return code
	}
	out := &strings.Builder{}
	text := strings.ReplaceAll(err.Error(), " Please refresh and try again.", "") // which is for a page, not for a command
	fmt.Fprintf(out, "gantry: %s\n", printableLines(text))
	var problem *client.Problem
	if errors.As(err, &problem) {
		for _, e := range problem.Errors {
			fmt.Fprintf(out, "  %s\n", printable(inFlags(e)))
		}
		lacks := func(e string) bool { return strings.Contains(e, "takes an operator's") }
		if a.operator && a.getenv("GANTRY_ADMIN_KEY") == "" && slices.ContainsFunc(problem.Errors, lacks) {
			fmt.Fprintf(out, "  Operators' commands need an operator's key: set GANTRY_ADMIN_KEY, or choose a context that has one.\n")
		}
		for _, e := range problem.Excluded {
			fmt.Fprintf(out, "  %s: %s\n", count(e.Hosts, "host"), printable(e.Reason))
		}
		if problem.RetryAfter > 0 {
			fmt.Fprintf(out, "  try again after %v\n", problem.RetryAfter)
		}
		if problem.Status >= http.StatusInternalServerError && problem.RequestID != "" {
			fmt.Fprintf(out, "  request %s\n", printable(problem.RequestID))
		}
	}
	var gone *client.Unreachable
	if errors.As(err, &gone) && local(gone.Address) {
		fmt.Fprintf(out, "  Is `gantry dev` running?\n")
	}
	var bad *usageError
	if errors.As(err, &bad) {
		command := strings.TrimSpace("gantry " + commandWords(bad.command))
		fmt.Fprintf(out, "Run \"%s --help\" for more.\n", command)
	}
	_, _ = a.err.Write([]byte(out.String()))
	return code
}

// commandWords returns the names in a command as the parser prints it, without its arguments.
func commandWords(command string) string {
	words := strings.Fields(command)
	for i, w := range words {
		if strings.HasPrefix(w, "<") || strings.HasPrefix(w, "[") {
			return strings.Join(words[:i], " ")
		}
	}
	return strings.Join(words, " ")
}

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %s", n, plural(thing))
}
