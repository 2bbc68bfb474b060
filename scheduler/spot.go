package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// spotOf returns the terms of an interruptible pod that a request asks for; nil: it is on demand. Errors: rule, invalid.
func spotOf(cat fleet.Catalog, req *fleet.PodRequest) (*fleet.Spot, error) {
	switch {
	case !req.Interruptible && req.Bid != 0:
		return nil, fleet.BreaksRule("bidPerGpu is for interruptible pods: set interruptible")
	case !req.Interruptible && req.Return:
		return nil, fleet.BreaksRule("return is for interruptible pods: set interruptible")
	case !req.Interruptible:
		return nil, nil
	case req.GPU == nil:
		return nil, fleet.BreaksRule("interruptible is for GPU pods")
	}
	t, ok := gpuTypeOf(cat, req.GPU.Type)
	if !ok {
		return nil, unknownGPU(cat, req.GPU.Type)
	}
	_, least := t.Prices(req.Cloud)
	spec := fleet.PodSpec{GPU: req.GPU, Cloud: req.Cloud, Spot: &fleet.Spot{Return: req.Return}}
	return newBid(cat, &spec, cmp.Or(req.Bid, least))
}

// newBid returns the terms of an interruptible pod with another bid per GPU and hour. Errors: rule, invalid.
func newBid(cat fleet.Catalog, spec *fleet.PodSpec, bid fleet.Money) (*fleet.Spot, error) {
	if spec.Spot == nil {
		return nil, fleet.BreaksRule("a bid is for interruptible pods, and this pod is on demand")
	}
	t, ok := gpuTypeOf(cat, spec.GPU.Type)
	if !ok {
		return nil, unknownGPU(cat, spec.GPU.Type)
	}
	switch onDemand, least := t.Prices(spec.Cloud); {
	case least == 0 || bid < least:
		return nil, bidTooLow(least)
	case bid > onDemand:
		return nil, fleet.Invalid("$.bidPerGpu", fmt.Sprintf("must be at most the price on demand, %g", onDemand.USD()))
	}
	return &fleet.Spot{Bid: bid, Return: spec.Spot.Return}, nil
}

// bidTooLow refuses a bid below the lowest; 0: the catalog has no such pods.
func bidTooLow(least fleet.Money) error {
	if least == 0 {
		return fleet.BreaksRule("this GPU type is not offered to interruptible pods in this cloud: its minimum bid is not set")
	}
	return fleet.Invalid("$.bidPerGpu", fmt.Sprintf("must be at least the minimum bid, %g", least.USD()))
}

// checkEnds refuses times of an end that have passed; zero: there is none.
func checkEnds(now, stop, terminate time.Time) error {
	switch {
	case !stop.IsZero() && !stop.After(now):
		return fleet.Invalid("$.stopAfter", "must be in the future")
	case !terminate.IsZero() && !terminate.After(now):
		return fleet.Invalid("$.terminateAfter", "must be in the future")
	}
	return nil
}

// changeTerms changes when a pod ends, and whether it returns. Errors: rule.
func changeTerms(spec *fleet.PodSpec, c *fleet.PodUpdate) error {
	set(&spec.StopAfter, c.StopAfter)
	set(&spec.TerminateAfter, c.TerminateAfter)
	switch {
	case c.Return == nil:
	case spec.Spot == nil:
		return fleet.BreaksRule("return is for interruptible pods")
	default:
		spec.Spot = &fleet.Spot{Bid: spec.Spot.Bid, Return: *c.Return}
	}
	return nil
}

// yielded is how a pod gets room on one host: by which pods, at least.
type yielded struct {
	host fleet.HostID
	pods []*fleet.Pod // lowest bid first, then the youngest
	room place.Candidate
}

// compare orders by what is taken away: the lowest bids first, then the fewest pods, then the youngest.
func (y *yielded) compare(other *yielded) int {
	last := func(y *yielded) *fleet.Pod { return y.pods[len(y.pods)-1] }
	a, b := last(y), last(other)
	return cmp.Or(cmp.Compare(a.Spec.Spot.Bid, b.Spec.Spot.Bid), cmp.Compare(len(y.pods), len(other.pods)),
		b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(y.host, other.host))
}

