package rest

import (
	"slices"
	"strconv"

	"gantry/api/v2"

	"gantry/fleet"
)

const (
	wordNone      = "none" // fleet.AccessNone in words
	wordInvokeAll = "all"  // fleet.InvokeAll in words
	maxInvoke     = 100
)

func accesses(p v2.WantedPermissions) map[fleet.Group]fleet.Access {
	if p == nil {
		return nil
	}
	out := map[fleet.Group]fleet.Access{}
	for group, word := range p {
		access := fleet.Access(word)
		if word == wordNone {
			access = fleet.AccessNone
		}
		out[fleet.Group(group)] = access
	}
	return out
}

func permissionsOf(can map[fleet.Group]fleet.Access) v2.Permissions {
	out := v2.Permissions{}
	for _, g := range fleet.Groups() {
		out[string(g)] = wordNone
	}
	for g, access := range can {
		if access != fleet.AccessNone {
			out[string(g)] = string(access)
		}
	}
	return out
}

func checkInvoke(v *v2.Invoke, path string) []string {
	switch {
	case v.Wrong:
		return []string{path + ": must be 'all' or a list of endpoint ids"}
	case len(v.IDs) > maxInvoke:
		return []string{path + ": must have at most " + counted(maxInvoke, "items")}
	}
	var out []string
	for i, id := range v.IDs {
		if !fleet.ValidID(id) && !fleet.ValidModelID(id) {
			out = append(out, path+"["+strconv.Itoa(i)+"]: must be the id of an endpoint or of a public model")
		}
	}
	return out
}

// endpoints is the list as fleet.Key has it; nil when it was left out.
func endpoints(v *v2.Invoke) []string {
	if v.All {
		return []string{fleet.InvokeAll}
	}
	return v.IDs
}

func invokeOf(ids []string) v2.Invoke {
	if slices.Equal(ids, []string{fleet.InvokeAll}) {
		return v2.Invoke{All: true}
	}
	return v2.Invoke{IDs: append([]string{}, ids...)}
}
