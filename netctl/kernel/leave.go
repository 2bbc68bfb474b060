package kernel

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"gantry/netctl"
)

// owed holds, by pod id, what a pod had and what may still lead there. It is nobody else's until that is over, and the next verb of the pod
// finishes it. Controller.mu guards it.
type owed map[string]debt

type debt struct {
	addrs []netip.Addr // ports and connections may still lead to them
	was   []netctl.Pod // what the pod was: links, entries and ports of that may still be there
}

func (o owed) add(id string, addrs ...netip.Addr) {
	d := o[id]
	for _, a := range addrs {
		if !slices.Contains(d.addrs, a) {
			d.addrs = append(slices.Clone(d.addrs), a)
		}
	}
	o[id] = d
}

// change notes that a pod is to be another than it was.
func (o owed) change(was netctl.Pod) {
	d := o[was.ID]
	if !slices.ContainsFunc(d.was, was.Equal) {
		d.was = append(slices.Clone(d.was), was)
	}
	o[was.ID] = d
}

// paid notes that no address is owed any more, or nothing of what the pod was.
func (o owed) paid(id string, addrs, was bool) {
	d := o[id]
	if addrs {
		d.addrs = nil
	}
	if was {
		d.was = nil
	}
	if o[id] = d; len(d.addrs)+len(d.was) == 0 {
		delete(o, id)
	}
}

// byOther reports whether an address of the pod is owed by another one.
func (o owed) byOther(p netctl.Pod) bool {
	for id, d := range o {
		if id == p.ID {
			continue
		}
		if slices.Contains(d.addrs, p.Addr) {
			return true
		}
		for _, was := range d.was {
			for _, at := range was.Overlays {
				if now, has := p.Place(at.VNI); has && (now.Addr == at.Addr || now.MAC == at.MAC) {
					return true
				}
			}
		}
	}
	return false
}

// reserve enters the pod into the wanted value, so that two pods never get one
// address. What a pod was before is owed from here on.
func (c *Controller) reserve(pod netctl.Pod) (netctl.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.want.Instance == "" {
		return netctl.Config{}, netctl.ErrNoHost
	}
	old, _ := c.want.Pod(pod.ID)
	next := c.want
	if !old.Equal(pod) {
		if c.owed.byOther(pod) {
			return netctl.Config{}, errors.New("addr: is still that of a pod which leaves")
		}
		next = c.want.With(pod)
		if err := next.ValidatePods(); err != nil {
			return netctl.Config{}, err
		}
	}
	c.want = next
	if old.ID != "" && !old.SamePlace(pod) {
		c.owed.add(pod.ID, old.Addr)
	}
	if old.ID != "" && !old.Equal(pod) {
		c.owed.change(old)
	}
	return next, nil
}

// owes reports whether something of a place that the pod had is not taken away yet.
func (c *Controller) owes(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.owed[id].addrs) > 0
}

// was returns what the pod was before, as far as that is not taken away yet.
func (c *Controller) was(id string) []netctl.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.owed[id].was)
}

// paid notes that nothing is left of what the pod was.
func (c *Controller) paid(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed.paid(id, false, true)
}

// RemovePod implements netctl.Controller. The pod is wanted no more from the start on: what a
// failure leaves, Repair takes away too, and does not build again.
func (c *Controller) RemovePod(ctx context.Context, id string) error {
	done, err := c.enter(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	c.mu.Lock()
	pod, wanted := c.want.Pod(id)
	if wanted {
		c.owed.add(id, pod.Addr)
		c.owed.change(pod)
		c.want = c.want.Without(id)
	}
	want, was := c.want, slices.Clone(c.owed[id].was)
	c.mu.Unlock()
	if err := errors.Join(c.removePod(id), c.movePlaces(want, was, netctl.Pod{ID: id})); err != nil {
		return err
	}
	c.paid(id)
	return nil
}

// removePod takes a pod's objects away, as many as it can.
func (c *Controller) removePod(id string) error {
	return errors.Join(c.detach(id), removeNamespace(netctl.NamespaceName(c.instance, id)))
}

// detach takes away all of a pod but its namespace: of every place that it had and that it has not
// been given since.
func (c *Controller) detach(id string) error {
	if err := netctl.CheckPodID(id); err != nil {
		return err
	}
	c.mu.Lock()
	addrs := slices.Clone(c.owed[id].addrs)
	c.mu.Unlock()
	err := errors.Join(c.detachPlaces(id), c.removeLimit(netctl.LinkName(c.instance, id)), c.detachLink(netctl.LinkName(c.instance, id), addrs))
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.owed.paid(id, true, false)
	}
	return err
}

