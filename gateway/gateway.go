// Package gateway is a process that carries requests to pods and to endpoints that balance, over its own data connections with hosts. It
// holds no replicated state and no secret: schedulers tell it where requests lead and what keys may do, and it goes on with what it was
// told last while none answers. All other requests it sends on to the leader. It decides nothing and stores nothing but its certificate
// and where schedulers are.
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	balanceface "gantry/api/balance"
	"gantry/api/forward"
	"gantry/api/problem"
	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler/balance"
	"gantry/scheduler/dataconn"
	"gantry/scheduler/routes"
)

// WorkerIdle is how long connections to workers are kept for the next request: less than most servers keep theirs, so that few requests
// meet one that is just being closed.
const WorkerIdle = 2 * time.Second

// Config is what a Gateway is made from.
type Config struct {
	Certs      *pki.Store // has a gateway's certificate
	Schedulers []string   // link addresses, at least one
	Keep       func(schedulers []string) error
	Domain     string // of the proxy
	Version    string
	// DrainLimit is how long requests may go on that are under way when the gateway is drained.
	DrainLimit time.Duration
	Log        *slog.Logger

	// As in proxy.Config.
	PerAddress, PerAccount, All int
	Trusted                     func(netip.Addr) bool
}

// Gateway is safe for concurrent use.
type Gateway struct {
	Config
	id        pki.Identity
	link      *link
	conns     *dataconn.Conns
	keys      *keys
	proxy     *proxy.Proxy
	balancer  *balance.Balancer
	toWorkers *proxy.Proxy
	forward   *forward.Forwarder
	inside    *rest.API // logs, commands and files of pods
	noteWrite func(context.Context, *agentrpc.FilesWrite) error
	road      Road
	open      atomic.Int64

	mu     sync.Mutex      // guards the fields below
	period context.Context //nolint:containedctx // of the requests under way; ends when a drain has lasted too long
	end    context.CancelFunc
}

// New returns a Gateway. Its Run must be called.
func New(c Config) (*Gateway, error) {
	who, err := c.Certs.Identity()
	if err != nil {
		return nil, err
	}
	if who.Role != pki.RoleGateway {
		return nil, errors.New("the certificate is not a gateway's: it is that of " + who.String())
	}
	g := &Gateway{Config: c, id: who, link: newLink(c.Certs, c.Schedulers, c.Keep, c.Log)}
	g.period, g.end = context.WithCancel(context.Background())
	table := g.link.table
	g.noteWrite = g.link.noteWrite
	g.conns = dataconn.New(table, nil, c.Log)
	g.keys = newKeys(g.link.askKey)
	g.balancer = balance.New(balance.Config{
		Store: table, Member: fleet.MemberID(who.ID), Open: g.conns.OpenPort, Leads: func() bool { return false }, Always: true, Tell: g.tell, Log: c.Log,
	})
	g.proxy = proxy.New(proxy.Config{
		Domain: c.Domain, Dialer: g, Targets: g, Log: c.Log, Trusted: c.Trusted, All: c.All, PerAddress: c.PerAddress, PerAccount: c.PerAccount,
	})
	g.toWorkers = proxy.New(proxy.Config{Domain: c.Domain, Dialer: g.balancer, Log: c.Log, TunnelIdle: WorkerIdle})
	balanced := balanceface.New(balanceface.Config{
		Domain: c.Domain, Balancer: g.balancer, Proxy: g.toWorkers, Log: c.Log, PerAccount: c.PerAccount, All: c.All,
		May: func(ctx context.Context, key fleet.Secret, id fleet.EndpointID) error {
			return g.keys.may(ctx, &agentrpc.KeyQuestion{Key: key.Reveal(), EndpointId: string(id)})
		},
	})
	inner := insides{g: g}
	if g.inside, err = rest.NewInside(rest.Config{Service: inner, Log: c.Log, Version: c.Version}); err != nil {
		return nil, err
	}
	g.road = Road{Domain: c.Domain, Store: table, Connected: g.conns.Connected, Balance: balanced}
	g.forward = forward.New(forward.Config{
		Member: who.ID, Leaders: g.link, Log: c.Log, Local: balanced.Wrap(g.proxy.Wrap(withKey(g.inside))),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return agentrpc.DialHTTP(ctx, c.Certs, address)
		},
		Always: func(r *http.Request) bool {
			here, ours := g.road.Here(r, g.link.Leader() != "")
			return here || !ours && inner.here(r)
		},
	})
	return g, nil
}

