package ctrd

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"gantry/agent/pod"
)

const notAllowed = "leads to an address that is not allowed"

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
	tr := guard{}.transport(false)
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, errRefusedAddress) {
		t.Errorf("loopback through the guarded transport: %v", err)
	}
	req := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	if err := redirects(false)(req, nil); !errors.Is(err, errInsecure) {
		t.Errorf("redirect to plain http: %v", err)
	}
}

func TestRegistryIsPlainOnlyOnLoopback(t *testing.T) {
	s := (&Runtime{guard: guard{loopback: true}}).newSource(&pull{})
	closed := (&Runtime{}).newSource(&pull{})
	for host, want := range map[string]string{
		"127.0.0.1:5000": "http", "localhost:5000": "http", "[::1]:5000": "http", "127.9.9.9": "http", "localhost": "http",
		"docker.io": "https", "example.com:5000": "https", "10.0.0.1:5000": "https", "localhost.example.com": "https", "127.0.0.1.example.com": "https",
	} {
		h, err := s.hosts(host)
		if err != nil || len(h) != 1 || h[0].Scheme != want {
			t.Errorf("%s: %v %v", host, h, err)
		}
		h, err = closed.hosts(host)
		if plain := want == "http"; plain != errors.Is(err, errRefusedAddress) || !plain && h[0].Scheme != "https" {
			t.Errorf("%s, where loopback is not allowed: %v %v", host, h, err)
		}
	}
	if h, _ := s.hosts("docker.io"); h[0].Host != "registry-1.docker.io" {
		t.Error(fmt.Sprint(h))
	}
}

// TestLoopbackIsClosed holds that without the setting no service of the host hears anything, and that
// one that is there is not told from one that is not.
func TestLoopbackIsClosed(t *testing.T) {
	b := setup(t, func(c *Config) { c.AllowLoopbackRegistries = false })
	reg := newRegistryServer(t)
	var asked atomic.Int32
	reg.hits = func(*http.Request) { asked.Add(1) }
	_, port, _ := net.SplitHostPort(reg.host)
	for _, ref := range []string{reg.host + "/x:1", "127.0.0.1:1/x:1", "localhost:" + port + "/x:1", "[::1]:" + port + "/x:1"} {
		_, err := b.r.Pull(b.ctx, ref, credential("u", "p"), nil)
		wantFault(t, err, pod.Fatal, notAllowed)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("a service on loopback was asked %d times", n)
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
	opened := guard{
		allow: prefixes("10.2.0.0/16", "fd12::/16"), deny: prefixes("10.2.3.0/24", "203.0.113.0/24"),
		never: &resolved{list: func() []string {
			return []string{"10.2.9.9:8443", "198.51.100.7:8443", "localhost:8443", "[fd12::9]:8443", "no address", "name.invalid:1"}
		}},
	}
	for addr, want := range map[string][2]bool{ // refused by default, with the above
		"10.1.2.3": {true, true}, "172.16.0.1": {true, true}, "172.32.0.1": {false, false}, "192.168.1.1": {true, true}, "100.64.1.1": {true, true},
		"100.128.0.1": {false, false}, "fd00::1": {true, true}, "64:ff9b::a01:203": {true, true}, "::ffff:10.1.2.3": {true, true}, "8.8.8.8": {false, false},
		"10.2.1.1": {true, false}, "::ffff:10.2.1.1": {true, false}, "fd12::1": {true, false}, "10.2.3.1": {true, true}, "203.0.113.9": {false, true},
		"10.2.9.9": {true, true}, "fd12::9": {true, true}, "198.51.100.7": {false, true},
	} {
		a := netip.MustParseAddr(addr)
		if got := [2]bool{(guard{}).refuses(t.Context(), a, false), opened.refuses(t.Context(), a, false)}; got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	if loopback := netip.MustParseAddr("127.0.0.1"); opened.refuses(t.Context(), loopback, true) || !opened.never.has(t.Context(), loopback) {
		t.Error("a scheduler on loopback closes it, or its name was not looked up")
	}
}

// TestAddressesOfTheHost adds a link like the pods' bridge: its address is the host's own, and the rest
// of its subnet is the pods'.
func TestAddressesOfTheHost(t *testing.T) {
	name := fmt.Sprintf("gnreg%d", os.Getpid()) // another run of the tests has its own
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
	l, err := net.Listen("tcp", "198.18.77.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for a, want := range map[string][2]bool{ // refused without a bridge, with it
		"198.18.77.1": {true, true}, "::ffff:198.18.77.1": {true, true}, "64:ff9b::c612:4d01": {true, true},
		"198.18.77.9": {false, true}, "198.18.78.9": {false, false}, "8.8.8.8": {false, false},
	} {
		a := netip.MustParseAddr(a)
		if got := [2]bool{guard{}.refuses(t.Context(), a, false), guard{bridge: name}.refuses(t.Context(), a, false)}; got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
	if (guard{bridge: "gnnothere"}).refuses(t.Context(), netip.MustParseAddr("8.8.8.8"), false) {
		t.Error("everything is refused when there is no bridge yet")
	}
	// One that listens and one that does not read the same.
	b := setup(t, func(c *Config) { c.Bridge = name })
	for _, host := range []string{l.Addr().String(), "198.18.77.1:1", "198.18.77.9:5000"} {
		_, err := b.r.Pull(b.ctx, host+"/x:1", nil, nil)
		wantFault(t, err, pod.Fatal, "the registry of image "+host+"/x:1 "+notAllowed)
	}
}
