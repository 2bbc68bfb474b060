package kernel

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestElementsReadAsNftWritesThem holds both ways of writing a source rule equal.
func TestElementsReadAsNftWritesThem(t *testing.T) {
	ctx := context.Background()
	r, err := newRuleset("0a1b")
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
