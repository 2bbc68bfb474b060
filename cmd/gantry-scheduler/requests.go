package main

import (
	"context"
	"time"

	balanceface "gantry/api/balance"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/balance"
	"gantry/scheduler/state"
)

// workerIdle is how long connections to workers are kept for the next request: less than most servers keep theirs, so that few requests
// meet one that is just being closed.
const workerIdle = 2 * time.Second

// balanceRequests makes what serves requests to endpoints that balance.
func (d *parts) balanceRequests(c *runCmd) {
	d.toWorkers = proxy.New(proxy.Config{Domain: c.ProxyDomain, Dialer: d.balancer, Log: d.log, TunnelIdle: workerIdle})
	d.balance = balanceface.New(balanceface.Config{
		Domain: c.ProxyDomain, Balancer: d.balancer, May: d.service.MayRequest, Proxy: d.toWorkers, Log: d.log,
		PerAccount: c.Shares.MaxProxiedPerAccount, All: c.Shares.MaxProxied,
	})
}

// serves reports whether this member reaches a worker of an endpoint, or there is none yet: those of a host that has no data connection
// with it are the leader's.
func (d *parts) serves(id fleet.EndpointID) bool {
	ready, here := false, false
	_ = d.member.store.View(func(v *state.View) error { // a closed store has none
		for _, p := range v.WorkersOf(id) {
			if p.Status == fleet.StatusRunning {
				ready, here = true, here || d.dispatch.Connected(p.Host)
			}
		}
		return nil
	})
	return here || !ready
}

// tellRequests tells the leader of requests, be it this member or another.
func (d *parts) tellRequests(ctx context.Context, r balance.Report) (balance.Word, error) {
	if d.member.node.IsLeader() {
		return d.workers.Report(r), nil
	}
	in := &agentrpc.RequestsReport{Heard: r.Heard}
	for id, of := range r.Of {
		one := &agentrpc.EndpointDemand{EndpointId: string(id), Waiting: count(of.Waiting), Serving: map[string]uint32{}}
		for pod, n := range of.Serving {
			one.Serving[string(pod)] = count(n)
		}
		for _, pod := range of.Wake {
			one.Wake = append(one.Wake, string(pod))
		}
		in.Endpoints = append(in.Endpoints, one)
	}
	out, err := d.reads.Requests(ctx, in)
	if err != nil {
		return balance.Word{}, err
	}
	word := balance.Word{Version: out.GetVersion()}
	for _, pod := range out.GetClosing() {
		word.Closing = append(word.Closing, fleet.PodID(pod))
	}
	return word, nil
}

func count(n int) uint32 { return uint32(max(0, n)) } //nolint:gosec // connections of one machine

// takeRequests takes what another member tells of requests.
func (d *parts) takeRequests(from fleet.MemberID, in *agentrpc.RequestsReport) *agentrpc.RequestsWord {
	r := balance.Report{Member: from, Heard: in.GetHeard(), Of: map[fleet.EndpointID]balance.Demand{}}
	for _, one := range in.GetEndpoints() {
		of := balance.Demand{Waiting: int(one.GetWaiting()), Serving: map[fleet.PodID]int{}}
		for pod, n := range one.GetServing() {
			of.Serving[fleet.PodID(pod)] = int(n)
		}
		for _, pod := range one.GetWake() {
			of.Wake = append(of.Wake, fleet.PodID(pod))
		}
		r.Of[fleet.EndpointID(one.GetEndpointId())] = of
	}
	word := d.workers.Report(r)
	out := &agentrpc.RequestsWord{Version: word.Version}
	for _, pod := range word.Closing {
		out.Closing = append(out.Closing, string(pod))
	}
	return out
}
