package session

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
)

// TestAddressesOfTheControlPlane finds those that pods must not reach.
func TestAddressesOfTheControlPlane(t *testing.T) {
	where := &Directory{named: []string{"198.51.100.2:7000", "127.0.0.1:7000", "0.0.0.0:7000", "one.example:7001", "[2001:db8::1]:7000"}}
	if got := (&Directory{named: []string{"localhost:7000"}}).Addresses(nil).All(t.Context()); len(got) != 0 {
		t.Errorf("the host's resolver finds %v", got)
	}
	down := false
	b := where.Addresses(func(_ context.Context, host string) ([]netip.Addr, error) {
		if down || host != "one.example" {
			return nil, errors.New("no answer")
		}
		return []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::2")}, nil
	})
	want := []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:7001"), netip.MustParseAddrPort("198.51.100.2:7000")}
	for range 2 {
		if got := b.All(t.Context()); !slices.Equal(got, want) {
			t.Errorf("resolver down %v: %v", down, got)
		}
		down = true
	}
}
