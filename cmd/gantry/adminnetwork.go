package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type adminNetworkCmd struct {
	Get viewCmd            `cmd:"" help:"Show the settings of private networks."`
	Set adminNetworkSetCmd `cmd:"" help:"Change settings of private networks."`
}

func networkSheet(s admin.NetworkSettings) string {
	limit := "none"
	if s.PodMbps > 0 {
		limit = fmt.Sprintf("%d Mbit/s each way, for each link of a pod", s.PodMbps)
	}
	return sheet([][2]string{
		{"Pool", fmt.Sprintf("%s, of which each network gets a /%d", s.Pool, s.Bits)},
		{"First VXLAN id", fmt.Sprint(s.FirstVXLANID)},
		{"Names end with", strings.Join(append([]string{s.Suffix}, s.Aliases...), ", or ")},
		{"MTU", fmt.Sprintf("%d bytes", s.MTU)},
		{"VXLAN port", fmt.Sprint(s.VXLANPort)},
		{"WireGuard port", fmt.Sprint(s.WireGuardPort)},
		{"Tunnel", fmt.Sprintf("%s, of which each host gets an address", s.TunnelRange)},
		{"Bandwidth limit", limit},
		{"Address kept", fmt.Sprintf("%v after its pod is gone", time.Duration(s.GraceSeconds)*time.Second)},
	})
}

type adminNetworkSetCmd struct {
	Pool          *string        `placeholder:"CIDR" help:"Range of IPv4 from which each new network gets one of its own."`
	Bits          *int           `placeholder:"N" help:"Length of a new network's range, 16 to 28."`
	FirstVXLANID  *int64         `name:"first-vxlan-id" placeholder:"N" help:"Least VXLAN network identifier of new networks."`
	Suffix        *string        `placeholder:"NAME" help:"What internal names end with."`
	Alias         []string       `sep:"none" placeholder:"NAME" help:"Further suffix that means the same. May be repeated; replaces all."`
	NoAlias       bool           `help:"No further suffix."`
	MTU           *int           `name:"mtu" placeholder:"BYTES" help:"Of pods' links, 1280 to 8930. What is between hosts must carry 130 more."`
	VXLANPort     *int           `name:"vxlan-port" placeholder:"PORT" help:"UDP port of VXLAN."`
	WireGuardPort *int           `name:"wireguard-port" placeholder:"PORT" help:"UDP port of WireGuard on hosts that name no other."`
	TunnelRange   *string        `placeholder:"CIDR" help:"Range of IPv4 from which each new host gets its address in the tunnel."`
	PodMbps       *int           `placeholder:"N" help:"Most that a pod sends, and receives, on each link in Mbit/s; 0 is no limit."`
	Grace         *time.Duration `placeholder:"DURATION" help:"How long the address of a deleted pod is not given to another."`
}

// Run changes settings.
func (cmd adminNetworkSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body := admin.UpdateNetworkRequest{
		Pool: cmd.Pool, Bits: cmd.Bits, FirstVXLANID: cmd.FirstVXLANID, Suffix: cmd.Suffix, MTU: cmd.MTU, VXLANPort: cmd.VXLANPort,
		WireGuardPort: cmd.WireGuardPort, TunnelRange: cmd.TunnelRange, PodMbps: cmd.PodMbps,
	}
	switch {
	case cmd.NoAlias && len(cmd.Alias) > 0:
		return usage("--no-alias excludes --alias")
	case cmd.NoAlias:
		body.Aliases = &[]string{}
	case len(cmd.Alias) > 0:
		body.Aliases = &cmd.Alias
	}
	if cmd.Grace != nil {
		if *cmd.Grace%time.Second != 0 {
			return usage("--grace must be whole seconds")
		}
		body.GraceSeconds = new(int(*cmd.Grace / time.Second))
	}
	if body == (admin.UpdateNetworkRequest{}) {
		return usage("say what to change")
	}
	s, err := c.UpdateNetworkSettings(ctx, body)
	return reply(a, s, err, networkSheet)
}
