package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestPrivateFlags(t *testing.T) {
	for name, bad := range map[string]privateFlags{
		"--wireguard-port":     {WireguardPort: "70000"},
		"--wireguard-endpoint": {WireguardEndpoint: "198.51.100.1"},
		"HOST:PORT":            {WireguardEndpoint: "host:0"},
		"--underlay-address":   {UnderlayAddress: "127.0.0.1"},
		"--wireguard-key-age":  {WireguardKeyAge: time.Minute},
	} {
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (privateFlags{Tunnel: "auto", WireguardEndpoint: "none", WireguardPort: "0", WireguardKeyAge: 720 * time.Hour}).validate(); err != nil {
		t.Error(err)
	}
	for _, f := range []privateFlags{{Tunnel: "none"}, {Tunnel: "auto", WireguardPort: "0"}, {Tunnel: "none", WireguardPort: "1"}} {
		if _, none, err := f.port(); err != nil || !none {
			t.Errorf("%+v has a tunnel: %v", f, err)
		}
	}
}

func TestWhereOthersReachTheTunnel(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.7")
	for name, c := range map[string]struct {
		flags    privateFlags
		ports    portFlags
		own      netip.Addr
		endpoint string
		plain    string
	}{
		"the host's own":               {own: own, endpoint: "192.0.2.7:51820", plain: "192.0.2.7"},
		"translated on the way":        {ports: portFlags{PublicIP: "203.0.113.9"}, own: own, endpoint: "203.0.113.9:51820", plain: "192.0.2.7"},
		"behind NAT":                   {flags: privateFlags{WireguardEndpoint: "none"}, own: own, endpoint: "invalid AddrPort", plain: "192.0.2.7"},
		"named":                        {flags: privateFlags{WireguardEndpoint: "203.0.113.4:99", UnderlayAddress: "10.0.0.4"}, own: own, endpoint: "203.0.113.4:99", plain: "10.0.0.4"},
		"no address at all (an error)": {endpoint: "invalid AddrPort", plain: "invalid IP"},
	} {
		endpoint, plain, err := c.flags.find(t.Context(), c.ports, addrsOf{c.own}, 51820)
		if (err != nil) != strings.Contains(name, "error") || endpoint.String() != c.endpoint || plain.String() != c.plain {
			t.Errorf("%s: %v %v %v", name, endpoint, plain, err)
		}
	}
}

// addrsOf is a host with one address.
type addrsOf struct{ own netip.Addr }

func (a addrsOf) PublicAddr() (netip.Addr, error)       { return a.own, nil }
func (a addrsOf) HasAddr(want netip.Addr) (bool, error) { return want == a.own, nil }
