// Package overlay is a host's part in private networks: what schedulers told of them, and what follows from it for the
// kernel's links, the tunnel to other hosts and the names that pods ask for. Each of the three is made so by a goroutine of its
// own, so that none waits for another; a pod's start waits for the links of its own networks alone.
package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/netctl"
	"gantry/netctl/dns"
	"gantry/netctl/tunnel"
)

// Names answers the names that pods ask for. Values are whole, kept, and told again when they got lost; a call returns when
// the value is in force. Implementations are safe for concurrent use.
type Names interface {
	Set(ctx context.Context, b dns.Base) error
	// SetPods sets which pods may ask, by their host-local address, and the VNIs of the overlays whose names each gets.
	SetPods(ctx context.Context, pods map[netip.Addr][]uint32) error
	SetOverlay(ctx context.Context, o dns.Overlay) error
	RemoveOverlay(ctx context.Context, vni uint32) error
	Stats(ctx context.Context) (dns.Stats, error)
	Close()
}

// Config is what a Reconciler is made from.
type Config struct {
	Host    fleet.HostID
	Control netctl.Controller
	Tunnel  tunnel.Tunnel // nil: the host has none
	// Port is the UDP port of WireGuard; 0: that of the settings.
	Port uint16
	// NewNames begins to answer pods at the gateway's address; nil: nobody does.
	NewNames func(gateway netip.Addr) (Names, error)
	Resolv   string // file with the host's own resolvers
	// Find tells where other hosts reach a WireGuard that listens on the port here, and the host's own address for hosts of its
	// data center, each the zero value where there is none; nil: there is neither. It is asked again and again.
	Find func(ctx context.Context, port uint16) (endpoint netip.AddrPort, plain netip.Addr, err error)
	// MTU returns the MTU of the interface with an address of the host; 0: there is none. Nil: nobody knows.
	MTU     func(addr netip.Addr) int
	File    string        // what was told is kept here
	KeyFile string        // the tunnel's private key
	KeyAge  time.Duration // after which there is a new one; 0: never
	// Barred are the addresses of the control plane, which pods do not reach. It is asked again and again.
	Barred func(ctx context.Context) []netip.AddrPort
	// Changed is called when Announce or Conditions may have become another. It does not block.
	Changed func()
	// Resolved is called with the text of ResolvConf when it has become another, and again some seconds later: pods may have been
	// made meanwhile. Nil: nobody wants to know.
	Resolved func(text string)
	Sample   bool // Stats is asked for
	Log      *slog.Logger
}

const (
	together    = 20 * time.Millisecond // changes that come one after the other are made as one
	againLeast  = time.Second
	againMost   = 30 * time.Second
	linksLimit  = time.Minute
	toldLimit   = 10 * time.Second // for a process to have what it is told
	keepEvery   = time.Second
	lookEvery   = 5 * time.Second
	sampleEvery = 15 * time.Second
	beginLimit  = 3 * time.Second // of each thing that comes before the host's network
)

// Reconciler makes a host's private networks so. The zero pointer is a host without any.
type Reconciler struct {
	Config
	host    netctl.Config // instance, subnet and MTU
	names   Names         // nil: nobody answers
	noNames error         // why, when somebody should
	jobs    []*job
	kept    chan struct{} // there is something to keep
	search  chan struct{} // the host's end of the tunnel has to be announced anew
	links   *job
	tun     *job
	asks    *job

	mu      sync.Mutex // guards the fields below
	desired desired
	pods    map[fleet.PodID]placed
	placing map[uint32]uint64 // by VNI, grows when a pod comes or goes
	stands  bool              // names are answered
	resolv  resolvers
	key     tunnel.Key
	next    tunnel.Key // announced, and not in use; zero: none
	renewed time.Time  // when there was a next one last
	says    fleet.HostTunnel
	found   bool  // says has where others reach the host
	unfound error // why it is not found, as it was logged
	barred  []netip.AddrPort
	sampled Stats
	heard   map[string]traffic // by host

	saving sync.Mutex // held over each writing of the file

	kernel  sync.Mutex // held over each call that changes overlays of the kernel, and guards the fields below
	made    map[uint32]stamp
	under   netctl.Underlay
	policy  netctl.Policy
	policed bool // policy is in force for all pods

	// Of the tunnel's job alone.
	tunnelled tunnelState

	// Of the names' job alone.
	base   *dns.Base
	named  map[uint32]uint64
	askers map[netip.Addr][]uint32
}

// placed is a pod whose network stands or is being made.
type placed struct {
	account fleet.AccountID
	link    netctl.Pod
	places  []pod.Place
}

// stamp tells from what an overlay was made.
type stamp struct{ members, peers, places uint64 }

