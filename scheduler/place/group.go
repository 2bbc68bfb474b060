package place

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gantry/fleet"
)

// Group asks for the hosts of several pods of one shape at once.
type Group struct {
	Request
	Count      int  // pods, at least 1
	OneCenter  bool // all in one data center
	OnePerHost bool // no two on one host
	// Hold returns what a pod, by its number, holds on the host picked for it, which the next pods do not see; false: this host
	// does not do after all. A number may come again, for another try of the group; a host that was refused comes once.
	// Nil: Need, on every host.
	Hold func(pod int, on Choice, host *Candidate) (fleet.Resources, bool)
}

// PickGroup chooses a host for each pod of a group: each pod sees what those before it took. It chooses for all or for
// none, and fails only with an error as that of Pick for the first pod that found no host. A group that must be in one data
// center goes to the center of the best host if it fits there, else to the next by its id. There, pods of which each is to have a host of
// its own go to hosts near each other, if operators said where hosts are. The error is that of the center that took the
// most pods; with a host for each pod, it is of all hosts, and counts in each center those that had room for one pod.
func (x *Index) PickGroup(g Group, instead Instead) ([]Choice, error) {
	if !g.OneCenter {
		choices, err := x.pickAll(&g, instead)
		switch {
		case err == nil:
			return choices, nil
		case g.OnePerHost:
			return nil, tooFew(err, len(choices), fmt.Sprintf("room for one pod each, but %d are needed", g.Count))
		}
		return nil, err
	}
	first, err := x.Pick(g.Request, instead)
	if err != nil {
		return nil, err
	}
	centers := x.centersFrom(first.DataCenter, g.Centers, instead)
	if g.OnePerHost {
		return x.pickApart(g, centers, instead)
	}
	most, why := -1, error(nil)
	for _, center := range centers {
		g.Centers = []fleet.DataCenterID{center}
		choices, err := x.pickAll(&g, instead)
		if err == nil {
			return choices, nil
		}
		if len(choices) > most {
			most, why = len(choices), err
		}
	}
	return nil, why
}

// tooFew adds the hosts that had room, which were not enough, to an error of Pick.
func tooFew(err error, hosts int, reason string) error {
	var e *fleet.Error
	if hosts > 0 && errors.As(err, &e) {
		e.Excluded = append(e.Excluded, fleet.Exclusion{Reason: reason, Hosts: hosts})
	}
	return err
}

// pickAll picks one pod after the other. With an error, it returns the choices before it.
func (x *Index) pickAll(g *Group, instead Instead) ([]Choice, error) {
	less, own := instead, false
	without := func(host fleet.HostID, left *Candidate) {
		if !own {
			less, own = make(Instead, len(instead)+g.Count), true
			maps.Copy(less, instead)
		}
		less[host] = left
	}
	choices := make([]Choice, 0, g.Count)
	for len(choices) < g.Count {
		choice, err := x.Pick(g.Request, less)
		if err != nil {
			return choices, err
		}
		on, need, ok := x.Get(choice.Host, less), g.Need, true
		if g.Hold != nil {
			need, ok = g.Hold(len(choices), choice, on)
		}
		if ok {
			choices = append(choices, choice)
		}
		switch {
		case len(choices) == g.Count:
		case !ok || g.OnePerHost:
			without(choice.Host, nil)
		default:
			left := on.Less(choice.GPUs, need, 1)
			without(choice.Host, &left)
		}
	}
	return choices, nil
}

// centersFrom returns the data centers that have hosts and are among those allowed, the first one first.
func (x *Index) centersFrom(
	first fleet.DataCenterID, allowed []fleet.DataCenterID, instead Instead,
) []fleet.DataCenterID {
	var others []fleet.DataCenterID
	add := func(id fleet.DataCenterID) {
		if id != first && (len(allowed) == 0 || slices.Contains(allowed, id)) && !slices.Contains(others, id) {
			others = append(others, id)
		}
	}
	for _, s := range x.shapes {
		for _, p := range s.pools {
			add(p.center)
		}
	}
	for _, c := range instead {
		if c != nil {
			add(c.Host.DataCenter)
		}
	}
	slices.Sort(others)
	return append([]fleet.DataCenterID{first}, others...)
}
