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

// thing is something that a person may call by its id or its name.
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
		return "", &exitError{exitNotFound, fmt.Errorf("no %s has the id or name %s", kind, text)}
	default:
		return "", usage("%d %s have the name %s: say which by its id: %s", len(ids), plural(kind), text, strings.Join(ids, ", "))
	}
}

// onThing calls f with the id that text means. Text that has the form of an id is tried as one first, so that it costs
// one call.
func onThing(kind, text string, all func() ([]thing, error), f func(id string) error) error {
	var missing error
	if fleet.ValidID(text) {
		err := f(text)
		if !client.IsNotFound(err) {
			return err
		}
		missing = err
	}
	list, err := all()
	var id string
	if err == nil {
		id, err = findThing(kind, text, list)
	}
	switch {
	case missing != nil && (err != nil || id == text):
		return missing
	case err != nil:
		return err
	}
	return f(id)
}

// idOf returns the id that text means, for a request that names a thing. Text that has the form of an id is left to
// the API to judge.
func idOf(kind, text string, all func() ([]thing, error)) (string, error) {
	if text == "" || fleet.ValidID(text) {
		return text, nil
	}
	list, err := all()
	if err != nil {
		return "", err
	}
	return findThing(kind, text, list)
}

// unnamed is for things that have no names: their ids alone are taken.
func unnamed(context.Context, *client.Client) func() ([]thing, error) { return nil }

// deleteAll deletes things of a kind, each by itself: one that refuses does not keep the others.
func (a *app) deleteAll(
	ctx context.Context, operator bool, kind string, refs []string,
	all func(context.Context, *client.Client) func() ([]thing, error), remove func(*client.Client, context.Context, string) error,
) error {
	c, _, err := a.connect(operator)
	if err != nil {
		return err
	}
	defer c.Close()
	list := all(ctx, c)
	var faults []error
	for _, ref := range refs {
		one := func(id string) error {
			if err := remove(c, ctx, id); err != nil {
				return err
			}
			return a.done("deleted", id)
		}
		var err error
		if list == nil {
			err = one(ref)
		} else {
			err = onThing(kind, ref, list, one)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		faults = append(faults, named(err, ref, len(refs)))
	}
	return a.several(faults)
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

func plural(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "y"); ok && !strings.HasSuffix(stem, "e") {
		return stem + "ies"
	}
	return kind + "s"
}
