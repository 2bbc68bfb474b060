package membership

import (
	"context"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/replica"
)

// Every majority of the control plane's voters must contain a majority of the voters of the jobs' group, or a loss that the
// first one survives costs all jobs. So the control plane's leader changes both, once it leads both and they have the same
// voters: the jobs' group first when the number of voters is even, the control plane first when it is odd.

const (
	// jobsWait is how long an operator's change waits until the jobs' group has followed.
	jobsWait = 4 * time.Second
	jobsPoll = 50 * time.Millisecond
)

// jobsLook is what a member knows of the group that has the jobs.
type jobsLook struct {
	servers []replica.Server
	led     bool                    // by anybody
	here    bool                    // by this member
	close   map[fleet.MemberID]bool // close behind this member, which leads it
}

// standing says whether a vote may be given or taken for the sake of the jobs' group.
type standing int

const (
	gone   standing = iota // it has no majority that a step could take, or there is no such group
	behind                 // it has one, and other voters, or another leader yet
	level
)

// jobsStand compares the jobs' group with the control plane's. A voter that does not answer cannot get a vote in the jobs'
// group, and is not waited for.
func (l look) jobsStand() standing {
	if !l.jobs.here {
		if l.jobs.led || enough(voices(l, l.jobs.servers, "")) == nil {
			return behind
		}
		return gone
	}
	for _, s := range l.servers {
		if s.Voter && !votes(l.jobs.servers, s.ID) && l.answers(fleet.MemberID(s.ID)) {
			return behind
		}
	}
	for _, s := range l.jobs.servers {
		if s.Voter && !votes(l.servers, s.ID) {
			return behind
		}
	}
	return level
}

func errJobsBehind() error {
	return &fleet.Error{
		Code: fleet.CodeUnavailable, NothingDone: true,
		Msg: "The group that has the jobs does not have the same voters and leader as the control plane yet. " +
			"It follows within seconds while most of its voters answer: please try again.",
	}
}

// jobsMayLose refuses to take a member's vote while the jobs' group is behind, and when the voters that it would be left with
// could not decide.
func (l look) jobsMayLose(id fleet.MemberID) error {
	inJobs := votes(l.jobs.servers, string(id))
	if !inJobs && !votes(l.servers, string(id)) {
		return nil
	}
	switch l.jobsStand() {
	case behind:
		return errJobsBehind()
	case level:
		if inJobs {
			return enough(voices(l, l.jobs.servers, id))
		}
	case gone:
	}
	return nil
}

// jobsMayPromote refuses a vote to a member before the jobs' group can give it one, too.
func (l look) jobsMayPromote(id fleet.MemberID) error {
	switch l.jobsStand() {
	case behind:
		return errJobsBehind()
	case level:
		if votes(l.jobs.servers, string(id)) {
			return nil
		}
		if !l.jobs.close[id] {
			return errJobsBehind()
		}
		return enough(voices(l, l.jobs.servers, "").and(1))
	case gone:
	}
	return nil
}

// jobsStep is the next change that makes the members of the jobs' group those of the control plane. Votes are given before
// any is taken, and none is taken from a majority that needs it.
func (l look) jobsStep() (step, bool) {
	waits := false
	for _, s := range l.servers {
		i := slices.IndexFunc(l.jobs.servers, func(j replica.Server) bool { return j.ID == s.ID })
		taken := slices.ContainsFunc(l.jobs.servers, func(j replica.Server) bool { return j.ID != s.ID && j.Address == s.Address })
		id := fleet.MemberID(s.ID)
		switch {
		case (i < 0 || l.jobs.servers[i].Address != s.Address) && !taken:
			return step{add, s.Member}, true
		case !s.Voter || votes(l.jobs.servers, s.ID) || !l.answers(id):
		case i >= 0 && l.jobs.close[id] && enough(voices(l, l.jobs.servers, "").and(1)) == nil:
			return step{promote, s.Member}, true
		default:
			waits = waits || i >= 0 || !taken
		}
	}
	for _, s := range l.jobs.servers {
		id := fleet.MemberID(s.ID)
		there := slices.ContainsFunc(l.servers, func(c replica.Server) bool { return c.ID == s.ID })
		switch {
		case id == l.self, there && (!s.Voter || votes(l.servers, s.ID)):
		case s.Voter && (waits || enough(voices(l, l.jobs.servers, id)) != nil):
		case there:
			return step{demote, s.Member}, true
		default:
			return step{expel, s.Member}, true
		}
	}
	return step{}, false
}

// votes reports whether a member of a group has a vote.
func votes(servers []replica.Server, id string) bool {
	return slices.ContainsFunc(servers, func(s replica.Server) bool { return s.Voter && s.ID == id })
}

