package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/share"
	"gantry/scheduler/dispatch"
)

// spareSeats are the connections let in above --max-connections, for what must get through.
const spareSeats = 256

// shareFlags bound what clients hold at a time.
type shareFlags struct {
	MaxConnections       int `default:"8192" help:"Connections of users at a time, WebSockets among them, and requests under way; health checks and operators get through above it." placeholder:"N"`
	MaxPerAddress        int `default:"512" help:"Of --max-connections, what one client address (an IPv6 /64 is one) may have; not that of one of --trusted-proxies. Above it, requests with a good key get through one by one." placeholder:"N"`
	MaxProxied           int `default:"6144" help:"Requests to pods' http ports at a time, WebSockets among them, at each scheduler." placeholder:"N"`
	MaxProxiedPerAddress int `default:"256" help:"The same of one client address." placeholder:"N"`
	MaxProxiedPerAccount int `default:"2048" help:"The same to the pods of one account." placeholder:"N"`
}

const mostShares = 1 << 17 // half of the open files that the unit allows

func (s *shareFlags) validate() error {
	var faults []error
	for flag, n := range map[string]int{
		"--max-connections": s.MaxConnections, "--max-per-address": s.MaxPerAddress, "--max-proxied": s.MaxProxied,
		"--max-proxied-per-address": s.MaxProxiedPerAddress, "--max-proxied-per-account": s.MaxProxiedPerAccount,
	} {
		if n < 1 || n > mostShares {
			faults = append(faults, fmt.Errorf("%s must be 1 to %d", flag, mostShares))
		}
	}
	return errors.Join(faults...)
}

// believed tells the addresses that speak for many clients; nil: there are none.
func (e *edgeFlags) believed() (func(netip.Addr) bool, error) {
	trusted, err := e.trusted()
	if err != nil || len(trusted) == 0 {
		return nil, err
	}
	return func(a netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool {
			// A share is that of an IPv6 /64: a single trusted address lifts the bound for its neighbours, too.
			return p.Contains(a) || a.Is6() && p.Addr().Is6() && p.Overlaps(netip.PrefixFrom(a, 64))
		})
	}, nil
}

// shares are where it is counted what clients hold.
type shares struct {
	front atomic.Pointer[rest.Server]
	gate  atomic.Pointer[rest.Gate]
	proxy atomic.Pointer[proxy.Proxy]
	mux   atomic.Pointer[agentrpc.Mux]
	data  atomic.Pointer[dispatch.Server]
}

// register has a registry tell of them.
func (s *shares) register(r prometheus.Registerer) {
	counter := func(name, help, label, value string, read func() uint64) {
		labels := prometheus.Labels{}
		if label != "" {
			labels[label] = value
		}
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(read()) }))
	}
	gauge := func(name, help string, read func() int) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	const conns, requests = "Connections of users that were refused: their address had its share, or all were taken.",
		"Requests that were refused because too many were under way: of the address, in all; to pods: of the address, to the pod, to its account's, in all."
	gauge("gantry_scheduler_connections_open", "Open connections of users, including WebSockets.", func() int { return s.seats().Open })
	gauge("gantry_scheduler_spare_connections_open", "Open connections above the limits, which are reserved for health checks, operators and valid keys.", func() int { return s.spare().Open })
	counter("gantry_scheduler_connections_refused_total", conns, "why", "address", func() uint64 { return s.seats().RefusedOwn })
	counter("gantry_scheduler_connections_refused_total", conns, "why", "all", func() uint64 { return s.seats().RefusedAll })
	counter("gantry_scheduler_connections_ended_total", "Idle connections of users that were closed to make room for others.", "", "", func() uint64 { return s.seats().Ended })
	counter("gantry_scheduler_requests_passed_total", "Requests served from that reserve while the limits were reached.", "", "", func() uint64 { return s.gated().Passed })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "address", func() uint64 { return s.gated().RefusedOwn })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "all", func() uint64 { return s.gated().RefusedAll })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "pod_address", func() uint64 { return s.proxied().Address })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "pod", func() uint64 { return s.proxied().Pod })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "pod_account", func() uint64 { return s.proxied().Account })
	counter("gantry_scheduler_requests_refused_total", requests, "why", "pod_all", func() uint64 { return s.proxied().All })
	gauge("gantry_scheduler_proxied_requests_open", "Requests to pods in progress on this scheduler, including WebSockets.", func() int { return s.proxied().Open })
	gauge("gantry_scheduler_data_connections", "Data connections of hosts that end at this scheduler.", func() int {
		if d := s.data.Load(); d != nil {
			return d.Data().Count()
		}
		return 0
	})
	gauge("gantry_scheduler_link_strangers", "Connections to the link port without a certificate so far.", func() int { return s.strangers().Open })
	counter("gantry_scheduler_link_strangers_refused_total", "Connections to the link port closed because their address had too many without a certificate.", "", "",
		func() uint64 { return s.strangers().RefusedOwn })
}

func (s *shares) seats() share.Counts {
	if f := s.front.Load(); f != nil {
		public, _ := f.Counts()
		return public
	}
	return share.Counts{}
}

func (s *shares) spare() share.Counts {
	if f := s.front.Load(); f != nil {
		_, spare := f.Counts()
		return spare
	}
	return share.Counts{}
}

func (s *shares) gated() rest.GateCounts {
	if g := s.gate.Load(); g != nil {
		return g.Counts()
	}
	return rest.GateCounts{}
}

func (s *shares) proxied() proxy.Counts {
	if p := s.proxy.Load(); p != nil {
		return p.Counts()
	}
	return proxy.Counts{}
}

func (s *shares) strangers() share.Counts {
	if m := s.mux.Load(); m != nil {
		return m.Strangers()
	}
	return share.Counts{}
}

// onlyHealth is what must get through while the scheduler does not serve yet.
func onlyHealth(r *http.Request, _ share.Why) (fleet.AccountID, bool) { return "", rest.IsHealth(r) }
