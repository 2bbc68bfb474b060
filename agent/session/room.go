package session

import (
	"context"
	"fmt"
	"reflect"

	"google.golang.org/grpc"

	"gantry/internal/agentrpc"
)

// Room is a part of the agent that takes part in sessions. Each of its fields may be nil. The functions are called by one session at a
// time and must not wait for anything but the disk: the next message, and the scheduler, wait for them.
type Room struct {
	// Handlers take the messages of the kinds that they are for.
	Handlers []Handler
	// Welcome takes what a scheduler says of itself before its session begins; an error refuses the session.
	Welcome func(w *agentrpc.Welcome) error
	// Begin is told of a session that begins, with a connection to the leader, and returns what is called at its end.
	Begin func(conn *grpc.ClientConn) (ended func())
	// Next returns a message that is to be sent, or nil when there is none. It is asked when a session begins and whenever
	// Config.News has rung; a room that has more to send rings again.
	Next func() *agentrpc.Up
}

// Handler takes the messages of one kind.
type Handler struct {
	kind reflect.Type
	take func(ctx context.Context, kind any) (*agentrpc.Up, error)
}

// On makes a Handler of messages of kind K, such as *agentrpc.Down_Full. take may return an answer, which is sent. An error ends the
// session. ctx ends with the session.
func On[K any](take func(ctx context.Context, m K) (answer *agentrpc.Up, err error)) Handler {
	return Handler{reflect.TypeFor[K](), func(ctx context.Context, kind any) (*agentrpc.Up, error) { return take(ctx, kind.(K)) }}
}

// registered returns handlers by the kind of message that they take.
func registered(handlers []Handler) (map[reflect.Type]Handler, error) {
	out := map[reflect.Type]Handler{}
	for _, h := range handlers {
		if _, twice := out[h.kind]; twice {
			return nil, fmt.Errorf("two rooms take the message %s", h.kind)
		}
		out[h.kind] = h
	}
	return out, nil
}

// Bell wakes who waits for it. Rung twice before somebody looks, it wakes him once.
type Bell chan struct{}

// NewBell makes a Bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring wakes who waits, or who waits next. It never blocks.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}