// Run works until ctx ends, with the data connections that come from a listener such as Mux.Data. It ends all requests before it returns.
func (g *Gateway) Run(ctx context.Context, data net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.link.run(ctx) })
	group.Go(func() error { return g.conns.Serve(ctx, data) })
	group.Go(func() error { return g.balancer.Run(ctx) })
	group.Go(func() error { g.drain(ctx); return nil })
	err := group.Wait()
	g.end()
	g.forward.Close()
	g.inside.Close()
	g.proxy.Close()
	g.toWorkers.Close()
	return err
}

// Counts are those of a Gateway.
type Counts struct {
	Open  int // requests under way, WebSockets among them
	Hosts int // data connections
	Proxy proxy.Counts
	// Index is up to which index of the state routes are known; 0: nothing is.
	Index  uint64
	Leader bool // one is known
}

// Counts returns what was counted.
func (g *Gateway) Counts() Counts {
	c := Counts{Open: int(g.open.Load()), Hosts: g.conns.Count(), Proxy: g.proxy.Counts(), Leader: g.link.Leader() != ""}
	_ = g.link.table.View(func(v routes.View) error { c.Index = v.Index(); return nil }) // it returns no error of its own
	return c
}

// Problem says in a sentence why the gateway takes no requests; empty: it takes them.
func (g *Gateway) Problem() string {
	g.link.mu.Lock()
	defer g.link.mu.Unlock()
	switch {
	case g.link.refused:
		return "the schedulers refuse this gateway: it was removed from the cluster"
	case g.link.control.GetDraining():
		return "this gateway is drained"
	case g.link.control == nil:
		return "no scheduler has told yet where requests lead"
	}
	return ""
}

// ServeHTTP serves a request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if why := g.Problem(); why != "" {
		id := problem.ChooseRequestID(r)
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("Retry-After", "1")
		problem.Write(w, problem.For(r, problem.From(fleet.Unavailable("This gateway takes no requests: "+why+".", nil), id)))
		return
	}
	g.open.Add(1)
	defer g.open.Add(-1)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	g.mu.Lock()
	period := g.period
	g.mu.Unlock()
	defer context.AfterFunc(period, cancel)() //nolint:contextcheck // a request ends with the client or with a drain
	g.forward.ServeHTTP(w, r.WithContext(ctx))
}

// drain ends the requests that are under way for too long after the gateway was drained, until ctx ends.
func (g *Gateway) drain(ctx context.Context) {
	var since time.Time
	for {
		changes := g.link.Changes()
		switch draining := g.link.told().GetDraining(); {
		case !draining:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			g.Log.Info("drains", "requests", g.open.Load(), "limit", g.DrainLimit)
		case time.Since(since) >= g.DrainLimit && g.open.Load() > 0:
			g.Log.Warn("ends requests that went on for too long", "requests", g.open.Load())
			g.mu.Lock()
			g.end()
			g.period, g.end = context.WithCancel(context.WithoutCancel(ctx))
			g.mu.Unlock()
		}
		if _, err := sleep.Or(ctx, min(g.DrainLimit, time.Second), changes); err != nil {
			return
		}
	}
}

// tell tells the leader of requests and of this gateway.
func (g *Gateway) tell(ctx context.Context, r balance.Report) (balance.Word, error) {
	return g.link.report(ctx, &agentrpc.GatewayReport{
		Requests: balance.EncodeReport(r), Open: uint32(g.open.Load()), Hosts: uint32(g.conns.Count()), Version: g.Version, //nolint:gosec // of one machine
	})
}

// HTTPPort implements proxy.Targets.
func (g *Gateway) HTTPPort(_ context.Context, id fleet.PodID, port int) (fleet.AccountID, fleet.HTTPSetting, error) {
	p, err := g.exposed(id, port)
	return p.Account, p.Spec.HTTPPort(port), err
}

func (g *Gateway) exposed(id fleet.PodID, port int) (p fleet.Pod, err error) {
	err = g.link.table.View(func(v routes.View) error {
		p, err = routes.Exposed(v, id, port)
		return err
	})
	return p, err
}

// OpensPort implements proxy.Targets.
func (g *Gateway) OpensPort(ctx context.Context, pod fleet.PodID, port int, credential fleet.Secret) bool {
	return g.keys.may(ctx, &agentrpc.KeyQuestion{Key: credential.Reveal(), PodId: string(pod), Port: int32(port)}) == nil //nolint:gosec // 16 bits
}

// DialPod implements fleet.Dialer.
func (g *Gateway) DialPod(ctx context.Context, id fleet.PodID, port int) (fleet.Stream, error) {
	p, err := g.exposed(id, port)
	if err != nil {
		return nil, err
	}
	return g.conns.OpenPort(ctx, p.Host, id, port)
}
