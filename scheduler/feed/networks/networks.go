// Package networks tells hosts of private networks: what their own pods need and no more, which is the settings, the members of the
// overlays in which they have a pod, and the hosts that hold those. A host is told all of it when its session begins, then what
// changed; what changes for many hosts at once is worked out once (peerIndex). Nothing is durable.
package networks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

const (
	// networkPause is the shortest time between two computations of who needs an update.
	networkPause = 50 * time.Millisecond
	// keptChanges is how many changes of an overlay's hosts are kept at least. A host that is further behind gets all its peers.
	keptChanges = 1024
	// keptUpdates is for how many overlays at most the latest messages are kept.
	keptUpdates = 256
)

// peerIndex knows which hosts have members of the same overlays, and how they reach each other. A change is computed once for all
// hosts, and only what changed is read again. It is rebuilt at the start of each leadership term.
type peerIndex struct {
	wake chan struct{} // pending has something

	pendingMu sync.Mutex // guards pending
	pending   pending

	// mu guards the fields below. A view may be held where it is taken; where it is held none is taken.
	mu        sync.RWMutex
	at        uint64                     // the version; grows with each learn
	endpoints map[fleet.HostID]*endpoint // hosts with members of overlays
	overlays  map[fleet.OverlayID]*overlayHosts
	private   map[fleet.DataCenterID]bool // with a private underlay
	confined  map[fleet.AccountID]bool    // with the egress policy none

	updatesMu sync.Mutex // guards updates, as mu does
	updates   map[fleet.OverlayID]*update
}

// pending is what changed in the state and was not read yet.
type pending struct {
	all      bool // anything may have changed
	settings bool
	centers  bool
	overlays map[fleet.OverlayID]bool
	hosts    map[fleet.HostID]bool
	accounts map[fleet.AccountID]bool
}

func newPending() pending {
	return pending{overlays: map[fleet.OverlayID]bool{}, hosts: map[fleet.HostID]bool{}, accounts: map[fleet.AccountID]bool{}}
}

// overlayHosts are the hosts that have members of an overlay, with the log of their changes.
type overlayHosts struct {
	hosts []fleet.HostID // sorted
	log   []change       // oldest first
	from  uint64         // log has all changes after this one
}

// change says that a host joined an overlay, left it, or has a new address.
type change struct {
	at   uint64
	host fleet.HostID
}

// changed adds a change to the log, of which at least keptChanges are kept.
func (c *overlayHosts) changed(at uint64, host fleet.HostID) {
	if len(c.log) >= 2*keptChanges {
		c.from = c.log[keptChanges-1].at
		c.log = slices.Clone(c.log[keptChanges:])
	}
	c.log = append(c.log, change{at, host})
}

func (c *overlayHosts) has(host fleet.HostID) bool {
	_, ok := slices.BinarySearch(c.hosts, host)
	return ok
}

func newPeerIndex() *peerIndex {
	e := &peerIndex{wake: make(chan struct{}, 1)}
	e.reset()
	return e
}

// reset drops everything: another scheduler may have led in between.
func (e *peerIndex) reset() {
	e.pendingMu.Lock()
	e.pending = newPending()
	e.pendingMu.Unlock()
	e.updatesMu.Lock()
	e.updates = map[fleet.OverlayID]*update{}
	e.updatesMu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endpoints, e.overlays = map[fleet.HostID]*endpoint{}, map[fleet.OverlayID]*overlayHosts{}
	e.private, e.confined = map[fleet.DataCenterID]bool{}, map[fleet.AccountID]bool{}
}

