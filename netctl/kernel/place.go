package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"gantry/netctl"
)

// placeMark is the mark that the link of a pod's place has when it is right.
func placeMark(want netctl.Config, pod netctl.Pod, at netctl.Place) string {
	o, _ := want.Overlay(at.VNI)
	return netctl.PlaceMark(want.Instance, pod.ID, o.CIDR.Bits(), want.OverlayMTU(o), at)
}

// ensurePlaces makes the pod's links in overlays, and takes those away that it had and should not have. fresh says that its namespace was just made.
func (c *Controller) ensurePlaces(ctx context.Context, want netctl.Config, pod netctl.Pod, was []netctl.Pod, fresh bool) error {
	for _, before := range was {
		for _, at := range before.Overlays {
			if _, still := pod.Place(at.VNI); still {
				continue
			}
			if err := c.removePlace(netctl.OverlayLinkName(c.instance, pod.ID, at.VNI)); err != nil {
				return err
			}
		}
	}
	for _, at := range pod.Overlays {
		if err := c.ensurePlace(ctx, want, pod, at, fresh); err != nil {
			return fmt.Errorf("pod's link %s: %w", at.Link, err)
		}
	}
	return nil
}

func (c *Controller) ensurePlace(ctx context.Context, want netctl.Config, pod netctl.Pod, at netctl.Place, fresh bool) error {
	name := netctl.OverlayLinkName(c.instance, pod.ID, at.VNI)
	bridge, err := c.linkByName(netctl.OverlayBridge(c.instance, at.VNI))
	if err != nil {
		return err
	}
	if bridge == nil {
		return errors.New("the overlay's bridge was removed by someone else")
	}
	l, err := c.linkByName(name)
	if err != nil {
		return err
	}
	mark := placeMark(want, pod, at)
	if l != nil && !fresh && l.Attrs().Alias == mark && isPort(l, bridge.Attrs().Index) {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l != nil && !fresh && isPort(l, bridge.Attrs().Index) && builtAs(l.Attrs().Alias) == builtAs(mark) {
		return c.resizePlace(want, l, pod, at)
	}
	return c.buildPlace(ctx, want, bridge, pod, at)
}

// builtAs is a placeMark without its last word, the MTU, which alone can change while a pod runs.
func builtAs(mark string) string {
	i := strings.LastIndexByte(mark, ' ')
	return mark[:max(i, 0)]
}

// resizePlace gives both ends of a pod's link the overlay's MTU. What runs there goes on.
func (c *Controller) resizePlace(want netctl.Config, l netlink.Link, pod netctl.Pod, at netctl.Place) error {
	ns, err := ensureNamespaceThere(pod.Namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	end, err := ns.nl.LinkByName(at.Link)
	if err != nil {
		return err
	}
	o, _ := want.Overlay(at.VNI)
	mtu := want.OverlayMTU(o)
	return errors.Join(c.host.LinkSetMTU(l, mtu), ns.nl.LinkSetMTU(end, mtu), c.host.LinkSetAlias(l, placeMark(want, pod, at)))
}

// resizePlaces is resizePlace for all pods in an overlay whose links have another MTU.
func (c *Controller) resizePlaces(ctx context.Context, want netctl.Config, vni uint32) error {
	var faults []error
	for _, pod := range want.Pods {
		if at, ok := pod.Place(vni); ok {
			faults = append(faults, c.ensurePlace(ctx, want, pod, at, false))
		}
	}
	return errors.Join(faults...)
}

// buildPlace makes the link anew. What it made is taken away again when a step fails; the mark is the last step.
func (c *Controller) buildPlace(ctx context.Context, want netctl.Config, bridge netlink.Link, pod netctl.Pod, at netctl.Place) (err error) {
	name := netctl.OverlayLinkName(c.instance, pod.ID, at.VNI)
	if err := c.removeLink(name); err != nil {
		return err
	}
	ns, _, err := ensureNamespace(pod.Namespace, pod.IDBase, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.removeLink(name))
		}
	}()
	if err := removeStray(ns.nl, at.Link); err != nil {
		return err
	}
	mac, err := net.ParseMAC(at.MAC)
	if err != nil {
		return err
	}
	o, _ := want.Overlay(at.VNI)
	mtu := want.OverlayMTU(o)
	veth := &netlink.Veth{
		LinkAttrs: linkAttrs(name, mtu, nil), PeerName: at.Link, PeerHardwareAddr: mac,
		PeerNamespace: netlink.NsFd(ns.file.Fd()), PeerTxQLen: -1, PeerMTU: uint32(mtu), //nolint:gosec // checked by Config.Validate
	}
	if err := c.host.LinkAdd(veth); err != nil {
		return fmt.Errorf("add link: %w", err)
	}
	end, err := ns.nl.LinkByName(at.Link)
	if err != nil {
		return err
	}
	if err := ns.nl.AddrAdd(end, addrOf(netip.PrefixFrom(at.Addr, o.CIDR.Bits()))); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := errors.Join(ns.nl.LinkSetUp(end), c.attach(veth, bridge)); err != nil {
		return err
	}
	err = errors.Join(waitUp(ctx, c.host, name), waitUp(ctx, ns.nl, at.Link), waitUp(ctx, c.host, bridge.Attrs().Name))
	if err != nil {
		return err
	}
	if err := c.host.LinkSetAlias(veth, placeMark(want, pod, at)); err != nil {
		return fmt.Errorf("mark link: %w", err)
	}
	return nil
}

