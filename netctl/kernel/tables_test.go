package kernel

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"

	"gantry/netctl"
)

var update = flag.Bool("update", false, "write the golden files")

// TestTablesAreGolden holds the text of the rules, and that nft takes every one.
func TestTablesAreGolden(t *testing.T) {
	client, err := knftables.New("", "")
	must(t, err)
	denied := config(t, "ffff", "10.95.240.0/20", "alpha", "Beta_2")
	denied.Deny = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("169.254.1.0/24")}
	for name, cfg := range map[string]netctl.Config{
		"empty":  config(t, "0a1b", "10.88.16.0/20"),
		"one":    config(t, "0a1b", "10.88.16.0/20", "alpha"),
		"denied": denied,
		"ports":  publishing(t),
		"joined": joined(t),
	} {
		t.Run(name, func(t *testing.T) {
			must(t, cfg.Validate())
			tx := transaction(client, cfg)
			file := filepath.Join("testdata", name+".nft")
			if *update {
				must(t, os.WriteFile(file, []byte(tx.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if diff := cmp.Diff(string(want), tx.String()); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if err := client.Check(context.Background(), tx); err != nil {
				t.Errorf("nft refuses: %v", err)
			}
		})
	}
}

// joined is a host with overlays, by WireGuard of the kernel's and by plain VXLAN, and with all that holds pods back.
func joined(t *testing.T) netctl.Config {
	c := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	c.Names, c.Flows, c.Barred = true, 32_768, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:7000")}
	c.Underlay = netctl.Underlay{
		Addr: netip.MustParseAddr("100.127.0.1"), Range: netip.MustParsePrefix("100.127.0.0/16"), Port: 4789, MTU: 1370,
		Plain: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
	}
	here := netctl.Member{Addr: netip.MustParseAddr("10.64.0.2"), MAC: "0a:67:0a:40:00:02"}
	c.Overlays = []netctl.Overlay{{VNI: red, CIDR: overlayRange, Members: []netctl.Member{
		here,
		{Addr: netip.MustParseAddr("10.64.0.3"), MAC: "0a:67:0a:40:00:03", Via: netctl.Via{Addr: netip.MustParseAddr("192.0.2.2")}},
		{Addr: netip.MustParseAddr("10.64.0.4"), MAC: "0a:67:0a:40:00:04", Via: netctl.Via{Addr: netip.MustParseAddr("100.127.0.9"), Tunnel: true}},
	}}}
	c.Pods[0].Overlays, c.Pods[1].Closed = []netctl.Place{{VNI: red, Addr: here.Addr, MAC: here.MAC, Link: "podnet1"}}, true
	return c
}

// TestLimitsAreGolden holds what a limit makes of both directions of a link, such as eth0's host's end.
func TestLimitsAreGolden(t *testing.T) {
	var text string
	for _, mbps := range []int{1, 100, 10_000, 400_000, 1_000_000} {
		b := bucket(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 7}}, mbps)
		text += fmt.Sprintf("mbps %d: link %d rate %d buffer %d limit %d\n", mbps, b.LinkIndex, b.Rate, b.Buffer, b.Limit)
	}
	p := joined(t).Pods[0]
	for _, end := range podEnds("0a1b", p) {
		text += fmt.Sprintf("%s through %s\n", end, limitLink(end))
	}
	const file = "testdata/limits.txt"
	if *update {
		must(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Error(diff)
	}
}

// TestElementsReadAsNftWritesThem holds both ways of writing a source rule equal.
func TestElementsReadAsNftWritesThem(t *testing.T) {
	ctx := context.Background()
	r, err := newRuleset("0a1b", home{})
	must(t, err)
	defer func() { must(t, r.remove(ctx)) }()
	cfg := config(t, "0a1b", "10.88.16.0/20", podIDs(3)...)
	must(t, r.apply(ctx, cfg))
	byText := nft(t, "list", "set", "bridge", "gantry_0a1b", "pods")
	for _, p := range cfg.Pods {
		link := netctl.LinkName("0a1b", p.ID)
		if has, err := r.sources(link); err != nil || len(has) != 1 || has[0] != p.Addr {
			t.Fatalf("sources: %v, %v", has, err)
		}
		must(t, r.unpin(link))
		if has, err := r.sources(link); err != nil || len(has) != 0 {
			t.Fatalf("sources: %v, %v", has, err)
		}
	}
	for _, p := range cfg.Pods {
		must(t, r.pin(p))
		must(t, r.pin(p))
	}
	if diff := cmp.Diff(byText, nft(t, "list", "set", "bridge", "gantry_0a1b", "pods")); diff != "" {
		t.Error(diff)
	}
	found, err := r.look()
	must(t, err)
	if len(found.pins) != 3 || !found.intact {
		t.Errorf("found %+v", found)
	}
}
