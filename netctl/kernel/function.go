package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rdmaExclusive is the mode in which an RDMA device is in one network namespace alone, as a link is; see rdma-system(8).
const rdmaExclusive = "exclusive"

// RDMAExclusive reports whether RDMA devices are each in one network namespace; else they are in all.
func (c *Controller) RDMAExclusive() (bool, error) {
	mode, err := retry(netlink.RdmaSystemGetNetnsMode)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return false, nil // a kernel that does not know modes
	}
	if err != nil {
		return false, fmt.Errorf("mode of RDMA devices: %w", err)
	}
	return mode == rdmaExclusive, nil
}

// GiveFunction moves a link of the host into a namespace, by its name there, and brings it up; and with it an RDMA device where those are in
// one namespace each. What is there already stays.
func (c *Controller) GiveFunction(ctx context.Context, namespace, link, as, device string) error {
	ns, err := ensureNamespaceThere(namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := c.moveDevice(device, ns.file, true); err != nil {
		return err
	}
	inside, err := findLink(ns.nl, as, link)
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if inside == nil {
		l, err := c.linkByName(link)
		if err == nil && l == nil {
			err = errors.New("it is not on the host")
		}
		if err == nil {
			err = errors.Join(c.host.LinkSetDown(l), c.host.LinkSetNsFd(l, int(ns.file.Fd())))
		}
		if err != nil {
			return fmt.Errorf("move link %s: %w", link, err)
		}
		if inside, err = findLink(ns.nl, link); err != nil || inside == nil {
			return errors.Join(err, fmt.Errorf("link %s has not arrived", link))
		}
	}
	if inside.Attrs().Name != as {
		if err := ns.nl.LinkSetName(inside, as); err != nil {
			return fmt.Errorf("rename link %s: %w", link, err)
		}
	}
	if err := ns.nl.LinkSetUp(inside); err != nil {
		return fmt.Errorf("link %s up: %w", as, err)
	}
	return nil
}

// TakeFunction undoes GiveFunction. When the namespace is gone, the kernel has done it, but for the name.
func (c *Controller) TakeFunction(ctx context.Context, namespace, link, as, device string) error {
	if !isNamespace(namespace) {
		return nil
	}
	ns, err := ensureNamespaceThere(namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := c.moveDevice(device, ns.file, false); err != nil {
		return err
	}
	inside, err := findLink(ns.nl, as, link)
	if inside == nil || err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	err = ns.nl.LinkSetDown(inside)
	if err == nil && inside.Attrs().Name != link {
		err = ns.nl.LinkSetName(inside, link)
	}
	if err == nil {
		var here *os.File
		if here, err = c.openHome(); err == nil {
			err = errors.Join(ns.nl.LinkSetNsFd(inside, int(here.Fd())), here.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("take link %s back: %w", link, err)
	}
	return nil
}

// ensureNamespaceThere opens a namespace that must be there.
func ensureNamespaceThere(name string) (*namespace, error) {
	if !isNamespace(name) {
		return nil, fmt.Errorf("there is no network namespace %s", name)
	}
	ns, _, err := ensureNamespace(name, 0, false)
	return ns, err
}

// findLink returns the first link of these names that is there; nil: none is.
func findLink(nl *netlink.Handle, names ...string) (netlink.Link, error) {
	for _, name := range names {
		l, err := nl.LinkByName(name)
		if err == nil {
			return l, nil
		}
		if !errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil, fmt.Errorf("find link: %w", err)
		}
	}
	return nil, nil //nolint:nilnil // none is there
}

// moveDevice moves an RDMA device into a namespace, or back from it, unless devices are in all namespaces or this one is there already.
func (c *Controller) moveDevice(device string, ns *os.File, give bool) error {
	if exclusive, err := c.RDMAExclusive(); !exclusive || err != nil {
		return err
	}
	here, err := c.openHome()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }() // read-only
	from, to := here, ns
	if !give {
		from, to = ns, here
	}
	err = onOwnThread(func() error {
		if err := unix.Setns(int(from.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		all, err := netlink.RdmaLinkList()
		if err != nil {
			return err
		}
		for _, l := range all {
			if l.Attrs.Name == device {
				return netlink.RdmaLinkSetNsFd(l, uint32(to.Fd())) //nolint:gosec // a file descriptor
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("move RDMA device %s: %w", device, err)
	}
	return nil
}

// openHome opens the namespace that the controller works on.
func (c *Controller) openHome() (f *os.File, err error) {
	return f, c.home.in(func() error {
		f, err = os.Open(threadNS)
		return err
	})
}
