// Package networks tells hosts of private networks: what their own pods need and no more, which is the settings, the members of the
// overlays in which they have a pod, and the hosts that hold those. A host is told all of it when its session begins, then what
// changed; what changes for many hosts at once is worked out once (exchange). Nothing is durable.
package networks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/sleep"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

const (
	// networkPause is the least time between two times at which is worked out who has to be told of private networks.
	networkPause = 50 * time.Millisecond
	// keptChanges is how many changes of an overlay's hosts are remembered at least. Who was told of none of them is told of
	// all its peers.
	keptChanges = 1024
	// keptNews is of how many overlays at most the last changes are kept as messages.
	keptNews = 256
)

// exchange knows which hosts have members of the same overlays, and how they reach each other. What one pod more changes is
// worked out once for all hosts, and of what did not change nothing is looked at again. It begins anew with each time of leading.
type exchange struct {
	stir chan struct{} // something is noted

	noteMu sync.Mutex // guards noted
	noted  noted

	// mu guards the fields below. A view may be held where it is taken; where it is held none is taken.
	mu       sync.RWMutex
	at       uint64                    // grows with every look at what is noted
	contacts map[fleet.HostID]*contact // hosts with members of overlays
	circles  map[fleet.OverlayID]*circle
	private  map[fleet.DataCenterID]bool // with a private underlay
	confined map[fleet.AccountID]bool    // with the egress policy none

	newsMu sync.Mutex // guards news, as mu does
	news   map[fleet.OverlayID]*news
}

// noted is what changed in the state and was not looked at.
type noted struct {
	all      bool // nobody knows what
	settings bool
	centers  bool
	overlays map[fleet.OverlayID]bool
	hosts    map[fleet.HostID]bool
	accounts map[fleet.AccountID]bool
}

func newNoted() noted {
	return noted{overlays: map[fleet.OverlayID]bool{}, hosts: map[fleet.HostID]bool{}, accounts: map[fleet.AccountID]bool{}}
}

// circle is the hosts that have members of an overlay.
type circle struct {
	hosts []fleet.HostID // sorted
	log   []change       // oldest first
	from  uint64         // log has all changes after this one
}

// change says that a host came to a circle, left it, or is reached in another way.
type change struct {
	at   uint64
	host fleet.HostID
}

// note remembers a change.
func (c *circle) note(at uint64, host fleet.HostID) {
	if len(c.log) >= 2*keptChanges {
		c.from = c.log[keptChanges-1].at
		c.log = slices.Clone(c.log[keptChanges:])
	}
	c.log = append(c.log, change{at, host})
}

func (c *circle) has(host fleet.HostID) bool {
	_, ok := slices.BinarySearch(c.hosts, host)
	return ok
}

func newExchange() *exchange {
	e := &exchange{stir: make(chan struct{}, 1)}
	e.reset()
	return e
}

// reset forgets everything: another scheduler may have led in between.
func (e *exchange) reset() {
	e.noteMu.Lock()
	e.noted = newNoted()
	e.noteMu.Unlock()
	e.newsMu.Lock()
	e.news = map[fleet.OverlayID]*news{}
	e.newsMu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contacts, e.circles = map[fleet.HostID]*contact{}, map[fleet.OverlayID]*circle{}
	e.private, e.confined = map[fleet.DataCenterID]bool{}, map[fleet.AccountID]bool{}
}

// heed takes note of what changed in the state.
func (e *exchange) heed(events []state.Event, all bool) {
	e.noteMu.Lock()
	defer e.noteMu.Unlock()
	n, found := &e.noted, all
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
		case e.stir <- struct{}{}:
		default:
		}
	}
}

// take returns what is noted, and notes anew.
func (e *exchange) take() noted {
	e.noteMu.Lock()
	defer e.noteMu.Unlock()
	out := e.noted
	e.noted = newNoted()
	return out
}

