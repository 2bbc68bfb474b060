package scheduler

import (
	"slices"
	"sync"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// reservations are the resources of proposals in flight on this scheduler. They count as taken for the picks of others until the
// proposal is decided: otherwise all who pick on one view pick the same, and all but one are refused. A reservation promises nothing;
// the state machine decides.
type reservations struct {
	mu    sync.Mutex // guards the fields below; it is taken within views, and no view begins under it
	hosts map[fleet.HostID]*reservedHost
	less  place.Instead // those hosts without what is reserved, as of the last look
	freed chan struct{} // closed when a reservation is released; nil: nobody waits for that
}

// reservedHost is a host with reservations.
type reservedHost struct {
	open []*reservation
	from *fleet.Host // the record at the last look; nil: reservations have changed since
}

// reservation is what one proposal asks for. It is immutable.
type reservation struct {
	pod   fleet.PodID
	rev   uint64 // of the pod, until the proposal is done; 0: there is no such pod until then
	host  fleet.HostID
	gpus  []string // UUIDs
	need  fleet.Resources
	ports []int  // public ones
	index uint64 // of the view that it was picked on
}

// reserver has the reservations of one request, in all its attempts; nil reserves nothing. It is for one goroutine.
type reserver struct {
	of   *reservations
	open []*reservation
}

// contended says that only reservations are in the way: whether there is room is known once those proposals are decided.
type contended struct{ freed <-chan struct{} }

func (*contended) Error() string { return "what is free is reserved" }

// picker picks from the hosts, of which some are replaced by what less says, and chooses public ports of a host beside those that are
// reserved.
type picker func(hosts *place.Index, less place.Instead, ports func(fleet.HostID) []int) ([]*reservation, error)

// reserve lets pick choose from what neither a pod of the view holds nor another request has reserved, and reserves the choice. It
// first releases what this request reserved on an older view, since that proposal was answered. Errors: those of pick; contended
// when only reservations of others made it fail; stale when only those of this request did.
func (m *reserver) reserve(v *state.View, pick picker) error {
	if m == nil {
		_, err := pick(v.Fleet(), nil, noPorts)
		return err
	}
	freed, err := m.try(v, pick)
	if freed == nil {
		return err
	}
	if _, err := pick(v.Fleet(), nil, noPorts); err != nil {
		return err
	}
	if len(m.open) > 0 {
		return fleet.Stale("there is no newer view yet")
	}
	return &contended{freed}
}

// try is reserve without what others have reserved. The channel is not nil when there was no room, and reservations may be why.
func (m *reserver) try(v *state.View, pick picker) (<-chan struct{}, error) {
	c := m.of
	c.mu.Lock()
	defer c.mu.Unlock()
	m.open = slices.DeleteFunc(m.open, func(old *reservation) bool {
		if old.index >= v.Index() {
			return false
		}
		c.drop(old)
		return true
	})
	hosts, less := c.look(v)
	made, err := pick(hosts, less, c.ports)
	switch {
	case err == nil:
		for _, one := range made {
			one.index = v.Index()
			c.add(one)
		}
		m.open = append(m.open, made...)
	case fleet.CodeOf(err) == fleet.CodeNoCapacity && len(c.hosts) > 0:
		if c.freed == nil {
			c.freed = make(chan struct{})
		}
		return c.freed, err
	}
	return nil, err
}

// release releases everything that the request has reserved.
func (m *reserver) release() {
	if len(m.open) == 0 {
		return
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	for _, old := range m.open {
		m.of.drop(old)
	}
	m.open = nil
}

// add adds a reservation. The caller holds mu.
func (c *reservations) add(made *reservation) {
	if c.hosts == nil {
		c.hosts, c.less = map[fleet.HostID]*reservedHost{}, place.Instead{}
	}
	h := c.hosts[made.host]
	if h == nil {
		h = &reservedHost{}
		c.hosts[made.host] = h
	}
	h.open, h.from = append(h.open, made), nil
}

// drop releases a reservation and wakes those who wait for that. The caller holds mu.
func (c *reservations) drop(old *reservation) {
	if c.freed != nil {
		close(c.freed)
		c.freed = nil
	}
	h := c.hosts[old.host]
	if h == nil {
		return // a view had it as done
	}
	i := slices.Index(h.open, old)
	if i < 0 {
		return // likewise
	}
	if h.open, h.from = slices.Delete(h.open, i, i+1), nil; len(h.open) == 0 {
		c.forget(old.host)
	}
}

// forget removes a host without reservations. The caller holds mu.
func (c *reservations) forget(id fleet.HostID) {
	delete(c.hosts, id)
	delete(c.less, id)
}

// look returns the hosts of a view, and those with reservations without what is reserved; both stay valid while the caller holds mu. A
// proposal is answered after the view has it, so it is always in the view or among the reservations.
func (c *reservations) look(v *state.View) (*place.Index, place.Instead) {
	hosts := v.Fleet()
	for id, h := range c.hosts {
		on := hosts.Get(id, nil)
		switch {
		case on == nil:
			delete(c.less, id)
			h.from = nil
		case h.from != on.Host:
			c.refresh(v, id, h, on)
		}
	}
	return hosts, c.less
}

// refresh computes what is left of a host. Reservations whose proposals the view has as done no longer count. The caller holds mu.
func (c *reservations) refresh(v *state.View, id fleet.HostID, h *reservedHost, on *place.Candidate) {
	h.open = slices.DeleteFunc(h.open, func(one *reservation) bool { return one.answered(v) })
	if len(h.open) == 0 {
		c.forget(id)
		return
	}
	var gpus []string
	var need fleet.Resources
	for _, one := range h.open {
		gpus = append(gpus, one.gpus...)
		need.MilliCPU += one.need.MilliCPU
		need.MemoryMB += one.need.MemoryMB
		need.DiskGB += one.need.DiskGB
	}
	less := on.Less(gpus, need, len(h.open))
	h.from, c.less[id] = on.Host, &less
}

// answered reports whether the view has the proposal as done, or the pod in a state in which it cannot be done.
func (cl *reservation) answered(v *state.View) bool {
	p, _ := v.Pod(cl.pod)
	return p.Rev != cl.rev
}

// ports returns the public ports of a host that are reserved. The caller holds mu.
func (c *reservations) ports(host fleet.HostID) []int {
	h := c.hosts[host]
	if h == nil {
		return nil
	}
	var out []int
	for _, one := range h.open {
		out = append(out, one.ports...)
	}
	return out
}

func noPorts(fleet.HostID) []int { return nil }

// publicOf returns the public ports of mappings.
func publicOf(mappings []fleet.PortMapping) []int {
	var out []int
	for _, m := range mappings {
		out = append(out, m.Public)
	}
	return out
}
