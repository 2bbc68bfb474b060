package scheduler

import (
	"slices"
	"sync"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// claims is what the proposals that are under way on this scheduler ask for. It counts as taken for the
// picks of others until the proposal is answered: without it, all who pick on one view pick the same, and
// all but one of them in vain. A claim promises nothing; the state machine decides.
type claims struct {
	mu    sync.Mutex // guards the fields below; it is taken within views, and no view begins under it
	hosts map[fleet.HostID]*claimedHost
	less  place.Instead // those hosts less what is claimed of them, as of the last look
	freed chan struct{} // closed when a claim is given up; nil: nobody waits for that
}

// claimedHost is a host of which something is claimed.
type claimedHost struct {
	open []*claim
	from *fleet.Host // what was looked at last; nil: there is a claim more or less since
}

// claim is what one proposal asks for. It does not change.
type claim struct {
	pod   fleet.PodID
	rev   uint64 // of the pod, until the proposal is done; 0: there is no such pod until then
	host  fleet.HostID
	gpus  []string // UUIDs
	need  fleet.Resources
	ports []int  // public ones
	index uint64 // of the view that it was picked on
}

// holding is what one request claims, in all its tries; nil claims nothing. It is for one goroutine.
type holding struct {
	of   *claims
	open []*claim
}

// contended says that only what is claimed stands in the way: whether there is room is known when those
// proposals are answered.
type contended struct{ freed <-chan struct{} }

func (*contended) Error() string { return "what is free is claimed" }

// picker picks from a fleet, of which some hosts are to be seen otherwise, and chooses public ports of a host
// beside those that are claimed.
type picker func(hosts *place.Index, less place.Instead, ports func(fleet.HostID) []int) ([]*claim, error)

// claim lets pick choose from what neither a pod of the view holds nor another request claims, and claims
// what it chose. What this request claimed on an older view is given up before: who refused it has
// answered. Errors: those of pick; contended when only claims made it fail; stale when only those of this
// request did.
func (m *holding) claim(v *state.View, pick picker) error {
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

// try is claim on what nobody claims. The channel is not nil when there was no room, and claims may be why.
func (m *holding) try(v *state.View, pick picker) (<-chan struct{}, error) {
	c := m.of
	c.mu.Lock()
	defer c.mu.Unlock()
	m.open = slices.DeleteFunc(m.open, func(old *claim) bool {
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

// release gives up whatever the request claims.
func (m *holding) release() {
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

// add makes a claim. The caller holds mu.
func (c *claims) add(made *claim) {
	if c.hosts == nil {
		c.hosts, c.less = map[fleet.HostID]*claimedHost{}, place.Instead{}
	}
	h := c.hosts[made.host]
	if h == nil {
		h = &claimedHost{}
		c.hosts[made.host] = h
	}
	h.open, h.from = append(h.open, made), nil
}

// drop gives a claim up and wakes those who wait for that. The caller holds mu.
func (c *claims) drop(old *claim) {
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

// forget drops a host of which nothing is claimed. The caller holds mu.
func (c *claims) forget(id fleet.HostID) {
	delete(c.hosts, id)
	delete(c.less, id)
}

// look returns the hosts of a view, and those of which something is claimed less that; it stays so while the
// caller holds mu. The answer to a proposal comes after the view that has it, so that what is proposed is
// always in the view or among the claims.
func (c *claims) look(v *state.View) (*place.Index, place.Instead) {
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

// refresh works out what is left of a host. Claims that the view has as done do not count beside what the
// pods hold. The caller holds mu.
func (c *claims) refresh(v *state.View, id fleet.HostID, h *claimedHost, on *place.Candidate) {
	h.open = slices.DeleteFunc(h.open, func(one *claim) bool { return one.answered(v) })
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

// answered reports whether the view has the proposal as done, or the pod as one that it cannot be done to.
func (cl *claim) answered(v *state.View) bool {
	p, _ := v.Pod(cl.pod)
	return p.Rev != cl.rev
}

// ports returns the public ports of a host that are claimed. The caller holds mu.
func (c *claims) ports(host fleet.HostID) []int {
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
