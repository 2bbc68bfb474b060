package podnet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"gantry/internal/userns"
	"gantry/netctl"
)

func TestIDBaseGivesEveryPodItsOwnIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instance := rapid.StringMatching(`[0-9a-f]{4}`).Draw(t, "instance")
		subnet, err := netctl.PickSubnet(instance, nil)
		if err != nil {
			t.Fatal(err)
		}
		first := binary.BigEndian.Uint32(subnet.Addr().AsSlice())
		number := rapid.Uint32Range(0, 1<<12-1)
		at := func(n uint32) netip.Addr {
			return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first+n)))
		}
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		of := IDBase(instance)
		x, y := of(at(a)), of(at(b))
		if x%userns.Size != 0 || x < 1<<28 || uint64(x)+userns.Size > 7<<28 || userns.CheckBase(x) != nil {
			t.Errorf("%#x", x)
		}
		if (a == b) != (x == y) {
			t.Errorf("%s has %#x, %s has %#x", at(a), x, at(b), y)
		}
		if IDBase(instance)(at(a)) != x {
			t.Error("it is another one the second time")
		}
		if x>>28 != y>>28 {
			t.Error("an instance has two blocks")
		}
	})
	if IDBase("0a1b")(netip.Addr{}) != 0 || IDBase("0a1b")(netip.MustParseAddr("fd00::1")) != 0 {
		t.Error("ids without an IPv4 address")
	}
	blocks := map[uint32]bool{}
	for _, instance := range []string{"0000", "0a1b", "0a1c", "1234", "beef", "cafe", "d00d", "ffff"} {
		blocks[IDBase(instance)(netip.MustParseAddr("10.88.0.2"))>>28] = true
	}
	if len(blocks) < 3 {
		t.Errorf("eight instances have the blocks %v", blocks)
	}
}
