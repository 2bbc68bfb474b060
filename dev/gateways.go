package dev

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"gantry/api/admin"
	"gantry/client"
)

const maxGateways = 8

// startGateways has the gateways join that have not yet, starts them, and waits until they take requests.
func (d *dev) startGateways(ctx context.Context, operator *client.Client) error {
	for n := 1; n <= d.state.Gateways; n++ {
		p := part{roleGateway, n}
		if n > len(d.state.GatewayLinks) {
			port, err := d.freePort(d.linkHost())
			if err != nil {
				return fmt.Errorf("find a port for gateway %d: %w", n, err)
			}
			d.state.GatewayLinks = append(d.state.GatewayLinks, port)
		}
		link := net.JoinHostPort(d.linkHost(), strconv.Itoa(d.state.GatewayLinks[n-1]))
		if err := d.joinGateway(ctx, operator, p, link); err != nil {
			return fmt.Errorf("join gateway %d: %w", n, err)
		}
		host, _, err := net.SplitHostPort(strings.TrimPrefix(d.api, "http://"))
		if err != nil {
			return err
		}
		port, err := d.freePort(host)
		if err != nil {
			return fmt.Errorf("find a port on %s: %w", host, err)
		}
		listen := net.JoinHostPort(host, strconv.Itoa(port))
		c := d.child(p, d.cfg.Binaries.Scheduler, "gateway", "run", "--data-dir", d.folder.path(p.name()), "--metrics", "",
			"--listen", listen, "--link-listen", link, "--proxy-domain", ProxyDomain, "--plain-http")
		d.gateways, d.gatewayAPIs = append(d.gateways, c), append(d.gatewayAPIs, "http://"+listen)
		c.start(ctx)
		user, err := client.New(d.gatewayAPIs[n-1], "", "gantry-dev/"+d.cfg.Version)
		if err != nil {
			return err
		}
		err = d.await(ctx, c, "gateway "+strconv.Itoa(n), user.Healthy)
		user.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// joinGateway gets a gateway its certificate, once.
func (d *dev) joinGateway(ctx context.Context, operator *client.Client, p part, link string) error {
	if d.state.joined(p) {
		return nil
	}
	token, err := operator.CreateGatewayToken(ctx, admin.CreateGatewayTokenRequest{TTLSeconds: 600})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	return d.join(ctx, p, token.Value.Token.Secret(), d.cfg.Binaries.Scheduler, "gateway", "join", "--data-dir", d.folder.path(p.name()),
		"--scheduler", d.link(1), "--address", link, "--name", p.name())
}
