package tunnel

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"gantry/internal/ipc"
	"gantry/netctl"
	"gantry/netctl/companion"
)

const (
	minMTU = 576
	maxMTU = 8930

	// Command is gantry-net's that is the process.
	Command = "wireguard"

	lookEvery  = 100 * time.Millisecond // for TAPs
	patience   = 10                     // tries before it is worth a word
	learnEvery = 5 * time.Second        // where peers are that have no endpoint
)

// ProcessConfig says how the tunnel's process is found and started.
type ProcessConfig struct {
	Program string // path of gantry-net
	// RunDir is a folder of this instance for the control socket. It has to be there still when the next agent comes.
	RunDir string
	Log    *slog.Logger
}

// Process is the tunnel of a host whose kernel has no WireGuard.
type Process struct {
	log    *slog.Logger
	client *companion.Client

	verbs sync.Mutex // one after the other, so that the process hears them in the order of what is wanted

	mu       sync.Mutex
	order    *Order // nil: nothing is wanted yet
	instance string
	hosts    map[string]string // by public key
	overlays map[uint32]Members
	taps     map[uint32]int            // index of the link that the process has
	faults   map[uint32]int            // tries in a row that failed
	heard    map[string]netip.AddrPort // by key: where peers without an endpoint were heard last
	stop     func()                    // ends look and waits for it
}

// NewProcess makes the client. Nothing is started or taken over before the first Set.
func NewProcess(cfg ProcessConfig) *Process {
	p := &Process{log: cfg.Log, overlays: map[uint32]Members{}, taps: map[uint32]int{}, faults: map[uint32]int{}, heard: map[string]netip.AddrPort{}}
	p.client = companion.New(companion.Config{Name: Command, Program: cfg.Program, Dir: cfg.RunDir, Fill: p.fill, Log: cfg.Log})
	return p
}

// Set implements Tunnel.
func (p *Process) Set(ctx context.Context, want Config) error {
	if err := want.Validate(); err != nil {
		return err
	}
	order, err := want.order()
	if err != nil {
		return err
	}
	p.verbs.Lock()
	defer p.verbs.Unlock()
	p.mu.Lock()
	p.order, p.instance, p.hosts = &order, want.Instance, make(map[string]string, len(want.Peers))
	for _, peer := range want.Peers {
		p.hosts[peer.PublicKey] = peer.Host
	}
	p.begin() //nolint:contextcheck // it outlives who asks first
	p.mu.Unlock()
	return p.call(ctx, VerbConfig, order, nil)
}

// SetOverlay implements Tunnel.
func (p *Process) SetOverlay(ctx context.Context, o netctl.Overlay) error {
	m, err := members(o)
	if err != nil {
		return err
	}
	p.verbs.Lock()
	defer p.verbs.Unlock()
	p.mu.Lock()
	p.overlays[o.VNI] = m
	begun := p.order != nil
	p.mu.Unlock()
	if !begun {
		return nil
	}
	return p.call(ctx, VerbMember, m, nil)
}

// RemoveOverlay implements Tunnel.
func (p *Process) RemoveOverlay(ctx context.Context, vni uint32) error {
	p.verbs.Lock()
	defer p.verbs.Unlock()
	p.mu.Lock()
	delete(p.overlays, vni)
	delete(p.taps, vni)
	delete(p.faults, vni)
	begun := p.order != nil
	p.mu.Unlock()
	if !begun {
		return nil
	}
	return p.call(ctx, VerbForget, vni, nil)
}

