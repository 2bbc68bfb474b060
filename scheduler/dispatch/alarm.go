package dispatch

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const (
	alarmEvery = time.Minute // at most, of one host with one text
	maxAlarmed = 4096
)

// alarm is something of a host that an operator has to look into.
type alarm struct {
	host fleet.HostID
	text string
}

const twoAgents = "two agents use the identity of this host at the same time: one of them runs on a copy of the host's disk"

// raise puts an alarm into the host's record, unless it is there or was raised a moment ago: what the
// operator has acknowledged comes back once a minute at most.
func (s *Server) raise(ctx context.Context, a alarm) {
	s.Log.Error("alarm of a host", "host", a.host, "alarm", a.text)
	there := false
	err := s.Store.View(func(v *state.View) error {
		h, ok := v.Host(a.host)
		there = !ok || h.Alarm == a.text || h.State == fleet.HostGone
		return nil
	})
	if err != nil || there || !s.mayRaise(a, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if err := s.propose(ctx, state.AlarmHost{Host: a.host, Text: a.text, At: time.Now()}); err != nil {
		s.Log.Warn("record the alarm of a host", "host", a.host, "err", err)
		s.mu.Lock()
		delete(s.alarmed, a)
		s.mu.Unlock()
	}
}

func (s *Server) mayRaise(a alarm, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, raised := s.alarmed[a]; raised && now.Sub(at) < alarmEvery {
		return false
	}
	if len(s.alarmed) >= maxAlarmed {
		for old, at := range s.alarmed {
			if now.Sub(at) >= alarmEvery {
				delete(s.alarmed, old)
			}
		}
		if len(s.alarmed) >= maxAlarmed {
			return false
		}
	}
	s.alarmed[a] = now
	return true
}
