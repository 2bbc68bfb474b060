package netctl

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// poolBits is the length of the ranges that PickSubnet cuts from the pool.
const poolBits = 20

// Pool is the range from which PickSubnet takes a host's subnet.
func Pool() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88}), 13) }

// NextAddr returns the lowest address of the subnet that is not in used. It
// never returns the subnet's own, gateway or broadcast address. When all are used
// the error is ErrNoFreeAddr.
func NextAddr(subnet netip.Prefix, used map[netip.Addr]bool) (netip.Addr, error) {
	if err := checkSubnet(subnet); err != nil {
		return netip.Addr{}, err
	}
	last := lastAddr(subnet)
	for a := subnet.Addr().Next().Next(); a.Less(last); a = a.Next() {
		if !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, ErrNoFreeAddr
}

// PickSubnet returns a /20 of the pool for an instance: the one that its name
// hashes to, or the next that overlaps nothing in taken. Taken prefixes need not
// be masked. When none is free the error is ErrNoFreeSubnet.
func PickSubnet(instance string, taken []netip.Prefix) (netip.Prefix, error) {
	if err := CheckInstance(instance); err != nil {
		return netip.Prefix{}, err
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance)) // a hash never fails
	pool := Pool()
	slots := uint32(1) << (poolBits - pool.Bits())
	first := toUint(pool.Addr())
	for i := range slots {
		slot := (h.Sum32() + i) % slots
		p := netip.PrefixFrom(toAddr(first+slot<<(32-poolBits)), poolBits)
		if !overlapsAny(p, taken) {
			return p, nil
		}
	}
	return netip.Prefix{}, ErrNoFreeSubnet
}

// SubnetOf returns the subnet, as PickSubnet gives them, that an address is in.
func SubnetOf(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, poolBits).Masked() }

func overlapsAny(p netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		if p.Overlaps(t) {
			return true
		}
	}
	return false
}

func lastAddr(p netip.Prefix) netip.Addr {
	return toAddr(toUint(p.Masked().Addr()) | (1<<(32-p.Bits()) - 1))
}

func toUint(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func toAddr(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
