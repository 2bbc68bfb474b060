package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"gantry/agent"
)

// portFlags say where tcp ports of pods are published.
type portFlags struct {
	PublicIP  string `name:"public-ip" help:"IPv4 address at which the pods' tcp ports are published; default: that of the default route, else the first one that others can reach; it is waited for." placeholder:"ADDR"`
	PortRange string `name:"port-range" default:"30000-39999" help:"Ports of that address to publish, 1024 to 65535; 0: none." placeholder:"FROM-TO"`
}

const (
	leastPort = 1024 // those below belong to the system
	mostPort  = 1<<16 - 1
)

// ports reads the range; 0, 0 says that nothing is published.
func (f portFlags) ports() (from, to int, err error) {
	if f.PortRange == "0" {
		return 0, 0, nil
	}
	first, last, ok := strings.Cut(f.PortRange, "-")
	from, err1 := strconv.Atoi(first)
	to, err2 := strconv.Atoi(last)
	if !ok || err1 != nil || err2 != nil || from < leastPort || to > mostPort || from > to {
		return 0, 0, fmt.Errorf("--port-range must be FROM-TO with %d to %d, or 0", leastPort, mostPort)
	}
	return from, to, nil
}

// address reads the public address; the zero address when none was given.
func (f portFlags) address() (netip.Addr, error) {
	if f.PublicIP == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(f.PublicIP)
	if err != nil || !a.Is4() || !a.IsGlobalUnicast() {
		return netip.Addr{}, errors.New("--public-ip must be an IPv4 address that others can reach")
	}
	return a, nil
}

func (f portFlags) validate() error {
	_, err1 := f.address()
	_, _, err2 := f.ports()
	return errors.Join(err1, err2)
}

// hostAddrs is what the host knows of its own addresses.
type hostAddrs interface {
	PublicAddr() (netip.Addr, error)
	HasAddr(want netip.Addr) (bool, error)
}

// publish says where ports are published on this host. An address that no link of the host has is
// one that is translated on the way: what is sent to it arrives at the address of the default route.
// The answer has ports and no address while the host has none that others can reach.
func (f portFlags) publish(host hostAddrs) (agent.Publish, error) {
	ip, err := f.address()
	if err != nil {
		return agent.Publish{}, err
	}
	from, to, err := f.ports()
	if err != nil || from == 0 {
		return agent.Publish{}, err
	}
	out := agent.Publish{From: from, To: to}
	own, err := host.PublicAddr()
	if err != nil {
		return agent.Publish{}, fmt.Errorf("find the public address: %w", err)
	}
	if !ip.IsValid() {
		ip = own
	}
	if !ip.IsValid() {
		return out, nil
	}
	has, err := host.HasAddr(ip)
	if err != nil {
		return agent.Publish{}, fmt.Errorf("find the public address: %w", err)
	}
	switch {
	case has:
		out.IP, out.At = ip, []netip.Addr{ip}
	case own.IsValid():
		out.IP, out.At = ip, []netip.Addr{ip, own}
		slices.SortFunc(out.At, netip.Addr.Compare)
	}
	return out, nil
}
