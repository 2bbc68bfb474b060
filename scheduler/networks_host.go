package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// HostNetworks reaches the networks of hosts through their sessions; see dispatch.Server.
type HostNetworks interface {
	HostNetwork(ctx context.Context, host fleet.HostID) (fleet.HostNetwork, error)
	// Probe has pods of a host look for others and returns the probes with what was found, in their order.
	Probe(ctx context.Context, host fleet.HostID, probes []fleet.Probe) ([]fleet.Probe, error)
}

const (
	// maxProbes bounds the probes of one check: 64 pods, each to each, are fewer.
	maxProbes = 4096
	// probingHosts is how many hosts are asked at once.
	probingHosts = 64
	// checkTime is how long a check takes at most, which is less than who asks for one waits.
	checkTime = 14 * time.Second
)

// HostNetwork returns what a connected host tells of its network. Errors: not_found, unavailable.
func (s *Service) HostNetwork(ctx context.Context, id fleet.HostID) (fleet.HostNetwork, error) {
	err := s.read(ctx, func(v *state.View) error {
		if h, ok := v.Host(id); !ok || h.State == fleet.HostGone {
			return fleet.NotFound("host")
		}
		return nil
	})
	if err != nil {
		return fleet.HostNetwork{}, err
	}
	return s.Dispatch.HostNetwork(ctx, id)
}

// CheckNetwork has each running pod of an account look for each other one in their private networks, and returns what was
// found, by network and the address of the pod that looks. Of more than 64 pods each looks for some of the others only, spread over all of them, so
// that no more than 4,096 looks are made. It takes 14 s at most: what was found by then is returned. A host that does not answer is told of in the problems of its pods' probes.
// Errors: not_found.
func (s *Service) CheckNetwork(ctx context.Context, account fleet.AccountID) ([]fleet.Probe, error) {
	var rings [][]located
	err := s.read(ctx, func(v *state.View) error {
		if _, ok := v.Account(account); !ok {
			return fleet.NotFound("account")
		}
		rings = runningMembers(v, account)
		return nil
	})
	if err != nil {
		return nil, err
	}
	probes, at := planProbes(rings)
	s.probeInTime(ctx, probes, at)
	return probes, ctx.Err()
}

// located is a running pod in a private network.
type located struct {
	pod  fleet.PodID
	host fleet.HostID
	addr string
}

// runningMembers returns the running members of the account's private networks, those of one network together.
func runningMembers(v *state.View, account fleet.AccountID) (out [][]located) {
	for _, o := range v.OverlaysOf(account) {
		var ring []located
		for _, m := range v.OverlayMembers(o.ID, 0) {
			if p, ok := v.Pod(m.Pod); ok && p.Status == fleet.StatusRunning && p.Goal == fleet.GoalRun {
				ring = append(ring, located{m.Pod, m.Host, m.Addr.String()})
			}
		}
		out = append(out, ring)
	}
	return out
}

// planProbes plans at most maxProbes, fairly shared among the networks and spread over their members, and says
// whose host makes each.
func planProbes(rings [][]located) (out []fleet.Probe, at []fleet.HostID) {
	for i, ring := range rings {
		n := len(ring)
		share := (maxProbes - len(out)) / (len(rings) - i)
		from, to := n, n-1 // of how many members, to how many others
		if n*(n-1) > share {
			from = min(n, share)
			to = share / max(1, from)
		}
		for f := range from {
			me := f * n / from
			for t := range to {
				// The others begin behind oneself; the shift has pods of a sample look at different ones.
				other := ring[(me+1+(t*(n-1)/to+me)%(n-1))%n]
				out = append(out, fleet.Probe{From: ring[me].pod, To: other.pod, Addr: other.addr})
				at = append(at, ring[me].host)
			}
		}
	}
	return out, at
}

// probeInTime is probeAll within checkTime.
func (s *Service) probeInTime(ctx context.Context, probes []fleet.Probe, at []fleet.HostID) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	s.probeAll(ctx, probes, at)
}

// probeAll has all hosts make their probes, and fills in what was found.
func (s *Service) probeAll(ctx context.Context, probes []fleet.Probe, at []fleet.HostID) {
	of := map[fleet.HostID][]int{}
	for i, host := range at {
		of[host] = append(of[host], i)
	}
	var asking sync.WaitGroup
	seats := make(chan struct{}, probingHosts)
	for host, mine := range of {
		seats <- struct{}{} // a host's time is limited, and so is that of ctx
		asking.Go(func() {
			defer func() { <-seats }()
			ask := make([]fleet.Probe, 0, len(mine))
			for _, i := range mine {
				ask = append(ask, probes[i])
			}
			found, err := s.Dispatch.Probe(ctx, host, ask)
			for j, i := range mine {
				if probes[i].Problem = problemOf(err); err == nil {
					probes[i] = found[j]
				}
			}
		})
	}
	asking.Wait()
}

// problemOf says in a sentence why nothing is known of a host's probes; empty: it is.
func problemOf(err error) string {
	var told *fleet.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &told):
		return told.Msg
	}
	return "its host could not be asked"
}
