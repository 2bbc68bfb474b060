package overlay

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
	"gantry/netctl/dns"
	"gantry/netctl/tunnel"
)

// wire is a tunnel that notes what it is told.
type wire struct {
	tunnel.Tunnel
	mu      sync.Mutex
	user    bool
	is      tunnel.Config
	sets    int
	removed int
	err     error
	states  []tunnel.PeerState
}

func (w *wire) Set(_ context.Context, c tunnel.Config) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets++
	if err := errors.Join(c.Validate(), w.err); err != nil {
		return err
	}
	w.is = c
	return nil
}

func (w *wire) Remove(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed++
	w.is = tunnel.Config{}
	return nil
}

func (w *wire) Peers(context.Context) ([]tunnel.PeerState, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states, nil
}

func (w *wire) UserSpace() bool { return w.user }
func (w *wire) Close()          {}

func (w *wire) now() tunnel.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.is
}

// book answers names, and notes what it is told.
type book struct {
	mu       sync.Mutex
	base     dns.Base
	pods     map[netip.Addr][]uint32
	overlays map[uint32][]dns.Name
	err      error
}

func (b *book) note(f func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		f()
	}
	return b.err
}

func (b *book) Set(_ context.Context, base dns.Base) error { return b.note(func() { b.base = base }) }

func (b *book) SetPods(_ context.Context, pods map[netip.Addr][]uint32) error {
	return b.note(func() { b.pods = pods })
}

func (b *book) SetOverlay(_ context.Context, o dns.Overlay) error {
	return b.note(func() { b.overlays[o.VNI] = o.Members })
}

func (b *book) RemoveOverlay(_ context.Context, vni uint32) error {
	return b.note(func() { delete(b.overlays, vni) })
}

func (b *book) now() (base dns.Base, pods map[netip.Addr][]uint32, overlays map[uint32][]dns.Name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.base, maps.Clone(b.pods), maps.Clone(b.overlays)
}

func (b *book) Stats(context.Context) (dns.Stats, error) { return dns.Stats{Internal: 7}, nil }
func (b *book) Close()                                   {}

// dropping is a kernel that has dropped packets.
type dropping struct{ *netctl.Fake }

func (dropping) Drops(context.Context) ([]netctl.Drop, error) {
	return []netctl.Drop{{Why: "foreign", Packets: 2, Bytes: 200}, {Why: "foreign", Packets: 1, Bytes: 100}}, nil
}

// site is a host with a keeper.
type site struct {
	*Reconciler
	t       *testing.T
	dir     string
	control *netctl.Fake
	wire    *wire
	book    *book
	changes int
	mu      sync.Mutex
}

var hostNet = netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}

func newSite(t *testing.T, change ...func(*Config)) *site {
	t.Helper()
	s := &site{
		t: t, dir: t.TempDir(), control: netctl.NewFake(netctl.NewFakeKernel(), "0a1b"),
		wire: &wire{}, book: &book{overlays: map[uint32][]dns.Name{}},
	}
	s.open(change...)
	return s
}

// open begins an agent's life on the host.
func (s *site) open(change ...func(*Config)) {
	s.t.Helper()
	resolv := filepath.Join(s.dir, "resolv.conf")
	if _, err := os.Stat(resolv); err != nil {
		write := os.WriteFile(resolv, []byte("# theirs\nnameserver 127.0.0.53\nsearch corp.example\noptions edns0\n"), 0o600)
		if write != nil {
			s.t.Fatal(write)
		}
	}
	c := Config{
		Host: "here", Control: dropping{s.control}, Tunnel: s.wire, Resolv: resolv, File: filepath.Join(s.dir, "networks.bin"), KeyFile: filepath.Join(s.dir, "key"),
		NewNames: func(netip.Addr) (Names, error) { return s.book, nil },
		Find: func(_ context.Context, port uint16) (netip.AddrPort, netip.Addr, error) {
			return netip.AddrPortFrom(addr("192.0.2.1"), port), addr("192.0.2.1"), nil
		},
		Barred: func(context.Context) []netip.AddrPort {
			return []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:7000")}
		},
		Changed: func() { s.mu.Lock(); s.changes++; s.mu.Unlock() },
		Log:     slog.New(slog.NewTextHandler(s.t.Output(), nil)),
	}
	for _, f := range change {
		f(&c)
	}
	s.Reconciler = New(c, hostNet)
}

// begin sets the host's network, with pods that were there before, and runs the keeper until the function that it returns.
func (s *site) begin(pods ...netctl.Pod) (end func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.Begin(ctx)
	want := hostNet.Clone()
	for _, p := range pods {
		want = want.With(p)
	}
	want = s.Complete(want)
	if err := s.control.Set(ctx, want); err != nil {
		s.t.Fatal(err)
	}
	s.Made(want)
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func place() pod.Place {
	return pod.Place{Overlay: "o4096", VNI: 4096, CIDR: netip.MustParsePrefix("10.64.0.0/16"), Addr: addr("10.64.0.2"), Link: fleet.OverlayLink}
}

// start is what the machine of the pod p2 does.
func (s *site) start(places ...pod.Place) error {
	p := s.Place(netctl.NewPod("0a1b", "p2", addr("10.88.0.2")), "a", places)
	if err := s.Join(s.t.Context(), "p2"); err != nil {
		return err
	}
	if err := s.control.AddPod(s.t.Context(), p); err != nil {
		return err
	}
	return s.Added(s.t.Context(), p, "a")
}

const publicKey1, publicKey2 = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=", "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="

// session is a whole session's beginning: two other hosts, one of them on a private underlay, and one network.
func (s *site) session() {
	for _, m := range []*agentrpc.Down{
		{Kind: &agentrpc.Down_Network{Network: &agentrpc.NetworkSet{
			Suffix: "gantry.internal", Aliases: []string{"runpod.internal"}, Mtu: 1370, VxlanPort: 4789, WireguardPort: 51820, PodMbps: 0,
			TunnelAddr: "100.127.0.1", TunnelRange: "100.127.0.0/16", Pool: "10.64.0.0/10", Overlays: []string{"o4096"},
		}}},
		{Kind: &agentrpc.Down_Peers{Peers: &agentrpc.PeerChange{Full: true, Put: []*agentrpc.HostPeer{
			{HostId: "far", TunnelAddr: "100.127.0.2", PublicKey: publicKey1, Endpoint: "203.0.113.2:51820"},
			{HostId: "near", TunnelAddr: "100.127.0.3", Plain: "192.0.2.3"},
		}}}},
		{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{
			OverlayId: "o4096", AccountId: "a", Vni: 4096, Cidr: "10.64.0.0/16", To: 5, Put: []*agentrpc.OverlayMember{
				{Addr: "10.64.0.4", PodId: "p4", Name: "four", HostId: "near"},
				{Addr: "10.64.0.3", PodId: "p3", Name: "three", HostId: "far"},
				{Addr: "10.64.0.2", PodId: "p2", Name: "two", HostId: "here"},
				{Addr: "10.64.0.5", PodId: "p5", Name: "five", HostId: "nowhere"},
			},
		}}},
	} {
		if s.Hear(m) {
			s.t.Error("everything is asked for")
		}
	}
}

func reached(at, via string, tunnelled bool) netctl.Member {
	m := netctl.Member{Addr: addr(at), MAC: fleet.OverlayMAC(addr(at))}
	if via != "" {
		m.Via = netctl.Via{Addr: addr(via), Tunnel: tunnelled}
	}
	return m
}

func (s *site) inKernel() netctl.Config {
	s.t.Helper()
	state, err := s.control.Observed(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return state.Config
}

func await(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to be so")
		}
	}
}
