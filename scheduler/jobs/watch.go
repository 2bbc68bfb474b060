package jobs

import (
	"sync"

	"gantry/fleet"
	"gantry/serverless/queue"
)

// watchers are told of changes, after the whole of what changed can be seen.
type watchers struct {
	mu        sync.Mutex
	jobs      map[queue.ID]map[chan struct{}]struct{}
	followers map[*Follower]struct{}
	now       map[queue.ID]struct{}         // changed since the last tell, and somebody watches
	endpoints map[fleet.EndpointID]struct{} // changed since the last tell
}

func (w *watchers) init() {
	w.jobs, w.followers = map[queue.ID]map[chan struct{}]struct{}{}, map[*Follower]struct{}{}
	w.now, w.endpoints = map[queue.ID]struct{}{}, map[fleet.EndpointID]struct{}{}
}

// changed is queue.Queue.Changed.
func (w *watchers) changed(j *queue.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.jobs[j.ID] != nil {
		w.now[j.ID] = struct{}{}
	}
	if len(w.followers) > 0 {
		id, _ := j.Endpoint()
		w.endpoints[id] = struct{}{}
	}
}

// tell tells everybody.
func (w *watchers) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.now {
		for c := range w.jobs[id] {
			poke(c)
		}
	}
	clear(w.now)
	if len(w.endpoints) == 0 {
		return
	}
	for f := range w.followers {
		for id := range w.endpoints {
			f.changed[id] = struct{}{}
		}
		poke(f.wake)
	}
	clear(w.endpoints)
}

// tellAll says that everything may have changed.
func (w *watchers) tellAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.jobs {
		for c := range all {
			poke(c)
		}
	}
	for f := range w.followers {
		f.all = true
		poke(f.wake)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Watch returns what gets a value after each change of a job, several changes in one, until stop is called.
func (m *Machine) Watch(id queue.ID) (changed <-chan struct{}, stop func()) {
	w := &m.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{}, 1)
	if w.jobs[id] == nil {
		w.jobs[id] = map[chan struct{}]struct{}{}
	}
	w.jobs[id][c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.jobs[id], c); len(w.jobs[id]) == 0 {
			delete(w.jobs, id)
		}
	}
}

// Follower is told of endpoints whose jobs changed. One goroutine uses it.
type Follower struct {
	of      *watchers
	wake    chan struct{}
	changed map[fleet.EndpointID]struct{}
	all     bool
}

// Follow returns a Follower that knows of nothing yet. The caller closes it.
func (m *Machine) Follow() *Follower {
	f := &Follower{of: &m.watchers, wake: make(chan struct{}, 1), changed: map[fleet.EndpointID]struct{}{}}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.followers[f] = struct{}{}
	return f
}

// Wake gets a value when Changed has something to say.
func (f *Follower) Wake() <-chan struct{} { return f.wake }

// Changed returns the endpoints whose jobs changed since the last call. all: any may have.
func (f *Follower) Changed() (ids []fleet.EndpointID, all bool) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	for id := range f.changed {
		ids = append(ids, id)
	}
	clear(f.changed)
	all, f.all = f.all, false
	return ids, all
}

// Close ends it.
func (f *Follower) Close() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	delete(f.of.followers, f)
}
