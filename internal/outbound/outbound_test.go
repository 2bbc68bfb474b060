package outbound

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"testing"
)

func TestAddressesThatNoRegistryMayLeadTo(t *testing.T) {
	for addr, want := range map[string][2]bool{ // refused for a registry elsewhere, for one on loopback
		"127.0.0.1": {true, false}, "127.8.9.1": {true, false}, "::1": {true, false}, "::ffff:127.0.0.1": {true, false},
		"169.254.169.254": {true, true}, "fe80::1": {true, true}, "fe80::1%lo": {true, true}, "0.0.0.0": {true, true}, "0.1.2.3": {true, true},
		"::": {true, true}, "fd00:ec2::254": {true, true}, "100.100.100.200": {true, true}, "64:ff9b::a9fe:a9fe": {true, true},
		"64:ff9b::7f00:1": {true, false}, "224.0.0.1": {true, true}, "10.1.2.3": {false, false}, "192.168.1.1": {false, false}, "8.8.8.8": {false, false},
	} {
		a := netip.MustParseAddr(addr)
		if got := [2]bool{refused(a, false), refused(a, true)}; got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	tr := Guard{}.Transport(false)
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, ErrRefused) {
		t.Errorf("loopback through the guarded transport: %v", err)
	}
}

// TestPrivateAddressesAreClosed but for what the operator opened; a scheduler's never opens, by whatever name it is known.
func TestPrivateAddressesAreClosed(t *testing.T) {
	prefixes := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	opened := Guard{
		Allow: prefixes("10.2.0.0/16", "fd12::/16"), Deny: prefixes("10.2.3.0/24", "203.0.113.0/24"),
		Never: Resolve(func() []string {
			return []string{"10.2.9.9:8443", "198.51.100.7:8443", "localhost:8443", "[fd12::9]:8443", "no address", "name.invalid:1"}
		}),
	}
	for addr, want := range map[string][2]bool{ // refused by default, with the above
		"10.1.2.3": {true, true}, "172.16.0.1": {true, true}, "172.32.0.1": {false, false}, "192.168.1.1": {true, true}, "100.64.1.1": {true, true},
		"100.128.0.1": {false, false}, "fd00::1": {true, true}, "64:ff9b::a01:203": {true, true}, "::ffff:10.1.2.3": {true, true}, "8.8.8.8": {false, false},
		"10.2.1.1": {true, false}, "::ffff:10.2.1.1": {true, false}, "fd12::1": {true, false}, "10.2.3.1": {true, true}, "203.0.113.9": {false, true},
		"10.2.9.9": {true, true}, "fd12::9": {true, true}, "198.51.100.7": {false, true},
	} {
		a := netip.MustParseAddr(addr)
		if got := [2]bool{(Guard{}).Refuses(t.Context(), a, false), opened.Refuses(t.Context(), a, false)}; got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	if loopback := netip.MustParseAddr("127.0.0.1"); opened.Refuses(t.Context(), loopback, true) || !opened.Never.has(t.Context(), loopback) {
		t.Error("a scheduler on loopback closes it, or its name was not looked up")
	}
}

// TestAddressesOfTheHost adds a link like the pods' bridge: its address is the host's own, and the rest
// of its subnet is the pods'.
func TestAddressesOfTheHost(t *testing.T) {
	name := fmt.Sprintf("gnout%d", os.Getpid()) // another run of the tests has its own
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("/bin/busybox", append([]string{"ip"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	ip("link", "add", "name", name, "type", "bridge")
	t.Cleanup(func() { ip("link", "del", name) })
	ip("addr", "add", "198.18.77.1/24", "dev", name)
	ip("link", "set", name, "up")
	for a, want := range map[string][2]bool{ // refused without a bridge, with it
		"198.18.77.1": {true, true}, "::ffff:198.18.77.1": {true, true}, "64:ff9b::c612:4d01": {true, true},
		"198.18.77.9": {false, true}, "198.18.78.9": {false, false}, "8.8.8.8": {false, false},
	} {
		a := netip.MustParseAddr(a)
		if got := [2]bool{Guard{}.Refuses(t.Context(), a, false), Guard{Bridge: name}.Refuses(t.Context(), a, false)}; got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
	if (Guard{Bridge: "gnnothere"}).Refuses(t.Context(), netip.MustParseAddr("8.8.8.8"), false) {
		t.Error("everything is refused when there is no bridge yet")
	}
}
