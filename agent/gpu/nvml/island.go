//go:build cgo

package nvml

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// peers returns what the NVLinks of a GPU lead to: PCI addresses, and "switch" for a switch without one.
func (l *Library) peers(dev nvml.Device) []string {
	if l.lib.Extensions().LookupSymbol("nvmlDeviceGetNvLinkRemotePciInfo_v2") != nil {
		return nil
	}
	var out []string
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := dev.GetNvLinkState(link)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			break
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		pci, ret := dev.GetNvLinkRemotePciInfo(link)
		switch {
		case ret == nvml.SUCCESS:
			out = append(out, address(pci))
		case l.leadsToSwitch(dev, link):
			out = append(out, "switch")
		}
	}
	return out
}

func (l *Library) leadsToSwitch(dev nvml.Device, link int) bool {
	if l.lib.Extensions().LookupSymbol("nvmlDeviceGetNvLinkRemoteDeviceType") != nil {
		return false
	}
	kind, ret := dev.GetNvLinkRemoteDeviceType(link)
	return ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
}

// address is a PCI address as the kernel writes it, "0000:3b:00.0"; NVML's domain has eight digits.
func address(pci nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c)) //nolint:gosec,unconvert // a C char: its sign differs by platform
	}
	id := strings.ToLower(b.String())
	if len(id) == len("00000000:3b:00.0") {
		id = strings.TrimPrefix(id, "0000")
	}
	return id
}

// islands numbers GPUs so that those that NVLink joins, directly, through others or through switches, have one
// number: the least index among them.
func islands(addresses []string, links [][]string) []int {
	root := map[string]string{}
	var find func(string) string
	find = func(x string) string {
		if root[x] == "" || root[x] == x {
			return x
		}
		root[x] = find(root[x])
		return root[x]
	}
	for i, peers := range links {
		for _, peer := range peers {
			root[find(peer)] = find(addresses[i])
		}
	}
	first, out := map[string]int{}, make([]int, len(addresses))
	for i, a := range addresses {
		r := find(a)
		if _, ok := first[r]; !ok || a == "" {
			first[r] = i
		}
		out[i] = first[r]
	}
	return out
}
