package inventory

import (
	"testing"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/machine"
	"gantry/fleet"
)

// What something else may have of the disk is not offered to pods, whether it has it already or not.
func TestRoomOfOthersIsNotOffered(t *testing.T) {
	dir, book := t.TempDir(), ledgertest.Open(t, t.TempDir())
	all, err := Read(dir, 1, nil, book, true, machine.Disk{})
	if err != nil {
		t.Fatal(err)
	}
	if all.Total.DiskGB < 3 {
		t.Fatal("the disk is too small")
	}
	size := all.Total.DiskGB * fleet.GB / 2
	empty, err := Read(dir, 1, nil, book, true, machine.Disk{Size: size})
	if err != nil || empty.Total.DiskGB >= all.Total.DiskGB || empty.Total.DiskGB < all.Total.DiskGB/3 {
		t.Errorf("offered %d GB of %d, %v", empty.Total.DiskGB, all.Total.DiskGB, err)
	}
	full, err := Read(dir, 1, nil, book, true, machine.Disk{Size: size, Used: size})
	if err != nil || full.Total.DiskGB <= empty.Total.DiskGB { // here it has nothing really, so that much more is free
		t.Errorf("offered %d GB when it is full, %v", full.Total.DiskGB, err)
	}
	if none, err := Read(dir, 1, nil, book, true, machine.Disk{Size: 1 << 60}); err != nil || none.Total.DiskGB != 0 {
		t.Errorf("offered %d GB, %v", none.Total.DiskGB, err)
	}
}
