package membership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/replica"
)

// after is the look once a step was taken: nobody's answers have changed.
func (l look) after(s step) look {
	l.servers, l.members = slices.Clone(l.servers), slices.Clone(l.members)
	at := slices.IndexFunc(l.servers, func(x replica.Server) bool { return x.ID == s.member.ID })
	switch s.kind {
	case expel:
		l.servers = slices.Delete(l.servers, at, at+1)
	case add:
		if at < 0 {
			l.servers = append(l.servers, replica.Server{Member: s.member})
		} else {
			l.servers[at].Address = s.member.Address
		}
	case promote:
		l.servers[at].Voter = true
	case demote:
		l.servers[at].Voter = false
	case retire:
		for i, m := range l.members {
			if string(m.ID) == s.member.ID {
				l.members[i].RemovedAt = time.Unix(1, 0)
			}
		}
	}
	return l
}

// decides reports whether the voters that answer are a majority of those who vote. A voter that was removed is
// about to leave, and counts for nothing.
func (l look) decides() bool {
	voters, answer := 0, 0
	for _, s := range l.servers {
		i := slices.IndexFunc(l.members, func(m fleet.Member) bool { return string(m.ID) == s.ID })
		if !s.Voter || !l.members[i].RemovedAt.IsZero() {
			continue
		}
		voters++
		if l.heard[fleet.MemberID(s.ID)].answers {
			answer++
		}
	}
	return 2*answer > voters
}

func TestTheKeeperNeverTakesTheMajorityAway(t *testing.T) {
	// Three members are replaced by three new ones at once, and two of those have just died.
	l := cluster("a v", "b v", "c v", "d v replaces=a", "e v replaces=b dead", "f v replaces=c dead")
	l.self = "d"
	for range 20 {
		s, ok := decide(l).next(l)
		if !ok {
			return
		}
		if l = l.after(s); !l.decides() {
			t.Fatalf("after %s %s the voters that answer are no majority of %+v", s.kind, s.member.ID, l.servers)
		}
	}
	t.Error("the keeper finds no end")
}

func TestNoStepTakesTheMajorityAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := draw(t)
		for range 50 {
			s, ok := decide(l).next(l)
			if !ok {
				return
			}
			had := l.decides()
			if l = l.after(s); had && !l.decides() {
				t.Fatalf("after %s %s the voters that answer are no majority of %+v", s.kind, s.member.ID, l.servers)
			}
		}
		t.Fatal("the keeper finds no end")
	})
}

// draw makes up what a leader may see.
func draw(t *rapid.T) look {
	l := look{self: "m0", level: 1, heard: map[fleet.MemberID]heard{}}
	n := rapid.IntRange(1, 8).Draw(t, "members")
	for i := range n {
		id := fleet.MemberID(fmt.Sprint("m", i))
		m := fleet.Member{ID: id, Address: fmt.Sprint(id, ":1"), Level: 1}
		h := heard{answers: true, known: true, close: steady, level: 1, address: m.Address}
		voter, there := true, true
		if i > 0 {
			m.NonVoter = rapid.Bool().Draw(t, "never votes")
			h.answers = rapid.Bool().Draw(t, "answers")
			h.close = rapid.IntRange(0, steady).Draw(t, "close")
			if rapid.IntRange(0, 3).Draw(t, "moves") == 0 {
				h.address = fmt.Sprint(id, ":2")
			}
			if rapid.IntRange(0, 3).Draw(t, "removed") == 0 {
				m.RemovedAt = time.Unix(1, 0)
			}
			if rapid.Bool().Draw(t, "replaces") {
				m.Replaces = fleet.MemberID(fmt.Sprint("m", rapid.IntRange(1, n-1).Draw(t, "whom")))
			}
			there = rapid.Bool().Draw(t, "in Raft")
			voter = rapid.Bool().Draw(t, "votes")
		}
		if m.Replaces == id {
			m.Replaces = ""
		}
		l.members, l.heard[id] = append(l.members, m), h
		if there {
			l.servers = append(l.servers, replica.Server{Member: replica.Member{ID: string(id), Address: m.Address}, Voter: voter})
		}
	}
	return l
}
