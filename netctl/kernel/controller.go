// Package kernel makes a host's desired network so on Linux: a bridge, a named
// network namespace and a veth pair per pod, and two nftables tables (family inet:
// NAT and what pods may reach; family bridge: which source each pod may use).
//
// A pod's namespace belongs to a user namespace of the pod, or to the host
// (netctl.Pod.IDBase); the group of the host's end of the link says which.
//
// It touches only objects that carry its instance in their name, apart from
// net.ipv4.ip_forward, which it switches on and leaves on, and the mount of
// /run/netns, which it shares with `ip netns`. It never decides which pods exist and
// keeps no file: the kernel is the only memory, and a finished pod's link carries
// a mark from which a successor reads whose it is.
//
// Locks: Controller.gate admits many pod verbs or one host verb at a time, and
// Controller.busy one verb per pod; both wait under the caller's context.
// Controller.mu guards memory only and is never held across a system call. Last comes
// ruleset.publishing, one change of the published ports at a time.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

const (
	gateWidth    = 16              // pod verbs at a time
	setWorkers   = 2               // pods that Set works on at a time; the kernel has one lock for links
	callTimeout  = 5 * time.Second // of one exchange with the kernel
	rulesTimeout = 30 * time.Second
)

// Controller is a netctl.Controller for the network namespace in which it was made: its verbs may be called from any other.
type Controller struct {
	instance string
	log      *slog.Logger
	home     home
	host     *netlink.Handle
	rules    *ruleset
	gate     *semaphore.Weighted

	mu   sync.Mutex
	want netctl.Config            // what the last Set asked for, kept current by the pod verbs; zero before
	owed owed                     // what pods still have that leave, or move
	busy map[string]chan struct{} // by pod id; closed when its verb ends
}

var _ netctl.Controller = (*Controller)(nil)

