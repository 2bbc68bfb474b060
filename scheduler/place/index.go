package place

import (
	"encoding/binary"
	"slices"

	"gantry/fleet"
)

// Index holds the candidates of a fleet so that a pick looks at few of them. Hosts of one shape, which have the
// same GPUs free, are as good as each other in all that is compared first; so a request walks the shapes in the
// order of their grades, and within a shape looks for the host that is loaded least. Any number of picks may
// read it at a time, and nobody while it changes.
type Index struct {
	hosts  map[fleet.HostID]*node
	shapes map[string]*shape
	menus  map[want][]offer   // by grade
	images map[uint64][]*node // that have an image, by its hash; in no order
	key    []byte             // for shapes; kept for its memory
}

// Instead has hosts that a pick is to see otherwise than they are in the index; nil: not at all.
type Instead map[fleet.HostID]*Candidate

// want is what a request wants of GPUs; the zero value: none.
type want struct {
	kind  string
	count int
}

// offer is a shape that has what is wanted.
type offer struct {
	grade grade
	shape *shape
}

// shape is what picking looks at first, with the hosts that have it.
type shape struct {
	key     string
	kinds   []kindSummary
	free    int // GPUs, of any kind
	without grade
	pools   []*pool
	hosts   int
}

// common is what the hosts of a pool have in common, besides their shape.
type common struct {
	center    fleet.DataCenterID
	cloud     fleet.Cloud
	cuda      cudaVersion
	volumes   kindSet
	networked bool
	fabric    uint64 // see summary
	standing  string // why they take no pods; empty: they do
}

// pool is a tree of hosts by their ids.
type pool struct {
	common
	shape *shape
	root  *node
}

// NewIndex returns an index without hosts.
func NewIndex() *Index {
	return &Index{
		hosts: map[fleet.HostID]*node{}, shapes: map[string]*shape{}, menus: map[want][]offer{}, images: map[uint64][]*node{},
	}
}

// Put adds a host, or replaces what is known of it. The candidate must not be changed afterwards.
func (x *Index) Put(c Candidate) {
	id := c.Host.ID
	old := x.hosts[id]
	if old != nil {
		if c.sum == nil {
			c.sum = c.summarize(&old.c)
		}
		x.reimage(old, old.c.sum.images, c.sum.images)
		before := old.pool
		before.take(old)
		old.c = c
		x.poolOf(&old.c).add(old)
		x.tidy(before)
		return
	}
	if c.sum == nil {
		c.sum = c.summarize(nil)
	}
	n := &node{c: c, priority: priorityOf(id)}
	x.hosts[id] = n
	x.reimage(n, nil, c.sum.images)
	x.poolOf(&n.c).add(n)
}

// Remove takes a host out.
func (x *Index) Remove(id fleet.HostID) {
	n := x.hosts[id]
	if n == nil {
		return
	}
	delete(x.hosts, id)
	x.reimage(n, n.c.sum.images, nil)
	n.pool.take(n)
	x.tidy(n.pool)
}

// Get returns a host, as instead has it if it does; nil when it is not there. It must not be changed, and what
// it points to is another host's or another time's after the next change of the index.
func (x *Index) Get(id fleet.HostID, instead Instead) *Candidate {
	if c, ok := instead[id]; ok {
		return c
	}
	if n := x.hosts[id]; n != nil {
		return &n.c
	}
	return nil
}

// Len returns the number of hosts.
func (x *Index) Len() int { return len(x.hosts) }

// All calls fn with every host, in no order; see Get.
func (x *Index) All(fn func(*Candidate)) {
	for _, n := range x.hosts {
		fn(&n.c)
	}
}

// reimage replaces the images of a host, which are sorted.
func (x *Index) reimage(n *node, old, now []uint64) {
	if slices.Equal(old, now) {
		return
	}
	for _, image := range old {
		if _, still := slices.BinarySearch(now, image); still {
			continue
		}
		list := x.images[image]
		i, last := slices.Index(list, n), len(list)-1
		list[i], list[last] = list[last], nil
		if x.images[image] = list[:last]; last == 0 {
			delete(x.images, image)
		}
	}
	for _, image := range now {
		if _, had := slices.BinarySearch(old, image); !had {
			x.images[image] = append(x.images[image], n)
		}
	}
}

// poolOf returns the pool that a candidate belongs to, a new one if need be.
func (x *Index) poolOf(c *Candidate) *pool {
	s := x.shapeOf(c)
	_, standing := c.Host.Takes()
	of := common{
		center: c.Host.DataCenter, cloud: c.Host.Cloud, cuda: c.sum.cuda, volumes: c.sum.volumes, networked: c.sum.networked, fabric: c.sum.fabric,
		standing: standing,
	}
	for _, p := range s.pools {
		if p.common == of {
			return p
		}
	}
	p := &pool{common: of, shape: s}
	s.pools = append(s.pools, p)
	return p
}

// tidy drops a pool, and its shape, when they are empty.
func (x *Index) tidy(p *pool) {
	if p.root != nil {
		return
	}
	s := p.shape
	s.pools = slices.DeleteFunc(s.pools, func(other *pool) bool { return other == p })
	if len(s.pools) > 0 {
		return
	}
	delete(x.shapes, s.key)
	s.offers(func(w want, g grade) {
		list := slices.DeleteFunc(x.menus[w], func(o offer) bool { return o.shape == s })
		if x.menus[w] = list; len(list) == 0 {
			delete(x.menus, w)
		}
	})
}

// shapeOf returns the shape of a candidate, a new one if need be.
func (x *Index) shapeOf(c *Candidate) *shape {
	x.key = c.shapeKey(x.key[:0])
	if s := x.shapes[string(x.key)]; s != nil {
		return s
	}
	s := &shape{key: string(x.key), kinds: c.sum.kinds, free: len(c.FreeGPUs), without: gradeWithout(c)}
	x.shapes[s.key] = s
	s.offers(func(w want, g grade) {
		list := x.menus[w]
		i, _ := slices.BinarySearchFunc(list, g, func(o offer, g grade) int { return o.grade.compare(g) })
		x.menus[w] = slices.Insert(list, i, offer{g, s})
	})
	return s
}

// offers calls fn with all that hosts of the shape have, and how good they are for it.
func (s *shape) offers(fn func(want, grade)) {
	fn(want{}, s.without)
	for i := range s.kinds {
		k := &s.kinds[i]
		for count := 1; count <= k.free; count++ {
			fn(want{k.name, count}, gradeFor(count, k.groups, s.free))
		}
	}
}

// shapeKey appends all that tells one shape from another.
func (c *Candidate) shapeKey(to []byte) []byte {
	to = binary.AppendVarint(to, int64(len(c.FreeGPUs)))
	to = binary.AppendVarint(to, int64(len(c.Host.Inventory.GPUs)))
	for i := range c.sum.kinds {
		k := &c.sum.kinds[i]
		to = binary.AppendVarint(to, int64(len(k.name)))
		to = append(to, k.name...)
		for _, n := range [...]int{k.total, k.free, len(k.groups)} {
			to = binary.AppendVarint(to, int64(n))
		}
		for j := range k.groups {
			g := &k.groups[j]
			for _, n := range [...]int{g.island, g.node, g.free} {
				to = binary.AppendVarint(to, int64(n))
			}
		}
	}
	return to
}

// wantOf is what a request wants of GPUs.
func wantOf(req *Request) want {
	if req.GPU == nil {
		return want{}
	}
	return want{req.GPU.Type, req.GPU.Count}
}
