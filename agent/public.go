package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gantry/agent/session"
	"gantry/netctl"
)

const findPublicEvery = 3 * time.Second

// published is where the pods' ports are reached, and the newest connection to a scheduler, which hears of it.
type published struct {
	at atomic.Pointer[Publish] // in force; its address is zero while there is none
	*lines
}

func newPublished(p Publish, dial session.Dialer) *published {
	out := &published{lines: newLines(dial)}
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

// find looks for the host's public address until there is one, then publishes there and tells the
// scheduler. Until then the host takes part without ports. found is called when there is one.
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
	p.cut() // the next session's hello has it
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

// lines knows the newest connection to a scheduler, which is the session's.
type lines struct {
	make session.Dialer

	mu   sync.Mutex // guards last
	last net.Conn
}

func newLines(d session.Dialer) *lines { return &lines{make: d} }

// dial is a Dialer whose newest connection cut ends.
func (l *lines) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := l.make(ctx, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = conn
	return conn, nil
}

// cut closes the newest connection. The agent connects again, and says anew what it has.
func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		_ = l.last.Close() // whoever uses it is told
	}
}
