package dispatch

import (
	"context"
	"errors"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

const (
	// maxTurns is how many commands of sessions are proposed at once. It leaves users most of the queue of commands, however
	// many hosts come at once.
	maxTurns  = 1024
	turnLimit = 30 * time.Second // for a turn, and for the queue to take a command
	turnAgain = 20 * time.Millisecond
)

// inTurn proposes a command of a session, and returns its value, once it is its turn. A queue that takes nothing now is waited for: a
// session that ended for it would begin anew, and add to what waits.
func (s *Server) inTurn(ctx context.Context, cmd state.Command) (any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, turnLimit, errors.New("too many commands of hosts wait"))
	defer cancel()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-ctx.Done():
		return nil, fleet.Unavailable("the control plane has too much to do", context.Cause(ctx))
	}
	for {
		res, err := s.Node.Propose(ctx, cmd)
		var e *fleet.Error
		switch {
		case err == nil:
			return res[0].Value, res[0].Err
		case !errors.As(err, &e) || !e.NothingDone || !s.Node.IsLeader():
			return nil, err
		}
		if sleep.For(ctx, turnAgain) != nil {
			return nil, err
		}
	}
}
