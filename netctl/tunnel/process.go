package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"gantry/internal/ipc"
	"gantry/netctl"
	"gantry/netctl/sidecar"
)

// Command is gantry-net's that is the process.
const Command = "wireguard"

// ProcessConfig says how the tunnel's process is found and started.
type ProcessConfig struct {
	// Program is the path of gantry-net.
	Program string
	// Instance is the agent's, RunDir a folder of it for the control socket. It has to be there still when the next agent comes.
	Instance, RunDir string
	Log              *slog.Logger
}

// Process is the tunnel of a host whose kernel has no WireGuard: a TUN with the host's address in the tunnel, over which the kernel's
// VXLAN links send, and a process that has its other end. The TUN stays while the process or an agent has it: it is handed from one to
// the next.
type Process struct {
	client *sidecar.Client
	name   string // of the link

	verbs sync.Mutex // Set and Remove, one after the other

	mu    sync.Mutex
	want  *Config                   // nil: nothing is wanted yet
	told  map[string]netip.AddrPort // endpoints of peers as they were set last, by key
	heard map[string]netip.AddrPort // where peers were heard last, by key
}

// NewProcess makes the client. Nothing is started or taken over before the first Set.
func NewProcess(cfg ProcessConfig) *Process {
	p := &Process{name: netctl.TunnelLink(cfg.Instance)}
	p.client = sidecar.New(sidecar.Config{
		Name: Command, Program: cfg.Program, Dir: cfg.RunDir, Log: cfg.Log,
		Open:  func(context.Context) ([]int, error) { return openTUN(p.name) },
		Right: func(fds []int) bool { return len(fds) == 1 && tunName(fds[0]) == p.name },
		Fill:  func(ctx context.Context, c *sidecar.Conn) error { return p.apply(ctx, c.Call) },
	})
	return p
}

// Set implements Tunnel.
func (p *Process) Set(ctx context.Context, want Config) error {
	if err := want.Validate(); err != nil {
		return err
	}
	if netctl.TunnelLink(want.Instance) != p.name {
		return errors.New("tunnel: it is another instance's")
	}
	p.verbs.Lock()
	defer p.verbs.Unlock()
	want.Peers = slices.Clone(want.Peers)
	p.mu.Lock()
	p.want = &want
	p.mu.Unlock()
	if err := p.client.Poke(ctx); err != nil {
		return down(err)
	}
	return down(p.apply(ctx, p.client.Call))
}

// Peers implements Tunnel.
func (p *Process) Peers(ctx context.Context) ([]PeerState, error) {
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil {
		return nil, ctx.Err()
	}
	have, err := running(ctx, p.client.Call)
	if err != nil {
		return nil, down(err)
	}
	p.mu.Lock()
	p.heard = map[string]netip.AddrPort{}
	for _, one := range have.Peers {
		p.heard[one.PublicKey.String()] = addrPort(one.Endpoint)
	}
	p.mu.Unlock()
	return states(have, want.Peers), nil
}

// Remove implements Tunnel. The link goes with the process.
func (p *Process) Remove(ctx context.Context) error {
	p.verbs.Lock()
	defer p.verbs.Unlock()
	p.mu.Lock()
	p.want, p.told, p.heard = nil, nil, nil
	p.mu.Unlock()
	return p.client.Remove(ctx)
}

// UserSpace implements Tunnel.
func (p *Process) UserSpace() bool { return true }

// Close implements Tunnel.
func (p *Process) Close() { p.client.Close() }

// call asks the process for something.
type call func(ctx context.Context, verb string, ask, answer any, files ...*os.File) error

// apply makes the link and the process as wanted.
func (p *Process) apply(ctx context.Context, call call) error {
	p.mu.Lock()
	wanted, told, heard := p.want, p.told, p.heard
	p.mu.Unlock()
	if wanted == nil {
		return errors.New("nothing is wanted yet")
	}
	want := *wanted
	l, err := netlink.LinkByName(p.name)
	if err != nil {
		return fmt.Errorf("tunnel: find link: %w", err)
	}
	if err := errors.Join(ensureMTU(l, want), ensureAddress(l, want)); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	have, err := running(ctx, call)
	if err != nil {
		return err
	}
	if len(have.Peers) == 0 { // of a process that was started anew
		want.Peers = placed(want.Peers, heard)
	}
	change, err := difference(have, want, told)
	if err != nil {
		return err
	}
	ask := Change{Text: encode(change)}
	if change.PrivateKey != nil {
		ask.Greet = callable(want.Peers)
	}
	if err := call(ctx, VerbSet, ask, nil); err != nil {
		return err
	}
	p.mu.Lock()
	p.told = endpoints(wanted.Peers)
	p.mu.Unlock()
	return nil
}

// placed gives peers that call, and have no endpoint, the place where they were heard last: a process that was started anew could not
// answer them before they begin a session.
func placed(peers []Peer, heard map[string]netip.AddrPort) []Peer {
	out := slices.Clone(peers)
	for i := range out {
		if !out[i].Endpoint.IsValid() {
			out[i].Endpoint = heard[out[i].PublicKey]
		}
	}
	return out
}

// callable are the keys of peers that can be called. One that has a session with this host's former process, or former key, would hold
// on to it for 15 seconds if it were not.
func callable(peers []Peer) (keys [][]byte) {
	for _, one := range peers {
		if key, err := parsePublic(one.PublicKey); err == nil && one.Endpoint.IsValid() {
			keys = append(keys, key[:])
		}
	}
	return keys
}

// running asks the process what it has.
func running(ctx context.Context, call call) (*wgtypes.Device, error) {
	var text string
	if err := call(ctx, VerbGet, nil, &text); err != nil {
		return nil, err
	}
	return decode(text)
}

// down says that an error is for want of a process.
func down(err error) error {
	if errors.Is(err, ipc.ErrDown) {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return err
}

// openTUN makes the link, which is there as long as somebody has it open.
func openTUN(name string) (fds []int, err error) {
	if l, err := netlink.LinkByName(name); err == nil && l.Type() != "tuntap" {
		if err := netlink.LinkDel(l); err != nil {
			return nil, fmt.Errorf("remove a link of another type: %w", err)
		}
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq(name)
	if err == nil {
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, r))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the link %s: %w", name, err), unix.Close(fd))
	}
	return []int{fd}, nil
}

// tunName is the name of the link that is open; "" when it was removed.
func tunName(fd int) string {
	r, err := unix.NewIfreq("")
	if err != nil || unix.IoctlIfreq(fd, unix.TUNGETIFF, r) != nil {
		return ""
	}
	return r.Name()
}

var _ Tunnel = (*Process)(nil)