// New returns a keeper that knows what the one before knew. host has the instance, the subnet and the MTU of the pods' network.
func New(c Config, host netctl.Config) *Reconciler {
	k := &Reconciler{
		Config: c, host: host, kept: make(chan struct{}, 1), search: make(chan struct{}, 1), pods: map[fleet.PodID]placed{}, placing: map[uint32]uint64{},
		made: map[uint32]stamp{}, named: map[uint32]uint64{}, heard: map[string]traffic{},
	}
	k.links = &job{code: "overlay_failed", what: "the links of private networks are not as they should be", do: k.makeLinks, limit: linksLimit}
	k.tun = &job{code: "tunnel_failed", what: "the tunnel to other hosts is not as it should be", do: k.makeTunnel, limit: toldLimit}
	k.asks = &job{code: "dns_failed", what: "pods' names are not answered by this host", do: k.makeNames, limit: toldLimit}
	k.jobs = []*job{k.links, k.tun, k.asks}
	for _, j := range k.jobs {
		j.wake, j.changed, j.log = make(chan struct{}, 1), c.Changed, c.Log
	}
	var err error
	if k.desired, err = read(c.File); err != nil {
		c.Log.Error("private networks' state is lost until a scheduler connects", "err", err)
	}
	for _, n := range k.desired.overlays { // of which the agent before may have told what answers names, whoever needs them now
		k.named[n.vni] = ^uint64(0)
	}
	if c.Tunnel != nil {
		k.openKey()
	}
	k.resolv = readResolvers(c.Resolv)
	if c.NewNames != nil {
		k.names, k.noNames = c.NewNames(host.Gateway().Addr())
	}
	return k
}

// Hear takes what a scheduler tells of private networks. gap says that everything has to be asked for.
func (k *Reconciler) Hear(m *agentrpc.Down) (gap bool) {
	if k == nil {
		return false
	}
	k.mu.Lock()
	before := k.desired.settings
	gap, err := k.desired.hear(m)
	moved := before.wireport != k.desired.settings.wireport
	closed := !maps.Equal(before.closed, k.desired.settings.closed)
	k.mu.Unlock()
	if err != nil && !errors.Is(err, errGap) {
		k.Log.Error("part of what a scheduler tells of private networks was refused", "err", err)
	}
	if poke(k.kept); closed {
		k.save() // before pods come that depend on it: the next agent would open them
	}
	k.wake()
	k.takeKey(m.GetNetwork().GetPublicKey())
	if moved {
		poke(k.search)
	}
	return gap
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// NewSession notes that a new session begins, which brings everything anew.
func (k *Reconciler) NewSession() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.desired.overlays {
		n.asked = false
	}
}

func (k *Reconciler) wake() {
	for _, j := range k.jobs {
		poke(j.wake)
	}
}

// Place notes that a pod's network is as given, or is about to be, and returns it with what follows from its networks and
// account. Of one pod it is called by one goroutine at a time.
func (k *Reconciler) Place(link netctl.Pod, account fleet.AccountID, places []pod.Place) netctl.Pod {
	if k == nil {
		return link
	}
	for _, p := range places {
		link.Overlays = append(link.Overlays, netctl.Place{VNI: p.VNI, Addr: p.Addr, MAC: fleet.OverlayMAC(p.Addr), Link: p.Link})
	}
	slices.SortFunc(link.Overlays, func(a, b netctl.Place) int { return cmp.Compare(a.VNI, b.VNI) })
	k.mu.Lock()
	defer k.mu.Unlock()
	link.Mbps, link.Closed = k.desired.settings.mbps, k.desired.settings.closed[account]
	id := fleet.PodID(link.ID)
	k.moved(k.pods[id].places, places)
	k.pods[id] = placed{account, link, places}
	return link
}

// moved notes that the overlays of places have other pods here. The caller holds mu.
func (k *Reconciler) moved(all ...[]pod.Place) {
	for _, p := range slices.Concat(all...) {
		k.placing[p.VNI]++
	}
}

// Join has the overlays of a placed pod be there. The pod may be added then.
func (k *Reconciler) Join(ctx context.Context, id fleet.PodID) error {
	if k == nil {
		return nil
	}
	defer k.wake()
	k.mu.Lock()
	places := k.pods[id].places
	k.mu.Unlock()
	if len(places) == 0 {
		return nil
	}
	if err := k.makeUnderlay(ctx); err != nil {
		return err
	}
	for _, p := range places {
		if err := k.makeLink(ctx, p.VNI); err != nil {
			return err
		}
	}
	return nil
}

// At returns the places of a pod whose network was made and not removed.
func (k *Reconciler) At(id fleet.PodID) []pod.Place {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pods[id].places
}

// Added notes that a pod was added as Place gave it. What concerns all pods may have become another meanwhile: then it is in force
// for this one, too, when Added returns.
func (k *Reconciler) Added(ctx context.Context, link netctl.Pod, account fleet.AccountID) error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	same := link.Mbps == k.desired.settings.mbps && link.Closed == k.desired.settings.closed[account]
	k.mu.Unlock()
	if same {
		return nil
	}
	k.kernel.Lock()
	k.policed = false
	k.kernel.Unlock()
	return k.makePolicy(ctx)
}