// chooseYielding is choose where frozen workers do not make enough room: GPU pods take it from interruptible pods that yield to them. One
// pod takes it from those with the lowest bids, of as few as that leaves, the youngest first; several together from all that bid no more
// than some bid, the lowest that is enough. why is the error of choose without.
func (d *demand) chooseYielding(
	v *state.View, pods []*fleet.Pod, group place.Group, hosts *place.Index, instead place.Instead, ports func(fleet.HostID) []int, why error,
) ([]bound, error) {
	if d.req.GPU == nil {
		return nil, why
	}
	try := func(room place.Instead, yield func(fleet.HostID) []*fleet.Pod) ([]bound, error) {
		seen := maps.Clone(instead)
		if seen == nil {
			seen = place.Instead{}
		}
		maps.Copy(seen, room)
		bounds, err := d.choose(v, pods, group, hosts, seen, ports)
		if err == nil {
			d.evict(bounds, hosts, instead, func(on fleet.HostID) []*fleet.Pod { return append(frozenOn(v, on, true), yield(on)...) })
		}
		return bounds, err
	}
	if len(pods) > 1 {
		return d.chooseLevel(v, pods[0], hosts, instead, try, why)
	}
	var ways []yielded
	for id := range v.Yielding() {
		if d.req.Pinned != "" && id != d.req.Pinned {
			continue
		}
		if way, ok := d.wayOn(v, pods[0], hosts.Get(id, instead)); ok {
			ways = append(ways, way)
		}
	}
	slices.SortFunc(ways, func(a, b yielded) int { return a.compare(&b) })
	for i := range ways[:min(len(ways), enough)] { // the first has no room only for want of public ports
		bounds, err := try(place.Instead{ways[i].host: &ways[i].room}, func(on fleet.HostID) []*fleet.Pod {
			if on != ways[i].host {
				return nil
			}
			return ways[i].pods
		})
		if err == nil {
			return bounds, nil
		}
	}
	return nil, why
}

// chooseLevel finds the lowest bid up to which pods have to yield, so that there is room for several.
func (d *demand) chooseLevel(
	v *state.View, comes *fleet.Pod, hosts *place.Index, instead place.Instead,
	try func(place.Instead, func(fleet.HostID) []*fleet.Pod) ([]bound, error), why error,
) (best []bound, err error) {
	bids := map[fleet.Money]bool{}
	for _, on := range v.Yielding() {
		for _, p := range on {
			if p.YieldsTo(comes) {
				bids[p.Spec.Spot.Bid] = true
			}
		}
	}
	levels, err := slices.Sorted(maps.Keys(bids)), why
	sort.Search(len(levels), func(i int) bool {
		most := levels[i]
		yield := func(on fleet.HostID) []*fleet.Pod {
			return slices.DeleteFunc(yieldingOn(v, on, comes), func(p *fleet.Pod) bool { return p.Spec.Spot.Bid > most })
		}
		room := place.Instead{}
		for id := range v.Yielding() {
			if on := hosts.Get(id, instead); on != nil {
				more := withoutFrozen(on, append(frozenOn(v, id, true), yield(id)...))
				room[id] = &more
			}
		}
		bounds, failed := try(room, yield)
		if failed == nil {
			best, err = bounds, nil
		}
		return failed == nil
	})
	return best, err
}

