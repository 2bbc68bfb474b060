package place

import (
	"cmp"

	"gantry/fleet"
)

// scope selects groups: those of one island, those of one NUMA node, or all.
type scope int

const (
	ofIsland scope = iota
	ofNode
	ofAll
)

// key is what groups of one scope have in common.
func (g *group) key(by scope) int {
	switch by {
	case ofIsland:
		return g.island
	case ofNode:
		return g.node
	}
	return 0
}

// plan says how many GPUs to take of each group of a host. It is made once per host and pick, so it
// allocates nothing.
type plan struct {
	groups  [maxGroups]group
	n       int
	islands int // that are used
	nodes   int // NUMA nodes that are used
	left    int // GPUs left free on the islands that are used
}

// make plans which groups the GPUs come from: one island, the one with the fewest free GPUs that are
// enough; else one NUMA node, chosen alike; else the largest groups.
func (p *plan) make(count int, groups []group) {
	p.n = copy(p.groups[:], groups)
	by := ofIsland
	value, ok := p.tightest(count, by)
	if !ok {
		by = ofNode
		value, ok = p.tightest(count, by)
	}
	if !ok {
		by, value = ofAll, 0
	}
	for missing := count; missing > 0; {
		g := p.nextGroup(missing, by, value)
		if g == nil {
			break
		}
		n := min(g.free-g.take, missing)
		g.take += n
		missing -= n
	}
	p.measure()
}

// tightest returns the island or node with the fewest free GPUs, count at least; the lowest of several.
func (p *plan) tightest(count int, by scope) (value int, ok bool) {
	least := 0
	for i := range p.n {
		k, sum := p.groups[i].key(by), 0
		for j := range p.n {
			if p.groups[j].key(by) == k {
				sum += p.groups[j].free
			}
		}
		if sum >= count && (!ok || sum < least || sum == least && k < value) {
			value, least, ok = k, sum, true
		}
	}
	return value, ok
}

// nextGroup returns the group to take from next, nil when nothing is left: the smallest that has all
// that is missing, else the largest.
func (p *plan) nextGroup(missing int, by scope, value int) *group {
	var best *group
	for i := range p.n {
		g := &p.groups[i]
		if g.free > g.take && g.key(by) == value && (best == nil || g.before(best, missing)) {
			best = g
		}
	}
	return best
}

// before reports whether g is the better group to take missing GPUs from.
func (g *group) before(other *group, missing int) bool {
	a, b := g.free-g.take, other.free-other.take
	if (a >= missing) != (b >= missing) {
		return a >= missing
	}
	if a != b {
		return (a < b) == (a >= missing)
	}
	return cmp.Or(cmp.Compare(g.island, other.island), cmp.Compare(g.node, other.node)) < 0
}

// measure counts what the taken GPUs span.
func (p *plan) measure() {
	for i := range p.n {
		if p.groups[i].take == 0 {
			continue
		}
		if p.firstUsed(i, ofNode) {
			p.nodes++
		}
		if !p.firstUsed(i, ofIsland) {
			continue
		}
		p.islands++
		for j := range p.n {
			if p.groups[j].island == p.groups[i].island {
				p.left += p.groups[j].free - p.groups[j].take
			}
		}
	}
}

// firstUsed reports whether no group before i is used that is of the same island or node.
func (p *plan) firstUsed(i int, by scope) bool {
	for j := range i {
		if p.groups[j].take > 0 && p.groups[j].key(by) == p.groups[i].key(by) {
			return false
		}
	}
	return true
}

// chooseGPUs names the GPUs that the plan for this host takes, in the order of the inventory.
func chooseGPUs(want *fleet.GPURequest, c *Candidate) []string {
	if want == nil {
		return nil
	}
	var p plan
	p.make(want.Count, c.summary().kind(want.Type).groups)
	out := make([]string, 0, want.Count)
	for i := range c.FreeGPUs {
		gpu := &c.FreeGPUs[i]
		if gpu.Type != want.Type {
			continue
		}
		if g := groupOf(p.groups[:p.n], gpu); g >= 0 && p.groups[g].take > 0 {
			p.groups[g].take--
			out = append(out, gpu.UUID)
		}
	}
	return out
}
