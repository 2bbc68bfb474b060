package membership

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

	certificate fleet.NodeCertificate
}

// look is all that the leader decides on.
type look struct {
	self    fleet.MemberID
	members []fleet.Member
	servers []replica.Server
	heard   map[fleet.MemberID]heard // of self, too
	level   uint64                   // in force
	jobs    jobsLook
}

// kind is what a step does.
type kind int

// In this order they are done.
const (
	expel   kind = iota // take a removed member out of Raft's configuration
	add                 // without a vote, or at a new address
	promote             // give a vote
	demote              // take it
	retire              // remove the record of one that is replaced
)

func (k kind) String() string {
	return [...]string{"removed", "gets a copy", "votes", "does not vote any more", "replaced"}[k]
}

// step is one change of the membership.
type step struct {
	kind   kind
	member replica.Member // expel, demote and retire need its id only
}

// plan is what is to be done. Each part is right by itself, and what was not done comes again.
type plan struct {
	record []fleet.Member // records that changed
	steps  []step         // at most one is taken on one look: each changes what the others were judged on
	raise  uint64         // level; 0: none
}

// decide says what brings Raft's configuration to what the records say.
func decide(l look) plan {
	p := plan{raise: risen(l)}
	servers := map[fleet.MemberID]replica.Server{}
	addresses := map[string]bool{}
	for _, s := range l.servers {
		servers[fleet.MemberID(s.ID)], addresses[s.Address] = s, true
	}
	for _, m := range l.members {
		h := l.heard[m.ID]
		server, there := servers[m.ID]
		if !m.RemovedAt.IsZero() {
			if there {
				p.steps = append(p.steps, step{expel, server.Member})
			}
			continue
		}
		if now := renewed(m, h); now != m {
			p.record = append(p.record, now)
			m = now
		}
		want := replica.Member{ID: string(m.ID), Address: m.Address}
		_, before := servers[m.Replaces]
		switch {
		case !there && h.answers && !addresses[m.Address] && !isReplaced(l.members, m.ID),
			there && h.answers && server.Address != m.Address:
			p.steps = append(p.steps, step{add, want})
		case !there:
		case m.NonVoter && server.Voter:
			p.steps = append(p.steps, step{demote, want})
		case !m.NonVoter && !server.Voter && h.answers && h.close >= steady:
			p.steps = append(p.steps, step{promote, want})
		case m.Replaces != "" && isMember(l.members, m.Replaces) && (server.Voter || m.NonVoter && !before && h.close >= steady):
			p.steps = append(p.steps, step{retire, replica.Member{ID: string(m.Replaces)}})
		}
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return int(a.kind - b.kind) })
	return p
}

// next returns the first step after which the voters that answer are still a majority.
func (p plan) next(l look) (step, bool) {
	for _, s := range p.steps {
		if s.may(l) == nil {
			return s, true
		}
	}
	return step{}, false
}

// may refuses a step after which the voters that answer would be no majority.
func (s step) may(l look) error {
	switch s.kind {
	case expel, demote, retire:
		return mayGo(fleet.MemberID(s.member.ID), l, false)
	case promote:
		if err := enough(voices(l, l.servers, "").and(1)); err != nil {
			return err
		}
		return l.jobsMayPromote(fleet.MemberID(s.member.ID))
	case add:
	}
	return nil
}

// isReplaced reports whether another member takes the place of this one.
func isReplaced(members []fleet.Member, id fleet.MemberID) bool {
	return slices.ContainsFunc(members, func(m fleet.Member) bool { return m.Replaces == id && m.RemovedAt.IsZero() })
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

// voice counts those who vote, and of them those who answer.
type voice struct{ voters, answer int }

// and is the count with so many more that answer.
func (v voice) and(n int) voice { return voice{v.voters + n, v.answer + n} }

// voices counts all of a group who vote but one. One that was removed does not answer: it is refused.
func voices(l look, servers []replica.Server, without fleet.MemberID) (v voice) {
	for _, s := range servers {
		id := fleet.MemberID(s.ID)
		if !s.Voter || id == without {
			continue
		}
		v.voters++
		if l.answers(id) {
			v.answer++
		}
	}
	return v
}

// answers reports whether a member answers and was not removed.
func (l look) answers(id fleet.MemberID) bool {
	return id == l.self || l.heard[id].answers && isMember(l.members, id)
}

// enough refuses voters of whom too few answer.
func enough(v voice) error {
	if v.answer > v.voters/2 {
		return nil
	}
	return fleet.BreaksRule("Of the %d voters that would be left only %d answer: they could decide nothing. Bring one back first, or force it.",
		v.voters, v.answer)
}

// mayGo refuses the removal of a member after which the voters that answer would be no majority, or none would
// be left. That holds for the group of the jobs, too.
func mayGo(id fleet.MemberID, l look, force bool) error {
	left := voices(l, l.servers, id)
	switch {
	case votes(l.servers, string(id)) && left.voters == 0:
		return fleet.BreaksRule("The last scheduler that votes cannot be removed, nor lose its vote.")
	case force:
		return nil
	case votes(l.servers, string(id)):
		if err := enough(left); err != nil {
			return err
		}
	}
	return l.jobsMayLose(id)
}
