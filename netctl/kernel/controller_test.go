package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

var compare = cmp.Comparer(func(a, b netctl.Config) bool { return a.Equal(b) })

func TestPodReachesOnlyWhatItMay(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c, other := start(t, "0a1b"), start(t, "0a1c")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	must(t, c.Set(ctx, cfg))
	must(t, other.Set(ctx, config(t, "0a1c", "10.88.32.0/20", "gamma")))
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	for _, pod := range []string{alpha, beta, ns("0a1c", "gamma")} {
		serve(t, pod, ":8080")
	}
	serve(t, "", ":9090")

	reaches(t, alpha, outsideAddr+":80", uplinkAddr) // NAT
	reaches(t, beta, outsideAddr+":80", uplinkAddr)
	reaches(t, "", "10.88.16.2:8080", "10.88.16.1") // host to pod
	reaches(t, "", "10.88.32.2:8080", "10.88.32.1") // host to the other instance's pod
	reaches(t, alpha, "127.0.0.1:8080", "127.0.0.1")
	reaches(t, "", metaAddr+":80", uplinkAddr) // the address exists for the host

	refused(t, alpha, "10.88.16.1:9090")     // gateway
	refused(t, alpha, uplinkAddr+":9090")    // another address of the host
	refused(t, alpha, "10.88.32.1:9090")     // another instance's gateway
	refused(t, alpha, "10.88.16.3:8080")     // another pod
	refused(t, alpha, "10.88.32.2:8080")     // another instance's pod
	refused(t, alpha, metaAddr+":80")        // link-local
	refused(t, outsideName, uplinkAddr+":1") // nothing forwards by accident

	viaGateway(t, alpha, "10.88.16.3/32", "10.88.16.1")
	refused(t, alpha, "10.88.16.3:8080") // another pod through the host
	viaGateway(t, outsideName, "10.88.16.0/20", uplinkAddr)
	refused(t, outsideName, "10.88.16.2:8080") // from outside
	reaches(t, alpha, outsideAddr+":80", uplinkAddr)
	threadsAtHome(t)
}

func TestDeniedRangeIsDropped(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha")
	must(t, c.Set(context.Background(), cfg))
	reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)
	cfg.Deny = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	must(t, c.Set(context.Background(), cfg))
	refused(t, ns("0a1b", "alpha"), outsideAddr+":80")
}

func TestNamespaceIsComplete(t *testing.T) {
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20", "alpha")))
	must(t, within(ns("0a1b", "alpha"), func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		var got []string
		for _, l := range links {
			addrs, _ := l.Addrs()
			got = append(got, fmt.Sprint(l.Name, " ", l.HardwareAddr, " ", l.MTU, " ", addrs, " ", l.Flags&net.FlagUp != 0))
		}
		want := "lo  65536 [127.0.0.1/8 ::1/128] true\neth0 0a:58:0a:58:10:02 1500 [10.88.16.2/20] true"
		if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("links (-want +got):\n%s", diff)
		}
		l, err := net.Listen("tcp4", ":80")
		if err != nil {
			return err
		}
		return l.Close()
	}))
}

func TestSetIsIdempotentAndLeavesOthersAlone(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	must(t, c.Set(ctx, cfg))
	before, rules := fingerprint(t), nft(t, "-a", "list", "ruleset")
	must(t, c.Set(ctx, cfg))
	if got := fingerprint(t); got != before {
		t.Errorf("links changed:\n%s\nwas\n%s", got, before)
	}
	if got := nft(t, "-a", "list", "ruleset"); got != rules {
		t.Errorf("rules changed: %s", cmp.Diff(rules, got))
	}
	alpha, _ := cfg.Pod("alpha")
	must(t, c.Set(ctx, cfg.Without("beta").With(newPod("0a1b", "delta", netip.MustParseAddr("10.88.16.9")))))
	for _, line := range strings.Split(fingerprint(t), "\n") {
		if strings.Contains(line, netctl.LinkName("0a1b", alpha.ID)) && !strings.Contains(before, line) {
			t.Errorf("an untouched link was made again: %s", line)
		}
	}
	st, err := c.Observed(ctx)
	must(t, err)
	if _, ok := st.Config.Pod("beta"); ok || len(st.Config.Pods) != 2 || !st.Ready || len(st.Partial) != 0 {
		t.Errorf("observed %+v", st)
	}
}

