package kernel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// heard sends a line over TCP from one namespace to another (empty: the machine's own) and returns the
// address that it came from.
func heard(t *testing.T, from, to string, addr netip.Addr) string {
	t.Helper()
	in := func(ns string, f func() error) error {
		if ns == "" {
			return f()
		}
		return Within(ns, f)
	}
	var l net.Listener
	must(t, in(to, func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr.String(), "0"))
		return err
	}))
	defer func() { _ = l.Close() }()
	var c net.Conn
	must(t, in(from, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		return err
	}))
	defer func() { _ = c.Close() }()
	got, err := l.Accept()
	must(t, err)
	defer func() { _ = got.Close() }()
	host, _, err := net.SplitHostPort(got.RemoteAddr().String())
	must(t, err)
	return host
}

func TestIsland(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	i, err := NewIsland("t1", netip.MustParsePrefix("198.18.7.0/24"))
	must(t, err)
	t.Cleanup(func() {
		if err := i.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, i.Up(ctx, 2))
	links := fingerprint(t)
	must(t, i.Up(ctx, 2)) // again: nothing changes
	if now := fingerprint(t); now != links {
		t.Errorf("the second time links changed:\n%s\n%s", links, now)
	}
	if got := heard(t, i.Namespace(1), "", i.Gateway()); got != i.Addr(1).String() {
		t.Errorf("host 1 is seen as %s", got)
	}
	if got := heard(t, "", i.Namespace(2), i.Addr(2)); got != i.Gateway().String() {
		t.Errorf("the machine is seen as %s", got)
	}
	if got := heard(t, i.Namespace(1), i.Namespace(2), i.Addr(2)); got != i.Addr(1).String() {
		t.Errorf("host 1 is seen by host 2 as %s", got)
	}
	must(t, i.Up(ctx, 3)) // one more
	if got := heard(t, i.Namespace(3), i.Namespace(2), i.Addr(2)); got != i.Addr(3).String() {
		t.Errorf("host 3 is seen as %s", got)
	}

	rival, err := NewIsland("t2", netip.MustParsePrefix("198.18.7.0/24"))
	must(t, err)
	if err := rival.Up(ctx, 1); !errors.Is(err, ErrIslandTaken) {
		t.Errorf("a second island on the same addresses: %v", err)
	}

	must(t, i.Down(ctx))
	must(t, i.Down(ctx)) // again
	for _, name := range []string{i.bridge(), i.link(1)} {
		if _, err := netlink.LinkByName(name); err == nil {
			t.Errorf("link %s is left", name)
		}
	}
	if entries, err := os.ReadDir(netnsDir); err == nil {
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), i.prefix()) {
				t.Errorf("namespace %s is left", e.Name())
			}
		}
	}
	if err := Within(i.Namespace(1), func() error { return nil }); err == nil {
		t.Error("a namespace that is gone can be entered")
	}
}

func TestIslandRefuses(t *testing.T) {
	for name, subnet := range map[string]string{
		"": "198.18.7.0/24", "toolong12": "198.18.7.0/24", "Up": "198.18.7.0/24", "a": "198.18.7.0/23", "b": "198.18.7.1/24", "c": "fd00::/24",
	} {
		if _, err := NewIsland(name, netip.MustParsePrefix(subnet)); err == nil {
			t.Errorf("island %q on %s is accepted", name, subnet)
		}
	}
	i, err := NewIsland("t3", netip.MustParsePrefix("198.18.8.0/24"))
	must(t, err)
	for _, n := range []int{0, -1, maxIslandHosts + 1} {
		if err := i.Up(t.Context(), n); err == nil {
			t.Errorf("%d hosts are accepted", n)
		}
	}
}
