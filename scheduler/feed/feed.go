// Package feed says how a part of the scheduler speaks with hosts over their sessions, which scheduler/dispatch keeps. A feed learns
// from the state what there is to tell, tells each host what concerns it, and hears what hosts say of it; dispatch knows streams,
// heartbeats and deadlines, and not what is told.
package feed

import (
	"context"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

// Feed is one kind of thing that hosts are told of. Its methods are safe for concurrent use.
type Feed interface {
	// Learn forgets what was known, as another scheduler may have led in between, and learns what there is. It is called before any
	// session begins.
	Learn(v *state.View)
	// Run looks after what hosts are told until ctx, which ends with leadership, does.
	Run(ctx context.Context)
	// Heed takes note of what changed in the state; all: nobody knows what. It does not wait.
	Heed(events []state.Event, all bool)
	// Begin begins what is told in a session, once the host was welcomed.
	Begin(s Session) Line
}

// Line is what one feed says and hears in one session.
type Line interface {
	// Next returns what leads the host from what it was told last to what there is now. It is called when a session begins, when the
	// host's assignments change, and after each Wake, by one goroutine at a time. A message of lists may be of any size.
	Next(v *state.View, host *Host) []*agentrpc.Down
	// Forget has everything told again; it is called like Next.
	Forget()
	// Heard takes a message of the host, of whatever kind it is, and returns soon. An error ends the session. ctx ends with it.
	Heard(ctx context.Context, msg *agentrpc.Up) error
	// End says that the session has ended.
	End()
}

// Host is what a session knows of its host.
type Host struct {
	*fleet.Host
	// Accounts have pods there, or leftovers, as it was assigned them last; sorted.
	Accounts []fleet.AccountID
}

// Session is the session of one host, as lines see it. Its methods are safe for concurrent use.
type Session interface {
	Host() fleet.HostID
	Epoch() uint64
	// Wake has Next called soon.
	Wake()
	// Go runs a task that ends with the session, or soon after ctx does; its error ends the session.
	Go(task func() error)
	// Propose commits a command once it is the turn of this session, and returns its value.
	Propose(ctx context.Context, cmd state.Command) (any, error)
}
