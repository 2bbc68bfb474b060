package membership

import (
	"context"
	"errors"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	keepEvery = time.Second
	// silentAfter is for how long a member that does not answer still counts as one that does.
	silentAfter = 3 * time.Second
)

// Keeper keeps Raft's configuration at what the records of the members say, while this member leads, and
// changes the records on an operator's word. Its methods are safe for concurrent use.
type Keeper struct {
	cfg Config

	// acting is held by whoever changes the membership, so that what was decided on stays so.
	acting chan struct{}

	mu     sync.Mutex // guards the fields below
	polls  map[fleet.MemberID]*poll
	moved  map[fleet.MemberID]string // addresses that members told by themselves
	asker  *asker                    // of this time of leading
	first  chan struct{}             // closed when everybody was asked once under this leader; nil: it does not lead
	leadAt time.Time
}

// NewKeeper returns the keeper of a member.
func NewKeeper(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, acting: make(chan struct{}, 1), polls: map[fleet.MemberID]*poll{}, moved: map[fleet.MemberID]string{}}
}

// Run looks after the members until ctx, which ends with leadership, does.
func (k *Keeper) Run(ctx context.Context) error {
	asking := newAsker(k, ctx)
	defer asking.close()
	defer k.begin(asking)() // before: nobody asks through one that is closed
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		asking.round() //nolint:contextcheck // questions end with the asker
		if err := k.once(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, replica.ErrNotLeader) {
			k.cfg.Log.Warn("reconcile the schedulers' membership", "err", err)
		}
		select {
		case <-tick.C:
		case <-asking.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// begin forgets what an earlier time of leading knew, and returns what ends this one.
func (k *Keeper) begin(a *asker) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.polls, k.first, k.leadAt, k.asker = map[fleet.MemberID]*poll{}, make(chan struct{}), time.Now(), a
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.polls, k.first, k.asker = map[fleet.MemberID]*poll{}, nil, nil
	}
}

// announce takes note of where a member says that it can be reached. The record changes when it answers there.
func (k *Keeper) announce(id fleet.MemberID, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.polls[id]; known {
		k.moved[id] = address
	}
}

// MayLead reports whether leadership may be handed to a member: it answered this leader lately, and its disk has
// room.
func (k *Keeper) MayLead(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.polls[fleet.MemberID(id)]
	if p == nil {
		return false
	}
	h := p.heard(time.Now())
	return h.answers && !h.full
}

// Answering counts the voters that answered this leader lately, itself among them; 0 while this member does not lead.
func (k *Keeper) Answering() (n int) {
	servers := k.cfg.Node.Servers()
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.first == nil {
		return 0
	}
	for _, s := range servers {
		p := k.polls[fleet.MemberID(s.ID)]
		if s.Voter && (fleet.MemberID(s.ID) == k.cfg.Self.ID || p != nil && p.heard(now).answers) {
			n++
		}
	}
	return n
}

// Clocks returns how far the clocks of those other voters are ahead of this member's that answered lately and told,
// and how many voters there are, this one among them.
func (k *Keeper) Clocks() (others []time.Duration, voters int) {
	offsets := k.Offsets()
	for _, s := range k.cfg.Node.Servers() {
		if !s.Voter {
			continue
		}
		voters++
		if off, known := offsets[fleet.MemberID(s.ID)]; known {
			others = append(others, off)
		}
	}
	return others, voters
}

