package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type gatewayCmd struct {
	List    listCmd          `cmd:"" help:"List the gateways and how they are."`
	Token   gatewayTokenCmd  `cmd:"" help:"Create a token with which one new gateway may join, once."`
	Drain   actCmd           `cmd:"" help:"Give a gateway no new requests, and let those under way end."`
	Undrain actCmd           `cmd:"" help:"Give a gateway requests again."`
	Remove  gatewayRemoveCmd `cmd:"" help:"Remove a gateway for good."`
}

var gateways = noun[admin.Gateway, admin.GatewayList]{
	kind: "gateway", all: (*client.Client).Gateways,
	items:   func(l admin.GatewayList) []admin.Gateway { return l.Gateways },
	thing:   func(g admin.Gateway) thing { return thing{g.ID, g.Name} },
	columns: []string{"ID", "NAME", "ADDRESS", "CENTER", "STATE", "REQUESTS", "HOSTS", "VERSION"},
	row: func(g admin.Gateway, _ time.Time) []string {
		return []string{g.ID, g.Name, g.Address, orDash(g.DataCenterID), g.State, fmt.Sprint(g.Requests), fmt.Sprint(g.Hosts), orDash(g.Version)}
	},
}

// sayGateway says how a gateway is after a change.
func sayGateway(g admin.Gateway) string {
	if g.DrainingAt == nil {
		return fmt.Sprintf("%s (%s) takes requests\n", printable(g.ID), printable(g.Name))
	}
	return fmt.Sprintf("%s (%s) takes no new requests; %d are under way\n", printable(g.ID), printable(g.Name), g.Requests)
}

type gatewayTokenCmd struct {
	DataCenter string        `placeholder:"ID" help:"Data center whose hosts the gateway reaches; else all hosts."`
	TTL        time.Duration `name:"ttl" default:"1h" help:"How long the token may be used."`
}

// Run makes a join token for a gateway.
func (cmd gatewayTokenCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.TTL < time.Minute || cmd.TTL > 168*time.Hour {
		return usage("--ttl must be 1m to 168h")
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	token, err := c.CreateGatewayToken(ctx, admin.CreateGatewayTokenRequest{DataCenterID: cmd.DataCenter, TTLSeconds: int(cmd.TTL / time.Second)})
	if err != nil {
		return err
	}
	about := "The token lets one gateway join"
	if at := when(&token.Value.ExpiresAt); at != "" {
		about += ", until " + at
	}
	return a.showSecret(token.Raw, token.Value.Token.Reveal(),
		about+". On its machine, before gantry-scheduler gateway run:\n\n    "+joinCommand("gantry-scheduler gateway join", cluster.Value)+"\n")
}

type gatewayRemoveCmd struct {
	Ref string `arg:"" name:"gateway" placeholder:"GATEWAY" help:"Id of the gateway, or its name where only one has it."`
	confirmed
}

// Run removes a gateway.
func (cmd gatewayRemoveCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return gateways.on(ctx, c, cmd.Ref, func(id string) error {
		g, _, err := gateways.find(ctx, c, id)
		if err != nil {
			return err
		}
		question := fmt.Sprintf("Remove the gateway %s (%s, %s, %d requests) for good?", printable(g.Name), printable(id), g.State, g.Requests)
		if err := cmd.confirm(ctx, a, question); err != nil {
			return err
		}
		if err := c.RemoveGateway(ctx, id); err != nil {
			return err
		}
		return a.done("removed", id)
	})
}
