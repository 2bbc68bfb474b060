package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"gantry/netctl"
)

const findPublicEvery = 3 * time.Second

// published is where the pods' ports are reached.
type published struct {
	at atomic.Pointer[Publish] // in force; its address is zero while there is none
}

func newPublished(p Publish) *published {
	out := &published{}
	out.at.Store(&p)
	return out
}

// ip is where the pods' published ports are reached; empty: nothing is published.
func (p *published) ip() string {
	if at := p.at.Load(); at.IP.IsValid() {
		return at.IP.String()
	}
	return ""
}

// ports are those that are published, and at which address.
func (p *published) ports() (ip netip.Addr, from, to int) {
	at := p.at.Load()
	return at.IP, at.From, at.To
}

// addresses are the host's own that lead to what is published.
func (p *published) addresses() []netip.Addr { return p.at.Load().At }

// find looks for the host's public address until there is one, then publishes there and calls found. Until then the host takes
// part without ports.
func (p *published) find(ctx context.Context, look func() (Publish, error), network netctl.Controller, log *slog.Logger, found func()) {
	at := p.at.Load()
	if at.From <= 0 || at.IP.IsValid() || look == nil {
		return
	}
	log.Error("no tcp ports of pods are published: the host has no address that others can reach; it is looked for again " +
		"and again (--public-ip names one, --port-range 0 ends this)")
	tick := time.NewTicker(findPublicEvery)
	defer tick.Stop()
	for !p.tryFind(ctx, look, network, log) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	found()
}

func (p *published) tryFind(ctx context.Context, look func() (Publish, error), network netctl.Controller, log *slog.Logger) bool {
	at, err := look()
	if err != nil {
		log.Warn("find the host's public address", "err", err)
		return false
	}
	if !at.IP.IsValid() {
		return false
	}
	if err := network.SetPublic(ctx, at.At); err != nil {
		log.Warn("publish at the host's public address", "addr", at.IP, "err", err)
		return false
	}
	p.at.Store(&at)
	log.Info("tcp ports of pods are published", "addr", at.IP, "from", at.From, "to", at.To)
	return true
}