// Leave notes that nothing is left of a pod's network.
func (k *Reconciler) Leave(id fleet.PodID) {
	if k == nil {
		return
	}
	k.mu.Lock()
	_, known := k.pods[id]
	k.moved(k.pods[id].places)
	delete(k.pods, id)
	k.mu.Unlock()
	if known {
		k.wake()
	}
}

// Begin has pods' names be answered before anything of the host's network is changed, where that can be done at once.
func (k *Reconciler) Begin(ctx context.Context) {
	if k == nil {
		return
	}
	// Each has a time of its own: where the host's resolvers are down, what asks them must not keep pods from theirs.
	within := func(do func(ctx context.Context)) {
		ctx, cancel := context.WithTimeout(ctx, beginLimit)
		defer cancel()
		do(ctx)
	}
	within(func(ctx context.Context) { _ = k.asks.run(ctx) }) // it is tried again
	var both sync.WaitGroup
	both.Go(func() { within(k.bar) })
	both.Go(func() { within(k.announce) })
	both.Wait()
	within(k.barAsBefore)
}

// Complete returns a host's desired network with what follows from private networks.
func (k *Reconciler) Complete(want netctl.Config) netctl.Config {
	if k == nil {
		return want
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	want = want.WithPolicy(k.wantPolicy())
	want.Underlay = k.underlay()
	for _, vni := range k.inUse() {
		want.Overlays = append(want.Overlays, k.overlay(vni))
	}
	return want
}

// Made notes that the host's network is as Complete gave it, and nothing else.
func (k *Reconciler) Made(is netctl.Config) {
	if k == nil {
		return
	}
	k.kernel.Lock()
	defer k.kernel.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made, k.under, k.policy, k.policed = map[uint32]stamp{}, is.Underlay, k.wantPolicy(), true
	for _, o := range is.Overlays {
		k.made[o.VNI] = k.stamp(o.VNI)
	}
}

// Run makes everything so until ctx ends.
func (k *Reconciler) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, j := range k.jobs {
		wg.Go(func() { j.keep(ctx) })
	}
	wg.Go(func() { k.keepFile(ctx) })
	wg.Go(func() { k.look(ctx) })
	if k.Sample {
		wg.Go(func() { k.sample(ctx) })
	}
	k.wake()
	wg.Wait()
	if k.names != nil {
		k.names.Close()
	}
	if k.Tunnel != nil {
		k.Tunnel.Close()
	}
}

// keepFile writes down what was told, not more often than every second.
func (k *Reconciler) keepFile(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-k.kept:
			k.save()
			_ = sleep.For(ctx, keepEvery)
		case <-ctx.Done():
		}
	}
	select {
	case <-k.kept:
		k.save()
	default:
	}
}

func (k *Reconciler) save() {
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	text, err := k.desired.encode()
	k.mu.Unlock()
	if err == nil {
		err = write(k.File, text)
	}
	if err != nil {
		k.Log.Warn("save the private networks' state for the next start", "err", err)
	}
}

// look follows what changes on the host by itself.
func (k *Reconciler) look(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	names := resolved{}
	for round := 0; ; round++ {
		if fresh := readResolvers(k.Resolv); fresh.text != k.resolvers().text {
			k.mu.Lock()
			k.resolv = fresh
			k.mu.Unlock()
			poke(k.asks.wake)
		}
		names.tell(k.ResolvConf(), k.Resolved)
		const rarely = 6
		if _, known := k.announced(); !known || round%rarely == 0 {
			k.announce(ctx)
		}
		if round%rarely == 0 {
			k.renewKey(time.Now())
			k.bar(ctx)
		}
		select {
		case <-tick.C:
		case <-k.search:
			k.announce(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Conditions say what does not work.
func (k *Reconciler) Conditions() []fleet.Condition {
	if k == nil {
		return nil
	}
	var out []fleet.Condition
	for _, j := range k.jobs {
		if err := j.trouble(); err != nil {
			const most = 300
			text := []rune(fmt.Sprintf("%s: %v", j.what, err))
			out = append(out, fleet.Condition{Code: j.code, Text: string(text[:min(len(text), most)])})
		}
	}
	if k.tunnelStands() && k.Tunnel.UserSpace() {
		out = append(out, fleet.Condition{Code: "tunnel_slow", Text: "the tunnel to other hosts is a process, which is slow: the kernel has no WireGuard, or --tunnel user was given"})
	}
	return out
}

// inUse returns the VNIs of overlays in which pods have a place, sorted. The caller holds mu.
func (k *Reconciler) inUse() []uint32 {
	in := map[uint32]bool{}
	for _, p := range k.pods {
		for _, place := range p.places {
			in[place.VNI] = true
		}
	}
	return slices.Sorted(maps.Keys(in))
}
