package main

import (
	"errors"
	"fmt"
	"net/netip"

	"gantry/agent/ctrd"
	"gantry/agent/session"
)

// registryFlags say where registries may be.
type registryFlags struct {
	RegistryAllow []string `help:"Let pods name registries at private addresses in this range; may be repeated. Without, registries are at public addresses." placeholder:"CIDR"`
	RegistryDeny  []string `help:"Let no registry be at an address in this range, whatever is allowed; may be repeated. Schedulers' addresses never are." placeholder:"CIDR"`

	LoopbackRegistries bool `help:"Let pods name image registries on this host's loopback, asked over plain HTTP. For development machines alone: every service that listens there can be asked."`
}

// ranges reads both lists.
func (f *registryFlags) ranges() (allow, deny []netip.Prefix, err error) {
	read := func(flag string, texts []string) (out []netip.Prefix) {
		for i, text := range texts {
			p, perr := netip.ParsePrefix(text)
			if perr != nil || p != p.Masked() {
				err = errors.Join(err, fmt.Errorf("%s: range %d must be like 10.20.0.0/16, without bits beyond its length", flag, i+1))
				continue
			}
			out = append(out, p)
		}
		return out
	}
	return read("--registry-allow", f.RegistryAllow), read("--registry-deny", f.RegistryDeny), err
}

// registries adds to the runtime's settings where registries may be.
func (c *runCmd) registries(conf ctrd.Config) (_ ctrd.Config, err error) {
	conf.RegistryAllow, conf.RegistryDeny, err = c.ranges()
	conf.AllowLoopbackRegistries = c.LoopbackRegistries
	conf.Schedulers = func() []string { return session.KnownSchedulers(c.DataDir, c.Scheduler) }
	return conf, err
}
