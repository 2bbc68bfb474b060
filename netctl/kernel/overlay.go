package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// SetOverlay implements netctl.Controller. What changes is told from memory; Repair looks at the kernel.
func (c *Controller) SetOverlay(ctx context.Context, o netctl.Overlay) error {
	return c.alone(ctx, func(have netctl.Config) error {
		want := have.WithOverlay(o)
		if err := errors.Join(want.ValidatePods(), want.CheckMembers(o)); err != nil {
			return err
		}
		old, known := have.Overlay(o.VNI)
		if known && old.MTU != o.MTU { // before its bridge, by which it is seen whether this was done
			if err := c.resizePlaces(ctx, want, o.VNI); err != nil {
				return err
			}
		}
		if _, err := c.ensureOverlay(want, o); err != nil {
			return err
		}
		gone, come := changeEntries(have, want, o.VNI)
		if !known || old.CIDR != o.CIDR {
			come = append(uplinkEntries(want, o.VNI), come...)
		}
		err := c.changeEntries(gone, come)
		if errors.Is(err, unix.ENOENT) {
			return c.set(ctx, want) // someone else took rules away
		}
		if err == nil {
			c.setWant(want)
		}
		return err
	})
}

// RemoveOverlay implements netctl.Controller.
func (c *Controller) RemoveOverlay(ctx context.Context, vni uint32) error {
	return c.alone(ctx, func(have netctl.Config) error {
		if have.HasPlace(vni) {
			return netctl.ErrOverlayInUse
		}
		o, known := have.Overlay(vni)
		if !known {
			return nil
		}
		rules, _ := split(overlayEntries(have, o)) // what is of links goes with them
		if err := errors.Join(c.removeOverlay(vni), c.rules.change(rules, nil)); err != nil {
			return err
		}
		c.setWant(have.WithoutOverlay(vni))
		return nil
	})
}

// SetUnderlay implements netctl.Controller.
func (c *Controller) SetUnderlay(ctx context.Context, u netctl.Underlay) error {
	u.Plain = slices.Clone(u.Plain)
	return c.again(ctx, func(want *netctl.Config) { want.Underlay = u })
}

// alone runs f with the value in force, and no other verb beside it.
func (c *Controller) alone(ctx context.Context, f func(have netctl.Config) error) error {
	if err := c.gate.Acquire(ctx, gateWidth); err != nil {
		return err
	}
	defer c.gate.Release(gateWidth)
	c.mu.Lock()
	have := c.want.Clone()
	c.mu.Unlock()
	if have.Instance == "" {
		return netctl.ErrNoHost
	}
	return f(have)
}

// changeEntries makes entries of rules and of links come and go.
func (c *Controller) changeEntries(gone, come []entry) error {
	goneRules, goneLinks := split(gone)
	comeRules, comeLinks := split(come)
	return errors.Join(c.rules.change(goneRules, comeRules), c.tellEntries(goneLinks, comeLinks))
}

// setOverlays makes overlays' own links, and the rules' elements. same says that nothing changed and all entries are right.
func (c *Controller) setOverlays(want netctl.Config, right bool) (same bool, err error) {
	for _, o := range want.Overlays {
		fresh, err := c.ensureOverlay(want, o)
		if err != nil {
			return false, err
		}
		right = right && !fresh
	}
	if right {
		return true, nil
	}
	return false, c.settleRules(want)
}

// ensureOverlay makes an overlay's bridge and its link to other hosts, and says whether that is new, without its entries.
func (c *Controller) ensureOverlay(want netctl.Config, o netctl.Overlay) (fresh bool, err error) {
	bridge, err := c.ensureOverlayBridge(want, o)
	if err != nil {
		return false, fmt.Errorf("overlay: %w", err)
	}
	name := netctl.VXLANLink(c.instance, o.VNI)
	if want.Underlay.VXLAN() {
		fresh, err = c.ensureVXLAN(name, want, o, bridge)
	} else {
		err = c.removeLink(name)
	}
	if err != nil {
		return false, fmt.Errorf("overlay: %s: %w", name, err)
	}
	return fresh, nil
}

