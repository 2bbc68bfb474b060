package dispatch

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// maxMarks is how many hosts are marked in one log entry.
const maxMarks = 256

// fraction is a part of d that is short beside it and no load when something is done at each.
func fraction(d time.Duration) time.Duration {
	return min(max(d/16, 5*time.Millisecond), 200*time.Millisecond)
}

// watchSessions ends the sessions of hosts that are silent, has those hear a beat whose messages are worked on, and looks whether the members changed, until ctx
// ends. One goroutine does it for all.
func (s *Server) watchSessions(ctx context.Context) {
	tick := time.NewTicker(fraction(s.HeartbeatTimeout))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.learnMembers()
		now := time.Now()
		s.mu.Lock()
		for _, x := range s.sessions {
			switch {
			case x.silent(now, s.HeartbeatTimeout):
				x.cancel(errSilent)
			case x.working.Load() && now.Sub(time.Unix(0, x.lastSent.Load())) >= s.Heartbeat/2:
				x.beatDue.Store(true) // what is being committed for it may take long
				x.poke()
			}
			if x.through != nil && s.lead != nil {
				x.heardBesideRival(ctx, now.Add(-s.HeartbeatTimeout)) // else the scheduler between had told its end
			}
		}
		s.moveSome(now)
		s.mu.Unlock()
	}
}

// How much longer than Settle hosts have at most to find a new leader, while others still come: each takes some of this scheduler's time.
const (
	settleFactor  = 3
	settlePerHost = 5 * time.Millisecond
)

// settling is when hosts that have not found a new leader count as lost: as long as some come, others may be on their way.
type settling struct {
	by, most time.Time
	last     time.Time // when it was looked
}

// newSettling returns the settling of a number of hosts under a leader that began at a time.
func newSettling(began time.Time, settle time.Duration, hosts int) settling {
	return settling{by: began.Add(settle), most: began.Add(settleFactor*settle + time.Duration(hosts)*settlePerHost)}
}

// came notes that a host came at a time, which gives the others as long as d.
func (s *settling) came(now time.Time, d time.Duration) {
	if until := now.Add(d); now.Before(s.by) && until.After(s.by) {
		s.by = until
		if s.by.After(s.most) {
			s.by = s.most
		}
	}
}

// looked notes that the scheduler looks who is lost. Time in which it stood still itself, as nobody could come to it then, does not count.
func (s *settling) looked(now time.Time, patience time.Duration) {
	if gap := now.Sub(s.last); !s.last.IsZero() && gap > patience/2 {
		s.by, s.most = s.by.Add(gap), s.most.Add(gap)
	}
	s.last = now
}

// watchAbsent marks hosts unreachable that count as ready and have had no session for too long. A mark
// that could not be made is made later.
func (s *Server) watchAbsent(ctx context.Context) {
	tick := time.NewTicker(fraction(s.HostTimeout))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if due := s.due(time.Now()); len(due) > 0 {
				s.markAbsent(ctx, due)
			}
		case <-ctx.Done():
			return
		}
	}
}

// due returns hosts whose time to come back is over, and notes that it has looked.
func (s *Server) due(now time.Time) []fleet.HostID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled.looked(now, s.HostTimeout)
	var out []fleet.HostID
	for id, until := range s.absent {
		if until.IsZero() {
			until = s.settled.by
		}
		if s.sessions[id] == nil && !now.Before(until) && len(out) < maxMarks {
			out = append(out, id)
		}
	}
	return out
}

// markAbsent records that the sessions of hosts are lost. The epochs are read before another look at the
// sessions: a host that has come back since has a later one, and the mark is refused.
func (s *Server) markAbsent(ctx context.Context, due []fleet.HostID) {
	epochs := map[fleet.HostID]uint64{}
	err := s.Store.View(func(v *state.View) error {
		for _, id := range due {
			if h, _ := v.Host(id); h.State == fleet.HostReady {
				epochs[id] = h.Epoch
			}
		}
		return nil
	})
	if err != nil {
		s.Log.Error("read hosts", "err", err)
		return
	}
	var hosts []fleet.HostID
	var marks []state.Command
	s.mu.Lock()
	for _, id := range due {
		epoch, ready := epochs[id]
		switch {
		case s.sessions[id] != nil:
		case !ready:
			delete(s.absent, id)
		default:
			hosts = append(hosts, id)
			marks = append(marks, state.SetHostState{Host: id, Epoch: epoch, State: fleet.HostUnreachable, At: time.Now()})
		}
	}
	s.mu.Unlock()
	if len(marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := s.Node.Propose(ctx, marks...)
	if err != nil {
		s.Log.Warn("mark hosts unreachable", "hosts", len(hosts), "err", err)
		return
	}
	for i, id := range hosts {
		// Refused: it has come back meanwhile. Whether it is there is looked up again.
		if res[i].Err == nil {
			s.Log.Warn("host is unreachable", "host", id)
		}
	}
}
