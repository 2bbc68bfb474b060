package disk

import (
	"context"
	"sync"
)

// locks lets one caller at a time work on a name. The zero value is ready.
type locks struct {
	mu   sync.Mutex
	held map[string]*turn
}

type turn struct {
	token   chan struct{} // holds one while somebody works
	waiters int           // with the one who works; guarded by locks.mu
}

// lock waits until nobody else works on the name. The caller calls done when it has finished.
func (l *locks) lock(ctx context.Context, name string) (done func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*turn{}
	}
	t := l.held[name]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		l.held[name] = t
	}
	t.waiters++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.waiters--; t.waiters == 0 {
			delete(l.held, name)
		}
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
