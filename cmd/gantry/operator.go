package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type hostCmd struct {
	List     hostListCmd   `cmd:"" help:"List the hosts and what is used of them."`
	Get      getCmd        `cmd:"" help:"Show a host."`
	Pods     actCmd        `cmd:"" help:"List the pods that hold resources of a host, and why a drain waits for them."`
	Capacity viewCmd       `cmd:"" help:"Show how many whole pods of each GPU type fit, and which free GPUs no pod can have."`
	Cloud    hostCloudCmd  `cmd:"" name:"set-cloud" help:"Put a host into another tier."`
	Label    hostLabelCmd  `cmd:"" help:"Set and remove labels of a host."`
	Role     hostRoleCmd   `cmd:"" help:"Set the roles of a host: storage makes network volumes, s3 serves their files."`
	Cordon   actCmd        `cmd:"" help:"Give a host no new pods."`
	Uncordon actCmd        `cmd:"" help:"Give a host new pods again."`
	GPU      hostGPUCmd    `cmd:"" name:"gpu" help:"Take one GPU of a host out of service, and put it back."`
	Drain    hostDrainCmd  `cmd:"" help:"Empty a host: move the pods that may be moved, and wait for the others."`
	Fence    hostFenceCmd  `cmd:"" help:"Confirm that nothing runs on a host any more, and release its pods."`
	AckAlarm actCmd        `cmd:"" help:"End a host's alarm."`
	Remove   hostRemoveCmd `cmd:"" help:"Remove a host for good."`
	Token    hostTokenCmd  `cmd:"" help:"Create a token with which one new host may join, once."`
	Events   hostEventsCmd `cmd:"" help:"Follow what changes in the fleet: hosts, data centers, schedulers, backends, accounts."`
}

var hosts = noun[admin.Host, admin.HostList]{
	kind: "host", all: (*client.Client).Hosts, one: (*client.Client).Host,
	items:   func(l admin.HostList) []admin.Host { return l.Hosts },
	thing:   func(h admin.Host) thing { return thing{h.ID, h.Name} },
	columns: []string{"ID", "NAME", "CENTER", "CLOUD", "STATE", "PODS", "CPU", "MEMORY", "DISK", "GPUS"},
	row: func(h admin.Host, _ time.Time) []string {
		return []string{
			h.ID, h.Name, h.DataCenterID, h.Cloud, stateText(h), fmt.Sprint(h.Pods),
			share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores"), share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB"),
			share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB"), gpus(h),
		}
	},
	sheet: func(h admin.Host, _ time.Time) string { return sheet(hostFields(h)) + conditionLines(h) + gpuTable(h) },
}

type hostListCmd struct {
	State []string `placeholder:"STATE" help:"Only hosts in this state: joining, ready, cordoned, draining, unreachable, fenced or gone. May be repeated."`
	Label []string `sep:"none" placeholder:"K=V" help:"Only hosts with this label. May be repeated: a host has all of them."`
}

// Run lists hosts.
func (cmd hostListCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	for _, label := range cmd.Label {
		if name, _, ok := strings.Cut(label, "="); !ok || name == "" {
			return usage("--label must be K=V")
		}
	}
	list, err := c.FindHosts(ctx, client.HostQuery{States: cmd.State, Labels: cmd.Label})
	return hosts.showList(a, list, err)
}

// stateText marks hosts that an operator has to look after.
func stateText(h admin.Host) string {
	if h.Alarm != nil {
		return string(h.State) + " (alarm)"
	}
	return string(h.State)
}

// share shows how much is used of how much, in units of per.
func share(used, total, per int64, unit string) string {
	return fmt.Sprintf("%.4g/%.4g %s", float64(used)/float64(per), float64(total)/float64(per), unit)
}

// gpus shows a host's devices by type, and how many of all are used.
func gpus(h admin.Host) string {
	count := map[string]int{}
	for _, g := range h.GPUs {
		name := g.Type
		if g.Simulated {
			name += " (simulated)"
		}
		if g.Sick != "" {
			name += " (sick)"
		}
		if g.Cordoned != "" {
			name += " (cordoned)"
		}
		count[name]++
	}
	var out []string
	for name, n := range count {
		out = append(out, fmt.Sprintf("%d × %s", n, name))
	}
	if len(out) == 0 {
		return "-"
	}
	slices.Sort(out)
	return fmt.Sprintf("%d/%d used: %s", h.UsedGPUs, len(h.GPUs), strings.Join(out, ", "))
}

// conditionLines tells what a host does without, or what is wrong with it.
func conditionLines(h admin.Host) string {
	text := ""
	for _, n := range h.Conditions {
		kind := "Condition"
		if n.Severe {
			kind = "Takes no pods"
		}
		text += printable(fmt.Sprintf("%s: %s: %s", kind, n.Code, n.Text)) + "\n"
	}
	for _, g := range h.GPUs {
		if g.Sick != "" {
			text += printable(fmt.Sprintf("GPU %s takes no pods: %s", g.UUID, g.Sick)) + "\n"
		}
		if g.Cordoned != "" {
			text += printable(fmt.Sprintf("GPU %s is cordoned: %s", g.UUID, g.Cordoned)) + "\n"
		}
	}
	for _, g := range h.GoneGPUs {
		text += printable(fmt.Sprintf("GPU %s is cordoned and gone: %s", g.UUID, g.Reason)) + "\n"
	}
	return text
}

