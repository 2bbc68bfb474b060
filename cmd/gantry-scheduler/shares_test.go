package main

import (
	"net/netip"
	"strings"
	"testing"
)

func TestSharesFlags(t *testing.T) {
	c := settings(t)
	if c.Shares != (shareFlags{8192, 512, 6144, 256, 2048}) || c.validate() != nil {
		t.Errorf("defaults: %+v: %v", c.Shares, c.validate())
	}
	for _, flag := range []string{"--max-connections", "--max-per-address", "--max-proxied", "--max-proxied-per-address", "--max-proxied-per-account"} {
		for _, bad := range []string{"0", "-1", "131073"} {
			if c := settings(t, flag+"="+bad); c.validate() == nil || !strings.Contains(c.validate().Error(), flag+" must be 1 to 131072") {
				t.Errorf("%s %s: %v", flag, bad, c.validate())
			}
		}
		if c := settings(t, flag+"=1"); c.validate() != nil {
			t.Errorf("%s 1: %v", flag, c.validate())
		}
	}
}

// TestTrustedProxiesHaveNoShareOfTheirOwn, and nobody else is exempt.
func TestTrustedProxiesHaveNoShareOfTheirOwn(t *testing.T) {
	plain := settings(t)
	if f, err := plain.Edge.believed(); f != nil || err != nil {
		t.Error("without one there is one", err)
	}
	c := settings(t, "--trusted-proxies", "10.0.0.5,10.1.0.0/16,2001:db8:1:2::5")
	f, err := c.Edge.believed()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"10.0.0.5": true, "10.0.0.6": false, "10.1.2.3": true, "10.2.0.0": false, "2001:db8:1:2::": true, "2001:db8:1:3::": false,
	} {
		if f(netip.MustParseAddr(text)) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
	if f(netip.Addr{}) {
		t.Error("what has no address is exempt")
	}
}
