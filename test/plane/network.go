package plane

import (
	"context"
	"crypto/sha256"
	"encoding/base64"

	"gantry/fleet"
)

// SetHostNetwork says what a host tells of its network; before, it tells of one that is as it should be.
func (p *Plane) SetHostNetwork(id fleet.HostID, n fleet.HostNetwork) {
	p.hosts.change(func() { p.hosts.networks[id] = n })
}

// Mute has probes of a pod get no answer, for a reason; empty: they get one again.
func (p *Plane) Mute(id fleet.PodID, why string) { p.hosts.change(func() { p.hosts.mute[id] = why }) }

// tunnel is the end of a host's tunnel: with a public key of its own, and an address for others.
func tunnel(id fleet.HostID) fleet.HostTunnel {
	key := sha256.Sum256([]byte("tunnel of " + id))
	return fleet.HostTunnel{PublicKey: base64.StdEncoding.EncodeToString(key[:])}
}

// HostNetwork returns what SetHostNetwork said.
func (h *hosts) HostNetwork(_ context.Context, host fleet.HostID) (fleet.HostNetwork, error) {
	if h.reach(host) != nil {
		return fleet.HostNetwork{}, fleet.Unavailable("the host cannot be reached", nil)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n, ok := h.networks[host]; ok {
		return n, nil
	}
	return fleet.HostNetwork{Tunnel: "none"}, nil
}

// probeMillis is how long each pretended answer takes.
const probeMillis = 0.25

// Probe has every pod answer that Mute did not name.
func (h *hosts) Probe(_ context.Context, host fleet.HostID, probes []fleet.Probe) ([]fleet.Probe, error) {
	if h.reach(host) != nil {
		return nil, fleet.Unavailable("the host cannot be reached", nil)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]fleet.Probe, 0, len(probes))
	for _, p := range probes {
		if p.Problem = h.mute[p.To]; p.Problem == "" {
			p.Millis = probeMillis
		}
		out = append(out, p)
	}
	return out, nil
}
