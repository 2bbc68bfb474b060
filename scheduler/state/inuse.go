package state

import (
	"fmt"
	"strings"

	"gantry/fleet"
)

// livePods finds the pods of an account that match and are not terminated.
func (t *txn) livePods(account fleet.AccountID, match func(*fleet.Pod) bool) uses {
	out := uses{thing: "pod"}
	for _, id := range t.podsOf(account) {
		if p := t.base.pods.Get(t.Txn, id); p != nil && p.Account == account && p.Status != fleet.StatusTerminated && match(p) {
			out.add(string(p.ID), p.Spec.Name)
		}
	}
	return out
}

// uses is how many things of a kind use another, with the first of them.
type uses struct {
	n     int
	thing string
	named []string // up to maxNamed
}

const maxNamed = 10

func (u *uses) add(id, name string) {
	if u.n++; u.n <= maxNamed {
		text := u.thing + " " + id
		if name != "" {
			text += " (" + name + ")"
		}
		u.named = append(u.named, text)
	}
}

// inUse refuses to delete what is used, and says by what.
func inUse(what string, by ...uses) error {
	var parts, named []string
	total := 0
	for _, u := range by {
		switch u.n {
		case 0:
		case 1:
			parts = append(parts, "1 "+u.thing)
		default:
			parts = append(parts, fmt.Sprintf("%d %ss", u.n, u.thing))
		}
		total += u.n
		named = append(named, u.named...)
	}
	verb := "have"
	if total == 1 {
		verb = "has"
	}
	if total == 0 {
		return nil
	}
	return &fleet.Error{
		Code: fleet.CodeInUse, Msg: fmt.Sprintf("%s is in use: %s %s it", what, strings.Join(parts, " and "), verb), Details: named,
	}
}