// heed adds events of the state to what is pending.
func (e *peerIndex) heed(events []state.Event, all bool) {
	e.pendingMu.Lock()
	defer e.pendingMu.Unlock()
	n, found := &e.pending, all
	n.all = n.all || all
	for _, ev := range events {
		switch {
		case ev.Kind == state.KindNetwork && ev.ID == "":
			n.settings = true
		case ev.Kind == state.KindNetwork:
			n.overlays[fleet.OverlayID(ev.ID)] = true
		case ev.Kind == state.KindHost:
			n.hosts[fleet.HostID(ev.ID)] = true
		case ev.Kind == state.KindAccount:
			n.accounts[fleet.AccountID(ev.ID)] = true
		case ev.Kind == state.KindCatalog && ev.ID != "":
			n.centers = true
		default:
			continue
		}
		found = true
	}
	if found {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// take returns what is pending, and clears it.
func (e *peerIndex) take() pending {
	e.pendingMu.Lock()
	defer e.pendingMu.Unlock()
	out := e.pending
	e.pending = newPending()
	return out
}

// Networks is the feed of private networks.
type Networks struct {
	store     *state.Store
	log       *slog.Logger
	peerIndex *peerIndex

	mu    sync.Mutex // guards lines; peerIndex's locks are not taken under it
	lines map[fleet.HostID]*line
}

// New returns a feed that has told nobody anything.
func New(store *state.Store, log *slog.Logger) *Networks {
	return &Networks{store: store, log: log, peerIndex: newPeerIndex(), lines: map[fleet.HostID]*line{}}
}

// Learn implements feed.Feed.
func (n *Networks) Learn(v *state.View) {
	n.peerIndex.reset()
	everything := newPending()
	everything.all = true
	n.peerIndex.learn(v, everything)
}

// Heed implements feed.Feed.
func (n *Networks) Heed(events []state.Event, all bool) { n.peerIndex.heed(events, all) }

// Begin implements feed.Feed.
func (n *Networks) Begin(s feed.Session) feed.Line {
	t := &line{of: n, session: s}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines[s.Host()] = t
	return t
}

func (n *Networks) leave(t *line) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id := t.session.Host(); n.lines[id] == t {
		delete(n.lines, id)
	}
}

// Run implements feed.Feed: it has hosts told when what they have to know may have changed.
func (n *Networks) Run(ctx context.Context) {
	for {
		select {
		case <-n.peerIndex.wake:
		case <-ctx.Done():
			return
		}
		var w targets
		changes := n.peerIndex.take()
		if err := n.store.View(func(v *state.View) error { w = n.peerIndex.learn(v, changes); return nil }); err != nil {
			n.log.Error("read the private networks", "err", err)
		}
		n.wake(w)
		if sleep.For(ctx, networkPause) != nil {
			return
		}
	}
}

// targets are the hosts whose sessions have to send an update.
type targets struct {
	all   bool
	hosts map[fleet.HostID]bool
}

func (n *Networks) wake(w targets) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, t := range n.lines {
		if w.all || w.hosts[id] {
			t.session.Wake()
		}
	}
}

// learn reads what is pending and returns the hosts that need an update.
func (e *peerIndex) learn(v *state.View, n pending) targets {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at++
	w := targets{all: n.all || n.settings, hosts: map[fleet.HostID]bool{}}
	if n.all {
		e.addAll(v, &n)
	}
	if n.all || n.centers {
		w.all = e.learnCenters(v, n.hosts) || w.all
	}
	for id := range n.accounts {
		a, _ := v.Account(id)
		if confined := a.Egress == fleet.EgressNone; confined != e.confined[id] {
			w.all = true // nobody knows which hosts have pods of the account
			if delete(e.confined, id); confined {
				e.confined[id] = true
			}
		}
	}
	for id := range n.overlays {
		e.learnOverlay(v, id, n.hosts, w)
	}
	for id := range n.hosts {
		e.learnHost(v, id, w)
	}
	return w
}

// addAll adds everything that exists, or existed at the last read, to what is pending.
func (e *peerIndex) addAll(v *state.View, n *pending) {
	for _, a := range v.Accounts() {
		n.accounts[a.ID] = true
	}
	for _, o := range v.Overlays() {
		n.overlays[o.ID] = true
	}
	for id := range e.overlays {
		n.overlays[id] = true
	}
	for id := range e.endpoints {
		n.hosts[id] = true
	}
}

// learnCenters reads which data centers have a private underlay, and adds the hosts of those where that changed.
func (e *peerIndex) learnCenters(v *state.View, hosts map[fleet.HostID]bool) (changed bool) {
	now := map[fleet.DataCenterID]bool{}
	for _, c := range v.DataCenters() {
		if c.Underlay == fleet.UnderlayPrivate {
			now[c.ID] = true
		}
	}
	for id, p := range e.endpoints {
		if now[p.center] != e.private[p.center] {
			hosts[id] = true
		}
	}
	changed = len(now) != len(e.private)
	for id := range now {
		changed = changed || !e.private[id]
	}
	e.private = now
	return changed
}

// learnOverlay reads which hosts have members of an overlay, and adds those that joined or left.
func (e *peerIndex) learnOverlay(v *state.View, id fleet.OverlayID, hosts map[fleet.HostID]bool, w targets) {
	now := v.OverlayHosts(id)
	c := e.overlays[id]
	if c == nil {
		if len(now) == 0 {
			return
		}
		c = &overlayHosts{from: e.at}
		e.overlays[id] = c
	}
	before := overlayHosts{hosts: c.hosts}
	c.hosts = now
	for _, host := range before.hosts {
		w.hosts[host] = true
		if !c.has(host) {
			c.changed(e.at, host)
			hosts[host] = true
		}
	}
	for _, host := range now {
		w.hosts[host] = true
		if !before.has(host) {
			c.changed(e.at, host)
			hosts[host] = true
		}
	}
	if len(now) == 0 {
		delete(e.overlays, id)
	}
}

