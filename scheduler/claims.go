package scheduler

import (
	"cmp"
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
	dirty map[fleet.HostID]bool // hosts whose place in left is to be worked out anew
	base  []place.Candidate     // of the last look
	left  []place.Candidate     // base, less what is claimed
	freed chan struct{}         // closed when a claim is given up; nil: nobody waits for that
}

// claimedHost is a host of which something is claimed.
type claimedHost struct {
	open []*claim
	from *fleet.Host     // what left was worked out from
	left place.Candidate // what the host has free, less open
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

// picker picks from candidates, and chooses public ports of a host beside those that are claimed.
type picker func(candidates []place.Candidate, ports func(fleet.HostID) []int) (*claim, error)

// claim lets pick choose from what neither a pod of the view holds nor another request claims, and claims
// what it chose. What this request claimed on an older view is given up before: who refused it has
// answered. Errors: those of pick; contended when only claims made it fail; stale when only those of this
// request did.
func (m *holding) claim(v *state.View, pick picker) error {
	if m == nil {
		_, err := pick(v.Candidates(), noPorts)
		return err
	}
	freed, err := m.try(v, pick)
	if freed == nil {
		return err
	}
	if _, err := pick(v.Candidates(), noPorts); err != nil {
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
	made, err := pick(c.candidates(v), c.ports)
	switch {
	case err == nil:
		made.index = v.Index()
		c.add(made)
		m.open = append(m.open, made)
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
		c.hosts, c.dirty = map[fleet.HostID]*claimedHost{}, map[fleet.HostID]bool{}
	}
	h := c.hosts[made.host]
	if h == nil {
		h = &claimedHost{}
		c.hosts[made.host] = h
	}
	h.open = append(h.open, made)
	c.dirty[made.host] = true
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
	h.open = slices.Delete(h.open, i, i+1)
	c.dirty[old.host] = true
	if len(h.open) == 0 {
		delete(c.hosts, old.host)
	}
}

// candidates returns what the hosts of a view have free, less what is claimed; it stays so while the caller
// holds mu. The answer to a proposal comes after the view that has it, so that what is proposed is always in
// the view or among the claims.
func (c *claims) candidates(v *state.View) []place.Candidate {
	base := v.Candidates()
	if len(c.hosts) == 0 {
		c.base, c.left = nil, nil
		clear(c.dirty)
		return base
	}
	if !sameSlice(base, c.base) {
		c.base, c.left = base, append(c.left[:0], base...)
		for id, h := range c.hosts {
			if i, ok := indexOf(base, id); ok && base[i].Host == h.from {
				c.left[i] = h.left
			} else {
				c.dirty[id] = true
			}
		}
	}
	for id := range c.dirty {
		c.refresh(v, id)
	}
	clear(c.dirty)
	return c.left
}

// refresh works out what is left of a host. Claims that the view has as done do not count beside what the
// pods hold. The caller holds mu.
func (c *claims) refresh(v *state.View, id fleet.HostID) {
	i, ok := indexOf(c.base, id)
	if !ok {
		return
	}
	h := c.hosts[id]
	if h == nil {
		c.left[i] = c.base[i]
		return
	}
	if host := c.base[i].Host; h.from != host {
		h.from = host
		h.open = slices.DeleteFunc(h.open, func(one *claim) bool { return one.answered(v) })
	}
	h.left = h.less(&c.base[i])
	c.left[i] = h.left
	if len(h.open) == 0 {
		delete(c.hosts, id)
	}
}

// answered reports whether the view has the proposal as done, or the pod as one that it cannot be done to.
func (cl *claim) answered(v *state.View) bool {
	p, _ := v.Pod(cl.pod)
	return p.Rev != cl.rev
}

// less returns a host's candidate less what is claimed of it.
func (h *claimedHost) less(of *place.Candidate) place.Candidate {
	if len(h.open) == 0 {
		return *of
	}
	taken, free := map[string]bool{}, of.Free
	for _, one := range h.open {
		for _, uuid := range one.gpus {
			taken[uuid] = true
		}
		free.MilliCPU -= one.need.MilliCPU
		free.MemoryMB -= one.need.MemoryMB
		free.DiskGB -= one.need.DiskGB
	}
	gpus := make([]fleet.GPU, 0, len(of.FreeGPUs))
	for _, gpu := range of.FreeGPUs {
		if !taken[gpu.UUID] {
			gpus = append(gpus, gpu)
		}
	}
	return place.NewCandidate(of.Host, gpus, free, of.Pods+len(h.open))
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

// indexOf finds a host among candidates, which are in the order of their hosts.
func indexOf(candidates []place.Candidate, id fleet.HostID) (int, bool) {
	return slices.BinarySearchFunc(candidates, id, func(c place.Candidate, id fleet.HostID) int {
		return cmp.Compare(c.Host.ID, id)
	})
}

// sameSlice reports whether two slices are one.
func sameSlice(a, b []place.Candidate) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
