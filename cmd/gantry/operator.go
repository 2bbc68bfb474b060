package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/client"
)

type hostCmd struct {
	List  hostListCmd  `cmd:"" help:"List the hosts and what is used of them."`
	Get   hostGetCmd   `cmd:"" help:"Show a host."`
	Cloud hostCloudCmd `cmd:"" name:"set-cloud" help:"Put a host into another tier."`
	Token hostTokenCmd `cmd:"" help:"Make a token with which one new host may join, once."`
}

type hostListCmd struct{}

func (hostListCmd) Help() string {
	return `Example:

    gantry host list`
}

// Run lists hosts.
func (hostListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, h := range list.Value.Hosts {
			rows = append(rows, []string{
				h.ID, h.Name, h.DataCenterID, h.Cloud, string(h.State), fmt.Sprint(h.Pods),
				share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores"), share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB"),
				share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB"), gpus(h),
			})
		}
		return table([]string{"ID", "NAME", "CENTER", "CLOUD", "STATE", "PODS", "CPU", "MEMORY", "DISK", "GPUS"}, rows)
	})
}

// share shows how much is used of how much, in units of per.
func share(used, total, per int64, unit string) string {
	return fmt.Sprintf("%.4g/%.4g %s", float64(used)/float64(per), float64(total)/float64(per), unit)
}

// gpus shows a host's devices by type, and how many of all are used.
func gpus(h client.Host) string {
	count := map[string]int{}
	for _, g := range h.GPUs {
		name := g.Type
		if g.Simulated {
			name += " (simulated)"
		}
		if g.Sick != "" {
			name += " (sick)"
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

type hostGetCmd struct {
	ID string `arg:"" placeholder:"ID" help:"Id of the host."`
}

func (hostGetCmd) Help() string {
	return `Example:

    gantry host get h7p3t9x5c2m6v1`
}

// Run shows a host.
func (cmd hostGetCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	host, err := c.Host(ctx, cmd.ID)
	if err != nil {
		return err
	}
	return a.show(host.Raw, func() string {
		h := host.Value
		fields := [][2]string{
			{"Id", h.ID},
			{"Name", h.Name},
			{"Data center", h.DataCenterID},
			{"Cloud", h.Cloud},
			{"State", string(h.State)},
			{"Pods", fmt.Sprint(h.Pods)},
			{"CPU", share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores")},
			{"Memory", share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB")},
			{"Disk", share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB")},
			{"GPUs", gpus(h)},
			{"Public ports", publicPorts(h)},
			{"Driver", h.Driver},
			{"CUDA", h.CUDA},
			{"Kernel", h.Kernel},
			{"Runtime", h.Runtime},
			{"Agent", h.AgentVersion},
			{"Joined", when(&h.JoinedAt)},
			{"State since", when(h.StateSince)},
		}
		text := sheet(fields)
		for _, g := range h.GPUs {
			if g.Sick != "" {
				text += printable(fmt.Sprintf("GPU %s takes no pods: %s", g.UUID, g.Sick)) + "\n"
			}
		}
		return text
	})
}

// publicPorts shows where a host publishes tcp ports of pods; empty when it does not.
func publicPorts(h client.Host) string {
	if h.PublicIP == "" || h.PublicPorts == nil {
		return ""
	}
	return fmt.Sprintf("%d to %d of %s", h.PublicPorts.From, h.PublicPorts.To, h.PublicIP)
}

type hostCloudCmd struct {
	ID    string `arg:"" placeholder:"ID" help:"Id of the host."`
	Cloud string `arg:"" enum:"SECURE,COMMUNITY" placeholder:"CLOUD" help:"Tier: SECURE or COMMUNITY."`
}

func (hostCloudCmd) Help() string {
	return `Pods that are on the host stay; new ones come when they ask for the new tier.

Example:

    gantry host set-cloud h7p3t9x5c2m6v1 COMMUNITY`
}

// Run puts a host into another tier.
func (cmd hostCloudCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	host, err := c.SetHostCloud(ctx, cmd.ID, cmd.Cloud)
	if err != nil {
		return err
	}
	return a.show(host.Raw, func() string {
		return fmt.Sprintf("%s is in the tier %s\n", printable(host.Value.ID), printable(host.Value.Cloud))
	})
}

type hostTokenCmd struct {
	DataCenter string        `required:"" placeholder:"ID" help:"Data center of the new host; made when it is new."`
	Cloud      string        `enum:"SECURE,COMMUNITY" default:"SECURE" help:"Tier of the new host: SECURE or COMMUNITY."`
	TTL        time.Duration `name:"ttl" default:"1h" help:"How long the token may be used."`
}

func (hostTokenCmd) Help() string {
	return `The token goes to standard output, the rest to standard error. On the new host:

    gantry-agent join --scheduler HOST:PORT --token-file FILE

Example:

    gantry host token --data-center EU-RO-1 > token`
}

// Run makes a join token.
func (cmd hostTokenCmd) Run(ctx context.Context, a *app) error {
	if cmd.TTL < time.Second {
		return usage("--ttl must be 1s or more")
	}
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	token, err := c.CreateJoinToken(ctx, client.CreateJoinToken{
		DataCenterID: cmd.DataCenter, Cloud: cmd.Cloud, TTLSeconds: int64(cmd.TTL / time.Second),
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