// detachLink takes away a pod's link, its source rule, and the ports and connections that lead to
// the addresses and to those of link and rule. Every part is tried, whatever becomes of the others.
// The ports go first, so that nothing leads to an address that the rules do not name; link and source
// rule go side by side, since the kernel lets each wait; the connections are forgotten once the pod's
// frames no longer pass, so that it cannot make new ones.
func (c *Controller) detachLink(name string, addrs []netip.Addr) error {
	link, err := c.linkByName(name)
	faults := []error{err}
	if link != nil {
		if host, pod, err := netctl.ParseMark(link.Attrs().Alias); err == nil && host.Instance == c.instance {
			addrs = append(addrs, pod.Addr)
		}
	}
	sources, err := c.rules.sources(name)
	faults = append(faults, err)
	addrs = append(addrs, sources...)
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.DeleteFunc(slices.Compact(addrs), func(a netip.Addr) bool { return c.isOthers(name, a) })
	for _, a := range addrs {
		faults = append(faults, c.rules.withdraw(a))
	}
	var g errgroup.Group
	var unpinned error
	g.Go(func() error { return c.removeLink(name) })
	g.Go(func() error {
		unpinned = c.rules.unpin(name)
		return nil
	})
	faults = append(faults, g.Wait(), unpinned)
	for _, a := range addrs {
		faults = append(faults, c.forgetFlows(netip.PrefixFrom(a, a.BitLen())))
	}
	return errors.Join(faults...)
}

// isOthers reports whether the address is wanted for a pod with another link.
func (c *Controller) isOthers(link string, a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.want.Pods, func(p netctl.Pod) bool {
		return p.Addr == a && netctl.LinkName(c.instance, p.ID) != link
	})
}

// settle ends what is owed: the tables are those of want, so that only connections are left.
func (c *Controller) settle(want netctl.Config) error {
	c.mu.Lock()
	left := map[string][]netip.Addr{}
	for id, d := range c.owed {
		left[id] = slices.Clone(d.addrs)
	}
	c.mu.Unlock()
	var faults []error
	for _, addrs := range left {
		for _, a := range addrs {
			if !slices.ContainsFunc(want.Pods, func(p netctl.Pod) bool { return p.Addr == a }) {
				faults = append(faults, c.forgetFlows(netip.PrefixFrom(a, a.BitLen())))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, addrs := range left {
		if slices.Equal(c.owed[id].addrs, addrs) {
			c.owed.paid(id, true, false)
		}
	}
	return nil
}

// settlePods notes that nothing is left of what any pod was: rules and entries are those of a whole value.
func (c *Controller) settlePods() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.owed {
		c.owed.paid(id, false, true)
	}
}

// Left implements netctl.Controller.
func (c *Controller) Left(ctx context.Context, id string) (bool, error) {
	done, err := c.enter(ctx, id)
	if err != nil {
		return false, err
	}
	defer done()
	c.mu.Lock()
	_, wanted := c.want.Pod(id)
	left := wanted || len(c.owed[id].addrs)+len(c.owed[id].was) > 0
	c.mu.Unlock()
	if left {
		return true, nil
	}
	name := netctl.LinkName(c.instance, id)
	if link, err := c.linkByName(name); link != nil || err != nil {
		return link != nil, err
	}
	if places, err := c.placeLinks(id); len(places) > 0 || err != nil {
		return len(places) > 0, err
	}
	_, err = os.Lstat(filepath.Join(netnsDir, netctl.NamespaceName(c.instance, id)))
	if err == nil {
		return true, nil
	}
	sources, err := c.rules.sources(name)
	return len(sources) > 0, err
}
