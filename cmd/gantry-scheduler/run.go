package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"gantry/api/edge"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/membership"
	"gantry/scheduler/state"
)

const (
	purgeEvery          = 10 * time.Second
	accountEvery        = 5 * time.Second
	drainEvery          = 5 * time.Second
	endEvery            = time.Second
	clustersEvery       = time.Second
	rotateEvery         = time.Second
	shutdownTimeout     = 5 * time.Second
	maxStopGrace        = 2 * time.Minute
	minHeartbeatTimeout = 3 * time.Second
	minRaftTimeout      = 50 * time.Millisecond
	maxRaftTimeout      = 10 * time.Second
	stallLimit          = 2 * time.Second
	fatalGrace          = 2 * time.Second
)

// Run is the daemon's life: it opens everything, serves until ctx ends, and closes in reverse.
func (c *runCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	files, err := c.Edge.files(log)
	if err := errors.Join(err, c.Edge.check()); err != nil {
		return err
	}
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return fmt.Errorf("%w (was this folder made with gantry-scheduler init, join or restore?)", err)
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := checkFolder(c.DataDir, certs); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known, seen := &peerGuard{}, newMetrics()
	ports, err := c.listen(ctx, certs, known, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ports.close()) }()
	tlsFront := &edge.FrontEnd{Files: files, Orders: c.Edge.acme()}
	front, err := c.openFront(ports.api, tlsFront, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close(ctx)) }()
	m, err := c.openWhenRoom(ctx, front, opening{
		streams:    streams{ports.mux.Raft(), certs, agentrpc.DialRaft, known.expect},
		jobStreams: streams{ports.mux.Jobs(), certs, agentrpc.DialJobs, known.expect}, mayLead: known.mayLead, fatal: ender(cancel), wrote: seen.wrote, log: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	known.store.Store(m.store)
	d, err := c.assemble(m, certs, ports.api.Addr(), log) //nolint:contextcheck // requests bring their own
	if err != nil {
		return err
	}
	known.keeper.Store(d.keeper)
	d.metrics, d.scraped, d.scrape, d.tlsFront = seen, c.Metrics, c.Scrape, tlsFront
	seen.tellOf(d, certs)
	seen.shares.front.Store(front.server)
	seen.shares.gate.Store(front.gate)
	seen.shares.proxy.Store(d.proxy)
	seen.shares.mux.Store(ports.mux)
	seen.shares.data.Store(d.dispatch)
	if err := c.equip(d, ports, tlsFront); err != nil {
		return err
	}
	defer d.acme.Close()
	log.Info("scheduler runs", "id", m.id, "api", ports.api.Addr().String(), "tls", c.Edge.tls(), "link", c.LinkListen, "address", m.address, "version", version)
	err = d.serve(ctx, ports, front)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// ender returns what a replica that cannot go on calls: the daemon ends in order, or, since a disk that hangs holds up
// every orderly end, without it after fatalGrace. What it acknowledged is on disk either way.
func ender(cancel context.CancelCauseFunc) func(error) {
	return func(err error) {
		cancel(err)
		time.AfterFunc(fatalGrace, func() { os.Exit(1) })
	}
}

// checkFolder refuses a folder that a command did not finish.
func checkFolder(dir string, certs *pki.Store) error {
	for file, cmd := range map[string]string{markRestore: "restore", recoverFile: "recover"} {
		if exists(filepath.Join(dir, file)) {
			return fmt.Errorf("gantry-scheduler %s has not finished with this folder: run it again", cmd)
		}
	}
	who, err := certs.Identity()
	if err != nil {
		return fmt.Errorf("%w: run gantry-scheduler init or join again", err)
	}
	if id, ok := nodeID(dir); !ok || id != who.ID || who.Role != pki.RoleScheduler {
		return fmt.Errorf("the certificate in %s is not that of the scheduler whose id is in %s: join anew with a token and an empty folder",
			filepath.Join(dir, certFolder), filepath.Join(dir, idFile))
	}
	return nil
}

// ports are the listening addresses of the daemon.
type ports struct {
	api  net.Listener
	http net.Listener // plain, which leads to api; may be nil
	mux  *agentrpc.Mux
}

// close ends what no server has closed.
func (p ports) close() error {
	if p.http != nil {
		_ = p.http.Close()
	}
	return p.mux.Close()
}

func (c *runCmd) listen(ctx context.Context, certs *pki.Store, known *peerGuard, log *slog.Logger) (_ ports, err error) {
	if c.LinkListen, err = linkListen(c.DataDir, c.LinkListen, c.Address, log); err != nil {
		return ports{}, err
	}
	return c.frontFlags.listen(ctx, c.LinkListen, certs, agentrpc.MuxConfig{Log: log, Refuse: known.refuse})
}

// listen opens the ports for users and that of the link.
func (c *frontFlags) listen(ctx context.Context, link string, certs *pki.Store, conf agentrpc.MuxConfig) (ports, error) {
	api, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return ports{}, fmt.Errorf("API address: %w", err)
	}
	ln, err := agentrpc.Listen(ctx, link)
	if err != nil {
		return ports{}, errors.Join(fmt.Errorf("link address: %w", err), api.Close())
	}
	mux, err := agentrpc.NewMux(ln, certs, conf) //nolint:contextcheck // closing ends the listeners
	if err != nil {
		return ports{}, errors.Join(err, ln.Close(), api.Close())
	}
	p := ports{api: api, mux: mux}
	if c.Edge.HTTPListen != "" {
		if p.http, err = net.Listen("tcp", c.Edge.HTTPListen); err != nil {
			return ports{}, errors.Join(fmt.Errorf("--http-listen: %w", err), mux.Close(), api.Close())
		}
	}
	return p, nil
}

// peerGuard are the other members as the state has them, and as they answered. The port is open before either is.
type peerGuard struct {
	store  atomic.Pointer[state.Store]
	keeper atomic.Pointer[membership.Keeper]
}

// mayLead reports whether a member is known to have room on its disk.
func (a *peerGuard) mayLead(id string) bool {
	k := a.keeper.Load()
	return k != nil && k.MayLead(id)
}

// refuse gives an error for a member that was removed.
func (a *peerGuard) refuse(who pki.Identity) error {
	if store := a.store.Load(); store != nil {
		return membership.Refuse(store)(who)
	}
	return nil
}

// expect gives an error for who is at the address of another member.
func (a *peerGuard) expect(address string, who pki.Identity) error {
	store := a.store.Load()
	if store == nil {
		return nil
	}
	other := ""
	err := store.View(func(v *state.View) error {
		for _, m := range v.Members() {
			switch {
			case !m.RemovedAt.IsZero() || m.Address != address:
			case string(m.ID) == who.ID:
				other = ""
				return nil
			default:
				other = string(m.ID)
			}
		}
		return nil
	})
	if err == nil && other != "" {
		err = fmt.Errorf("at %s is %s, and not scheduler/%s", address, who, other)
	}
	return err
}
