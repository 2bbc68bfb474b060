package state

import "gantry/fleet"

// Members returns the members of the control plane by id, removed ones too.
func (v *View) Members() []fleet.Member {
	out := make([]fleet.Member, 0, len(v.tb.members.Rows))
	for _, id := range sortedKeys(v.tb.members.Rows) {
		out = append(out, *v.tb.members.Rows[id])
	}
	return out
}

// Member returns a member of the control plane, who may have been removed.
func (v *View) Member(id fleet.MemberID) (fleet.Member, bool) {
	m := v.tb.members.Rows[id]
	if m == nil {
		return fleet.Member{}, false
	}
	return *m, true
}