// learnHost reads how a host is reached.
func (e *peerIndex) learnHost(v *state.View, id fleet.HostID, w targets) {
	overlays := v.HostOverlays(id)
	host, there := v.Host(id)
	if len(overlays) == 0 || !there {
		delete(e.endpoints, id)
		return
	}
	now := newEndpoint(&host, e.private[host.DataCenter])
	if old := e.endpoints[id]; old != nil && old.equal(now) {
		return
	}
	e.endpoints[id] = now
	for _, o := range overlays {
		c := e.overlays[o]
		if c == nil {
			continue // its members are still to be looked at
		}
		c.changed(e.at, id)
		for _, other := range c.hosts {
			w.hosts[other] = true
		}
	}
}

// underlay reports whether hosts of a data center reach each other over a private wire.
func (e *peerIndex) underlay(center fleet.DataCenterID) (private bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.private[center]
}

// tellPeers returns the changes of a host's peers in its overlays after version since, and the version that they lead to; nil: there
// are none. Since 0 returns all peers.
func (e *peerIndex) tellPeers(host fleet.HostID, overlays []fleet.OverlayID, since uint64) (*agentrpc.PeerChange, uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var sets []*overlayHosts
	for _, id := range overlays {
		if c := e.overlays[id]; c != nil {
			sets = append(sets, c)
		}
	}
	changed, all := changedSince(sets, since)
	if all || slices.Contains(changed, host) { // what it is told hangs on its own underlay
		return e.allPeers(host, sets), e.at
	}
	if len(changed) == 0 {
		return nil, e.at
	}
	out := &agentrpc.PeerChange{}
	for _, id := range changed {
		near := slices.ContainsFunc(sets, func(c *overlayHosts) bool { return c.has(id) })
		if p := e.endpoints[id].seenBy(e.endpoints[host]); near && p != nil {
			out.Put = append(out.Put, p)
		} else {
			out.Gone = append(out.Gone, string(id))
		}
	}
	return out, e.at
}

// changedSince returns the hosts that changed after a version, sorted; all: the log does not reach back that far.
func changedSince(overlays []*overlayHosts, since uint64) (out []fleet.HostID, all bool) {
	if since == 0 {
		return nil, true
	}
	for _, c := range overlays {
		if since < c.from {
			return nil, true
		}
		for i := len(c.log) - 1; i >= 0 && c.log[i].at > since; i-- {
			out = append(out, c.log[i].host)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), false
}

// allPeers returns all peers of a host; the caller holds mu.
func (e *peerIndex) allPeers(host fleet.HostID, overlays []*overlayHosts) *agentrpc.PeerChange {
	var near []fleet.HostID
	for _, c := range overlays {
		near = append(near, c.hosts...)
	}
	if len(overlays) > 1 {
		slices.Sort(near)
		near = slices.Compact(near)
	}
	out := &agentrpc.PeerChange{Full: true, Put: make([]*agentrpc.HostPeer, 0, len(near))}
	for _, id := range near {
		if p := e.endpoints[id].seenBy(e.endpoints[host]); p != nil && id != host {
			out.Put = append(out.Put, p)
		}
	}
	return out
}

// endpoint is how other hosts reach a host.
type endpoint struct {
	center fleet.DataCenterID
	// tunnel is for hosts of other data centers, plain for those of its own; nil: it cannot be reached that way.
	tunnel, plain *agentrpc.HostPeer
}

func newEndpoint(h *fleet.Host, private bool) *endpoint {
	out, t := &endpoint{center: h.DataCenter}, h.Inventory.Tunnel
	addr := ""
	if h.Tunnel.IsValid() {
		addr = h.Tunnel.String()
	}
	if t.PublicKey != "" && addr != "" {
		out.tunnel = &agentrpc.HostPeer{HostId: string(h.ID), TunnelAddr: addr, PublicKey: t.PublicKey}
		if t.Endpoint.IsValid() {
			out.tunnel.Endpoint = t.Endpoint.String()
		}
	}
	plain := t.Plain
	if !plain.IsValid() {
		plain = t.Endpoint.Addr()
	}
	if private && plain.Is4() { // plain frames go over IPv4 alone
		out.plain = &agentrpc.HostPeer{HostId: string(h.ID), TunnelAddr: addr, Plain: plain.String()}
	}
	return out
}

// seenBy returns the peer record for another host; nil: the host cannot be reached from there. Either both send plain frames to
// each other or neither does.
func (p *endpoint) seenBy(other *endpoint) *agentrpc.HostPeer {
	switch {
	case p == nil:
		return nil
	case p.plain != nil && other != nil && other.plain != nil && p.center == other.center:
		return p.plain
	}
	return p.tunnel
}

func (p *endpoint) equal(q *endpoint) bool {
	return p.center == q.center && proto.Equal(p.tunnel, q.tunnel) && proto.Equal(p.plain, q.plain)
}
