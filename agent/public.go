package agent

import (
	"context"
	"net"
	"sync"
	"time"

	"gantry/agent/session"
)

const findPublicEvery = 3 * time.Second

// publicIP is where the pods' published ports are reached; empty: nothing is published.
func (d *daemon) publicIP() string {
	if p := d.public.Load(); p.IP.IsValid() {
		return p.IP.String()
	}
	return ""
}

// findPublic looks for the host's public address until there is one, then publishes there and tells the
// scheduler. Until then the host takes part without ports.
func (d *daemon) findPublic(ctx context.Context) {
	p := d.public.Load()
	if p.From <= 0 || p.IP.IsValid() || d.FindPublish == nil {
		return
	}
	d.Log.Error("no tcp ports of pods are published: the host has no address that others can reach; it is looked for again " +
		"and again (--public-ip names one, --port-range 0 ends this)")
	tick := time.NewTicker(findPublicEvery)
	defer tick.Stop()
	for !d.foundPublic(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *daemon) foundPublic(ctx context.Context) bool {
	p, err := d.FindPublish()
	if err != nil {
		d.Log.Warn("find the host's public address", "err", err)
		return false
	}
	if !p.IP.IsValid() {
		return false
	}
	if err := d.Network.SetPublic(ctx, p.At); err != nil {
		d.Log.Warn("publish at the host's public address", "addr", p.IP, "err", err)
		return false
	}
	d.public.Store(&p)
	d.Log.Info("tcp ports of pods are published", "addr", p.IP, "from", p.From, "to", p.To)
	d.lines.cut() // the next session's hello has it
	d.pods.Poke()
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