// lookAtJobs takes a view of the jobs' group.
func (k *Keeper) lookAtJobs() (l jobsLook) {
	g := k.cfg.Jobs
	if g == nil {
		return l
	}
	_, l.led = g.Leader()
	l.servers, l.here, l.close = g.Servers(), g.IsLeader(), map[fleet.MemberID]bool{}
	for _, s := range l.servers {
		id := fleet.MemberID(s.ID)
		l.close[id] = id == k.cfg.Self.ID || isClose(g.Acked(s.ID), g.LastIndex())
	}
	return l
}

// jobsFollow has the jobs' group, while it is led here, follow the control plane's members in a look as far as it can, and
// returns the look with what came of it. The caller holds acting.
func (k *Keeper) jobsFollow(ctx context.Context, l look) look {
	l.jobs = k.lookAtJobs()
	for range 2 * (len(l.servers) + len(l.jobs.servers)) { // each is added and promoted, or demoted and removed, at most
		s, ok := l.jobsStep()
		if !ok || !l.jobs.here || ctx.Err() != nil {
			break
		}
		if err := s.change(ctx, k.cfg.Jobs); err != nil {
			k.cfg.Log.Warn("the members of the jobs' group are not yet those of the control plane", "err", err)
			break
		}
		l.jobs = k.lookAtJobs()
	}
	return l
}

// jobsComeFirst reports whether the jobs' group takes a step before the control plane. A leader does not take its own vote:
// it hands leadership on.
func (l look) jobsComeFirst(s step) bool {
	return s.kind != add && s.kind != retire && fleet.MemberID(s.member.ID) != l.self && l.jobsStand() == level &&
		voices(l, l.servers, "").voters%2 == 0
}

// jobsFirst makes sure that the jobs' group is what a step was judged on, and takes the step there when it comes first.
func (k *Keeper) jobsFirst(ctx context.Context, l look, s step) error {
	if s.kind == add || l.jobsStand() != level {
		return nil
	}
	if err := k.cfg.Jobs.Barrier(ctx); err != nil {
		return err
	}
	if l.jobs = k.lookAtJobs(); l.jobsStand() != level {
		return fleet.Unavailable("The group that has the jobs has changed meanwhile. Please try again.", replica.ErrUnknown)
	}
	if !l.jobsComeFirst(s) {
		return nil
	}
	return s.change(ctx, k.cfg.Jobs)
}

// jobsAfter has the jobs' group follow a step that was taken.
func (k *Keeper) jobsAfter(ctx context.Context) {
	if l, err := k.look(); err == nil {
		k.jobsFollow(ctx, l)
	}
}

// settled is a fresh look for a change of votes, once the jobs' group is not behind any more, or jobsWait is over.
func (k *Keeper) settled(ctx context.Context) (look, error) {
	for end := time.Now().Add(jobsWait); ; {
		l, err := k.fresh() //nolint:contextcheck // questions end with the asker
		if err != nil {
			return l, err
		}
		if l = k.jobsFollow(ctx, l); l.jobsStand() != behind || time.Now().After(end) {
			return l, nil
		}
		if sleep.For(ctx, jobsPoll) != nil {
			return l, errJobsBehind()
		}
	}
}

// LeadJobs hands leadership of the jobs' group to the control plane's leader each time that this member has it and is
// another, until ctx ends: requests have both in one place then, and the keeper changes both. It returns when ctx ends.
func (k *Keeper) LeadJobs(ctx context.Context) error {
	return k.cfg.Jobs.WhileLeader(ctx, func(ctx context.Context) error {
		for {
			changed := k.cfg.Node.LeaderChanges()
			if err := k.handJobsOn(ctx); err != nil && ctx.Err() == nil {
				k.cfg.Log.Warn("leadership of the jobs' group was not taken by the control plane's leader", "err", err)
			}
			select {
			case <-changed:
			case <-time.After(keepEvery):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// handJobsOn makes the control plane's leader that of the jobs' group, or does what has to come before.
func (k *Keeper) handJobsOn(ctx context.Context) error {
	leader, ok := k.cfg.Node.Leader()
	if !ok || leader.ID == string(k.cfg.Self.ID) {
		return nil
	}
	l := k.lookAtJobs()
	switch there := slices.ContainsFunc(l.servers, func(s replica.Server) bool { return s.ID == leader.ID }); {
	case votes(l.servers, leader.ID):
		return k.cfg.Jobs.Transfer(ctx, leader.ID)
	case !there:
		return k.cfg.Jobs.AddNonVoter(ctx, leader)
	case l.close[fleet.MemberID(leader.ID)]:
		return k.cfg.Jobs.Promote(ctx, leader)
	}
	return nil
}