// yieldingOn lists the pods of a host that yield to another, those first that go first.
func yieldingOn(v *state.View, host fleet.HostID, to *fleet.Pod) []*fleet.Pod {
	var out []*fleet.Pod
	for _, p := range v.Yielding()[host] {
		if p.ID != to.ID && p.YieldsTo(to) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *fleet.Pod) int {
		return cmp.Or(cmp.Compare(a.Spec.Spot.Bid, b.Spec.Spot.Bid), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// mostYielding is among how many pods of a host the fewest are looked for; of more, those that go last are not considered.
const mostYielding = 16

// wayOn finds which pods of a host, without its frozen workers, have to yield so that another has room: up to the lowest bid that is enough
// the fewest, and of those that are as few the ones that go first.
func (d *demand) wayOn(v *state.View, comes *fleet.Pod, on *place.Candidate) (yielded, bool) {
	if on == nil {
		return yielded{}, false
	}
	base := withoutFrozen(on, frozenOn(v, on.Host.ID, true))
	all := yieldingOn(v, on.Host.ID, comes)
	fits := func(out []*fleet.Pod) (place.Candidate, bool) {
		more := withoutFrozen(&base, out)
		n, _ := place.Room(d.req, &more)
		return more, n > 0
	}
	if _, ok := fits(all); !ok || len(all) == 0 { // with none there may be room, and yet no public port
		return yielded{}, false
	}
	n := 1 + sort.Search(len(all), func(i int) bool { _, ok := fits(all[:i+1]); return ok })
	for n < len(all) && all[n].Spec.Spot.Bid == all[n-1].Spec.Spot.Bid {
		n++
	}
	among := all[:n]
	if n <= mostYielding {
		for size := 1; size < n; size++ {
			if out := combination(among, size, func(out []*fleet.Pod) bool { _, ok := fits(out); return ok }); out != nil {
				among = out
				break
			}
		}
	} else { // as few as one by one can be left out, those first that go last
		among = slices.Clone(among)
		for i := len(among) - 1; i >= 0; i-- {
			if less := slices.Delete(slices.Clone(among), i, i+1); len(less) > 0 {
				if _, ok := fits(less); ok {
					among = less
				}
			}
		}
	}
	room, _ := fits(among)
	return yielded{host: on.Host.ID, pods: among, room: room}, true
}

// combination returns the first size of the pods, in their order, that will do; nil: none will.
func combination(pods []*fleet.Pod, size int, will func([]*fleet.Pod) bool) []*fleet.Pod {
	var pick func(from int, chosen []*fleet.Pod) []*fleet.Pod
	pick = func(from int, chosen []*fleet.Pod) []*fleet.Pod {
		if len(chosen) == size {
			if will(chosen) {
				return slices.Clone(chosen)
			}
			return nil
		}
		for i := from; i <= len(pods)-(size-len(chosen)); i++ {
			if out := pick(i+1, append(chosen, pods[i])); out != nil {
				return out
			}
		}
		return nil
	}
	return pick(0, make([]*fleet.Pod, 0, size))
}

// ReturnPod starts an interrupted pod again that is to return, at the bid that it has. It does nothing to any other, and interrupts none.
// Errors: those of a start by its owner.
func (s *Service) ReturnPod(ctx context.Context, id fleet.PodID) error {
	pod, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		cmd := state.ActPod{Pod: id, Action: fleet.ActionStart, At: s.Now()}
		err := s.read(ctx, func(v *state.View) error {
			p, ok := v.Pod(id)
			if !ok || !p.Returns() {
				return nil
			}
			cmd.Account, cmd.Owner, cmd.Rev = p.Account, p.Owner, p.Rev
			if _, err := rateOf(v.Catalog(), &p); err != nil {
				return err // its bid is too low by now
			}
			bind, err := bindAgain(v, &p, cmd.At, mine)
			if err != nil {
				return err
			}
			for _, id := range bind.Evict {
				if p, _ := v.Pod(id); p.Spec.Spot != nil {
					return &fleet.Error{Code: fleet.CodeNoCapacity, Msg: place.NoCapacity}
				}
			}
			cmd.Bind = bind
			return nil
		})
		if err != nil || cmd.Bind == nil {
			return fleet.Pod{}, err
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err == nil && pod.ID != "" {
		s.Log.Info("interrupted pod returns", "pod", id, "account", pod.Account, "host", pod.Host)
	}
	return err
}