// Offsets returns how far the clocks of the other members are ahead of this one's, of those that answered lately and
// told.
func (k *Keeper) Offsets() map[fleet.MemberID]time.Duration {
	now, out := time.Now(), map[fleet.MemberID]time.Duration{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, p := range k.polls {
		if p.clock != nil && p.heard(now).answers {
			out[id] = *p.clock
		}
	}
	return out
}

// lock waits until nobody else changes the membership.
func (k *Keeper) lock(ctx context.Context) error {
	select {
	case k.acting <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fleet.Unavailable("The members of the control plane are being changed. Please try again.", ctx.Err())
	}
}

func (k *Keeper) unlock() { <-k.acting }

// fresh is look after everybody was asked: who answers in it does so now. What takes a vote away is decided on it.
func (k *Keeper) fresh() (look, error) {
	l, err := k.look()
	if err != nil {
		return l, err
	}
	k.mu.Lock()
	a := k.asker
	k.mu.Unlock()
	if a == nil {
		return l, fleet.Unavailable("The control plane cannot take the request now. Please try again.", replica.ErrNotLeader)
	}
	begun := time.Now()
	a.everybody(present(l.members))
	if l, err = k.look(); err != nil {
		return l, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, p := range k.polls {
		if h := l.heard[id]; p.at.Before(begun) {
			h.answers, h.close = false, 0
			l.heard[id] = h
		}
	}
	return l, nil
}

// look takes a view of everything that is decided on.
func (k *Keeper) look() (look, error) {
	l := look{self: k.cfg.Self.ID, servers: k.cfg.Node.Servers(), heard: map[fleet.MemberID]heard{}, jobs: k.lookAtJobs()}
	err := k.cfg.Store.View(func(v *state.View) error {
		l.members = v.Members()
		cluster, _ := v.Cluster()
		l.level = cluster.Level
		return nil
	})
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, p := range k.polls {
		l.heard[id] = p.heard(now)
	}
	own := k.cfg.status()
	l.heard[l.self] = heard{
		answers: true, known: true, close: steady, applied: own.GetAppliedIndex(), level: own.GetLevel(),
		version: own.GetVersion(), address: own.GetAddress(), problem: own.GetProblem(), full: own.GetDiskFull(),
		certificate: agentrpc.DecodeCertificate(own.GetCertificate()),
	}
	return l, err
}

// once decides and does what is to be done now.
func (k *Keeper) once(ctx context.Context) error {
	if err := k.lock(ctx); err != nil {
		return err
	}
	defer k.unlock()
	l, err := k.look()
	if err != nil {
		return err
	}
	if !isMember(l.members, l.self) {
		return k.recordSelf(ctx, l)
	}
	l = k.jobsFollow(ctx, l)
	p := decide(l)
	if len(p.steps) > 0 {
		if l, err = k.fresh(); err != nil { //nolint:contextcheck // questions end with the asker
			return err
		}
		p = decide(l)
	}
	return k.do(ctx, l, p)
}

// recordSelf makes the record of a leader that has none: its cluster was made before there were such records.
func (k *Keeper) recordSelf(ctx context.Context, l look) error {
	for _, m := range l.members {
		if m.ID == l.self {
			return k.cfg.Node.Remove(ctx, string(l.self)) // it was removed: another has to lead
		}
	}
	self := k.cfg.Self
	return propose(ctx, k.cfg.Node, state.PutMember{Member: fleet.Member{
		ID: self.ID, Name: self.Name, Address: self.Address, Level: self.Level, Version: self.Version, JoinedAt: time.Now(),
	}})
}

// do carries out a plan as far as one look allows: the records, one change of the membership, and the level. What
// fails, and what is left, comes again in the next round, which takes a look of its own.
func (k *Keeper) do(ctx context.Context, l look, p plan) error {
	n := k.cfg.Node
	var faults []error
	do := func(what, id string, fn func(context.Context) error) {
		if ctx.Err() != nil {
			return
		}
		short, cancel := context.WithTimeout(ctx, changeTimeout)
		defer cancel()
		if err := fn(short); err != nil {
			faults = append(faults, err)
			return
		}
		k.cfg.Log.Info("schedulers changed", "what", what, "member", id)
	}
	for _, m := range p.record {
		do("record changed", string(m.ID), func(ctx context.Context) error { return propose(ctx, n, state.PutMember{Member: m}) })
	}
	if s, ok := p.next(l); ok {
		do(s.kind.String(), s.member.ID, func(ctx context.Context) error { return k.take(ctx, l, s) })
	}
	if p.raise > 0 {
		do("feature level raised", string(l.self), func(ctx context.Context) error {
			return propose(ctx, n, state.RaiseLevel{Level: p.raise})
		})
	}
	return errors.Join(faults...)
}

// take does a step. The jobs' group takes it before or after; see jobs.go.
func (k *Keeper) take(ctx context.Context, l look, s step) error {
	if err := k.jobsFirst(ctx, l, s); err != nil {
		return err
	}
	if err := s.take(ctx, k.cfg.Node); err != nil {
		return err
	}
	k.jobsAfter(ctx)
	return nil
}

// take does a step of the control plane's group.
func (s step) take(ctx context.Context, n Node) error {
	if s.kind == retire {
		return propose(ctx, n, state.RemoveMember{Member: fleet.MemberID(s.member.ID), At: time.Now()})
	}
	return s.change(ctx, n)
}

// change does what a step changes in a group.
func (s step) change(ctx context.Context, g Group) error {
	switch s.kind {
	case expel:
		return g.Remove(ctx, s.member.ID)
	case add:
		return g.AddNonVoter(ctx, s.member)
	case promote:
		return g.Promote(ctx, s.member)
	case demote:
		return g.Demote(ctx, s.member.ID)
	case retire: // changes a record only
	}
	return nil
}