func TestAddAndRemoveTwice(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	pod := newPod("0a1b", "alpha", netip.MustParseAddr("10.88.16.2"))
	if err := c.AddPod(ctx, pod); !errors.Is(err, netctl.ErrNoHost) {
		t.Fatalf("before Set: %v", err)
	}
	must(t, c.Set(ctx, config(t, "0a1b", "10.88.16.0/20")))
	empty := census(t)
	for range 2 {
		must(t, c.AddPod(ctx, pod))
		reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)
	}
	if has, err := c.Has(ctx, "alpha"); err != nil || !has {
		t.Fatalf("has: %v, %v", has, err)
	}
	thief := newPod("0a1b", "thief", pod.Addr)
	if err := c.AddPod(ctx, thief); err == nil {
		t.Error("two pods got one address")
	}
	for range 2 {
		must(t, c.RemovePod(ctx, "alpha"))
		if has, err := c.Has(ctx, "alpha"); err != nil || has {
			t.Fatalf("has: %v, %v", has, err)
		}
	}
	if got := census(t); got != empty {
		t.Errorf("left behind: %s", cmp.Diff(empty, got))
	}
	must(t, c.AddPod(ctx, thief))
	reaches(t, ns("0a1b", "thief"), outsideAddr+":80", uplinkAddr)
}

func TestAddPodMovesToNewAddress(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	must(t, c.Set(ctx, config(t, "0a1b", "10.88.16.0/20", "alpha")))
	moved := newPod("0a1b", "alpha", netip.MustParseAddr("10.88.16.77"))
	must(t, c.AddPod(ctx, moved))
	serve(t, ns("0a1b", "alpha"), ":8080")
	reaches(t, "", "10.88.16.77:8080", "10.88.16.1")
	if got := nft(t, "list", "set", "bridge", "gantry_0a1b", "pods"); strings.Contains(got, "10.88.16.2 ") || strings.Count(got, "10.88.16.77") != 1 {
		t.Errorf("source rules: %s", got)
	}
	wider := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/18"), MTU: 1400}.With(moved)
	must(t, c.Set(ctx, wider))
	reaches(t, "", "10.88.16.77:8080", "10.88.0.1")
	st, err := c.Observed(ctx)
	must(t, err)
	if diff := cmp.Diff(wider, st.Config, compare); diff != "" {
		t.Error(diff)
	}
}

func TestSuccessorFinishesAndSweeps(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	first, neighbour := start(t, "0a1b"), start(t, "0a1c")
	must(t, neighbour.Set(ctx, config(t, "0a1c", "10.88.32.0/20", "gamma")))
	theirs := objectsOf(t, "0a1c")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta", "delta")
	must(t, first.Set(ctx, cfg))
	kept := objectsOf(t, "0a1b")
	before := fingerprint(t)

	// What a crash leaves: a link without its mark, a namespace without link, a name
	// without namespace, a link of nobody, a source rule of nobody.
	beta, err := netlink.LinkByName(netctl.LinkName("0a1b", "beta"))
	must(t, err)
	must(t, netlink.LinkSetAlias(beta, "half"))
	must(t, within(ns("0a1b", "delta"), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return removeStray(h, podLink)
	}))
	orphan, _, err := ensureNamespace(ns("0a1b", "orphan"), 0, false)
	must(t, err)
	orphan.Close()
	must(t, os.WriteFile(filepath.Join(netnsDir, ns("0a1b", "half")), nil, 0o444))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: linkAttrs("gn0a1borphan", 1500, nil), PeerName: "gn0a1bpeer", PeerTxQLen: -1}))
	nft(t, "add", "element", "bridge", "gantry_0a1b", "pods", "{ gn0a1borphan . 0a:58:0a:58:10:63 . 10.88.16.99 }")

	second := start(t, "0a1b")
	st, err := second.Observed(ctx)
	must(t, err)
	if len(st.Config.Pods) != 1 || st.Config.Pods[0].ID != "alpha" || st.Ready || len(st.Partial) == 0 {
		t.Errorf("observed %+v", st)
	}
	must(t, second.Set(ctx, cfg))
	if got := objectsOf(t, "0a1b"); got != kept {
		t.Errorf("objects: %s", cmp.Diff(kept, got))
	}
	if got := objectsOf(t, "0a1c"); got != theirs {
		t.Errorf("the neighbour's objects: %s", cmp.Diff(theirs, got))
	}
	for _, line := range strings.Split(before, "\n") {
		if strings.Contains(line, netctl.LinkName("0a1b", "alpha")) && !strings.Contains(fingerprint(t), line) {
			t.Error("an untouched pod's link was made again")
		}
	}
	if got := nft(t, "list", "set", "bridge", "gantry_0a1b", "pods"); strings.Contains(got, "orphan") {
		t.Errorf("source rules: %s", got)
	}
	for _, id := range []string{"alpha", "beta", "delta"} {
		reaches(t, ns("0a1b", id), outsideAddr+":80", uplinkAddr)
	}
}

