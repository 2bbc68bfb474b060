package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"gantry/client"
	"gantry/fleet"
)

// thing is what a person may call a record by: its id, or its name.
type thing struct{ id, name string }

// findThing returns the id that a person's word means among things of a kind.
func findThing(kind, text string, all []thing) (string, error) {
	var ids []string
	for _, t := range all {
		if t.id == text {
			return t.id, nil
		}
		if t.name == text {
			ids = append(ids, t.id)
		}
	}
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", &exitError{exitNotFound, fmt.Errorf("no %s has the id or name %s", kind, printable(text))}
	default:
		return "", usage("%d %s have the name %s: say which by its id: %s", len(ids), plural(kind), text, strings.Join(ids, ", "))
	}
}

// sayReplayed tells that a create found what an earlier one under the same key had made.
func (a *app) sayReplayed(replayed bool, id string) {
	if replayed {
		_, _ = fmt.Fprintf(a.err, "%s had been made before under this idempotency key.\n", printable(id))
	}
}

// onceKey is the key under which a create happens once: the command line's, or a new one.
func onceKey(given string) string {
	if given != "" {
		return given
	}
	return rand.Text()
}

// uncertain tells, after a create of which nobody knows whether it happened, how to run it again without danger.
func (a *app) uncertain(err error, key string) error {
	var problem *client.Problem
	limited := errors.As(err, &problem) && problem.Status == http.StatusTooManyRequests
	if client.Temporary(err) && !limited && !errors.Is(err, syscall.ECONNREFUSED) {
		_, _ = fmt.Fprintf(a.err, "It is not known whether this was done. To run it again without doing it twice, add --idempotency-key %s\n", printable(key))
	}
	return err
}

// lacking says what does not exist where the API says only that something does not.
type lacking struct{ said, cause error }

func (e *lacking) Error() string { return e.said.Error() }
func (e *lacking) Unwrap() error { return e.cause }

// on calls f with the id that ref means. A ref that has the form of an id is tried as one first, so that it costs one
// call.
func (n noun[T, L]) on(ctx context.Context, c *client.Client, ref string, f func(id string) error) error {
	var missing error
	if n.bare || fleet.ValidID(ref) {
		if missing = f(ref); !client.IsNotFound(missing) {
			return missing
		}
	}
	if n.bare {
		return &lacking{fmt.Errorf("no %s has the %s %s", n.kind, strings.ToLower(n.called()), printable(ref)), missing}
	}
	list, err := n.things(ctx, c)
	var id string
	if err == nil {
		id, err = findThing(n.kind, ref, list)
	}
	switch {
	case missing != nil && (id == ref || err != nil && exitCode(err) != exitNotFound):
		return missing
	case err != nil:
		return err
	}
	return f(id)
}

// id returns the id that ref means, for a request that names a record. A ref that has the form of an id is left to the
// API to judge.
func (n noun[T, L]) id(ctx context.Context, c *client.Client, ref string) (string, error) {
	if ref == "" || fleet.ValidID(ref) {
		return ref, nil
	}
	list, err := n.things(ctx, c)
	if err != nil {
		return "", err
	}
	return findThing(n.kind, ref, list)
}

func plural(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "y"); ok && !strings.HasSuffix(stem, "e") {
		return stem + "ies"
	}
	return kind + "s"
}
