package place

import (
	"cmp"

	"gantry/fleet"
)

// The resources that hosts share out, as the indices of a share.
const (
	ofCPU = iota
	ofMemory
	ofDisk
	shares
)

// millions is how finely loads are told apart.
const millions = 1_000_000

// node is a host in the tree of its pool, which is a treap: a search tree by host id, and a heap by a hash of
// it, so that it is balanced whatever comes in whatever order. Each node knows the best that it and all below it
// have to offer, so that a search can leave out what cannot be better than what it has.
type node struct {
	c           Candidate
	pool        *pool
	left, right *node
	priority    uint64

	size     int
	pods     int           // the fewest
	free     [shares]int64 // the most
	open     [shares]int64 // the most of what pods without GPUs can have
	kept     int64         // of processors, from pods without GPUs: the sum
	used     [shares]int64 // the smallest share that is in use, in millionths
	total    [shares]int64 // the largest; what has none counts as boundless
	smallest [shares]int64 // of all totals
}

func split3(r *fleet.Resources) [shares]int64 { return [shares]int64{r.MilliCPU, r.MemoryMB, r.DiskGB} }

// priorityOf mixes a host's id.
func priorityOf(id fleet.HostID) uint64 {
	h := hashOf(string(id))
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// add puts a node, which is in no pool, into the pool.
func (p *pool) add(n *node) {
	n.pool, n.left, n.right = p, nil, nil
	n.sum()
	p.root = insert(p.root, n)
	p.shape.hosts++
}

// take takes a node out of the pool.
func (p *pool) take(n *node) {
	p.root = without(p.root, n)
	p.shape.hosts--
}

func insert(t, n *node) *node {
	switch {
	case t == nil:
		return n
	case n.priority > t.priority:
		n.left, n.right = split(t, n.c.Host.ID)
		n.sum()
		return n
	case n.c.Host.ID < t.c.Host.ID:
		t.left = insert(t.left, n)
	default:
		t.right = insert(t.right, n)
	}
	t.sum()
	return t
}

// split parts a tree into the ids below one and those above.
func split(t *node, id fleet.HostID) (below, above *node) {
	if t == nil {
		return nil, nil
	}
	if t.c.Host.ID < id {
		t.right, above = split(t.right, id)
		t.sum()
		return t, above
	}
	below, t.left = split(t.left, id)
	t.sum()
	return below, t
}

func without(t, n *node) *node {
	switch {
	case t == n:
		return join(n.left, n.right)
	case n.c.Host.ID < t.c.Host.ID:
		t.left = without(t.left, n)
	default:
		t.right = without(t.right, n)
	}
	t.sum()
	return t
}

// join joins two trees; the ids of the first are below those of the second.
func join(below, above *node) *node {
	switch {
	case below == nil:
		return above
	case above == nil:
		return below
	case below.priority > above.priority:
		below.right = join(below.right, above)
		below.sum()
		return below
	}
	above.left = join(below, above.left)
	above.sum()
	return above
}

// sum works out what a node knows of itself and those below.
func (n *node) sum() {
	open := n.c.Beside(0)
	n.size, n.pods, n.free, n.open = 1, n.c.Pods, split3(&n.c.Free), split3(&open)
	n.kept = n.free[ofCPU] - n.open[ofCPU]
	n.total = split3(&n.c.Host.Inventory.Total)
	n.smallest = n.total
	for i, total := range n.total {
		n.used[i] = 0
		if total > 0 {
			n.used[i] = floorDiv((total-n.free[i])*millions, total)
		} else {
			n.total[i] = 1 << 62
		}
	}
	n.merge(n.left)
	n.merge(n.right)
}

func (n *node) merge(below *node) {
	if below == nil {
		return
	}
	n.size += below.size
	n.pods = min(n.pods, below.pods)
	n.kept += below.kept
	for i := range shares {
		n.free[i] = max(n.free[i], below.free[i])
		n.open[i] = max(n.open[i], below.open[i])
		n.used[i] = min(n.used[i], below.used[i])
		n.total[i] = max(n.total[i], below.total[i])
		n.smallest[i] = min(n.smallest[i], below.smallest[i])
	}
}

// floorDiv divides and rounds down, also below zero; b is above zero.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// leastLoad is not above the load of any host of the tree once it has what is needed.
func (n *node) leastLoad(need *[shares]int64) int64 {
	least := int64(0)
	for i := range shares {
		least = max(least, n.used[i]+need[i]*millions/n.total[i])
	}
	return least
}

// reach is the most that a host of the tree has free for a request.
func (n *node) reach(req *Request) *[shares]int64 {
	if req.GPU != nil {
		return &n.free
	}
	return &n.open
}

// fits reports whether a host of the tree may have what is needed.
func (n *node) fits(req *Request, need *[shares]int64) bool {
	free := n.reach(req)
	return free[ofCPU] >= need[ofCPU] && free[ofMemory] >= need[ofMemory] && free[ofDisk] >= need[ofDisk]
}

// canBeat reports whether a host of the tree, whose ids are all above the one given, may come before the best.
func (n *node) canBeat(best *rank, above fleet.HostID, need *[shares]int64) bool {
	return cmp.Or(
		cmp.Compare(n.leastLoad(need), best.load), cmp.Compare(n.pods, best.c.Pods), cmp.Compare(above, best.c.Host.ID),
	) < 0
}