func (c *Controller) ensureOverlayBridge(want netctl.Config, o netctl.Overlay) (netlink.Link, error) {
	name := netctl.OverlayBridge(c.instance, o.VNI)
	l, err := c.linkByName(name)
	if err != nil {
		return nil, err
	}
	if l != nil && l.Type() != "bridge" {
		if err := c.removeLink(name); err != nil {
			return nil, err
		}
		l = nil
	}
	mark := netctl.OverlayMark(c.instance, o)
	if l != nil {
		if err := c.home.switchOn("net/ipv6/conf/" + name + "/disable_ipv6"); err != nil {
			return nil, fmt.Errorf("bridge: %w", err)
		}
	}
	if l != nil && l.Attrs().Alias == mark && l.Attrs().MTU == want.OverlayMTU(o) && l.Attrs().Flags&net.FlagUp != 0 {
		return l, nil
	}
	if l == nil {
		// A change of a bridge's hardware address would flush its neighbours; given here, it stays.
		snooping, fences, mac := false, uint16(throughFences), net.HardwareAddr{0x0a, 0x67, 0xff, byte(o.VNI >> 16), byte(o.VNI >> 8), byte(o.VNI)}
		l = &netlink.Bridge{LinkAttrs: linkAttrs(name, want.OverlayMTU(o), mac), MulticastSnooping: &snooping, GroupFwdMask: &fences}
		if err := c.host.LinkAdd(l); err != nil {
			return nil, fmt.Errorf("bridge: add: %w", err)
		}
	}
	err = errors.Join(
		c.host.LinkSetMTU(l, want.OverlayMTU(o)), c.home.switchOn("net/ipv6/conf/"+name+"/disable_ipv6"),
		c.host.LinkSetUp(l), c.host.LinkSetAlias(l, mark),
	)
	if err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	return l, nil
}

// ensureVXLAN makes the link to other hosts a port of the overlay's bridge. Its mark is written last.
func (c *Controller) ensureVXLAN(name string, want netctl.Config, o netctl.Overlay, bridge netlink.Link) (changed bool, err error) {
	mark, mtu := fmt.Sprintf("vxlan %d port %d", o.VNI, want.Underlay.Port), want.OverlayMTU(o)
	l, err := c.linkByName(name)
	if err != nil {
		return false, err
	}
	if l != nil {
		a := l.Attrs()
		if a.Alias == mark && a.MasterIndex == bridge.Attrs().Index && a.MTU == mtu && a.Flags&net.FlagUp != 0 {
			return false, c.home.switchOn("net/ipv6/conf/" + name + "/disable_ipv6")
		}
		if a.Alias != mark {
			if err := c.removeLink(name); err != nil {
				return false, err
			}
			l = nil
		}
	}
	if l == nil {
		l = &netlink.Vxlan{LinkAttrs: linkAttrs(name, mtu, nil), VxlanId: int(o.VNI), Port: int(want.Underlay.Port), Learning: false}
		if err := c.host.LinkAdd(l); err != nil {
			return false, fmt.Errorf("add: %w", err)
		}
		if l, err = c.linkByName(name); l == nil || err != nil {
			return false, errors.Join(errors.New("someone else removed it"), err)
		}
	}
	if err := c.host.LinkSetMTU(l, mtu); err != nil {
		return false, fmt.Errorf("set mtu: %w", err)
	}
	if err := c.attach(l, bridge); err != nil {
		return false, err
	}
	return true, c.host.LinkSetAlias(l, mark)
}

// attach makes a link a port of an overlay's bridge. It learns nothing and floods nowhere from before its first frame on; at a pod's, the
// bridge answers for all members. Links to other hosts lead nothing to each other.
func (c *Controller) attach(l, bridge netlink.Link) error {
	if err := c.home.switchOn("net/ipv6/conf/" + l.Attrs().Name + "/disable_ipv6"); err != nil {
		return err
	}
	if err := c.host.LinkSetMaster(l, bridge); err != nil {
		return fmt.Errorf("attach to bridge: %w", err)
	}
	flags := portSwitches(l.Attrs().Name)
	delete(flags, nl.IFLA_BRPORT_STATE) // the kernel's, as the link comes up
	if err := c.home.setSwitches(l.Attrs().Index, true, flags); err != nil {
		return fmt.Errorf("set up port: %w", err)
	}
	if err := c.host.LinkSetUp(l); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	return nil
}

// removeOverlay takes an overlay's links away.
func (c *Controller) removeOverlay(vni uint32) error {
	return errors.Join(
		c.removeLink(netctl.VXLANLink(c.instance, vni)), c.removeLink(netctl.OverlayBridge(c.instance, vni)),
	)
}

// overlayLinks are the names of the links that the overlays of a value have, without those of pods.
func overlayLinks(c netctl.Config) map[string]bool {
	out := map[string]bool{}
	for _, o := range c.Overlays {
		out[netctl.OverlayBridge(c.Instance, o.VNI)] = true
		if c.Underlay.VXLAN() {
			out[netctl.VXLANLink(c.Instance, o.VNI)] = true
		}
	}
	return out
}

// isOverlayLink says whether a link's name is one of the instance's overlays, or of its limits.
func isOverlayLink(instance, name string) bool {
	for _, kind := range []string{"gb", "gv", "go", "gi"} {
		if strings.HasPrefix(name, kind+instance) && len(name) > len(kind)+len(instance) {
			return true
		}
	}
	return false
}
