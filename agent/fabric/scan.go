package fabric

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gantry/fleet"
)

// Where devices are below /sys.
const (
	classDevices = "class/infiniband"
	classVerbs   = "class/infiniband_verbs"
	classMisc    = "class/misc"
)

// adapter is an RDMA device of the host.
type adapter struct {
	name   string
	pci    string // where it is plugged in; empty: nowhere, as one in software
	parent string // of a virtual function, where the adapter is plugged in that it is one of; empty: it is none
	verbs  string // uverbsN
	dev    [2]int64
	netdev string // its first network interface, if that is in the host's namespace
	ports  []fleet.FabricPort
}

// scan reads the devices below a copy of /sys, by name. One without a node for verbs is left out.
func scan(sys string) (out []adapter) {
	verbs := map[string]string{}
	for _, name := range names(filepath.Join(sys, classVerbs)) {
		if of := word(filepath.Join(sys, classVerbs, name, "ibdev")); of != "" {
			verbs[of] = name
		}
	}
	for _, name := range names(filepath.Join(sys, classDevices)) {
		a := adapter{name: name, verbs: verbs[name]}
		dir := filepath.Join(sys, classDevices, name)
		dev, ok := number(filepath.Join(sys, classVerbs, a.verbs, "dev"))
		if a.verbs == "" || !ok {
			continue
		}
		a.dev, a.pci, a.parent = dev, target(filepath.Join(dir, "device")), target(filepath.Join(dir, "device/physfn"))
		if links := names(filepath.Join(dir, "device/net")); len(links) > 0 {
			a.netdev = links[0]
		}
		for _, n := range names(filepath.Join(dir, "ports")) {
			if p, ok := readPort(dir, n); ok {
				p.Device, p.GUID = name, word(filepath.Join(dir, "node_guid"))
				p.Netdev = cmp.Or(p.Netdev, a.netdev)
				a.ports = append(a.ports, p)
			}
		}
		slices.SortFunc(a.ports, func(x, y fleet.FabricPort) int { return x.Port - y.Port })
		out = append(out, a)
	}
	return out
}

// readPort reads a port of a device; false: it is none that carries traffic of a known kind.
func readPort(dir, name string) (p fleet.FabricPort, ok bool) {
	n, err := strconv.Atoi(name)
	if err != nil {
		return p, false
	}
	port := filepath.Join(dir, "ports", name)
	p.Port, p.Link = n, word(filepath.Join(port, "link_layer"))
	if p.Link != fleet.LinkInfiniBand && p.Link != fleet.LinkEthernet {
		return p, false
	}
	if _, state, found := strings.Cut(word(filepath.Join(port, "state")), ":"); found { // "4: ACTIVE"
		p.State = strings.TrimSpace(state)
	}
	p.Mbps = rate(word(filepath.Join(port, "rate")))
	p.Netdev = word(filepath.Join(port, "gid_attrs/ndevs/0"))
	if gid := word(filepath.Join(port, "gids/0")); p.Link == fleet.LinkInfiniBand && len(gid) == 39 {
		p.Subnet = gid[:19]
	}
	return p, true
}

// rate reads "100 Gb/sec (4X EDR)".
func rate(text string) int64 {
	value, _, _ := strings.Cut(text, " ")
	gbps, err := strconv.ParseFloat(value, 64)
	if err != nil || gbps < 0 || gbps > 1e6 {
		return 0
	}
	return int64(gbps * 1000)
}

// number reads "231:192".
func number(path string) (out [2]int64, ok bool) {
	major, minor, found := strings.Cut(word(path), ":")
	a, err := strconv.ParseInt(major, 10, 32)
	b, err2 := strconv.ParseInt(minor, 10, 32)
	return [2]int64{a, b}, found && err == nil && err2 == nil
}

// target is the name of what a link leads to; empty: it is no link.
func target(path string) string {
	if _, err := os.Readlink(path); err != nil {
		return ""
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return filepath.Base(to)
	}
	return ""
}

// word is the text of a small file without space around it; empty: it cannot be read.
func word(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// names are those of a folder's entries, sorted.
func names(dir string) (out []string) {
	entries, _ := os.ReadDir(dir) // what cannot be read has none
	for _, e := range entries {
		if e.Name() != "abi_version" {
			out = append(out, e.Name())
		}
	}
	return out
}
