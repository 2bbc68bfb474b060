package peers

import (
	"slices"

	"gantry/fleet"
	"gantry/scheduler/replica"
)

const (
	// closeBehind is how many entries behind the leader a member is at most that gets a vote.
	closeBehind = 1000
	// steady is how often in a row it has to be that close.
	steady = 2
)

// heard is what the leader knows of a member from its answers.
type heard struct {
	answers bool   // within the last seconds
	known   bool   // it has answered at all, under this leader
	close   int    // how often in a row it was close behind
	applied uint64 // as it said last
	level   uint64
	version string
	address string // where it was reached
	problem string // its own, or why it does not answer
	full    bool   // its disk
}

// look is all that the leader decides on.
type look struct {
	self    fleet.MemberID
	members []fleet.Member
	servers []replica.Server
	heard   map[fleet.MemberID]heard // of self, too
	level   uint64                   // in force
}

// plan is what is to be done, in this order. Each part is right by itself, and what was not done comes again.
type plan struct {
	record  []fleet.Member   // records that changed
	expel   []string         // from Raft's configuration
	add     []replica.Member // without a vote, or to a new address
	promote []replica.Member
	demote  []string
	retire  []fleet.MemberID // replaced by one that votes
	raise   uint64           // level; 0: none
}

// decide says what brings Raft's configuration to what the records say.
func decide(l look) plan {
	p := plan{raise: risen(l)}
	servers := map[fleet.MemberID]replica.Server{}
	for _, s := range l.servers {
		servers[fleet.MemberID(s.ID)] = s
	}
	for _, m := range l.members {
		h := l.heard[m.ID]
		server, there := servers[m.ID]
		if !m.RemovedAt.IsZero() {
			if there {
				p.expel = append(p.expel, server.ID)
			}
			continue
		}
		if now := renewed(m, h); now != m {
			p.record = append(p.record, now)
			m = now
		}
		want := replica.Member{ID: string(m.ID), Address: m.Address}
		switch {
		case !there && h.answers, there && h.answers && server.Address != m.Address:
			p.add = append(p.add, want)
		case !there:
		case m.NonVoter && server.Voter:
			p.demote = append(p.demote, server.ID)
		case !m.NonVoter && !server.Voter && h.answers && h.close >= steady:
			p.promote = append(p.promote, want)
		case server.Voter && m.Replaces != "" && isMember(l.members, m.Replaces):
			p.retire = append(p.retire, m.Replaces)
		}
	}
	return p
}

// renewed returns a member's record with what it says of itself.
func renewed(m fleet.Member, h heard) fleet.Member {
	if h.answers {
		m.Address, m.Level, m.Version = h.address, h.level, h.version
	}
	return m
}

func isMember(members []fleet.Member, id fleet.MemberID) bool {
	return slices.ContainsFunc(members, func(m fleet.Member) bool { return m.ID == id && m.RemovedAt.IsZero() })
}

// risen returns the level that every member understands when it is above the one in force, else 0.
func risen(l look) uint64 {
	var lowest uint64
	for i, m := range present(l.members) {
		if now := renewed(m, l.heard[m.ID]).Level; i == 0 || now < lowest {
			lowest = now
		}
	}
	if lowest <= l.level {
		return 0
	}
	return lowest
}

func present(members []fleet.Member) []fleet.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m fleet.Member) bool { return !m.RemovedAt.IsZero() })
}

// mayGo refuses the removal of a member after which the voters that answer would be no majority, or none would
// be left.
func mayGo(id fleet.MemberID, l look, force bool) error {
	var left, answer int
	isVoter := false
	for _, s := range l.servers {
		switch {
		case !s.Voter:
		case s.ID == string(id):
			isVoter = true
		default:
			left++
			if s.ID == string(l.self) || l.heard[fleet.MemberID(s.ID)].answers {
				answer++
			}
		}
	}
	switch {
	case !isVoter:
		return nil
	case left == 0:
		return fleet.BreaksRule("The last scheduler that votes cannot be removed, nor lose its vote.")
	case answer <= left/2 && !force:
		return fleet.BreaksRule("Of the %d voters that would be left only %d answer: they could decide nothing. Bring one back first, or force it.", left, answer)
	}
	return nil
}
