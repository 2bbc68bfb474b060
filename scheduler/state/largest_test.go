package state

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

func long(n int) string { return strings.Repeat("x", n) }

// bound is a value that is accepted, or refused for a field.
type bound struct {
	name  string
	err   error
	field string // "": accepted
}

func checkBounds(t *testing.T, bounds []bound) {
	t.Helper()
	for _, b := range bounds {
		switch {
		case b.field == "" && b.err != nil:
			t.Errorf("%s: %v", b.name, b.err)
		case b.field != "" && (fleet.CodeOf(b.err) != fleet.CodeInvalid || fieldOf(b.err) != b.field):
			t.Errorf("%s: got %v, want one about %s", b.name, b.err, b.field)
		}
	}
}

// fieldOf returns the field that a refusal names.
func fieldOf(err error) string {
	var e *fleet.Error
	if !errors.As(err, &e) || len(e.Details) != 1 {
		return ""
	}
	field, _, _ := strings.Cut(e.Details[0], ": ")
	return field
}

func TestTheLargestInventory(t *testing.T) {
	with := func(change func(*fleet.Inventory)) error {
		inv := inventory("host-a")
		change(&inv)
		return checkInventory(&inv)
	}
	gpu := func(change func(*fleet.GPU)) error {
		return with(func(inv *fleet.Inventory) { change(&inv.GPUs[1]) })
	}
	texts := func(text string) error {
		return with(func(inv *fleet.Inventory) { inv.Conditions = []fleet.Condition{{Code: "a", Text: text}} })
	}
	kinds := func(n int) error {
		return with(func(inv *fleet.Inventory) { inv.Volumes = slices.Repeat([]fleet.BackendKind{fleet.BackendNFS}, n) })
	}
	trusts := func(n int, digest string) error {
		return with(func(inv *fleet.Inventory) { inv.Certificate.Trusts = slices.Repeat([]string{digest}, n) })
	}
	checkBounds(t, []bound{
		{"nothing", with(func(inv *fleet.Inventory) { *inv = fleet.Inventory{} }), ""},
		{"less cores than none", with(func(inv *fleet.Inventory) { inv.Total.MilliCPU = -1 }), "$.inventory.total"},
		{"less memory than none", with(func(inv *fleet.Inventory) { inv.Total.MemoryMB = -1 }), "$.inventory.total"},
		{"less disk than none", with(func(inv *fleet.Inventory) { inv.Total.DiskGB = -1 }), "$.inventory.total"},
		{"the longest digest", with(func(inv *fleet.Inventory) { inv.Digest = long(maxID) }), ""},
		{"a longer digest", with(func(inv *fleet.Inventory) { inv.Digest = long(maxID + 1) }), "$.inventory.digest"},
		{"the most kinds", kinds(maxKinds), ""},
		{"more kinds", kinds(maxKinds + 1), "$.inventory.volumes"},
		{"an unknown kind", with(func(inv *fleet.Inventory) { inv.Volumes = []fleet.BackendKind{"smb"} }), "$.inventory.volumes"},
		{"the longest condition", texts(long(maxConditionText)), ""},
		{"a longer condition", texts(long(maxConditionText + 1)), "$.inventory.conditions"},
		{"the most trusted", trusts(maxTrusts, long(maxID)), ""},
		{"more trusted", trusts(maxTrusts+1, "a"), "$.inventory.certificate"},
		{"a longer name of one trusted", trusts(1, long(maxID+1)), "$.inventory.certificate"},
		{"the longest CA", with(func(inv *fleet.Inventory) { inv.Certificate.CA = long(maxID) }), ""},
		{"a longer CA", with(func(inv *fleet.Inventory) { inv.Certificate.CA = long(maxID + 1) }), "$.inventory.certificate"},
		{"a GPU without a UUID", gpu(func(g *fleet.GPU) { g.UUID = "" }), "$.inventory.gpus"},
		{"a GPU twice", gpu(func(g *fleet.GPU) { g.UUID = "host-a-gpu-0" }), "$.inventory.gpus"},
		{"the longest UUID", gpu(func(g *fleet.GPU) { g.UUID = long(maxID) }), ""},
		{"a longer UUID", gpu(func(g *fleet.GPU) { g.UUID = long(maxID + 1) }), "$.inventory.gpus"},
		{"a longer type", gpu(func(g *fleet.GPU) { g.Type = long(maxID + 1) }), "$.inventory.gpus"},
		{"a longer address", gpu(func(g *fleet.GPU) { g.PCI = long(maxID + 1) }), "$.inventory.gpus"},
		{"a longer parent", gpu(func(g *fleet.GPU) { g.Parent = long(maxID + 1) }), "$.inventory.gpus"},
		{"the longest illness", gpu(func(g *fleet.GPU) { g.Sick = long(maxConditionText) }), ""},
		{"a longer illness", gpu(func(g *fleet.GPU) { g.Sick = long(maxConditionText + 1) }), "$.inventory.gpus"},
	})
}

