package ctrd

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"gantry/agent/pod"
	"gantry/internal/outbound"
)

const notAllowed = "leads to an address that is not allowed"

func TestARegistryMayNotLeadToPlainHTTP(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	if err := redirects(false)(req, nil); !errors.Is(err, errInsecure) {
		t.Errorf("redirect to plain http: %v", err)
	}
}

func TestRegistryIsPlainOnlyOnLoopback(t *testing.T) {
	s := (&Runtime{cfg: Config{AllowLoopbackRegistries: true}}).newSource(&pull{})
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
		if plain := want == "http"; plain != errors.Is(err, outbound.ErrRefused) || !plain && h[0].Scheme != "https" {
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
	// One that listens and one that does not read the same.
	b := setup(t, func(c *Config) { c.Bridge = name })
	for _, host := range []string{l.Addr().String(), "198.18.77.1:1", "198.18.77.9:5000"} {
		_, err := b.r.Pull(b.ctx, host+"/x:1", nil, nil)
		wantFault(t, err, pod.Fatal, "the registry of image "+host+"/x:1 "+notAllowed)
	}
}
