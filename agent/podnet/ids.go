package podnet

import (
	"hash/fnv"
	"net/netip"

	"gantry/internal/userns"
)

const (
	// Blocks of ids begin at multiples of 1<<28, the first of them at 1<<28: above what hosts give to people
	// and to other containers (subuid(5)). The seventh is left out, since systemd has ids of its own at its
	// end; ids above 2^31 are those of network volumes (fleet.VolumeIDsFirst), and old kernels do not let them ping.
	idBlock  = 1 << 28
	idBlocks = 6
	hostBits = 12 // of an address: those of a subnet of the pool
)

// IDBase returns the function that tells the first host id of a pod's user namespace by the pod's
// address (pod.Deps). It follows from instance and address alone, so that nothing needs to remember it.
// Two pods of one host have no id in common as long as its subnet is a /20 or smaller; agents of one
// machine may share a block. Without an IPv4 address it is 0.
func IDBase(instance string) func(addr netip.Addr) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance)) // a hash never fails
	block := (h.Sum32()%idBlocks + 1) * idBlock
	return func(addr netip.Addr) uint32 {
		if !addr.Is4() {
			return 0
		}
		a := addr.As4()
		low := (uint32(a[2])<<8 | uint32(a[3])) & (1<<hostBits - 1)
		return block + low*userns.Size
	}
}
