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

// owed holds, by pod id, addresses that a pod had and that ports and connections may still lead to.
// They are nobody else's until that is over. Controller.mu guards it.
type owed map[string][]netip.Addr

func (o owed) add(id string, addrs ...netip.Addr) {
	for _, a := range addrs {
		if !slices.Contains(o[id], a) {
			o[id] = append(o[id], a)
		}
	}
}

// byOther reports whether the pod's address is owed by another one.
func (o owed) byOther(p netctl.Pod) bool {
	for id, addrs := range o {
		if id != p.ID && slices.Contains(addrs, p.Addr) {
			return true
		}
	}
	return false
}

// owes reports whether something of a place that the pod had is not taken away yet.
func (c *Controller) owes(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.owed[id]) > 0
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
	if pod, wanted := c.want.Pod(id); wanted {
		c.owed.add(id, pod.Addr)
		c.want = c.want.Without(id)
	}
	c.mu.Unlock()
	return c.removePod(id)
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
	addrs := slices.Clone(c.owed[id])
	c.mu.Unlock()
	err := c.detachLink(netctl.LinkName(c.instance, id), addrs)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.owed, id)
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
	left := owed{}
	for id, addrs := range c.owed {
		left[id] = slices.Clone(addrs)
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
		if slices.Equal(c.owed[id], addrs) {
			delete(c.owed, id)
		}
	}
	return nil
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
	left := wanted || len(c.owed[id]) > 0
	c.mu.Unlock()
	if left {
		return true, nil
	}
	name := netctl.LinkName(c.instance, id)
	if link, err := c.linkByName(name); link != nil || err != nil {
		return link != nil, err
	}
	_, err = os.Lstat(filepath.Join(netnsDir, netctl.NamespaceName(c.instance, id)))
	if err == nil {
		return true, nil
	}
	sources, err := c.rules.sources(name)
	return len(sources) > 0, err
}