func TestTheLargestNetworkSettings(t *testing.T) {
	with := func(change func(*fleet.NetworkSettings)) error {
		s := fleet.DefaultNetworkSettings()
		change(&s)
		return checkNetworkSettings(&s)
	}
	link := func(mtu, vxlan, wireguard int, mbps int64, grace time.Duration) error {
		s := fleet.DefaultNetworkSettings()
		s.MTU, s.VXLANPort, s.WireGuardPort, s.PodMbps, s.Grace = mtu, vxlan, wireguard, int(mbps), grace
		return checkLinks(&s)
	}
	pool := func(p string, bits int) error {
		return with(func(s *fleet.NetworkSettings) {
			s.Pool, _ = netip.ParsePrefix(p)
			s.Bits = bits
		})
	}
	tunnel := func(p string) error {
		return with(func(s *fleet.NetworkSettings) { s.Tunnel, _ = netip.ParsePrefix(p) })
	}
	names := func(suffix string, aliases ...string) error {
		return with(func(s *fleet.NetworkSettings) { s.Suffix, s.Aliases = suffix, aliases })
	}
	var many []string
	for i := range maxAliases + 1 {
		many = append(many, fmt.Sprintf("a%d", i))
	}
	dotted := strings.TrimSuffix(strings.Repeat(long(49)+".", 4), ".") // 199 bytes
	const day = 24 * time.Hour
	checkBounds(t, []bound{
		{"the default", with(func(*fleet.NetworkSettings) {}), ""},
		{"the least", link(minMTU, 1, 2, 0, 0), ""},
		{"the most", link(maxMTU, maxPort, maxPort-1, maxMbps, day), ""},
		{"a small MTU", link(minMTU-1, 1, 2, 0, 0), "$.mtu"},
		{"a large MTU", link(maxMTU+1, 1, 2, 0, 0), "$.mtu"},
		{"no port", link(minMTU, 0, 2, 0, 0), "$.vxlanPort"},
		{"a port too high", link(minMTU, maxPort+1, 2, 0, 0), "$.vxlanPort"},
		{"no other port", link(minMTU, 1, 0, 0, 0), "$.wireguardPort"},
		{"another port too high", link(minMTU, 1, maxPort+1, 0, 0), "$.wireguardPort"},
		{"one port", link(minMTU, 7, 7, 0, 0), "$.wireguardPort"},
		{"a rate of less than nothing", link(minMTU, 1, 2, -1, 0), "$.podMbps"},
		{"a rate too high", link(minMTU, 1, 2, maxMbps+1, 0), "$.podMbps"},
		{"a rest of less than nothing", link(minMTU, 1, 2, 0, -1), "$.graceSeconds"},
		{"a rest too long", link(minMTU, 1, 2, 0, day+1), "$.graceSeconds"},
		{"no pool", pool("", 24), "$.pool"},
		{"a pool of IPv6", pool("fd00::/8", 24), "$.pool"},
		{"a pool with bits beyond its length", pool("10.64.0.1/10", 24), "$.pool"},
		{"a pool of loopback", pool("127.0.0.0/16", 24), "$.pool"},
		{"networks too large", pool("10.64.0.0/10", minOverlay-1), "$.bits"},
		{"the largest networks", pool("10.64.0.0/10", minOverlay), ""},
		{"the smallest networks", pool("10.64.0.0/10", maxOverlay), ""},
		{"networks too small", pool("10.64.0.0/10", maxOverlay+1), "$.bits"},
		{"a pool of one network", pool("10.64.0.0/24", 24), ""},
		{"a pool less than a network", pool("10.64.0.0/24", 23), "$.bits"},
		{"no tunnel", tunnel(""), "$.tunnelRange"},
		{"a tunnel in the pool", tunnel("10.64.0.0/16"), "$.tunnelRange"},
		{"a tunnel too small", tunnel("172.30.0.0/29"), "$.tunnelRange"},
		{"the smallest tunnel", tunnel("172.30.0.0/28"), ""},
		{"no VXLAN id", with(func(s *fleet.NetworkSettings) { s.FirstVNI = 0 }), "$.firstVxlanId"},
		{"the highest VXLAN id", with(func(s *fleet.NetworkSettings) { s.FirstVNI = maxVNI }), ""},
		{"a higher VXLAN id", with(func(s *fleet.NetworkSettings) { s.FirstVNI = maxVNI + 1 }), "$.firstVxlanId"},
		{"the longest suffix", names(dotted + "x"), ""},
		{"a longer suffix", names(dotted + "xx"), "$.suffix"},
		{"no suffix", names(""), "$.suffix"},
		{"the suffix of reverse lookups", names("x.arpa"), "$.suffix"},
		{"the suffix of the machine itself", names("localhost"), "$.suffix"},
		{"an odd suffix", names("a..b"), "$.suffix"},
		{"the most aliases", names("x", many[1:]...), ""},
		{"more aliases", names("x", many...), "$.aliases"},
		{"an odd alias", names("x", "A"), "$.aliases"},
		{"the suffix as an alias", names("x", "x"), "$.aliases"},
		{"an alias below the suffix", names("x", "y.x"), "$.aliases"},
		{"an alias above the suffix", names("y.x", "x"), "$.aliases"},
		{"an alias twice", names("x", "a", "a"), "$.aliases"},
		{"an alias that ends like the suffix", names("x", "yx"), ""},
	})
}

