package routes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

// keptEvents bounds the changes that a Table remembers.
const keptEvents = 4096

// Table is what a scheduler has told of where requests lead. It stays when nobody tells more. It is safe for concurrent use.
type Table struct {
	mu      sync.RWMutex // guards the fields below
	now     rows
	next    *rows // a view that is not whole yet; nil: none
	index   uint64
	changed chan struct{}
	events  []state.Event
	since   uint64 // events holds all after it
	touched []state.Event
}

type rows struct {
	pods      map[fleet.PodID]*fleet.Pod
	endpoints map[fleet.EndpointID]fleet.Endpoint
	hosts     map[fleet.HostID]fleet.Host
	workers   map[fleet.EndpointID]map[fleet.PodID]*fleet.Pod
}

func newRows() rows {
	return rows{map[fleet.PodID]*fleet.Pod{}, map[fleet.EndpointID]fleet.Endpoint{}, map[fleet.HostID]fleet.Host{}, map[fleet.EndpointID]map[fleet.PodID]*fleet.Pod{}}
}

// NewTable returns a Table that knows nothing, at index 0.
func NewTable() *Table { return &Table{now: newRows(), changed: make(chan struct{})} }

// Take adds a part of what a scheduler tells. What a view consists of counts once it is whole. part belongs to the Table afterwards.
func (t *Table) Take(part *agentrpc.RoutesPart) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if part.GetAnew() {
		fresh := newRows()
		t.next, t.touched = &fresh, nil
	}
	to := &t.now
	if t.next != nil {
		to = t.next
	}
	t.write(to, part)
	if !part.GetWhole() {
		return
	}
	if t.next != nil { // what has changed since the last view is not told
		t.now, t.next, t.events, t.touched, t.since = *t.next, nil, nil, nil, part.GetIndex()
	}
	t.index = part.GetIndex()
	for _, e := range t.touched {
		e.Index = t.index
		t.events = append(t.events, e)
	}
	t.touched = nil
	if over := len(t.events) - keptEvents; over > 0 {
		t.since = t.events[over-1].Index
		t.events = slices.Clone(t.events[over:])
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// write changes rows. The caller holds mu.
func (t *Table) write(to *rows, part *agentrpc.RoutesPart) {
	note := func(kind state.Kind, id string) { t.touched = append(t.touched, state.Event{Kind: kind, ID: id}) }
	for _, in := range part.GetPods() {
		p := decodePod(in)
		to.drop(p.ID)
		to.pods[p.ID] = p
		if id := fleet.EndpointID(p.Owner.ID); id != "" {
			if to.workers[id] == nil {
				to.workers[id] = map[fleet.PodID]*fleet.Pod{}
			}
			to.workers[id][p.ID] = p
		}
		note(state.KindPod, in.GetId())
	}
	for _, id := range part.GetGonePods() {
		to.drop(fleet.PodID(id))
		note(state.KindPod, id)
	}
	for _, in := range part.GetEndpoints() {
		to.endpoints[fleet.EndpointID(in.GetId())] = decodeEndpoint(in)
		note(state.KindAccount, in.GetAccountId())
	}
	for _, id := range part.GetGoneEndpoints() {
		delete(to.endpoints, fleet.EndpointID(id))
		note(state.KindAccount, "")
	}
	for _, in := range part.GetHosts() {
		to.hosts[fleet.HostID(in.GetId())] = fleet.Host{ID: fleet.HostID(in.GetId()), State: fleet.HostState(in.GetState()), Epoch: in.GetEpoch()}
		note(state.KindHost, in.GetId())
	}
	for _, id := range part.GetGoneHosts() {
		delete(to.hosts, fleet.HostID(id))
		note(state.KindHost, id)
	}
}

func (r *rows) drop(id fleet.PodID) {
	if old := r.pods[id]; old != nil {
		of := fleet.EndpointID(old.Owner.ID)
		delete(r.pods, id)
		if delete(r.workers[of], id); len(r.workers[of]) == 0 {
			delete(r.workers, of)
		}
	}
}

// View implements Store.
func (t *Table) View(fn func(View) error) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return fn(tableView{t})
}

// Wait implements Store. It also returns nil when Index is below after: a scheduler that lags may have told a view.
func (t *Table) Wait(ctx context.Context, after uint64) error {
	for {
		t.mu.RLock()
		index, changed := t.index, t.changed
		t.mu.RUnlock()
		if index != after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Events implements Store.
func (t *Table) Events(after uint64) (events []state.Event, upTo uint64, all bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if after < t.since || after > t.index {
		return nil, t.index, false
	}
	for i, e := range t.events {
		if e.Index > after {
			return slices.Clone(t.events[i:]), t.index, true
		}
	}
	return nil, t.index, true
}

// tableView is what a Table has while it is locked.
type tableView struct{ t *Table }

func (v tableView) Index() uint64 { return v.t.index }

func (v tableView) Pod(id fleet.PodID) (fleet.Pod, bool) {
	if p := v.t.now.pods[id]; p != nil {
		return *p, true
	}
	return fleet.Pod{}, false
}

func (v tableView) Host(id fleet.HostID) (fleet.Host, bool) {
	h, ok := v.t.now.hosts[id]
	return h, ok
}

func (v tableView) Endpoint(id fleet.EndpointID) (fleet.Endpoint, bool) {
	e, ok := v.t.now.endpoints[id]
	return e, ok
}

func (v tableView) WorkersOf(id fleet.EndpointID) (out []*fleet.Pod) {
	for _, p := range v.t.now.workers[id] {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *fleet.Pod) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (v tableView) Worked() []fleet.EndpointID { return slices.Collect(maps.Keys(v.t.now.workers)) }
