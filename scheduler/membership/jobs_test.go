package membership

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/replica"
)

// withJobs is a look at members and at a jobs' group that is led here, by a leader that is nobody here, or by none.
func withJobs(l look, led string, jobs ...string) look {
	l.jobs = jobsLook{servers: cluster(jobs...).servers, here: led == "here", led: led != "nobody", close: map[fleet.MemberID]bool{}}
	for _, line := range jobs {
		l.jobs.close[fleet.MemberID(strings.Fields(line)[0])] = !strings.Contains(line, "far")
	}
	return l
}

func TestNoVoteIsTakenThatTheJobsNeed(t *testing.T) {
	four := func() look { return cluster("a v", "b v", "c v dead", "d v") }
	for name, c := range map[string]struct {
		look look
		says string
	}{
		"they have not followed":               {withJobs(four(), "here", "a v", "b v", "c v"), "does not have the same voters"},
		"they have":                            {withJobs(four(), "here", "a v", "b v", "c v", "d v"), ""},
		"another leads them yet":               {withJobs(four(), "elsewhere", "a v", "b v", "c v", "d v"), "and leader"},
		"they elect a leader":                  {withJobs(four(), "nobody", "a v", "b v", "c v", "d v"), "and leader"},
		"they have lost their majority":        {withJobs(four(), "nobody", "c v", "b n"), ""},
		"they lost it where b is half of them": {withJobs(four(), "nobody", "c v", "b v"), ""},
		"they are not known":                   {withJobs(four(), "nobody"), ""},
		"one that is dead cannot follow":       {withJobs(cluster("a v", "b v", "c v", "d v dead"), "here", "a v", "b v", "c v"), ""},
		"and b is needed then":                 {withJobs(cluster("a v", "b v", "c v", "d v dead", "e v"), "here", "a v", "b v", "e n far"), "does not have the same"},
		"b would leave none":                   {withJobs(cluster("a v dead", "b v", "c v", "d v"), "here", "a v", "b v"), "does not have the same"},
		"one who leaves has a vote yet":        {withJobs(cluster("a v", "b v", "c v"), "here", "a v", "b v", "c v", "d v"), "does not have the same"},
		"b never had a vote":                   {withJobs(cluster("a v", "b n", "c v"), "here", "a v", "b n", "c n far"), ""},
	} {
		err := mayGo("b", c.look, false)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if err := mayGo("b", c.look, true); err != nil {
			t.Errorf("%s, forced: %v", name, err)
		}
	}
}

func TestNobodyVotesWhomTheJobsDoNotHave(t *testing.T) {
	two := func() look { return cluster("a v", "b v", "c n") }
	for name, c := range map[string]struct {
		look look
		may  bool
	}{
		"caught up":        {withJobs(two(), "here", "a v", "b v", "c n"), true},
		"votes already":    {withJobs(cluster("a v", "b v", "c v", "d n"), "here", "a v", "b v", "c v", "d n"), true},
		"far behind":       {withJobs(two(), "here", "a v", "b v", "c n far"), false},
		"not there":        {withJobs(two(), "here", "a v", "b v"), false},
		"led elsewhere":    {withJobs(two(), "elsewhere", "a v", "b v", "c n"), false},
		"one vote short":   {withJobs(two(), "here", "a v", "b n", "c n"), false},
		"majority is lost": {withJobs(two(), "nobody", "x v"), true},
	} {
		p := decide(c.look)
		if s, ok := p.next(c.look); ok != c.may || ok && s.kind != promote {
			t.Errorf("%s: %v %v of %q", name, s, ok, p.text())
		}
	}
}

