package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gantry/fleet"
)

// nearness are the labels of hosts that are near each other when their values are equal, the nearest first.
var nearness = [...]string{fleet.LabelNVLink, fleet.LabelRack, fleet.LabelLeaf}

// placed is a host that fits, with where it is by nearness.
type placed struct {
	host *Candidate
	at   [len(nearness)]int // the value's number; 0: not said

	fabric uint64 // see summary
	rate   int64
}

// pickApart is PickGroup for pods of which each is to have a host of its own, all in one of the centers, of which the first is tried first.
func (x *Index) pickApart(g Group, centers []fleet.DataCenterID, instead Instead) ([]Choice, error) {
	all, seen, room := g.Request, maps.Clone(instead), make([]int, len(centers))
	if seen == nil {
		seen = Instead{}
	}
	for i, center := range centers {
		g.Centers = []fleet.DataCenterID{center}
		choices := x.pickIn(&g, seen)
		if len(choices) == g.Count {
			return choices, nil
		}
		room[i] = len(choices)
		for _, c := range choices {
			seen[c.Host] = nil
		}
	}
	q := ask(&all)
	err := x.explain(&q, seen)
	for i, center := range centers {
		err = tooFew(err, room[i], fmt.Sprintf("room for one pod each in %s, but %d are needed in one data center", center, g.Count))
	}
	return nil, err
}

// pickIn chooses hosts of one data center, or those that there are if they are too few: hosts that are near each other if one says where it
// is or has a fabric, else the best. Hosts that Hold refuses become nil in instead.
func (x *Index) pickIn(g *Group, instead Instead) []Choice {
	hosts, told := x.fitting(&g.Request, instead)
	var choices []Choice
	hold := func(c *Candidate) bool {
		choice := Choice{Host: c.Host.ID, GPUs: chooseGPUs(g.GPU, c), DataCenter: c.Host.DataCenter}
		if g.Hold != nil {
			if _, ok := g.Hold(len(choices), choice, c); !ok {
				instead[choice.Host] = nil
				return false
			}
		}
		choices = append(choices, choice)
		return true
	}
	for refused := 0; told && len(hosts) >= g.Count && refused < mostRefused; refused++ {
		choices = make([]Choice, 0, g.Count)
		some := near(onFabric(hosts, g.Count), g.Count)[:g.Count]
		bad := slices.IndexFunc(some, func(p placed) bool { return !hold(p.host) })
		if bad < 0 {
			return choices
		}
		hosts = slices.DeleteFunc(hosts, func(p placed) bool { return p.host == some[bad].host })
	}
	choices = make([]Choice, 0, min(g.Count, len(hosts)))
	for _, r := range ranked(&g.Request, hosts) {
		if len(choices) < g.Count {
			hold(r.c)
		}
	}
	return choices
}

// ranked sorts hosts that fit a request, the best first.
func ranked(req *Request, hosts []placed) []rank {
	q, out := ask(req), make([]rank, len(hosts))
	for i, p := range hosts {
		out[i] = rankOf(req, p.host)
		out[i].lookUp(&q)
	}
	slices.SortFunc(out, func(a, b rank) int {
		if a.betterThan(&b, &q) {
			return -1
		}
		return 1
	})
	return out
}

// mostRefused is after how many hosts that Hold refused nearness does not matter any more.
const mostRefused = 16

// fitting lists the hosts that fit a request, the best first, and reports whether one of them says where it is or has a fabric.
func (x *Index) fitting(req *Request, instead Instead) (out []placed, told bool) {
	q := ask(req)
	s := search{question: &q, need: split3(&req.Need), instead: instead}
	var known [len(nearness)]map[uint64]int
	add := func(c *Candidate) {
		if firstRefusal(&q, c) != passes {
			return
		}
		sum := c.summary()
		p := placed{host: c, fabric: sum.fabric, rate: sum.rate}
		told = told || p.fabric != 0
		for i, value := range sum.at {
			if value == 0 {
				continue
			}
			if known[i] == nil {
				known[i], told = map[uint64]int{}, true
			}
			n := known[i][value]
			if n == 0 {
				n = len(known[i]) + 1
				known[i][value] = n
			}
			p.at[i] = n
		}
		out = append(out, p)
	}
	most := len(instead)
	for _, o := range x.menus[wantOf(req)] {
		most += o.shape.hosts
	}
	out = make([]placed, 0, most)
	for _, o := range x.menus[wantOf(req)] {
		for _, p := range o.shape.pools {
			if s.accepts(p) {
				p.root.each(req, &s.need, func(n *node) {
					if _, other := instead[n.c.Host.ID]; !other {
						add(&n.c)
					}
				})
			}
		}
	}
	from := len(out)
	for _, c := range instead {
		if c != nil {
			add(c)
		}
	}
	slices.SortFunc(out[from:], func(a, b placed) int { return cmp.Compare(a.host.Host.ID, b.host.Host.ID) })
	return out, told
}