// Networks is the feed of private networks.
type Networks struct {
	store    *state.Store
	log      *slog.Logger
	exchange *exchange

	mu    sync.Mutex // guards lines; exchange's locks are not taken under it
	lines map[fleet.HostID]*line
}

// New returns a feed that has told nobody anything.
func New(store *state.Store, log *slog.Logger) *Networks {
	return &Networks{store: store, log: log, exchange: newExchange(), lines: map[fleet.HostID]*line{}}
}

// Learn implements feed.Feed.
func (n *Networks) Learn(v *state.View) {
	n.exchange.reset()
	everything := newNoted()
	everything.all = true
	n.exchange.learn(v, everything)
}

// Heed implements feed.Feed.
func (n *Networks) Heed(events []state.Event, all bool) { n.exchange.heed(events, all) }

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
		case <-n.exchange.stir:
		case <-ctx.Done():
			return
		}
		var w wake
		noted := n.exchange.take()
		if err := n.store.View(func(v *state.View) error { w = n.exchange.learn(v, noted); return nil }); err != nil {
			n.log.Error("read the private networks", "err", err)
		}
		n.wake(w)
		if sleep.For(ctx, networkPause) != nil {
			return
		}
	}
}

// wake says whose sessions have to look what there is to tell.
type wake struct {
	all   bool
	hosts map[fleet.HostID]bool
}

func (n *Networks) wake(w wake) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, t := range n.lines {
		if w.all || w.hosts[id] {
			t.session.Wake()
		}
	}
}