// gpuTable shows each GPU of a host; empty for a host without.
func gpuTable(h admin.Host) string {
	var rows [][]string
	for _, g := range h.GPUs {
		health := "ok"
		if g.Sick != "" {
			health = "sick"
		}
		if g.Cordoned != "" {
			health = "cordoned"
		}
		rows = append(rows, []string{
			g.UUID, g.Type, orDash(g.PCI), fmt.Sprint(g.NUMA), fmt.Sprint(g.Island), health, orDash(g.Parent),
		})
	}
	if len(rows) == 0 {
		return ""
	}
	return table([]string{"GPU", "TYPE", "PCI", "NUMA", "ISLAND", "HEALTH", "SLICE OF"}, rows)
}

func hostFields(h admin.Host) [][2]string {
	state := string(h.State)
	if h.Eligibility != "" && h.Eligibility != "open" && h.Eligibility != state {
		state += ", " + h.Eligibility
	}
	if h.KeepRunning {
		state += ", pods that run are kept"
	}
	alarm := ""
	if h.Alarm != nil {
		alarm = h.Alarm.Text + " (" + when(&h.Alarm.At) + ")"
	}
	return [][2]string{
		{"Id", h.ID},
		{"Name", h.Name},
		{"Data center", h.DataCenterID},
		{"Cloud", h.Cloud},
		{"State", state},
		{"Takes no pods", string(h.TakesNoPods)},
		{"Alarm", alarm},
		{"Labels", labelsText(h.Labels)},
		{"Roles", strings.Join(h.Roles, ", ")},
		{"Mounts volumes", strings.Join(h.Volumes, ", ")},
		{"Pods", fmt.Sprint(h.Pods)},
		{"CPU", share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores")},
		{"Memory", share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB")},
		{"Disk", share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB")},
		{"GPUs", gpus(h)},
		{"Fabric", fabric(h.Fabric)},
		{"Public ports", publicPorts(h)},
		{"Driver", string(h.Driver)},
		{"CUDA", string(h.CUDA)},
		{"Kernel", string(h.Kernel)},
		{"Runtime", string(h.Runtime)},
		{"Runtime class", string(h.RuntimeClass)},
		{"Images", fmt.Sprint(h.Images)},
		{"Agent", string(h.AgentVersion)},
		{"Joined", when(&h.JoinedAt)},
		{"State since", when(h.StateSince)},
	}
}

// fabric shows what pods of clusters get of a host's fabric, and the ports of which they get nothing; empty: it has none.
func fabric(f *admin.HostFabric) string {
	if f == nil {
		return ""
	}
	var ports []string
	for _, p := range f.Ports {
		text := fmt.Sprintf("%s:%d %s", p.Device, p.Port, p.State)
		if p.Functions > 0 {
			text += fmt.Sprintf(" with %d functions", p.Functions)
		}
		ports = append(ports, text)
	}
	return fmt.Sprintf("%s, %g Gbit/s, %s: %s", first(string(f.Kind), "no fit port"), f.Gbps, f.Mode, strings.Join(ports, ", "))
}

// publicPorts shows where a host publishes tcp ports of pods; empty when it does not.
func publicPorts(h admin.Host) string {
	if h.PublicIP == "" || h.PublicPorts == nil {
		return ""
	}
	return fmt.Sprintf("%d to %d of %s", h.PublicPorts.From, h.PublicPorts.To, h.PublicIP)
}

type hostCloudCmd struct {
	hostRef
	Cloud string `arg:"" enum:"SECURE,COMMUNITY" placeholder:"CLOUD" help:"Tier: SECURE or COMMUNITY."`
}

// Run puts a host into another tier.
func (cmd hostCloudCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		host, err := c.SetHostCloud(ctx, id, cmd.Cloud)
		return reply(a, host, err, func(h admin.Host) string {
			return fmt.Sprintf("%s is in the tier %s\n", printable(h.ID), printable(h.Cloud))
		})
	})
}

type hostTokenCmd struct {
	DataCenter string        `required:"" placeholder:"ID" help:"Data center of the new host; made when it is new."`
	Cloud      string        `enum:"SECURE,COMMUNITY" default:"SECURE" help:"Tier of the new host: SECURE or COMMUNITY."`
	TTL        time.Duration `name:"ttl" default:"1h" help:"How long the token may be used."`
}

// Run makes a join token.
func (cmd hostTokenCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.TTL < time.Second {
		return usage("--ttl must be 1s or more")
	}
	token, err := c.CreateJoinToken(ctx, admin.CreateTokenRequest{
		DataCenterID: cmd.DataCenter, Cloud: cmd.Cloud, TTLSeconds: int(cmd.TTL / time.Second),
	})
	if err != nil {
		return err
	}
	about := "The token lets one host join " + printable(cmd.DataCenter)
	if at := when(&token.Value.ExpiresAt); at != "" {
		about += ", until " + at
	}
	return a.showSecret(token.Raw, token.Value.Token.Reveal(), about+".")
}
