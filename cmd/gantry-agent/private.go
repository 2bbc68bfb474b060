package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gantry/agent"
	"gantry/agent/overlay"
	"gantry/netctl/dns"
	"gantry/netctl/kernel"
	"gantry/netctl/tunnel"
)

// privateFlags say how the host takes part in private networks.
type privateFlags struct {
	Tunnel            string        `default:"auto" enum:"auto,kernel,user,none" help:"Tunnel to other hosts: WireGuard of the kernel, in user space (gantry-net, much slower), none, or auto: the kernel's where it has one."`
	WireguardPort     string        `name:"wireguard-port" help:"UDP port of WireGuard on this host, 1 to 65535; 0: no tunnel; default: that of the cluster's settings (51820)." placeholder:"PORT"`
	WireguardEndpoint string        `name:"wireguard-endpoint" help:"Where other hosts reach this one's WireGuard, or none: they cannot, such as behind NAT, and this host calls those that it can; default: as --public-ip, at the port of --wireguard-port." placeholder:"HOST:PORT|none"`
	UnderlayAddress   string        `name:"underlay-address" help:"IPv4 address of this host for hosts of a data center whose underlay is private; default: that of the default route." placeholder:"ADDR"`
	WireguardKeyAge   time.Duration `name:"wireguard-key-age" default:"720h" help:"Make a new WireGuard key after this time, at least 1h; 0: never."`
}

const (
	tunnelKernel = "kernel"
	tunnelUser   = "user"
	tunnelNone   = "none"
	noEndpoint   = "none"
)

// port reads the port of WireGuard; 0: that of the settings. none says that there is no tunnel.
func (f privateFlags) port() (port uint16, none bool, err error) {
	if f.WireguardPort == "" {
		return 0, f.Tunnel == tunnelNone, nil
	}
	n, err := strconv.ParseUint(f.WireguardPort, 10, 16)
	if err != nil {
		return 0, false, errors.New("--wireguard-port must be 0 to 65535")
	}
	return uint16(n), n == 0 || f.Tunnel == tunnelNone, nil
}

func (f privateFlags) validate() error {
	_, _, err := f.port()
	faults := []error{err}
	if f.WireguardEndpoint != "" && f.WireguardEndpoint != noEndpoint {
		host, port, err := net.SplitHostPort(f.WireguardEndpoint)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
			faults = append(faults, errors.New("--wireguard-endpoint must be HOST:PORT, or none"))
		}
	}
	if _, err := f.underlay(); err != nil {
		faults = append(faults, err)
	}
	if f.WireguardKeyAge != 0 && f.WireguardKeyAge < time.Hour {
		faults = append(faults, errors.New("--wireguard-key-age must be at least 1h, or 0"))
	}
	return errors.Join(faults...)
}

// underlay reads the address for hosts of the data center; the zero address when none was given.
func (f privateFlags) underlay() (netip.Addr, error) {
	if f.UnderlayAddress == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(f.UnderlayAddress)
	if err != nil || !a.Is4() || !a.IsGlobalUnicast() {
		return netip.Addr{}, errors.New("--underlay-address must be an IPv4 address that others can reach")
	}
	return a, nil
}

// find says where others reach this host.
func (f privateFlags) find(ctx context.Context, ports portFlags, host hostAddrs, port uint16) (endpoint netip.AddrPort, plain netip.Addr, err error) {
	own, err := host.PublicAddr()
	if err != nil {
		return endpoint, plain, fmt.Errorf("find the host's address: %w", err)
	}
	if plain, err = f.underlay(); err != nil || !plain.IsValid() {
		plain = own
	}
	switch f.WireguardEndpoint {
	case noEndpoint:
		return netip.AddrPort{}, plain, nil
	case "":
		public, err := ports.address()
		if err != nil || !public.IsValid() {
			public = own
		}
		if !public.IsValid() {
			return endpoint, plain, errors.New("the host has no address that others can reach")
		}
		return netip.AddrPortFrom(public, port), plain, nil
	}
	endpoint, err = resolve(ctx, f.WireguardEndpoint)
	return endpoint, plain, err
}

// resolve finds an endpoint by its name.
func resolve(ctx context.Context, endpoint string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(endpoint); err == nil {
		return at, nil
	}
	host, text, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("find the address of %s: %w", host, err)
	}
	return netip.AddrPortFrom(found[0].Unmap(), uint16(port)), nil
}

// private opens what private networks need.
func (c *runCmd) private(ctx context.Context, host *kernel.Controller, log *slog.Logger) (agent.Private, error) {
	program, err := beside(c.Net, "gantry-net")
	if err != nil {
		return agent.Private{}, err
	}
	port, none, err := c.port()
	if err != nil {
		return agent.Private{}, err
	}
	out := agent.Private{
		Port: port, KeyAge: c.WireguardKeyAge, Within: kernel.Within, MTU: host.MTUOf,
		Find: func(ctx context.Context, port uint16) (netip.AddrPort, netip.Addr, error) {
			return c.find(ctx, c.portFlags, host, port)
		},
		NewNames: func(gateway netip.Addr) (overlay.Names, error) { //nolint:contextcheck // what answers names outlives the agent
			if _, err := os.Stat(program); err != nil {
				return nil, fmt.Errorf("the program that answers them: %w", err)
			}
			return dns.NewProcess(dns.ProcessConfig{Program: program, RunDir: c.netDir(), Instance: c.instance(), Listen: gateway, Log: log}), nil
		},
	}
	kind := c.Tunnel
	if kind == "auto" {
		if kind = tunnelUser; tunnel.Supported() {
			kind = tunnelKernel
		}
	}
	if none {
		kind = tunnelNone
	}
	for _, t := range c.tunnels(program, log) {
		if t.kind == kind {
			out.Tunnel = t.Tunnel
			continue
		}
		t.end(ctx, log)
	}
	return out, nil
}

// kindOfTunnel is a tunnel that a host can have.
type kindOfTunnel struct {
	kind string
	tunnel.Tunnel
}

func (c *common) tunnels(program string, log *slog.Logger) []kindOfTunnel {
	return []kindOfTunnel{
		{tunnelKernel, tunnel.NewKernel(c.instance(), log)},
		{tunnelUser, tunnel.NewProcess(tunnel.ProcessConfig{Program: program, Instance: c.instance(), RunDir: c.netDir(), Log: log})},
	}
}

// end ends what an agent of before may have left: it would keep the port from the one that is wanted now.
func (t kindOfTunnel) end(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := t.Remove(ctx); err != nil {
		log.Warn("close a tunnel of another kind", "kind", t.kind, "err", err)
	}
	t.Close()
}

// netDir is where the processes of gantry-net are spoken to.
func (c *common) netDir() string { return filepath.Join(c.runDir(), "net") }

// cleanPrivate ends what serves private networks.
func (c *common) cleanPrivate(ctx context.Context, log *slog.Logger) error {
	program, err := beside(c.Net, "gantry-net")
	if err != nil {
		return err
	}
	names := dns.NewProcess(dns.ProcessConfig{Program: program, RunDir: c.netDir(), Instance: c.instance(), Log: log}) //nolint:contextcheck // it is ended, not run
	faults := []error{names.Remove(ctx)}
	for _, t := range c.tunnels(program, log) {
		faults = append(faults, t.Remove(ctx))
		t.Close()
	}
	_ = os.RemoveAll(c.netDir())
	return errors.Join(faults...)
}