// learn looks at what was noted and says who has to be told of it.
func (e *exchange) learn(v *state.View, n noted) wake {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at++
	w := wake{all: n.all || n.settings, hosts: map[fleet.HostID]bool{}}
	if n.all {
		e.noteAll(v, &n)
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

// noteAll notes everything that is there, or was when it was looked at last.
func (e *exchange) noteAll(v *state.View, n *noted) {
	for _, a := range v.Accounts() {
		n.accounts[a.ID] = true
	}
	for _, o := range v.Overlays() {
		n.overlays[o.ID] = true
	}
	for id := range e.circles {
		n.overlays[id] = true
	}
	for id := range e.contacts {
		n.hosts[id] = true
	}
}

// learnCenters looks which data centers have a private underlay, and notes their hosts where that changed.
func (e *exchange) learnCenters(v *state.View, hosts map[fleet.HostID]bool) (changed bool) {
	now := map[fleet.DataCenterID]bool{}
	for _, c := range v.DataCenters() {
		if c.Underlay == fleet.UnderlayPrivate {
			now[c.ID] = true
		}
	}
	for id, p := range e.contacts {
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

// learnOverlay looks which hosts have members of an overlay, and notes those that came or left.
func (e *exchange) learnOverlay(v *state.View, id fleet.OverlayID, hosts map[fleet.HostID]bool, w wake) {
	now := v.OverlayHosts(id)
	c := e.circles[id]
	if c == nil {
		if len(now) == 0 {
			return
		}
		c = &circle{from: e.at}
		e.circles[id] = c
	}
	before := circle{hosts: c.hosts}
	c.hosts = now
	for _, host := range before.hosts {
		w.hosts[host] = true
		if !c.has(host) {
			c.note(e.at, host)
			hosts[host] = true
		}
	}
	for _, host := range now {
		w.hosts[host] = true
		if !before.has(host) {
			c.note(e.at, host)
			hosts[host] = true
		}
	}
	if len(now) == 0 {
		delete(e.circles, id)
	}
}

// learnHost looks how a host is reached.
func (e *exchange) learnHost(v *state.View, id fleet.HostID, w wake) {
	overlays := v.HostOverlays(id)
	host, there := v.Host(id)
	if len(overlays) == 0 || !there {
		delete(e.contacts, id)
		return
	}
	now := newContact(&host, e.private[host.DataCenter])
	if old := e.contacts[id]; old != nil && old.equal(now) {
		return
	}
	e.contacts[id] = now
	for _, o := range overlays {
		c := e.circles[o]
		if c == nil {
			continue // its members are still to be looked at
		}
		c.note(e.at, id)
		for _, other := range c.hosts {
			w.hosts[other] = true
		}
	}
}

// underlay reports whether hosts of a data center reach each other over a private wire.
func (e *exchange) underlay(center fleet.DataCenterID) (private bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.private[center]
}

// tellPeers returns what leads a host that was told at since, and takes part in overlays, to its peers of now, and when that
// is; nil: nothing does. With since 0 it is all of them.
func (e *exchange) tellPeers(host fleet.HostID, overlays []fleet.OverlayID, since uint64) (*link.PeerChange, uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var circles []*circle
	for _, id := range overlays {
		if c := e.circles[id]; c != nil {
			circles = append(circles, c)
		}
	}
	changed, all := changedSince(circles, since)
	if all || slices.Contains(changed, host) { // what it is told hangs on its own underlay
		return e.allPeers(host, circles), e.at
	}
	if len(changed) == 0 {
		return nil, e.at
	}
	out := &link.PeerChange{}
	for _, id := range changed {
		near := slices.ContainsFunc(circles, func(c *circle) bool { return c.has(id) })
		if p := e.contacts[id].seenBy(e.contacts[host]); near && p != nil {
			out.Put = append(out.Put, p)
		} else {
			out.Gone = append(out.Gone, string(id))
		}
	}
	return out, e.at
}

// changedSince returns the hosts of circles of which something changed, sorted; all: it may be any.
func changedSince(circles []*circle, since uint64) (out []fleet.HostID, all bool) {
	if since == 0 {
		return nil, true
	}
	for _, c := range circles {
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

// allPeers returns all that a host has to know of others; mu is held.
func (e *exchange) allPeers(host fleet.HostID, circles []*circle) *link.PeerChange {
	var near []fleet.HostID
	for _, c := range circles {
		near = append(near, c.hosts...)
	}
	if len(circles) > 1 {
		slices.Sort(near)
		near = slices.Compact(near)
	}
	out := &link.PeerChange{Full: true, Put: make([]*link.HostPeer, 0, len(near))}
	for _, id := range near {
		if p := e.contacts[id].seenBy(e.contacts[host]); p != nil && id != host {
			out.Put = append(out.Put, p)
		}
	}
	return out
}

// contact is how a host is reached.
type contact struct {
	center fleet.DataCenterID
	// tunnel is what hosts elsewhere are told of it, plain what those of its data center are; nil: it is not reached that way.
	tunnel, plain *link.HostPeer
}

func newContact(h *fleet.Host, private bool) *contact {
	out, t := &contact{center: h.DataCenter}, h.Inventory.Tunnel
	addr := ""
	if h.Tunnel.IsValid() {
		addr = h.Tunnel.String()
	}
	if t.PublicKey != "" && addr != "" {
		out.tunnel = &link.HostPeer{HostId: string(h.ID), TunnelAddr: addr, PublicKey: t.PublicKey}
		if t.Endpoint.IsValid() {
			out.tunnel.Endpoint = t.Endpoint.String()
		}
	}
	plain := t.Plain
	if !plain.IsValid() {
		plain = t.Endpoint.Addr()
	}
	if private && plain.Is4() { // plain frames go over IPv4 alone
		out.plain = &link.HostPeer{HostId: string(h.ID), TunnelAddr: addr, Plain: plain.String()}
	}
	return out
}

// seenBy returns what another host is told; nil: nothing, since it cannot be reached. Either both send plain frames to each
// other or none does.
func (p *contact) seenBy(other *contact) *link.HostPeer {
	switch {
	case p == nil:
		return nil
	case p.plain != nil && other != nil && other.plain != nil && p.center == other.center:
		return p.plain
	}
	return p.tunnel
}

func (p *contact) equal(q *contact) bool {
	return p.center == q.center && proto.Equal(p.tunnel, q.tunnel) && proto.Equal(p.plain, q.plain)
}
