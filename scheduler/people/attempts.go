package people

import (
	"sync"
	"time"
)

const (
	maxAttempts  = 1 << 14
	firstLock    = 10 * time.Second
	longestLock  = 15 * time.Minute
	forgetsAfter = time.Hour
)

// Attempts counts what failed, by whom it was about or came from, and locks a key out for longer and longer. A key is forgotten an
// hour after its last failure, or when it is the one that failed longest ago and another needs the room. It is safe for concurrent use.
type Attempts struct {
	free int // failures before the first lock
	now  func() time.Time

	mu   sync.Mutex // guards the field below
	keys map[string]attempt
}

type attempt struct {
	failed int
	last   time.Time
	until  time.Time
}

// NewAttempts returns an Attempts that locks a key out from so many failures on.
func NewAttempts(free int, now func() time.Time) *Attempts {
	return &Attempts{free: free, now: now, keys: map[string]attempt{}}
}

// Locked returns for how long a key is locked out; 0: it is not.
func (a *Attempts) Locked(key string) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.keys[key].until.Sub(a.now()))
}

// Failed counts a failure.
func (a *Attempts) Failed(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	one, known := a.keys[key]
	if now.Sub(one.last) > forgetsAfter {
		one = attempt{}
	}
	if !known && len(a.keys) >= maxAttempts {
		a.makeRoom()
	}
	one.failed++
	one.last = now
	if over := one.failed - a.free; over >= 0 {
		one.until = now.Add(min(longestLock, firstLock<<min(over, 10)))
	}
	a.keys[key] = one
}

func (a *Attempts) makeRoom() {
	var oldest string
	var at time.Time
	for key, one := range a.keys {
		if oldest == "" || one.last.Before(at) {
			oldest, at = key, one.last
		}
	}
	delete(a.keys, oldest)
}

// Succeeded forgets a key.
func (a *Attempts) Succeeded(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.keys, key)
}
