package state

import "gantry/fleet"

// Members returns the members of the control plane by id, removed ones too.
func (v *View) Members() []fleet.Member { return nil }

// Member returns a member of the control plane, who may have been removed.
func (v *View) Member(id fleet.MemberID) (fleet.Member, bool) { return fleet.Member{}, false }