func TestTheLargestBackends(t *testing.T) {
	ceph := func(change func(*fleet.Backend)) error {
		b := cephBackend("b")
		change(&b)
		return checkBackend(&b)
	}
	monitors := func(all ...string) error { return ceph(func(b *fleet.Backend) { b.Ceph.Monitors = all }) }
	nfs := func(change func(*fleet.NFSBackend)) error {
		b := nfsBackend("b")
		change(b.NFS)
		return checkBackend(&b)
	}
	server := func(host string) error { return nfs(func(n *fleet.NFSBackend) { n.Server = host }) }
	local := func(change func(*fleet.Backend)) error {
		b := localBackend("b")
		change(&b)
		return checkBackend(&b)
	}
	host := strings.Repeat("abcdefg.", 31) // 248 bytes
	checkBounds(t, []bound{
		{"the most monitors", monitors(slices.Repeat([]string{"192.0.2.1:6789"}, maxMonitors)...), ""},
		{"more monitors", monitors(slices.Repeat([]string{"192.0.2.1:6789"}, maxMonitors+1)...), "$.cephfs.monitors"},
		{"no monitor", monitors(), "$.cephfs.monitors"},
		{"a monitor by name", monitors("mon.example:3300"), ""},
		{"a monitor of IPv6", monitors("[2001:db8::1]:3300"), ""},
		{"a monitor without a port", monitors("192.0.2.1"), "$.cephfs.monitors"},
		{"a monitor at port 0", monitors("192.0.2.1:0"), "$.cephfs.monitors"},
		{"a named monitor at port 0", monitors("mon:0"), "$.cephfs.monitors"},
		{"a monitor of one link", monitors("[fe80::1%eth0]:3300"), "$.cephfs.monitors"},
		{"a monitor without a name", monitors(":3300"), "$.cephfs.monitors"},
		{"no file system", ceph(func(b *fleet.Backend) { b.Ceph.FileSystem = "" }), "$.cephfs.fileSystem"},
		{"a user with its prefix", ceph(func(b *fleet.Backend) { b.Ceph.User = "client.a" }), "$.cephfs.user"},
		{"one user", ceph(func(b *fleet.Backend) { b.Ceph.AdminUser = b.Ceph.User }), "$.cephfs.adminUser"},
		{"no second user", ceph(func(b *fleet.Backend) { b.Ceph.AdminUser = "" }), "$.cephfs.adminUser"},
		{"no keys", ceph(func(b *fleet.Backend) { b.Sealed = nil }), "$.cephfs.key"},
		{"a path that goes up", ceph(func(b *fleet.Backend) { b.Ceph.Path = "/a/.." }), "$.cephfs.path"},
		{"the longest host name", server(host + "abcde"), ""},
		{"a longer host name", server(host + "abcdef"), "$.nfs.server"},
		{"no host name", server(""), "$.nfs.server"},
		{"a host name with a gap", server("a..b"), "$.nfs.server"},
		{"an address", server("2001:db8::1"), ""},
		{"an address of one link", server("fe80::1%eth0"), "$.nfs.server"},
		{"an unknown option", nfs(func(n *fleet.NFSBackend) { n.Options = "exec" }), "$.nfs.options"},
		{"an option without its value", nfs(func(n *fleet.NFSBackend) { n.Options = "vers" }), "$.nfs.options"},
		{"a relative export", nfs(func(n *fleet.NFSBackend) { n.Export = "a" }), "$.nfs.export"},
		{"the whole machine", local(func(b *fleet.Backend) { b.Local.Path = "/" }), "$.local.path"},
		{"no host", local(func(b *fleet.Backend) { b.StorageHost = "" }), "$.storageHost"},
		{"another path", local(func(b *fleet.Backend) { b.StoragePath = "/other" }), "$.storagePath"},
		{"a path of no kind that has one", ceph(func(b *fleet.Backend) { b.StoragePath = "/a" }), "$.storagePath"},
	})
}
