package place

import (
	"math"
	"slices"

	"gantry/fleet"
)

// search is one pick.
type search struct {
	*question
	need    [shares]int64
	instead Instead
	best    rank
	found   bool
	images  bool // only hosts that have the image
}

// Pick chooses the best host for req. It fails only with a *fleet.Error of code no_capacity, whose Excluded
// counts every host once, under the first filter that refused it.
func (x *Index) Pick(req Request, instead Instead) (Choice, error) {
	q := ask(&req)
	s := search{question: &q, need: split3(&req.Need), instead: instead}
	for _, c := range instead {
		if c != nil {
			s.consider(c, nil)
		}
	}
	x.find(&s)
	if !s.found {
		return Choice{}, x.explain(&q, instead)
	}
	host := s.best.c.Host
	return Choice{Host: host.ID, GPUs: chooseGPUs(req.GPU, s.best.c), DataCenter: host.DataCenter}, nil
}

// consider makes a host the best one if it is. Its grade is worked out unless it is known.
func (s *search) consider(c *Candidate, known *grade) {
	if firstRefusal(s.question, c) != passes {
		return
	}
	r := rank{c: c}
	if known != nil {
		r.grade = *known
	} else {
		r = rankOf(s.Request, c)
	}
	if !s.found || r.betterThan(&s.best, s.question) {
		r.lookUp(s.question)
		s.best, s.found = r, true
	}
}

// find looks through the index for a host that is better than what was found before.
func (x *Index) find(s *search) {
	if s.Pinned != "" {
		if n := x.hosts[s.Pinned]; n != nil {
			s.visit(n, nil)
		}
		return
	}
	offers := x.menus[wantOf(s.Request)]
	for len(offers) > 0 {
		if s.found && s.best.compare(offers[0].grade) < 0 {
			return
		}
		same := 1
		for same < len(offers) && offers[same].grade == offers[0].grade {
			same++
		}
		x.among(s, offers[:same])
		offers = offers[same:]
	}
}

// visit considers a host of the index.
func (s *search) visit(n *node, known *grade) {
	if _, other := s.instead[n.c.Host.ID]; !other {
		s.consider(&n.c, known)
	}
}

// among looks through shapes of one grade: first for hosts that have the image, and if there are none for any.
func (x *Index) among(s *search, offers []offer) {
	equal := func() bool { return s.found && s.best.grade == offers[0].grade }
	if equal() {
		s.best.lookUp(s.question)
	}
	if with := x.images[s.image]; s.image != 0 && len(with) > 0 {
		x.amongThoseWith(s, offers, with)
	}
	if equal() && s.best.image {
		return
	}
	if n := x.hosts[s.Prefer]; n != nil && offered(offers, n.pool.shape) {
		s.visit(n, &offers[0].grade)
	}
	s.images = false
	s.walkAll(offers)
}

// amongThoseWith is among for hosts that have the image: through the list of those, or through the shapes,
// whichever is shorter.
func (x *Index) amongThoseWith(s *search, offers []offer, with []*node) {
	hosts := 0
	for _, o := range offers {
		hosts += o.shape.hosts
	}
	if len(with) > hosts {
		s.images = true
		if n := x.hosts[s.Prefer]; n != nil && offered(offers, n.pool.shape) && n.c.sum.hasImage(s.image) {
			s.visit(n, &offers[0].grade)
		}
		s.walkAll(offers)
		return
	}
	for _, n := range with {
		if offered(offers, n.pool.shape) && s.accepts(n.pool) {
			s.visit(n, &offers[0].grade)
		}
	}
}

func offered(offers []offer, s *shape) bool {
	for i := range offers {
		if offers[i].shape == s {
			return true
		}
	}
	return false
}

func (s *search) walkAll(offers []offer) {
	for _, o := range offers {
		for _, p := range o.shape.pools {
			if s.accepts(p) {
				s.walk(p.root, "", &o.grade)
			}
		}
	}
}

// accepts reports whether what the hosts of a pool have in common is fine.
func (s *search) accepts(p *pool) bool {
	return p.standing == "" && s.refuses(p) == passes
}

// refuses returns the first filter that refuses all hosts of a pool for what they are, or passes.
func (q *question) refuses(p *pool) refusal {
	switch {
	case len(q.Centers) > 0 && !slices.Contains(q.Centers, p.center):
		return refusedCenter
	case p.cloud != q.Cloud:
		return refusedCloud
	case q.GPU != nil && p.shape.kind(q.GPU.Type).total == 0:
		return refusedGPUType
	case q.statesCUDA && !q.acceptsCUDA(p.cuda):
		return refusedCUDA
	case q.VolumeKind != "" && p.volumes&bitOf(q.VolumeKind) == 0:
		return refusedVolume
	case q.Networked && !p.networked:
		return refusedTunnel
	case q.Fabric != "" && p.fabric != q.fabric:
		return refusedFabric
	}
	return passes
}

func (s *shape) kind(name string) kindSummary {
	of := summary{kinds: s.kinds}
	return of.kind(name)
}

