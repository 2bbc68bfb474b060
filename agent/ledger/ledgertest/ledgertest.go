// Package ledgertest has ledgers for tests.
package ledgertest

import (
	"net/netip"
	"path/filepath"
	"testing"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/netctl"
)

// Open opens the ledger of a data folder until the test ends.
func Open(t *testing.T, dir string) *ledger.Ledger {
	t.Helper()
	book, err := ledger.Open(filepath.Join(dir, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = book.Close() })
	return book
}

// FirstFree allocates the first free address of 10.88.0.0/20.
func FirstFree(used map[netip.Addr]bool) (netip.Addr, error) {
	return netctl.NextAddr(netip.MustParsePrefix("10.88.0.0/20"), used)
}

// SetFull writes a set of orders of generation 1.
func SetFull(t *testing.T, book *ledger.Ledger, orders ...pod.Assignment) {
	t.Helper()
	if _, err := book.SetFull(1, orders, FirstFree); err != nil {
		t.Fatal(err)
	}
}
