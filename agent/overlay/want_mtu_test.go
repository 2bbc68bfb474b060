package overlay

import (
	"net/netip"
	"testing"

	"gantry/internal/agentrpc"
	"gantry/netctl"
)

// TestAnOverlayHasItsOwnMTU: links of its pods and its bridge; the tunnel carries the largest. One that no link can have is none.
func TestAnOverlayHasItsOwnMTU(t *testing.T) {
	for said, want := range map[int32]int{0: 0, 8870: 8870, 1370: 0, 100: 0, 1 << 20: 0} {
		k := &Reconciler{desired: newDesired()}
		if _, err := k.desired.change(&agentrpc.OverlayChange{OverlayId: "cluster-c", AccountId: "a", Vni: 4097, Cidr: "10.65.0.0/16", To: 1, Mtu: said}); err != nil {
			t.Fatal(err)
		}
		if got := k.overlay(4097).MTU; got != want {
			t.Errorf("said %d: the overlay has %d, want %d", said, got, want)
		}
		config, _ := k.tunnelConfig()
		if most := max(want, k.desired.settings.mtu); config.MTU != most {
			t.Errorf("said %d: the tunnel carries %d, want %d", said, config.MTU, most)
		}
		if got := (netctl.Config{MTU: 1500, Underlay: netctl.Underlay{MTU: 1370}}).OverlayMTU(k.overlay(4097)); got != max(1370, want) {
			t.Errorf("said %d: links get %d", said, got)
		}
	}
}

// TestAHostSaysWhatItsWireCarries, by the address at which hosts of its data center reach it.
func TestAHostSaysWhatItsWireCarries(t *testing.T) {
	s := newSite(t, func(c *Config) {
		c.MTU = func(a netip.Addr) int { return map[bool]int{true: 9000}[a == addr("192.0.2.1")] }
	})
	s.announce(t.Context())
	if got := s.Announce(); got.MTU != 9000 {
		t.Errorf("it says %+v", got)
	}
}
