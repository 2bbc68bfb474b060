package kernel

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// A limit has two halves: a token bucket at the host's end of the link for what the pod receives, and one at a link of its own (IFB), to
// which all that comes from the pod is led first, for what it sends. The host's end has its bucket last: it says that all is there.

// limitLink names the link through which passes what comes by a host's end.
func limitLink(end string) string { return "gi" + end[2:] }

// ingressHandle is the fixed handle of a link's ingress queue.
var ingressHandle = netlink.MakeHandle(0xffff, 0)

// podEnds names the hosts' ends of a pod's links.
func podEnds(instance string, p netctl.Pod) []string {
	out := []string{netctl.LinkName(instance, p.ID)}
	for _, at := range p.Overlays {
		out = append(out, netctl.OverlayLinkName(instance, p.ID, at.VNI))
	}
	return out
}

// queues are those of all links, by index: one look for many links.
type queues map[int][]netlink.Qdisc

func (c *Controller) queues() (queues, error) {
	list, err := retry(func() ([]netlink.Qdisc, error) { return c.host.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	out := queues{}
	for _, q := range list {
		out[q.Attrs().LinkIndex] = append(out[q.Attrs().LinkIndex], q)
	}
	return out, nil
}

// ensureLimits gives all of a pod's links its limit.
func (c *Controller) ensureLimits(p netctl.Pod, have queues) error {
	for _, end := range podEnds(c.instance, p) {
		if err := c.ensureLimit(end, p.Mbps, have); err != nil {
			return fmt.Errorf("limit: %w", err)
		}
	}
	return nil
}

func (c *Controller) ensureLimit(end string, mbps int, all queues) error {
	l, err := c.linkByName(end)
	if err != nil {
		return err
	}
	if l == nil {
		return errors.New("the pod's link was removed by someone else")
	}
	have, err := c.limitOf(l, all)
	if have == mbps || err != nil {
		return err
	}
	if mbps == 0 {
		return c.liftLimit(l)
	}
	ifb, err := c.ensureIFB(limitLink(end), l.Attrs().MTU)
	if err != nil {
		return err
	}
	if err := c.host.QdiscReplace(bucket(ifb, mbps)); err != nil {
		return fmt.Errorf("what it sends: %w", err)
	}
	if have <= 0 {
		if err := c.leadThrough(l, ifb); err != nil {
			return fmt.Errorf("what it sends: %w", err)
		}
	}
	if err := c.host.QdiscReplace(bucket(l, mbps)); err != nil {
		return fmt.Errorf("what it receives: %w", err)
	}
	return nil
}

// ensureIFB makes the link for what a pod sends.
func (c *Controller) ensureIFB(name string, mtu int) (netlink.Link, error) {
	l, err := c.linkByName(name)
	if l != nil || err != nil {
		return l, err
	}
	ifb := &netlink.Ifb{LinkAttrs: linkAttrs(name, mtu, nil)}
	if err := c.host.LinkAdd(ifb); err != nil {
		return nil, fmt.Errorf("add link: %w", err)
	}
	if err := c.home.switchOn("net/ipv6/conf/" + name + "/disable_ipv6"); err != nil {
		return nil, err
	}
	return ifb, c.host.LinkSetUp(ifb)
}

// ingressOf is a link's queue of what comes in.
func ingressOf(l netlink.Link) netlink.Qdisc {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: ingressHandle, Parent: netlink.HANDLE_INGRESS}}
}

// leadThrough leads all that comes by l through ifb.
func (c *Controller) leadThrough(l, ifb netlink.Link) error {
	queue := ingressOf(l)
	if err := c.host.QdiscDel(queue); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := c.host.QdiscAdd(queue); err != nil {
		return err
	}
	return c.host.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: ingressHandle, Priority: 1, Protocol: unix.ETH_P_ALL},
		Sel:         &netlink.TcU32Sel{Nkeys: 1, Flags: netlink.TC_U32_TERMINAL, Keys: []netlink.TcU32Key{{}}},
		RedirIndex:  ifb.Attrs().Index,
	})
}

// bucket is a limit in one direction.
func bucket(l netlink.Link, mbps int) *netlink.Tbf {
	rate := uint64(mbps) * 1e6 / 8  //nolint:gosec // checked by Config.Validate
	burst := max(rate/250, 128<<10) // 4 ms, and two of the largest packets
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Buffer: uint32(netlink.Xmittime(rate, uint32(burst))), Limit: uint32(min(burst+rate/20, math.MaxUint32)), //nolint:gosec // below 2^32
	}
}

// limitOf returns the limit of a host's end: 0 when there is none, -1 when it is not whole.
func (c *Controller) limitOf(l netlink.Link, all queues) (int, error) {
	mbps, ingress := 0, false
	for _, q := range all[l.Attrs().Index] {
		if t, ok := q.(*netlink.Tbf); ok {
			mbps = int(t.Rate * 8 / 1e6) //nolint:gosec // below 2^32
		}
		ingress = ingress || q.Type() == "ingress"
	}
	if mbps == 0 && !ingress {
		return 0, nil
	}
	if mbps == 0 || !ingress {
		return -1, nil
	}
	filters, err := retry(func() ([]netlink.Filter, error) { return c.host.FilterList(l, ingressHandle) })
	if err != nil {
		return 0, fmt.Errorf("list filters: %w", err)
	}
	ifb, err := c.linkByName(limitLink(l.Attrs().Name))
	if ifb == nil || err != nil {
		return -1, err
	}
	if len(filters) == 0 {
		return -1, nil
	}
	return mbps, nil
}

// liftLimit takes a limit away.
func (c *Controller) liftLimit(l netlink.Link) error {
	for _, q := range []netlink.Qdisc{
		ingressOf(l), bucket(l, 1),
	} {
		if err := c.host.QdiscDel(q); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("remove limit: %w", err)
		}
	}
	return c.removeLimit(l.Attrs().Name)
}

// removeLimit takes away what a limit has beside the host's end, which goes or has gone.
func (c *Controller) removeLimit(end string) error { return c.removeLink(limitLink(end)) }
