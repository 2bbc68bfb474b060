package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/control"
	"gantry/scheduler/dispatch"
)

const (
	schedulerCertLife = 30 * 24 * time.Hour
	renewCheck        = time.Minute
	purgeEvery        = 10 * time.Second
	accountEvery      = 5 * time.Second
	shutdownTimeout   = 5 * time.Second
	maxStopGrace      = 2 * time.Minute
	minHostSilence    = 4 * time.Second
	stallLimit        = 2 * time.Second
)

// Run is the daemon's life: it opens everything, serves until ctx ends, and closes in reverse.
func (c *runCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return fmt.Errorf("%w (was this folder made with gantry-scheduler init?)", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ports, err := c.listen(certs, log) //nolint:contextcheck // closing ends the listeners
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ports.mux.Close()) }()
	m, err := openMember(c.DataDir, c.LinkListen, peers{ports.mux.Raft(), certs}, c.SnapshotEvery, cancel, log)
	if err != nil {
		return errors.Join(err, ports.api.Close())
	}
	defer func() { err = errors.Join(err, m.close()) }()
	d, err := c.assemble(m, log) //nolint:contextcheck // requests bring their own
	if err != nil {
		return errors.Join(err, ports.api.Close())
	}
	log.Info("scheduler runs", "id", m.id, "api", ports.api.Addr().String(), "link", c.LinkListen, "version", version)
	err = d.serve(ctx, ports, certs)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// ports are the daemon's two doors.
type ports struct {
	api net.Listener
	mux *link.Mux
}

func (c *runCmd) listen(certs *pki.Store, log *slog.Logger) (ports, error) {
	api, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return ports{}, fmt.Errorf("API address: %w", err)
	}
	ln, err := net.Listen("tcp", c.LinkListen)
	if err != nil {
		return ports{}, errors.Join(fmt.Errorf("link address: %w", err), api.Close())
	}
	mux, err := link.NewMux(ln, certs, link.MuxConfig{Log: log})
	if err != nil {
		return ports{}, errors.Join(err, ln.Close(), api.Close())
	}
	return ports{api, mux}, nil
}

// parts is the scheduler put together.
type parts struct {
	member   *member
	service  *scheduler.Service
	dispatch *dispatch.Server
	purger   *control.Purger
	books    *control.Accountant
	rest     *rest.API
	proxy    *proxy.Proxy
	log      *slog.Logger
}

func (c *runCmd) assemble(m *member, log *slog.Logger) (*parts, error) {
	d := &parts{member: m, log: log}
	d.dispatch = dispatch.New(dispatch.Config{
		Store: m.store, Node: m.node, Silence: c.HostSilence, Patience: c.HostPatience, Grace: c.StopGrace, Log: log,
		CA: func(ctx context.Context) (*pki.CA, error) { return d.service.CA(ctx) },
		Credentials: func(a fleet.AccountID, r fleet.RegistryID) (*fleet.Credential, error) {
			return d.service.Credentials(a, r)
		},
	})
	d.service = scheduler.New(scheduler.Config{Store: m.store, Node: m.node, Dispatch: d.dispatch, Sealer: m.sealer, Log: log})
	d.purger = &control.Purger{Store: m.store, Node: m.node, Keep: c.KeepTerminat, Every: purgeEvery, Log: log}
	d.books = &control.Accountant{Store: m.store, Node: m.node, Keep: c.KeepUsage, Every: accountEvery, Log: log}
	d.proxy = proxy.New(proxy.Config{Domain: c.ProxyDomain, Dialer: d.service, Targets: d.service, Log: log})
	var err error
	d.rest, err = rest.New(rest.Config{
		Service: d.service, Health: d.health, Log: log, Version: version, Rates: c.rates(), Failures: c.RateFailures,
	})
	return d, err
}

// health tells the daemon's conditions.
func (d *parts) health() []rest.Health {
	leads := rest.Health{Name: "leader", OK: d.member.node.IsLeader()}
	if !leads.OK {
		leads.Text = "this scheduler does not lead"
	}
	disk := rest.Health{Name: "store", OK: d.member.node.Stalled() < stallLimit}
	if !disk.OK {
		disk.Text = "the disk does not answer"
	}
	return []rest.Health{leads, disk}
}

// serve runs every loop until ctx ends or one fails.
func (d *parts) serve(ctx context.Context, p ports, certs *pki.Store) error {
	group, ctx := errgroup.WithContext(ctx)
	grpc := d.dispatch.GRPC()
	server := rest.NewServer(d.proxy.Wrap(d.rest), rest.Limits{}, d.log)
	group.Go(func() error { return grpc.Serve(p.mux.GRPC()) })
	group.Go(func() error {
		if err := server.Serve(p.api); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		return d.member.node.WhileLeader(ctx, func(lead context.Context) error {
			loops, lead := errgroup.WithContext(lead)
			loops.Go(func() error { return d.dispatch.Lead(lead) })
			loops.Go(func() error { return d.books.Run(lead) })
			loops.Go(func() error { return d.purger.Run(lead) })
			loops.Go(func() error { return d.service.Run(lead) })
			loops.Go(func() error { d.renewOwn(lead, certs); return nil })
			return loops.Wait()
		})
	})
	group.Go(func() error { return d.watchdog(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
		d.rest.Close()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		err := server.Shutdown(stop)
		grpc.Stop()
		return errors.Join(err, server.Close())
	})
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		d.log.Warn("notify systemd", "err", err)
	}
	err := group.Wait()
	d.proxy.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// watchdog feeds systemd's watchdog while the store moves.
func (d *parts) watchdog(ctx context.Context) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return nil //nolint:nilerr // not started by systemd
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if d.member.node.Stalled() < stallLimit {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// renewOwn keeps this scheduler's certificate fresh: the leader holds the CA.
func (d *parts) renewOwn(ctx context.Context, certs *pki.Store) {
	tick := time.NewTicker(renewCheck)
	defer tick.Stop()
	fraction := rand.Float64()
	for {
		if err := d.renewOnce(ctx, certs, fraction); err != nil && ctx.Err() == nil {
			d.log.Error("renew the scheduler's certificate", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *parts) renewOnce(ctx context.Context, certs *pki.Store, fraction float64) error {
	leaf, err := certs.Leaf()
	if err != nil {
		return err
	}
	if time.Now().Before(pki.RenewAt(leaf, fraction)) {
		return nil
	}
	ca, err := d.service.CA(ctx)
	if err != nil {
		return err
	}
	return certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: d.member.id}, schedulerCertLife, time.Now())
}