// removePlace takes a pod's link in an overlay away, and its source rule. Its entries are the caller's.
func (c *Controller) removePlace(link string) error {
	return errors.Join(c.removeLimit(link), c.removeLink(link), c.rules.unpin(link))
}

// placeLinks returns the pod's links in overlays that are there, half made or not.
func (c *Controller) placeLinks(id string) ([]string, error) {
	links, err := retry(c.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	c.mu.Lock()
	mine := map[string]bool{}
	for _, o := range c.want.Overlays {
		mine[netctl.OverlayLinkName(c.instance, id, o.VNI)] = true
	}
	c.mu.Unlock()
	var out []string
	for _, l := range links {
		name := l.Attrs().Name
		if !strings.HasPrefix(name, "go"+c.instance) {
			continue
		}
		_, pod, _, err := netctl.ParsePlaceMark(l.Attrs().Alias)
		if mine[name] || err == nil && pod == id {
			out = append(out, name)
		}
	}
	return out, nil
}

// detachPlaces takes all of a pod's links in overlays away, with what leads to them.
func (c *Controller) detachPlaces(id string) error {
	links, err := c.placeLinks(id)
	faults := []error{err}
	for _, link := range links {
		faults = append(faults, c.removePlace(link))
	}
	return errors.Join(faults...)
}

// movePlaces tells the kernel that places of a pod, of all that it was, are those of after: what leads to an address that a pod here has no more leads
// to a member elsewhere again. Nobody else here has these addresses (owed.byOther).
func (c *Controller) movePlaces(want netctl.Config, was []netctl.Pod, after netctl.Pod) error {
	var had, has []entry
	for _, before := range was {
		for _, at := range before.Overlays {
			had = placeEntries(had, c.instance, local{before.ID, at})
			if now, still := after.Place(at.VNI); !still || now.Addr != at.Addr {
				has = append(has, c.elsewhere(want, at)...)
			}
		}
		if before.Closed {
			had = append(had, entry{kind: closed, addr: octetsOf(before.Addr)})
		}
	}
	for _, at := range after.Overlays {
		had = append(had, c.elsewhere(want, at)...)
		has = placeEntries(has, c.instance, local{after.ID, at})
	}
	if after.Closed {
		has = append(has, entry{kind: closed, addr: octetsOf(after.Addr)})
	}
	gone, _ := without(had, has)
	return c.changeEntries(gone, has)
}

// elsewhere returns the entries of a member on another host that has the place's address.
func (c *Controller) elsewhere(want netctl.Config, at netctl.Place) []entry {
	o, _ := want.Overlay(at.VNI)
	m, ok := o.Member(at.Addr)
	if !ok {
		return nil
	}
	return addMember(nil, want, at.VNI, m)
}

// placeStands says whether the link of a pod's place is as it should be.
func (c *Controller) placeStands(want netctl.Config, pod netctl.Pod, at netctl.Place) (bool, error) {
	bridge, err := c.linkByName(netctl.OverlayBridge(c.instance, at.VNI))
	if bridge == nil || err != nil {
		return false, err
	}
	l, err := c.linkByName(netctl.OverlayLinkName(c.instance, pod.ID, at.VNI))
	if l == nil || err != nil {
		return false, err
	}
	return l.Attrs().Alias == placeMark(want, pod, at) && isPort(l, bridge.Attrs().Index), nil
}
