package dispatch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
	"gantry/scheduler/inside"
)

const (
	hostNetworkTimeout = 15 * time.Second
	probeTimeout       = 12 * time.Second
	maxHostNetwork     = 32 << 20 // bytes of JSON
	maxProbeLine       = 16 << 10
)

// HostNetwork asks a host of its network. Errors: unavailable when the host is away, does not answer in time or
// answers something else, otherwise those of the host.
func (s *Server) HostNetwork(ctx context.Context, host fleet.HostID) (fleet.HostNetwork, error) {
	var out fleet.HostNetwork
	err := s.askNetwork(ctx, host, hostNetworkTimeout, &agentrpc.NetworkTarget{}, func(c *inside.Stream) error {
		text, err := io.ReadAll(io.LimitReader(c, maxHostNetwork+1))
		switch {
		case err != nil:
			return err
		case len(text) > maxHostNetwork:
			return errors.New("the host tells too much of its network")
		}
		return json.Unmarshal(text, &out)
	})
	if err != nil {
		return fleet.HostNetwork{}, err
	}
	return out, nil
}

// Probe has pods of a host look for others: each probe names From, To and Addr, and no two are alike. It returns them in
// their order with what was found; one of which the host told nothing has a problem. Errors: as HostNetwork's, and then
// nothing is known of any.
func (s *Server) Probe(ctx context.Context, host fleet.HostID, probes []fleet.Probe) ([]fleet.Probe, error) {
	out := slices.Clone(probes)
	open := make(map[fleet.Probe]int, len(out)) // of which the host did not tell yet
	for i := range out {
		open[way(out[i])] = i
	}
	err := s.askNetwork(ctx, host, probeTimeout, probeTarget(probes), func(c *inside.Stream) error {
		lines := bufio.NewScanner(c)
		lines.Buffer(make([]byte, 0, 1<<10), maxProbeLine)
		for lines.Scan() {
			var p fleet.Probe
			if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
				return err
			}
			if i, asked := open[way(p)]; asked { // else it is not what was asked for
				delete(open, way(p))
				out[i].Millis, out[i].Problem = max(0, p.Millis), dataconn.HostText(p.Problem)
			}
		}
		return lines.Err()
	})
	if err != nil && len(open) == len(out) {
		return nil, err
	}
	for _, i := range open {
		out[i].Millis, out[i].Problem = 0, "its host told nothing of it in time"
	}
	return out, nil
}

// way is a probe without what was found.
func way(p fleet.Probe) fleet.Probe { return fleet.Probe{From: p.From, To: p.To, Addr: p.Addr} }

// probeTarget asks for probes, those of one pod together.
func probeTarget(probes []fleet.Probe) *agentrpc.NetworkTarget {
	out := &agentrpc.NetworkTarget{}
	of := map[fleet.PodID]*agentrpc.ProbeFrom{}
	for _, p := range probes {
		from := of[p.From]
		if from == nil {
			from = &agentrpc.ProbeFrom{PodId: string(p.From)}
			of[p.From] = from
			out.Probes = append(out.Probes, from)
		}
		from.To = append(from.To, &agentrpc.ProbeTo{PodId: string(p.To), Addr: p.Addr})
	}
	return out
}

// askNetwork opens a tunnel to a host's network and has read read the answer, all of it within a time.
func (s *Server) askNetwork(
	ctx context.Context, host fleet.HostID, within time.Duration, target *agentrpc.NetworkTarget, read func(*inside.Stream) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if d, x := s.reach(ctx, host); d == nil && x == nil {
		return fleet.Unavailable("the host cannot be reached", nil)
	}
	c, err := s.open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Network{Network: target}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	err = read(c)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fleet.Unavailable("the host did not answer in time", ctx.Err())
	}
	return fleet.Unavailable("the host told nothing of its network that can be read", err)
}
