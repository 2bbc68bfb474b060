package rest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

const (
	eligible       = "open" // fleet.EligibilityOpen in words
	maxLabelFilter = 16
)

func hostRecord(v fleet.HostView) admin.Host {
	h, inv := v.Host, v.Host.Inventory
	out := admin.Host{
		ID: string(h.ID), Name: h.Name, DataCenterID: string(h.DataCenter), Cloud: string(h.Cloud), State: h.Shown(),
		Eligibility: cmp.Or(string(h.Eligibility), eligible), KeepRunning: h.KeepRunning, Labels: admin.Labels{},
		Epoch: h.Epoch, Total: admin.Amounts(inv.Total), Used: admin.Amounts(v.Used), GPUs: []admin.HostGPU{}, GoneGPUs: []admin.GoneGPU{}, UsedGPUs: v.UsedGPUs, Pods: v.Pods,
		CUDA: v2.Text(inv.CUDA), Driver: v2.Text(inv.Driver), Kernel: v2.Text(inv.Kernel),
		Runtime: v2.Text(inv.Runtime), AgentVersion: v2.Text(inv.AgentVersion), PublicIP: v2.Text(inv.PublicIP),
		JoinedAt: v2.At(h.JoinedAt), StateSince: v2.AtOrNull(h.SeenAt),
		Conditions: []admin.HostCondition{}, RuntimeClass: v2.Text(inv.RuntimeClass), Images: len(inv.Images),
		Roles: []string{}, Volumes: []string{},
	}
	for _, r := range h.Roles {
		out.Roles = append(out.Roles, string(r))
	}
	for _, k := range inv.Volumes {
		out.Volumes = append(out.Volumes, string(k))
	}
	maps.Copy(out.Labels, h.Labels)
	if ok, why := h.Takes(); !ok {
		out.TakesNoPods = v2.Text(why)
	}
	if d := h.Drain; d != nil {
		out.Drain = &admin.HostDrain{Since: v2.At(d.Since), Reason: v2.Text(d.Reason), Deadline: v2.AtOrNull(d.Deadline)}
	}
	if h.Alarm != "" {
		out.Alarm = &admin.HostAlarm{Text: h.Alarm, At: v2.At(h.AlarmAt)}
	}
	if inv.PublicIP != "" && inv.PortTo > 0 {
		out.PublicPorts = &admin.PortRange{From: inv.PortFrom, To: inv.PortTo}
	}
	out.Fabric = fabricRecord(&inv.Fabric)
	for _, g := range inv.GPUs {
		out.GPUs = append(out.GPUs, admin.HostGPU{
			UUID: g.UUID, Type: g.Type, MemoryMB: g.MemoryMB, NUMA: g.NUMA, Island: g.Island,
			Simulated: g.Simulated, Sick: v2.Text(g.Sick), Cordoned: v2.Text(g.Cordoned), PCI: v2.Text(g.PCI), Parent: v2.Text(g.Parent),
		})
	}
	for _, g := range h.GoneGPUs() {
		out.GoneGPUs = append(out.GoneGPUs, admin.GoneGPU{UUID: g.UUID, Type: v2.Text(g.Type), PCI: v2.Text(g.PCI), Reason: g.Reason, CordonedAt: v2.At(g.At)})
	}
	for _, n := range inv.Conditions {
		out.Conditions = append(out.Conditions, admin.HostCondition(n))
	}
	return out
}

// hostFilters are the parameters that narrow a list of hosts.
func hostFilters() []*huma.Param {
	return []*huma.Param{
		listParam("state", "Only hosts in one of these states.", 7, hostStates()...),
		listParam("label", "Only hosts that have this label, as NAME=VALUE; of several, all of them.", maxLabelFilter),
	}
}

func hostStates() []string {
	var out []string
	for _, s := range []fleet.HostState{
		fleet.HostJoining, fleet.HostReady, fleet.HostCordoned, fleet.HostDraining, fleet.HostUnreachable, fleet.HostFenced, fleet.HostGone,
	} {
		out = append(out, string(s))
	}
	return out
}

// wantedHosts reads the parameters of hostFilters.
func wantedHosts(c *call) (func(*fleet.Host) bool, error) {
	states, labels := c.args["state"], map[string]string{}
	for _, text := range c.args["label"] {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, invalid([]string{"query.label: must be NAME=VALUE"})
		}
		if before, twice := labels[name]; twice && before != value {
			return func(*fleet.Host) bool { return false }, nil // nobody has both
		}
		labels[name] = value
	}
	return func(h *fleet.Host) bool {
		if len(states) == 0 && h.State == fleet.HostGone || len(states) > 0 && !slices.Contains(states, string(h.Shown())) {
			return false
		}
		for name, value := range labels {
			if has, ok := h.Labels[name]; !ok || has != value {
				return false
			}
		}
		return true
	}, nil
}

// fabricRecord shows a host's fabric; nil: it has none.
func fabricRecord(f *fleet.Fabric) *admin.HostFabric {
	if f.Mode == "" {
		return nil
	}
	out := &admin.HostFabric{Mode: string(f.Mode), Kind: v2.Text(f.Kind()), Gbps: float64(f.Mbps()) / 1000, Ports: []admin.FabricPort{}}
	for _, p := range f.Ports {
		out.Ports = append(out.Ports, admin.FabricPort{
			Device: p.Device, Port: p.Port, Netdev: v2.Text(p.Netdev), LinkLayer: p.Link, State: p.State, Gbps: float64(p.Mbps) / 1000,
			Subnet: v2.Text(p.Subnet), GUID: v2.Text(p.GUID), Functions: p.Functions,
		})
	}
	return out
}
