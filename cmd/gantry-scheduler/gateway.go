package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"gantry/api/edge"
	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/gateway"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/scheduler/membership"
)

type gatewayCmd struct {
	Join gatewayJoinCmd `cmd:"" help:"Make this machine a gateway of a cluster, with a token from gantry gateway token. Start it with gateway run afterwards."`
	Run  gatewayRunCmd  `cmd:"" help:"Run the gateway in the foreground, as systemd does."`

	CheckConfig gatewayCheckCmd `cmd:"" help:"Check the configuration that gateway run would use, report errors, and exit."`
}

type gatewayJoinCmd struct {
	DataDir   string   `required:"" type:"path" help:"Folder for the gateway's certificate; it must hold none." placeholder:"DIR"`
	Scheduler []string `required:"" help:"Link address of a scheduler of the cluster; more than one may be given." placeholder:"HOST:PORT"`
	TokenFile string   `required:"" type:"path" help:"File with the token of gantry gateway token, which only its owner can read (mode 0600)." placeholder:"FILE"`
	Address   string   `required:"" help:"Address under which hosts will reach this gateway." placeholder:"HOST:PORT"`
	Name      string   `help:"Name of this gateway, for people; by default the machine's."`
}

// Run trades the token and writes the data folder. The certificate comes last: until it is there, the same join can be asked again.
func (c *gatewayJoinCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if !membership.ValidAddress(c.Address) {
		return errAddress
	}
	token, err := readToken(c.TokenFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(c.DataDir, certFolder), 0o700); err != nil {
		return err
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return err
	}
	if who, err := certs.Identity(); err == nil {
		return fmt.Errorf("%s holds the certificate of %s already: start it with gateway run, or use an empty folder", c.DataDir, who)
	}
	csr, err := certs.Request()
	if err != nil {
		return err
	}
	j, err := membership.JoinGateway(ctx, token, c.Scheduler, &agentrpc.JoinMemberRequest{Csr: csr, Address: c.Address, Name: hostName(c.Name), Version: version})
	if err != nil {
		return fmt.Errorf("join the cluster: %w", err)
	}
	if err := errors.Join(writeAddress(c.DataDir, c.Address), writeSchedulers(c.DataDir, c.Scheduler)); err != nil {
		return err
	}
	if err := certs.Install(j.Leaf, j.Trusted...); err != nil {
		return err
	}
	log.Info("joined: start this gateway with gateway run", "id", j.Member, "cluster", j.ClusterID)
	return nil
}

type gatewayRunCmd struct {
	DataDir    string        `required:"" type:"path" help:"Folder that gateway join made." placeholder:"DIR"`
	LinkListen string        `help:"Address for the data connections of hosts (mutual TLS); when not given, 0.0.0.0 and the port of --address as given to gateway join." placeholder:"HOST:PORT"`
	Scheduler  []string      `help:"Link address of a scheduler, when none of those is reached that the gateway knows; may be repeated." placeholder:"HOST:PORT"`
	DrainLimit time.Duration `default:"1h" help:"How long requests may go on that are under way when the gateway is drained (at most 168h)."`
	frontFlags `embed:""`
}

func (c *gatewayRunCmd) validate() error {
	var err error
	if c.DrainLimit < 0 || c.DrainLimit > 168*time.Hour {
		err = errors.New("--drain-limit must be 0s to 168h")
	}
	return errors.Join(err, c.frontFlags.validate())
}

type gatewayCheckCmd struct {
	Settings gatewayRunCmd `embed:""`
}

// Run is checkConfigCmd.Run of a gateway.
func (c *gatewayCheckCmd) Run() error {
	return checked(c.Settings.validate(), c.Settings.DataDir, &c.Settings.Edge)
}

// Run is the gateway's life: it opens everything, serves until ctx ends, and closes in reverse.
func (c *gatewayRunCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	files, err := c.Edge.files(log)
	if err := errors.Join(c.validate(), err, c.Edge.check()); err != nil {
		return err
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return fmt.Errorf("%w (was this folder made with gantry-scheduler gateway join?)", err)
	}
	link, err := linkListen(c.DataDir, c.LinkListen, "", log)
	if err != nil {
		return err
	}
	believed, err := c.Edge.believed()
	if err != nil {
		return err
	}
	g, err := gateway.New(gateway.Config{ //nolint:contextcheck // requests have their own
		Certs: certs, Schedulers: append(readJoined(c.DataDir), c.Scheduler...), Keep: func(now []string) error { return writeSchedulers(c.DataDir, now) },
		Domain: c.ProxyDomain, Version: version, DrainLimit: c.DrainLimit, Log: log,
		All: c.Shares.MaxProxied, PerAddress: c.Shares.MaxProxiedPerAddress, PerAccount: c.Shares.MaxProxiedPerAccount, Trusted: believed,
	})
	if err != nil {
		return err
	}
	ports, err := c.listen(ctx, link, certs, agentrpc.MuxConfig{Log: log, DataOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ports.close()) }()
	tlsFront := &edge.FrontEnd{Files: files, Orders: c.Edge.acme()}
	acme, err := c.order(ports, tlsFolder(filepath.Join(c.DataDir, "tls")), func() bool { return true }, log)
	if err != nil {
		return err
	}
	defer acme.Close()
	tlsFront.ACME.Store(acme)
	front, err := c.openFront(ports.api, tlsFront, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.close(ctx)) }()
	log.Info("gateway runs", "api", ports.api.Addr().String(), "tls", c.Edge.tls(), "link", link, "version", version)
	return c.serve(ctx, g, ports, front, tlsFront, acme, log)
}