// New returns a controller for one instance in the caller's network namespace. It
// needs the rights of root over it and the nft program. Close it after use.
func New(instance string, log *slog.Logger) (*Controller, error) {
	if err := netctl.CheckInstance(instance); err != nil {
		return nil, err
	}
	at, err := newHome()
	if err != nil {
		return nil, err
	}
	rules, err := newRuleset(instance, at)
	if err != nil {
		at.Close()
		return nil, err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		at.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := host.SetSocketTimeout(callTimeout); err != nil {
		at.Close()
		host.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Controller{
		instance: instance, log: log, home: at, host: host, rules: rules,
		gate: semaphore.NewWeighted(gateWidth), owed: owed{}, busy: map[string]chan struct{}{},
	}, nil
}

// Close gives the sockets back. Everything in the kernel stays as it is.
func (c *Controller) Close() {
	c.host.Close()
	c.home.Close()
}

// Set implements netctl.Controller. The rules stand before any link is up, and
// links are gone before the rules forget them.
func (c *Controller) Set(ctx context.Context, want netctl.Config) error {
	if err := want.Validate(); err != nil {
		return err
	}
	if want.Instance != c.instance {
		return errors.New("instance: want that of the controller")
	}
	if err := c.gate.Acquire(ctx, gateWidth); err != nil {
		return err
	}
	defer c.gate.Release(gateWidth)
	return c.set(ctx, want.Clone())
}

// Repair implements netctl.Controller.
func (c *Controller) Repair(ctx context.Context) error {
	return c.again(ctx, func(*netctl.Config) {})
}

// SetPublic implements netctl.Controller.
func (c *Controller) SetPublic(ctx context.Context, public []netip.Addr) error {
	return c.again(ctx, func(want *netctl.Config) { want.Public = slices.Clone(public) })
}

// again is Set with the value that is in force, changed.
func (c *Controller) again(ctx context.Context, change func(*netctl.Config)) error {
	if err := c.gate.Acquire(ctx, gateWidth); err != nil {
		return err
	}
	defer c.gate.Release(gateWidth)
	c.mu.Lock()
	want := c.want.Clone()
	c.mu.Unlock()
	if want.Instance == "" {
		return netctl.ErrNoHost
	}
	change(&want)
	if err := want.ValidatePods(); err != nil { // the members are as they were
		return err
	}
	return c.set(ctx, want)
}

// set is Set with the gate held alone.
func (c *Controller) set(ctx context.Context, want netctl.Config) error {
	seen, err := c.look(ctx)
	if err != nil {
		return err
	}
	if err := c.subnetFree(want.Subnet); err != nil {
		return err
	}
	var faults []error
	for _, name := range seen.orphans(want) {
		c.log.Info("removing an orphan", "instance", c.instance, "object", name)
		faults = append(faults, c.removeObject(name))
	}
	want = want.Keeping(seen.config)
	steps := netctl.Diff(seen.config, want)
	for _, op := range steps {
		switch op.Verb {
		case netctl.RemovePod:
			faults = append(faults, c.removePod(op.Pod.ID))
		case netctl.ReplacePod:
			if old, _ := seen.config.Pod(op.Pod.ID); !old.SamePlace(op.Pod) {
				faults = append(faults, c.detach(op.Pod.ID))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if err := c.ensureHost(want); err != nil {
		return err
	}
	if err := c.rules.apply(ctx, want); err != nil {
		return err
	}
	if err := errors.Join(c.forgetLeads(seen.ports.without(portsOf(want.Pods...))), c.settle(want)); err != nil {
		return err
	}
	same, err := c.setOverlays(want, seen.ready && len(steps) == 0 && seen.agrees(want))
	if err != nil {
		return err
	}
	// From here the pod verbs may rely on bridge and rules, whatever happens to single pods.
	c.setWant(want)
	err = errors.Join(c.ensurePods(ctx, want, seen, same), c.restore(seen.off))
	if !same {
		settled := c.settleLinks(want)
		err = errors.Join(err, settled)
		same = settled == nil
	}
	if same {
		c.settlePods()
	}
	return err
}

// ensurePods builds the pods' links but those that are right. same says that bridges, rules and entries are what was seen.
func (c *Controller) ensurePods(ctx context.Context, want netctl.Config, seen observation, same bool) error {
	bridge, err := c.linkByName(netctl.BridgeName(c.instance))
	if err != nil {
		return err
	}
	if bridge == nil {
		return errors.New("bridge: someone else removed it")
	}
	queued, err := c.queues()
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(setWorkers)
	faults := make([]error, len(want.Pods))
	for i, p := range want.Pods {
		if same && seen.stands(want, p) {
			continue
		}
		g.Go(func() error {
			var was []netctl.Pod
			if old, there := seen.config.Pod(p.ID); there {
				was = append(was, old)
			}
			faults[i] = c.ensurePod(ctx, want, bridge, p, was, false, queued)
			return nil
		})
	}
	_ = g.Wait() // the faults are collected by pod
	return errors.Join(faults...)
}

// AddPod implements netctl.Controller.
func (c *Controller) AddPod(ctx context.Context, pod netctl.Pod) error {
	done, err := c.enter(ctx, pod.ID)
	if err != nil {
		return err
	}
	drifted, err := c.addPod(ctx, pod)
	done()
	if !drifted {
		return err
	}
	c.log.Warn("restoring firewall rules or bridge that another program removed", "instance", c.instance)
	want, err := c.reserve(pod)
	if err != nil {
		return err
	}
	return c.Set(ctx, want)
}

// addPod does AddPod's work. drifted says that the host part is not there any more.
func (c *Controller) addPod(ctx context.Context, pod netctl.Pod) (drifted bool, err error) {
	want, err := c.reserve(pod)
	if err != nil {
		return false, err
	}
	was := c.was(pod.ID)
	bridge, err := c.linkByName(netctl.BridgeName(c.instance))
	if err != nil {
		return false, err
	}
	if bridge == nil {
		return true, nil
	}
	if c.owes(pod.ID) {
		if err := c.detach(pod.ID); err != nil {
			return false, err
		}
	}
	err = c.rules.pin(pod)
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if pod.Closed {
		if err := c.rules.change(nil, []entry{{kind: closed, addr: octetsOf(pod.Addr)}}); err != nil {
			return errors.Is(err, unix.ENOENT), err
		}
	}
	queued, err := c.queues()
	if err != nil {
		return false, err
	}
	if err := c.ensurePod(ctx, want, bridge, pod, was, true, queued); err != nil {
		return false, err
	}
	if err := c.movePlaces(want, was, pod); err != nil {
		return errors.Is(err, unix.ENOENT), err
	}
	if slices.ContainsFunc(append(was, pod), func(p netctl.Pod) bool { return len(p.Ports) > 0 }) {
		withdrawn, err := c.rules.publish(pod)
		if errors.Is(err, unix.ENOENT) {
			return true, nil
		}
		if err := errors.Join(err, c.forgetLeads(withdrawn)); err != nil {
			return false, err
		}
	}
	c.paid(pod.ID)
	return false, nil
}

// Has implements netctl.Controller: namespace, link and source rule are there.
func (c *Controller) Has(ctx context.Context, id string) (bool, error) {
	done, err := c.enter(ctx, id)
	if err != nil {
		return false, err
	}
	defer done()
	pod, ok, err := c.standing(id)
	if !ok || err != nil {
		return false, err
	}
	c.mu.Lock()
	wanted, _ := c.want.Pod(id)
	want := c.want
	c.mu.Unlock()
	for _, at := range wanted.Overlays {
		if ok, err := c.placeStands(want, wanted, at); !ok || err != nil {
			return false, err
		}
	}
	pins, err := c.rules.pins()
	pod.Overlays = wanted.Overlays
	return !slices.ContainsFunc(pinsOf(c.instance, pod), func(p pin) bool { return !pins[p] }), err
}

// standing returns the pod whose namespace and link are there.
func (c *Controller) standing(id string) (netctl.Pod, bool, error) {
	bridge, err := c.linkByName(netctl.BridgeName(c.instance))
	if bridge == nil || err != nil {
		return netctl.Pod{}, false, err
	}
	link, err := c.linkByName(netctl.LinkName(c.instance, id))
	if link == nil || err != nil {
		return netctl.Pod{}, false, err
	}
	_, pod, ok := c.finished(link, bridge.Attrs().Index)
	return pod, ok && isNamespace(pod.Namespace), nil
}

// IDBase implements netctl.Controller.
func (c *Controller) IDBase(ctx context.Context, id string) (uint32, error) {
	done, err := c.enter(ctx, id)
	if err != nil {
		return 0, err
	}
	defer done()
	pod, ok, err := c.standing(id)
	if !ok || err != nil {
		return 0, err
	}
	return pod.IDBase, nil
}

// Published implements netctl.Controller.
func (c *Controller) Published(ctx context.Context, id string) ([]netctl.Port, error) {
	done, err := c.enter(ctx, id)
	if err != nil {
		return nil, err
	}
	defer done()
	c.mu.Lock()
	pod, _ := c.want.Pod(id)
	public := len(c.want.Public) > 0
	c.mu.Unlock()
	if !public {
		return nil, nil
	}
	have, err := c.rules.ports()
	return have.of(pod.Addr), err
}

// Observed implements netctl.Controller.
func (c *Controller) Observed(ctx context.Context) (netctl.State, error) {
	if err := c.gate.Acquire(ctx, 1); err != nil {
		return netctl.State{}, err
	}
	defer c.gate.Release(1)
	seen, err := c.look(ctx)
	if err != nil {
		return netctl.State{}, err
	}
	return seen.state(), nil
}

// Clean implements netctl.Controller. It works without any Set before it.
func (c *Controller) Clean(ctx context.Context) error {
	if err := c.gate.Acquire(ctx, gateWidth); err != nil {
		return err
	}
	defer c.gate.Release(gateWidth)
	c.mu.Lock()
	c.want, c.owed = netctl.Config{}, owed{}
	c.mu.Unlock()
	seen, err := c.look(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(seen.links)) {
		faults = append(faults, c.removeLink(name))
	}
	for _, name := range seen.names {
		faults = append(faults, removeNamespace(name))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(seen.overlayLinks)) {
		faults = append(faults, c.removeLink(name))
	}
	faults = append(faults, c.removeLink(netctl.BridgeName(c.instance)), c.rules.remove(ctx))
	if seen.config.Subnet.IsValid() {
		faults = append(faults, c.forgetFlows(seen.config.Subnet))
	}
	return errors.Join(append(faults, dropNamespaces())...)
}

// removeObject removes one orphan by the name that look gave it.
func (c *Controller) removeObject(name string) error {
	if strings.HasPrefix(name, netctl.NamespacePrefix(c.instance)) {
		return c.removePod(strings.TrimPrefix(name, netctl.NamespacePrefix(c.instance)))
	}
	if isOverlayLink(c.instance, name) {
		return errors.Join(c.removeLink(name), c.rules.unpin(name))
	}
	return c.detachLink(name, nil)
}

// enter admits one verb on a pod and returns what ends it.
func (c *Controller) enter(ctx context.Context, id string) (func(), error) {
	if err := netctl.CheckPodID(id); err != nil {
		return nil, err
	}
	if err := c.gate.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	for {
		c.mu.Lock()
		other, taken := c.busy[id]
		if !taken {
			mine := make(chan struct{})
			c.busy[id] = mine
			c.mu.Unlock()
			return func() { c.leave(id, mine) }, nil
		}
		c.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			c.gate.Release(1)
			return nil, ctx.Err()
		}
	}
}

func (c *Controller) leave(id string, mine chan struct{}) {
	c.mu.Lock()
	delete(c.busy, id)
	c.mu.Unlock()
	close(mine)
	c.gate.Release(1)
}

func (c *Controller) setWant(want netctl.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = want
}

// retry repeats a read that another change or a signal cut off.
func retry[T any](read func() (T, error)) (T, error) {
	const tries = 8
	for i := 1; ; i++ {
		v, err := read()
		torn := errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR) || errors.Is(err, os.ErrDeadlineExceeded)
		if !torn || i == tries {
			return v, err
		}
	}
}
