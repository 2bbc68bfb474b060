package main

import (
	"strings"
	"testing"

	"gantry/agent/ctrd"
)

func TestRegistryFlags(t *testing.T) {
	for _, c := range []struct {
		flags registryFlags
		says  string
	}{
		{registryFlags{}, ""},
		{registryFlags{RegistryAllow: []string{"10.20.0.0/16", "fd12::/64"}, RegistryDeny: []string{"203.0.113.9/32"}}, ""},
		{registryFlags{RegistryAllow: []string{"10.20.0.0/16", "10.20.0.1/16"}}, "--registry-allow: range 2 must be"},
		{registryFlags{RegistryAllow: []string{"10.20.0.1"}}, "--registry-allow: range 1 must be"},
		{registryFlags{RegistryDeny: []string{"registry.example"}}, "--registry-deny: range 1 must be"},
	} {
		cmd := runCmd{registryFlags: c.flags}
		cmd.DataDir, cmd.Scheduler = t.TempDir(), []string{"192.0.2.1:8443"}
		conf, err := cmd.registries(ctrd.Config{MaxImageBytes: 7})
		switch {
		case c.says == "" && err != nil, c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: %v", c.flags, err)
		case err == nil && (len(conf.RegistryAllow) != len(c.flags.RegistryAllow) || conf.MaxImageBytes != 7 || len(conf.Schedulers()) != 1):
			t.Errorf("%+v: %+v, %v", c.flags, conf, conf.Schedulers())
		}
	}
}