// each calls fn with the hosts of a tree that may have what is needed, by their ids.
func (n *node) each(req *Request, need *[shares]int64, fn func(*node)) {
	for n != nil && n.fits(req, need) {
		n.left.each(req, need, fn)
		fn(n)
		n = n.right
	}
}

// onFabric returns the hosts of the fastest fabric that has count of them, of several that with the fewest; else those without a fabric, if
// they are enough; else all.
func onFabric(hosts []placed, count int) []placed {
	groups := map[uint64][]placed{}
	for _, p := range hosts {
		groups[p.fabric] = append(groups[p.fabric], p)
	}
	var best []placed
	for name, group := range groups {
		if name != 0 && len(group) >= count && (best == nil || faster(group, best) < 0) {
			best = group
		}
	}
	switch {
	case best != nil:
		return best
	case len(groups[0]) >= count:
		return groups[0]
	}
	return hosts
}

// faster compares two groups of hosts, each of one fabric: the better one is less.
func faster(a, b []placed) int {
	return cmp.Or(cmp.Compare(b[0].rate, a[0].rate), len(a)-len(b), cmp.Compare(a[0].fabric, b[0].fabric))
}

// near puts count hosts first that are near each other: of one NVLink domain, else of one rack, else of one leaf switch, in each case of
// the smallest group that is large enough; else of as few leaf switches as can be. Those that are nearer to each other are side by side.
func near(hosts []placed, count int) []placed {
	for level := range nearness {
		groups := slices.DeleteFunc(groupsBy(hosts, level), func(g []placed) bool { return g[0].at[level] == 0 || len(g) < count })
		if len(groups) > 0 {
			best := slices.MinFunc(groups, func(a, b []placed) int { return len(a) - len(b) })
			others := slices.DeleteFunc(slices.Clone(hosts), func(p placed) bool { return p.at[level] == best[0].at[level] })
			return append(fill(best, count, level-1), others...)
		}
	}
	return fill(hosts, count, len(nearness)-1)
}

// fill puts hosts first that take up whole groups of a level, the largest first, and then the smallest group that has enough for the
// rest of count. Hosts that do not say where they are come last.
func fill(hosts []placed, count, level int) []placed {
	if level < 0 {
		return hosts
	}
	groups, out := groupsBy(hosts, level), make([]placed, 0, len(hosts))
	for left := count; left > 0 && len(groups) > 0; left = count - len(out) {
		rank := func(g []placed) [2]int {
			switch {
			case g[0].at[level] == 0:
				return [2]int{2}
			case len(g) >= left:
				return [2]int{0, len(g)}
			}
			return [2]int{1, -len(g)}
		}
		next := slices.MinFunc(groups, func(a, b []placed) int { x, y := rank(a), rank(b); return slices.Compare(x[:], y[:]) })
		out = append(out, fill(next, left, level-1)...)
		groups = slices.DeleteFunc(groups, func(g []placed) bool { return &g[0] == &next[0] })
	}
	return append(out, slices.Concat(groups...)...)
}

// groupsBy parts hosts by what they say of a level, in the order in which they say it first; those that say nothing are one group.
func groupsBy(hosts []placed, level int) [][]placed {
	most := 0
	for i := range hosts {
		most = max(most, hosts[i].at[level])
	}
	sizes, at := make([]int, most+1), make([]int, most+1)
	for i := range hosts {
		sizes[hosts[i].at[level]]++
	}
	all, from := make([]placed, len(hosts)), 0
	var order []int
	for i := range hosts {
		n := hosts[i].at[level]
		if sizes[n] > 0 {
			order = append(order, n)
			at[n], from, sizes[n] = from, from+sizes[n], -sizes[n]
		}
		all[at[n]] = hosts[i]
		at[n]++
	}
	out := make([][]placed, len(order))
	for i, n := range order {
		out[i] = all[at[n]+sizes[n] : at[n] : at[n]]
	}
	return out
}