func TestTheJobsFollow(t *testing.T) {
	for name, c := range map[string]struct {
		look look
		want string
	}{
		"the same":                         {withJobs(cluster("a v", "b n"), "here", "a v", "b n"), ""},
		"a new one":                        {withJobs(cluster("a v", "b n"), "here", "a v"), "add b b:1"},
		"a new voter gets a copy first":    {withJobs(cluster("a v", "b v"), "here", "a v"), "add b b:1"},
		"it has caught up":                 {withJobs(cluster("a v", "b v"), "here", "a v", "b n"), "promote b"},
		"it has not":                       {withJobs(cluster("a v", "b v"), "here", "a v", "b n far"), ""},
		"it is dead":                       {withJobs(cluster("a v", "b v dead"), "here", "a v", "b n"), ""},
		"a vote was taken":                 {withJobs(cluster("a v", "b n"), "here", "a v", "b v"), "demote b"},
		"one has left":                     {withJobs(cluster("a v"), "here", "a v", "b v"), "expel b"},
		"not before another votes":         {withJobs(cluster("a v", "b v"), "here", "a v", "b n far", "c v"), ""},
		"without a vote it may":            {withJobs(cluster("a v", "b v"), "here", "a v", "b n far", "c n"), "expel c"},
		"one that is dead holds up nobody": {withJobs(cluster("a v", "b v dead"), "here", "a v", "b n", "c v"), "expel c"},
		"who is left could not decide":     {withJobs(cluster("a v", "b v dead"), "here", "a v", "b v", "c v"), ""},
		"another is at its address": {
			withJobs(look{self: "a", servers: []replica.Server{{Member: replica.Member{ID: "z", Address: "b:1"}}}}, "here", "b n"), "expel b",
		},
	} {
		got := ""
		if s, ok := c.look.jobsStep(); ok {
			got = plan{steps: []step{s}}.text()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// outlives reports whether every majority of the control plane's voters has a majority of those of the jobs' group.
func (l look) outlives() bool {
	control, jobs, alone := 0, 0, 0
	for _, s := range l.servers {
		if s.Voter {
			control++
			if !votes(l.jobs.servers, s.ID) {
				alone++
			}
		}
	}
	for _, s := range l.jobs.servers {
		if s.Voter {
			jobs++
		}
	}
	return 2*max(control/2+1-alone, 0) > jobs
}

// inJobs is the look once the jobs' group took a step.
func (l look) inJobs(s step) look {
	jobs := l.jobs
	jobs.servers = look{servers: l.jobs.servers}.after(s).servers
	l.jobs = jobs
	return l
}

func TestEveryMajorityHasTheJobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := draw(t)
		l.jobs = jobsLook{servers: slices.Clone(l.servers), here: true, led: true, close: map[fleet.MemberID]bool{}}
		for _, m := range l.members {
			l.jobs.close[m.ID] = rapid.Bool().Draw(t, "close in the jobs' group")
		}
		check := func(what string, s step) {
			if !l.outlives() {
				t.Fatalf("%s %s %s: of the voters %+v a majority has none of the jobs' %+v", what, s.kind, s.member.ID, l.servers, l.jobs.servers)
			}
		}
		for range 50 {
			for range 50 {
				s, ok := l.jobsStep()
				if !ok {
					break
				}
				l = l.inJobs(s)
				check("the jobs' group follows:", s)
			}
			s, ok := decide(l).next(l)
			if !ok {
				return
			}
			if l.jobsComeFirst(s) {
				l = l.inJobs(s)
				check("first in the jobs' group:", s)
			}
			l = l.after(s)
			check("in the control plane:", s)
		}
		t.Fatal("the keeper finds no end")
	})
}

// The jobs' group has the control plane's members, votes and leader.
func TestTheJobsGroupIsBroughtAlong(t *testing.T) {
	w := newWorld(t)
	all := []*machine{w.lead, w.member(false), w.member(false), w.member(true)}
	same := func(what string, lead *machine) {
		t.Helper()
		eventually(t, what, func() bool {
			return lead.node.IsLeader() && lead.jobs.IsLeader() && slices.Equal(sorted(lead.node.Servers()), sorted(lead.jobs.Servers()))
		})
	}
	same("all are in both groups", w.lead)
	w.must(w.lead.keeper.Demote(within(t), fleet.MemberID(all[2].id)))
	same("a vote is taken in both", w.lead)
	w.must(w.lead.keeper.Promote(within(t), fleet.MemberID(all[2].id)))
	eventually(t, "it votes again", func() bool { s, ok := w.server(all[2].id); return ok && s.Voter })
	same("a vote is given in both", w.lead)
	w.must(w.lead.keeper.Transfer(within(t), fleet.MemberID(all[1].id)))
	same("leadership is handed on in both", all[1])
	eventually(t, "the new leader removes one", func() bool {
		return all[1].keeper.Remove(within(t), fleet.MemberID(all[2].id), false) == nil
	})
	same("it is in neither", all[1])
	// The other one at once: the jobs' group is never a step behind.
	w.must(all[1].keeper.Remove(within(t), fleet.MemberID(all[0].id), false))
	same("one is left that votes", all[1])
}

func sorted(servers []replica.Server) []replica.Server {
	return slices.SortedFunc(slices.Values(servers), func(a, b replica.Server) int { return strings.Compare(a.ID, b.ID) })
}