// Peers implements Tunnel.
func (p *Process) Peers(ctx context.Context) ([]PeerState, error) {
	s, err := p.state(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.order == nil {
		return nil, nil
	}
	have := make(map[string]OrderPeerState, len(s.Peers))
	for _, one := range s.Peers {
		have[string(one.Key)] = one
	}
	out := make([]PeerState, 0, len(p.order.Peers))
	for _, want := range p.order.Peers {
		one := have[string(want.Key)] // the zero value is true of one that is not there yet
		out = append(out, PeerState{
			Host: p.hosts[base64.StdEncoding.EncodeToString(want.Key)], Addr: want.Addr,
			Endpoint: one.Endpoint, Handshake: one.Handshake, Received: one.Received, Sent: one.Sent,
		})
	}
	slices.SortFunc(out, func(a, b PeerState) int { return cmp.Compare(a.Host, b.Host) })
	return out, nil
}

// Drops implements Tunnel. It counts since the process began.
func (p *Process) Drops(ctx context.Context) ([]netctl.Drop, error) {
	s, err := p.state(ctx)
	return s.Drops, err
}

func (p *Process) state(ctx context.Context) (s State, err error) {
	p.mu.Lock()
	begun := p.order != nil
	p.mu.Unlock()
	if begun {
		err = p.call(ctx, VerbState, nil, &s)
	}
	return s, err
}

// Remove implements Tunnel.
func (p *Process) Remove(ctx context.Context) error {
	p.verbs.Lock()
	defer p.verbs.Unlock()
	p.halt()
	p.mu.Lock()
	p.order, p.hosts, p.overlays, p.taps = nil, nil, map[uint32]Members{}, map[uint32]int{}
	p.mu.Unlock()
	return p.client.Remove(ctx)
}

// UserSpace implements Tunnel.
func (p *Process) UserSpace() bool { return true }

// Close implements Tunnel.
func (p *Process) Close() {
	p.halt()
	p.client.Close()
}

func (p *Process) call(ctx context.Context, verb string, ask, answer any) error {
	err := p.client.Call(ctx, verb, ask, answer)
	if errors.Is(err, ipc.ErrDown) {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return err
}

// placed is the order with the places of peers that have none in it: those that call. Otherwise a process that is started anew could
// not answer them before they begin a session. The caller has the lock.
func (p *Process) placed() Order {
	o := *p.order
	o.Peers = slices.Clone(o.Peers)
	for i := range o.Peers {
		if one := &o.Peers[i]; !one.Endpoint.IsValid() {
			one.Endpoint = p.heard[string(one.Key)]
		}
	}
	return o
}

// learn asks where peers were heard.
func (p *Process) learn(ctx context.Context) {
	s, err := p.state(ctx)
	if err != nil {
		return // there is no process to be asked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.heard)
	for _, one := range s.Peers {
		if one.Endpoint.IsValid() {
			p.heard[string(one.Key)] = one.Endpoint
		}
	}
}

// fill tells a process that was started or found all that is wanted, and finds out which TAPs it has.
func (p *Process) fill(ctx context.Context, c *companion.Conn) error {
	p.mu.Lock()
	if p.order == nil {
		p.mu.Unlock()
		return errors.New("nothing is wanted yet")
	}
	order, overlays := p.placed(), slices.Collect(maps.Values(p.overlays))
	p.mu.Unlock()
	if err := c.Call(ctx, VerbConfig, order, nil); err != nil {
		return err
	}
	for _, m := range overlays {
		if err := c.Call(ctx, VerbMember, m, nil); err != nil {
			return err
		}
	}
	var s State
	if err := c.Call(ctx, VerbState, nil, &s); err != nil {
		return err
	}
	p.mu.Lock()
	p.taps = s.Taps
	if p.taps == nil {
		p.taps = map[uint32]int{}
	}
	p.mu.Unlock()
	p.offer(ctx, c.Call)
	return nil
}

// begin has a goroutine hand TAPs to the process as they come. The caller has the lock.
func (p *Process) begin() {
	if p.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		look, learn := time.NewTicker(lookEvery), time.NewTicker(learnEvery)
		defer look.Stop()
		defer learn.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				p.offer(ctx, p.client.Call)
			case <-learn.C:
				p.learn(ctx)
			}
		}
	}()
}

func (p *Process) halt() {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// offer hands the process the TAPs that are there and it does not have.
func (p *Process) offer(ctx context.Context, call func(ctx context.Context, verb string, ask, answer any, files ...*os.File) error) {
	links, err := openLooker()
	if err != nil {
		return // without descriptors; it is tried again
	}
	defer links.close()
	p.mu.Lock()
	instance, vnis, have := p.instance, slices.Sorted(maps.Keys(p.overlays)), maps.Clone(p.taps)
	p.mu.Unlock()
	for _, vni := range vnis {
		name := netctl.TapLink(instance, vni)
		index := links.index(name)
		if index == 0 || index == have[vni] {
			continue
		}
		err := p.hand(ctx, call, vni, name, index)
		if errors.Is(err, ipc.ErrDown) {
			return // the next process is offered all
		}
		p.mu.Lock()
		if _, wanted := p.overlays[vni]; wanted {
			if err == nil {
				p.taps[vni] = index
			}
			p.tell(vni, name, err)
		}
		p.mu.Unlock()
	}
}

// tell logs what does not pass: a link is busy until the end of the process that had it. The caller has the lock.
func (p *Process) tell(vni uint32, name string, err error) {
	if err == nil {
		delete(p.faults, vni)
		return
	}
	if p.faults[vni]++; p.faults[vni] == patience {
		p.log.Warn("hand an overlay's link to the tunnel process; will retry", "link", name, "err", err)
	}
}

func (p *Process) hand(ctx context.Context, call func(ctx context.Context, verb string, ask, answer any, files ...*os.File) error, vni uint32, name string, index int) error {
	f, err := openTap(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // a copy was handed over
	return call(ctx, VerbTap, Tap{VNI: vni, Index: index}, nil, f)
}

var _ Tunnel = (*Process)(nil)