func TestCleanKnowsNothingButTheInstance(t *testing.T) {
	ctx := context.Background()
	empty := census(t)
	c := start(t, "0a1b")
	must(t, c.Set(ctx, config(t, "0a1b", "10.88.16.0/20", podIDs(5)...)))
	must(t, os.WriteFile(filepath.Join(netnsDir, ns("0a1b", "half")), nil, 0o444))
	successor := start(t, "0a1b")
	for range 2 {
		must(t, successor.Clean(ctx))
		if got := census(t); got != empty {
			t.Errorf("left behind: %s", cmp.Diff(empty, got))
		}
	}
}

func TestFlushedRulesComeBack(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha")
	beta := newPod("0a1b", "beta", netip.MustParseAddr("10.88.16.3"))
	must(t, c.Set(ctx, cfg))
	before := fingerprint(t)
	nft(t, "flush", "ruleset")
	st, err := c.Observed(ctx)
	must(t, err)
	if st.Ready {
		t.Error("ready without rules")
	}
	must(t, c.Set(ctx, cfg))
	if got := fingerprint(t); got != before {
		t.Errorf("links: %s", cmp.Diff(before, got))
	}
	reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)

	nft(t, "flush", "ruleset")
	must(t, c.AddPod(ctx, beta)) // finds out by itself
	reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)

	nft(t, "flush", "chain", "inet", "gantry_0a1b", "from_pods")
	must(t, c.Repair(ctx))
	refused(t, ns("0a1b", "alpha"), metaAddr+":80")

	bridge, err := netlink.LinkByName("gn0a1b")
	must(t, err)
	must(t, netlink.LinkDel(bridge))
	must(t, c.AddPod(ctx, newPod("0a1b", "delta", netip.MustParseAddr("10.88.16.4"))))
	for _, id := range []string{"alpha", "beta", "delta"} {
		reaches(t, ns("0a1b", id), outsideAddr+":80", uplinkAddr)
	}
}

func TestParallelVerbs(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", podIDs(12)...)
	must(t, c.Set(ctx, config(t, "0a1b", "10.88.16.0/20")))
	empty := census(t)
	each := func(f func(netctl.Pod) error) {
		t.Helper()
		var wg sync.WaitGroup
		for _, p := range append(cfg.Clone().Pods, cfg.Pods...) { // every verb twice at once
			wg.Go(func() {
				if err := f(p); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(p netctl.Pod) error { return c.AddPod(ctx, p) })
	st, err := c.Observed(ctx)
	must(t, err)
	if diff := cmp.Diff(cfg, st.Config, compare); diff != "" || !st.Ready || len(st.Partial) != 0 {
		t.Errorf("observed %+v: %s", st, diff)
	}
	each(func(p netctl.Pod) error { return c.RemovePod(ctx, p.ID) })
	if got := census(t); got != empty {
		t.Errorf("left behind: %s", cmp.Diff(empty, got))
	}
	threadsAtHome(t)
}

func TestVerbsObeyTheirContext(t *testing.T) {
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20")))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pod := newPod("0a1b", "alpha", netip.MustParseAddr("10.88.16.2"))
	for name, err := range map[string]error{
		"set": c.Set(ctx, config(t, "0a1b", "10.88.16.0/20", "alpha")), "add": c.AddPod(ctx, pod), "clean": c.Clean(ctx),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFreeSubnet(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	first, err := c.FreeSubnet()
	must(t, err)
	up, err := netlink.LinkByName("up0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Dst: addrOf(first).IPNet, Table: 100}))
	second, err := c.FreeSubnet()
	must(t, err)
	if first.Overlaps(second) || !netctl.Pool().Overlaps(second) {
		t.Errorf("%s, then %s", first, second)
	}
	cfg := netctl.Config{Instance: "0a1b", Subnet: second, MTU: 1500}
	must(t, c.Set(context.Background(), cfg))
	if again, err := c.FreeSubnet(); err != nil || again != second {
		t.Errorf("its own subnet: %s, %v", again, err)
	}
	rival := start(t, "0a1c")
	cfg.Instance = "0a1c"
	if err := rival.Set(context.Background(), cfg); !errors.Is(err, netctl.ErrSubnetTaken) {
		t.Errorf("a rival's subnet: %v", err)
	}
}

// fingerprint tells a link that was made again from the one before: its index.
func fingerprint(t *testing.T) string {
	t.Helper()
	links, err := retry(netlink.LinkList)
	must(t, err)
	var out []string
	for _, l := range links {
		a := l.Attrs()
		out = append(out, fmt.Sprint(a.Name, " ", a.Index, " ", a.ParentIndex, " ", a.MasterIndex, " ", a.HardwareAddr, " ", a.Alias))
	}
	return strings.Join(out, "\n")
}

func viaGateway(t *testing.T, name, to, gw string) {
	t.Helper()
	must(t, within(name, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return h.RouteReplace(&netlink.Route{Dst: addrOf(netip.MustParsePrefix(to)).IPNet, Gw: net.ParseIP(gw)})
	}))
}