// serve runs every loop until ctx ends or one fails.
func (c *gatewayRunCmd) serve(ctx context.Context, g *gateway.Gateway, p ports, front *apiServer, tlsFront *edge.FrontEnd, acme *edge.ACME, log *slog.Logger) error {
	registry, api, pods := gatewayMetrics(g, front, p.mux)
	front.opens(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, toPod, _ := proxy.ParseHost(r.Host, c.ProxyDomain)
		switch {
		case toPod:
			pods.Serve(g, w, r)
		case r.URL.Path == "/healthz":
			gatewayHealth(g, w, r)
		default:
			api.Serve(g, w, r)
		}
	}))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.Run(ctx, p.mux.Data()) })
	group.Go(func() error { return c.serveEdge(ctx, p, tlsFront, log) })
	group.Go(func() error { boundGarbage(ctx, func() int { return 0 }); return nil })
	if acme != nil {
		group.Go(func() error { return acme.Order(ctx) })
	}
	group.Go(func() error {
		if c.Metrics != "" {
			scrape.Server{Addr: c.Metrics, Registry: registry, Log: log, Secure: c.Scrape.Source()}.Run(ctx)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
			_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
			return front.close(ctx)
		case <-front.ended:
			return front.err
		}
	})
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn("notify systemd", "err", err)
	}
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// gatewayHealth tells balancers whether the gateway takes requests. It takes them without a leader, too.
func gatewayHealth(g *gateway.Gateway, w http.ResponseWriter, r *http.Request) {
	why := g.Problem()
	report := rest.HealthReport{Status: "ok"}
	if why != "" {
		report.Status = "failing"
	}
	if _, verbose := r.URL.Query()["verbose"]; verbose {
		report.Conditions = []rest.Health{{Name: "gateway", OK: why == "", Text: why}}
	}
	w.Header().Set("Content-Type", "application/json")
	if why != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(report) // a client that left is not told
}

// gatewayMetrics is what Prometheus is told of a gateway: of the API's and of pods' requests, and what there is.
func gatewayMetrics(g *gateway.Gateway, front *apiServer, mux *agentrpc.Mux) (r *prometheus.Registry, api, pods *scrape.Requests) {
	r = scrape.NewRegistry()
	face := func(name string) *scrape.Requests {
		return scrape.NewRequests(prometheus.WrapRegistererWith(prometheus.Labels{"face": name}, r), "gantry_gateway_http")
	}
	gauge := func(name, help string, read func() int) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	flag := func(ok bool) int {
		if ok {
			return 1
		}
		return 0
	}
	gauge("gantry_gateway_takes_requests", "1 while the gateway takes requests; 0: it is drained, was removed, or knows no routes.", func() int { return flag(g.Problem() == "") })
	gauge("gantry_gateway_leader_known", "1 while the gateway knows which scheduler leads.", func() int { return flag(g.Counts().Leader) })
	gauge("gantry_gateway_routes_index", "Index of the log up to which routes are known; it stands still while no scheduler tells more.", func() int { return int(g.Counts().Index) }) //nolint:gosec // far from 2^63
	gauge("gantry_gateway_requests_open", "Requests in progress on this gateway, including WebSockets.", func() int { return g.Counts().Open })
	gauge("gantry_gateway_data_connections", "Data connections of hosts that end at this gateway.", func() int { return g.Counts().Hosts })
	gauge("gantry_gateway_connections_open", "Open connections of users, including WebSockets.", func() int { public, _ := front.server.Counts(); return public.Open })
	gauge("gantry_gateway_link_strangers", "Connections to the link port without a certificate so far.", func() int { return mux.Strangers().Open })
	for why, read := range map[string]func(proxy.Counts) uint64{
		"pod_address": func(c proxy.Counts) uint64 { return c.Address }, "pod": func(c proxy.Counts) uint64 { return c.Pod },
		"pod_account": func(c proxy.Counts) uint64 { return c.Account }, "pod_all": func(c proxy.Counts) uint64 { return c.All },
	} {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "gantry_gateway_requests_refused_total", Help: "Requests to pods that were refused because too many were under way: of the address, to the pod, to its account's, in all.",
			ConstLabels: prometheus.Labels{"why": why},
		}, func() float64 { return float64(read(g.Counts().Proxy)) }))
	}
	return r, face("api"), face("pod")
}
