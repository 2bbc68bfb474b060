package main

import (
	"context"

	balanceface "gantry/api/balance"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/gateway"
	"gantry/internal/agentrpc"
	"gantry/scheduler/balance"
)

// balanceRequests makes what serves requests to endpoints that balance.
func (d *parts) balanceRequests(c *runCmd) {
	d.toWorkers = proxy.New(proxy.Config{Domain: c.ProxyDomain, Dialer: d.balancer, Log: d.log, TunnelIdle: gateway.WorkerIdle})
	d.balance = balanceface.New(balanceface.Config{
		Domain: c.ProxyDomain, Balancer: d.balancer, May: d.service.MayRequest, Proxy: d.toWorkers, Log: d.log,
		PerAccount: c.Shares.MaxProxiedPerAccount, All: c.Shares.MaxProxied,
	})
}

// tellRequests tells the leader of requests, be it this member or another.
func (d *parts) tellRequests(ctx context.Context, r balance.Report) (balance.Word, error) {
	if d.member.node.IsLeader() {
		return d.workers.Report(r), nil
	}
	out, err := d.reads.Requests(ctx, balance.EncodeReport(r))
	if err != nil {
		return balance.Word{}, err
	}
	return balance.DecodeWord(out), nil
}

// takeRequests takes what another member, or a gateway, tells of requests.
func (d *parts) takeRequests(from fleet.MemberID, in *agentrpc.RequestsReport) *agentrpc.RequestsWord {
	return balance.EncodeWord(d.workers.Report(balance.DecodeReport(from, in)))
}
