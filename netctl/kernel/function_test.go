package kernel

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestAFunctionGoesIntoANamespaceAndBack: by its name there, again, after a move that was cut short, and when the namespace goes first.
func TestAFunctionGoesIntoANamespaceAndBack(t *testing.T) {
	const name = "gfunction"
	c := start(t, "f00d")
	must(t, shareNamespaces())
	ns, _, err := ensureNamespace(name, 0, false)
	must(t, err)
	t.Cleanup(func() { ns.Close(); must(t, removeNamespace(name)) })
	vf := &netlink.Veth{LinkAttrs: linkAttrs("gvf0", 1500, nil), PeerName: "gvf1", PeerTxQLen: -1}
	must(t, netlink.LinkAdd(vf))
	t.Cleanup(func() {
		if l, err := c.linkByName("gvf0"); err != nil || l == nil {
			t.Errorf("the function is not on the host at the end: %v", err)
		} else {
			must(t, netlink.LinkDel(l))
		}
	})
	is := func(link string) string { // where it is, and whether it is up
		t.Helper()
		if l, err := findLink(ns.nl, link); err != nil || l != nil {
			must(t, err)
			return map[bool]string{true: "pod up", false: "pod"}[l.Attrs().RawFlags&1 != 0]
		}
		l, err := c.linkByName(link)
		must(t, err)
		return map[bool]string{true: "host", false: ""}[l != nil]
	}
	give := func() {
		t.Helper()
		must(t, c.GiveFunction(t.Context(), name, "gvf0", "fabric0", "none"))
		if is("fabric0") != "pod up" || is("gvf0") != "" {
			t.Errorf("given, it is %q and %q", is("fabric0"), is("gvf0"))
		}
	}
	take := func() {
		t.Helper()
		must(t, c.TakeFunction(t.Context(), name, "gvf0", "fabric0", "none"))
		if is("fabric0") != "" || is("gvf0") != "host" {
			t.Errorf("taken back, it is %q and %q", is("fabric0"), is("gvf0"))
		}
	}
	give()
	give()
	take()
	take()
	must(t, c.host.LinkSetNsFd(vf, int(ns.file.Fd()))) // and no further
	give()
	take()
	must(t, c.host.LinkSetNsFd(vf, int(ns.file.Fd())))
	take()
	if err := c.GiveFunction(t.Context(), name, "gvf9", "fabric0", "none"); err == nil || !strings.Contains(err.Error(), "not on the host") {
		t.Errorf("a link that is not there: %v", err)
	}
	if err := c.GiveFunction(t.Context(), "gnone", "gvf0", "fabric0", "none"); err == nil {
		t.Error("a namespace that is not there is made")
	}
	if err := c.TakeFunction(t.Context(), "gnone", "gvf0", "fabric0", "none"); err != nil {
		t.Errorf("a namespace that is gone: %v", err)
	}
}