// walk visits the hosts of a tree in the order of their ids, which are all above the one given, and leaves out
// those that cannot be the best.
func (s *search) walk(n *node, above fleet.HostID, g *grade) {
	for n != nil && n.fits(s.Request, &s.need) && !s.hopeless(n, above, g) {
		s.walk(n.left, above, g)
		if !s.images || n.c.sum.hasImage(s.image) {
			s.visit(n, g)
		}
		n, above = n.right, n.c.Host.ID
	}
}

// hopeless reports whether nothing in the tree comes before the best that was found.
func (s *search) hopeless(n *node, above fleet.HostID, g *grade) bool {
	switch {
	case !s.found || s.best.grade != *g:
		return false
	case s.images != s.best.image:
		return s.best.image
	case s.Prefer != "" && s.best.c.Host.ID == s.Prefer:
		return true
	}
	return !n.canBeat(&s.best, above, &s.need)
}

// Stock returns how many pods like req the hosts could take now, one beside the other, but counts no further
// than limit. It is 0 exactly when Pick fails.
func (x *Index) Stock(req Request, limit int) int {
	q := ask(&req)
	s := search{question: &q, need: split3(&req.Need)}
	total, limit := 0, min(limit, math.MaxInt32)
	for _, o := range x.menus[wantOf(&req)] {
		for _, p := range o.shape.pools {
			if s.accepts(p) {
				s.stock(p.root, limit, &total)
			}
		}
	}
	return min(total, limit)
}

func (s *search) stock(n *node, limit int, total *int) {
	for n != nil && *total < limit && n.fits(s.Request, &s.need) {
		if firstRefusal(s.question, &n.c) == passes {
			*total += fits(s.Request, &n.c)
		}
		s.stock(n.left, limit, total)
		n = n.right
	}
}

// explain counts the refused hosts by reason.
func (x *Index) explain(q *question, instead Instead) error {
	t := tally{}
	if q.Pinned != "" {
		x.explainPinned(q, instead, t)
	} else {
		for _, s := range x.shapes {
			for _, p := range s.pools {
				p.explain(q, instead, t)
			}
		}
	}
	for id, c := range instead {
		if n := x.hosts[id]; n != nil {
			e := excluded(q, &n.c)
			t.add(e, refused{-1, nothing, -e.keptBy(&n.c)})
		}
		if c != nil {
			t.host(q, c)
		}
	}
	return t.error(q)
}

func (x *Index) explainPinned(q *question, instead Instead, t tally) {
	others := len(x.hosts)
	if n := x.hosts[q.Pinned]; n != nil {
		n.count(q, instead, t)
		others--
	}
	t.add(exclusion{why: refusedPinned}, refused{others, nothing, 0})
}

// count counts a host. What one that is to be seen otherwise has free does not count.
func (n *node) count(q *question, instead Instead, t tally) {
	if _, other := instead[n.c.Host.ID]; other {
		e := excluded(q, &n.c)
		t.add(e, refused{1, nothing, e.keptBy(&n.c)})
		return
	}
	t.host(q, &n.c)
}

// mostCPU returns the most that a host of the tree has free of its processors for a request, and at least best; it leaves out
// those that are to be seen otherwise.
func (n *node) mostCPU(req *Request, instead Instead, best int64) int64 {
	for n != nil && n.reach(req)[ofCPU] > best {
		if _, other := instead[n.c.Host.ID]; !other {
			best = max(best, n.c.reach(req).MilliCPU)
		}
		best = n.left.mostCPU(req, instead, best)
		n = n.right
	}
	return best
}

// explain counts the hosts of a pool.
func (p *pool) explain(q *question, instead Instead, t tally) {
	if why := q.refuses(p); why != passes {
		all := exclusion{why: why}
		if why == refusedVolume {
			all.kind = q.VolumeKind
		}
		t.add(all, refused{p.root.size, nothing, 0})
		return
	}
	all := exclusion{why: passes}
	if p.standing != "" {
		all = exclusion{why: refusedStanding, standing: p.standing}
	} else if q.GPU != nil {
		if k := p.shape.kind(q.GPU.Type); q.GPU.Count < 1 || k.free < q.GPU.Count {
			all = exclusion{why: refusedGPUCount, free: k.free, total: k.total}
		}
	}
	need := split3(&q.Need)
	p.root.explain(q, all, &need, instead, t)
}

// explain counts the hosts of a tree, where it can all at once; all is what refuses those that are large enough.
func (n *node) explain(q *question, all exclusion, need *[shares]int64, instead Instead, t tally) {
	for n != nil {
		if n.smallest[ofMemory] >= q.MinMemoryMB && n.smallest[ofCPU] >= q.MinMilliCPU {
			if all.why == passes && n.reach(q.Request)[ofCPU] < need[ofCPU] {
				all.why, all.keeps = refusedCPU, n.c.keeps(q.Request) // as all hosts of the shape
			}
			if all.why != passes {
				r := refused{n.size, nothing, 0}
				if all.why == refusedCPU {
					r.most = n.mostCPU(q.Request, instead, nothing)
				}
				if all.keeps {
					r.kept = n.kept
				}
				t.add(all, r)
				return
			}
		}
		n.count(q, instead, t)
		n.left.explain(q, all, need, instead, t)
		n = n.right
	}
}
