package main

import (
	"net/netip"
	"testing"

	"gantry/fleet"
)

func TestModelCacheSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "20%": 200 * fleet.GB, "1%": 10 * fleet.GB, "90%": 900 * fleet.GB, "500GB": 500 * fleet.GB, "1GB": fleet.GB, "1000000GB": 1_000_000 * fleet.GB,
	} {
		if got, err := (&modelFlags{text}).modelCacheBytes(1000 * fleet.GB); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "20", "0%", "91%", "-1%", "0GB", "1000001GB", "1.5GB", "10%GB", "GB", "%", "1TB", "9999999999999999999GB"} {
		cmd := runCmd{modelFlags: modelFlags{text}}
		if _, err := cmd.modelCacheBytes(1000 * fleet.GB); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What a hub redirects to is reached as registries are.
func TestModelsAreFetchedWithinTheRangesOfRegistries(t *testing.T) {
	cmd := runCmd{modelFlags: modelFlags{"50%"}, registryFlags: registryFlags{RegistryAllow: []string{"10.20.0.0/16"}, RegistryDeny: []string{"203.0.113.0/24"}}}
	cmd.DataDir, cmd.Scheduler = t.TempDir(), []string{"192.0.2.1:8443"}
	got, err := cmd.models()
	if err != nil || got.Size == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	for addr, refused := range map[string]bool{
		"10.20.0.1": false, "10.21.0.1": true, "203.0.113.9": true, "198.51.100.1": false, "192.0.2.1": true, "127.0.0.1": true, "169.254.169.254": true,
	} {
		if got.Guard.Refuses(t.Context(), netip.MustParseAddr(addr), false) != refused {
			t.Errorf("%s: refused is not %v", addr, refused)
		}
	}
}
