package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	balanceface "gantry/api/balance"
	"gantry/api/console"
	"gantry/api/edge"
	filesface "gantry/api/files"
	"gantry/api/forward"
	"gantry/api/graphql"
	jobface "gantry/api/jobs"
	"gantry/api/login"
	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/api/v1"
	"gantry/cmd/internal/watchdog"
	"gantry/fleet"
	"gantry/gateway"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/scheduler"
	"gantry/scheduler/balance"
	"gantry/scheduler/control"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/feed"
	"gantry/scheduler/feed/networks"
	"gantry/scheduler/feed/s3"
	"gantry/scheduler/feed/storage"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/files"
	"gantry/scheduler/gateways"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
	"gantry/scheduler/webhooks"
	"gantry/scheduler/workers"
	"gantry/serverless/webhook"
)

// parts is the scheduler put together.
type parts struct {
	member     *member
	service    *scheduler.Service
	dispatch   *dispatch.Server
	purger     *control.Purger
	accountant *control.Accountant
	workers    *workers.Workers
	drainer    *control.Drainer
	ender      *control.Ender
	clusters   *control.Clusters
	time       *control.Timekeeper
	rotator    *control.Rotator
	keeper     *membership.Keeper
	presence   *membership.Presence
	peers      *membership.Server
	reads      *membership.Reads
	rest       *rest.API
	v1         *rest.Face
	graphql    *graphql.API
	jobs       *jobface.API
	files      *files.Files
	results    *filesface.API
	hooks      *webhook.Sender
	events     *webhooks.Caller
	proxy      *proxy.Proxy
	balancer   *balance.Balancer
	toWorkers  *proxy.Proxy // of requests to endpoints that balance
	balance    *balanceface.API
	road       gateway.Road
	gateways   *gateways.Server
	forward    *forward.Forwarder
	console    *console.Console
	login      *login.API
	acme       *edge.ACME     // nil: no certificates are ordered
	tlsFront   *edge.FrontEnd // of users' connections
	edge       func(context.Context) error
	metrics    *metrics
	scraped    string // where Prometheus asks; empty: nowhere
	scrape     scrape.Flags
	domain     string // of the proxy
	log        *slog.Logger
}

func (c *runCmd) assemble(m *member, certs *pki.Store, api net.Addr, log *slog.Logger) (*parts, error) {
	d := &parts{member: m, domain: c.ProxyDomain, log: log}
	ca := func(ctx context.Context) (*pki.CA, error) { return d.service.CA(ctx) }
	conf := membership.Config{
		Self: membership.Self{
			ID: fleet.MemberID(m.id), Address: m.address, Name: hostName(""), Level: m.level, Version: version, Problem: d.problem,
		},
		Store: m.store, Node: m.node, Jobs: m.jobs.Node, Sealer: m.sealer, Certs: certs, CA: ca, Log: log, Joined: readJoined(c.DataDir), Requests: d.takeRequests,
	}
	d.keeper, d.presence = membership.NewKeeper(conf), membership.NewPresence(conf)
	d.peers, d.reads = membership.NewServer(conf, d.keeper), membership.NewReads(conf)
	backends := volumes.Backends{
		Secrets: func(b *fleet.Backend) (fleet.BackendSecrets, error) { return d.service.BackendSecrets(b) }, Log: log,
	}
	disks := storage.New(m.store, backends, log)
	d.dispatch = dispatch.New(dispatch.Config{
		Store: m.store, Node: m.node, HeartbeatTimeout: c.HeartbeatTimeout, HostTimeout: c.HostTimeout, Grace: c.StopGrace, Log: log, CA: ca,
		Leader:  func() string { l, _ := m.node.Leader(); return l.Address },
		Address: m.address, Refuse: membership.Refuse(m.store),
		Dial: membership.Dialer(certs),
		Credentials: func(a fleet.AccountID, r fleet.RegistryID) (*fleet.Credential, error) {
			return d.service.Credentials(a, r)
		},
		Environment: func(p *fleet.Pod) (map[string]string, error) { return d.service.Environment(p) },
		Member:      func(p *fleet.Pod) (*fleet.MemberSetup, error) { return d.service.MemberSetup(p) },
		Backends:    backends,
		ModelHub:    c.ModelHub,
		Feeds:       []feed.Feed{networks.New(m.store, log), disks},
		S3: s3.New(s3.Config{
			Store: m.store, Backends: backends, Log: log,
			Secret: func(k *fleet.S3Key) (fleet.Secret, error) { return d.service.S3Secret(k) },
			Grant:  func(access string) (fleet.VolumeGrant, bool) { return d.service.VolumeGrant(access) },
		}),
		Workers: func(host fleet.HostID, session <-chan struct{}, stream agentrpc.Link_JobsServer) error {
			return d.workers.Serve(host, session, stream)
		},
	})
	d.time = &control.Timekeeper{
		Store: m.store, Node: m.node, Clocks: d.keeper, Leap: c.ClockLeap, Synced: synced, Boot: bootClock, Log: log,
	}
	d.gateways = gateways.New(gateways.Config{
		Store: m.store, Node: m.node, Leader: func() string { l, _ := m.node.Leader(); return l.Address }, Log: log,
		May: func(ctx context.Context, key fleet.Secret, id fleet.EndpointID) error {
			return d.service.MayRequest(ctx, key, id)
		},
		Opens: func(ctx context.Context, pod fleet.PodID, port int, credential fleet.Secret) bool {
			return d.service.OpensPort(ctx, pod, port, credential)
		},
		NoteWrite: func(ctx context.Context, key fleet.Secret, pod fleet.PodID, address string) error {
			return d.service.NoteWrite(ctx, key, pod, address)
		},
		Who: func(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
			who, err := d.service.Authenticate(ctx, key)
			if q := c.rates(); who.Quotas == nil {
				who.Quotas = &fleet.Quotas{Minute: q.Minute, Hour: q.Hour, Day: q.Day}
			}
			return who, err
		},
		Requests: func(from fleet.GatewayID, in *agentrpc.RequestsReport) *agentrpc.RequestsWord {
			return d.takeRequests(fleet.MemberID(from), in)
		},
	})
	d.service = scheduler.New(scheduler.Config{
		Store: m.store, Node: anywhere{m.node, d.reads}, Heard: d.gateways, Dispatch: d.dispatch, Storage: disks, Sealer: m.sealer, Members: d.keeper, Clock: d.time, Version: version, Log: log,
		ProxyURL: c.proxyURL(api), S3URLs: c.s3URLs(), Movable: c.PodsMovable, Jobs: m.jobs, SessionLife: c.People.SessionLife,
	})
	d.files = files.New(files.Config{
		Store: m.store, Node: m.node, Sealer: m.sealer, URL: c.apiURL(api), HTTP: files.NewHTTP(), Log: log, Now: time.Now,
	})
	d.workers = workers.New(workers.Config{
		Store: m.store, Node: m.node, Jobs: m.jobs, Pods: d.service, Live: d.dispatch.Live, Result: d.files.Result, Tell: d.tell, Log: log, Now: time.Now,
		Health: func(id fleet.EndpointID, pod fleet.PodID) (balance.Health, bool) { return d.balancer.Health(id, pod) },
	})
	d.balancer = balance.New(balance.Config{
		Store: routes.Of(m.store), Member: fleet.MemberID(m.id), Open: d.dispatch.OpenPort, Leads: m.node.IsLeader, Tell: d.tellRequests,
		Changed: d.workers.HealthChanged, Log: log,
	})
	d.service.Desks = d.workers
	d.purger = &control.Purger{Store: m.store, Node: m.node, Keep: c.KeepTerminat, Every: purgeEvery, Sure: d.time.Sure, Log: log}
	d.accountant = &control.Accountant{Store: m.store, Node: m.node, Keep: c.KeepUsage, Audit: c.KeepAudit, Every: accountEvery, Sure: d.time.Sure, Log: log}
	d.drainer = &control.Drainer{Store: m.store, Node: m.node, Pods: d.service, Every: drainEvery, Sure: d.time.Sure, Log: log}
	d.ender = &control.Ender{Store: m.store, Node: m.node, Pods: d.service, Every: endEvery, Sure: d.time.Sure, Log: log}
	d.clusters = &control.Clusters{Store: m.store, Node: m.node, Pods: d.service, Every: clustersEvery, Log: log}
	d.rotator = &control.Rotator{Store: m.store, Node: m.node, CAs: d.service, Every: rotateEvery, Sure: d.time.Sure, Log: log}
	var err error
	d.rest, err = rest.New(rest.Config{
		Service: d.service, Health: d.health, Log: log, Version: version, Rates: c.rates(), Failures: c.RateFailures,
	})
	if err != nil {
		return nil, err
	}
	if d.v1, err = v1.New(d.rest); err != nil {
		return nil, err
	}
	if d.graphql, err = graphql.New(d.rest, log); err != nil {
		return nil, err
	}
	if d.hooks, err = c.Hooks.sender(); err != nil {
		return nil, err
	}
	d.events = webhooks.New(webhooks.Config{
		Store: m.store, Node: m.node, Send: d.hooks.Send, Secret: d.service.WebhookSecret, Body: rest.EventsBody, Now: time.Now, Log: log,
	})
	d.jobs = jobface.New(jobface.Config{Service: d.service, Keys: d.service, Workers: d.workersOf, PerWorker: c.RequestsPerWorker, Log: log})
	believed, err := c.Edge.believed()
	if err != nil {
		return nil, err
	}
	d.results = filesface.New(d.files, time.Now, believed, log)
	d.proxy = proxy.New(proxy.Config{
		Domain: c.ProxyDomain, Dialer: d.service, Targets: d.service, Log: log, Trusted: believed,
		All: c.Shares.MaxProxied, PerAddress: c.Shares.MaxProxiedPerAddress, PerAccount: c.Shares.MaxProxiedPerAccount,
	})
	d.balanceRequests(c)
	d.road = gateway.Road{Domain: c.ProxyDomain, Store: routes.Of(m.store), Connected: d.dispatch.Data().Connected, Balance: d.balance}
	d.forward = forward.New(forward.Config{
		Member: m.id, Leaders: leaders{m}, Local: d.local(), Log: log,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return agentrpc.DialHTTP(ctx, certs, address)
		},
		Always: d.here,
	})
	d.login = login.New(d.service, c.apiURL(api), log)
	page := console.Config{Sealer: m.sealer, Ours: c.ours, S3: slices.Sorted(maps.Values(c.s3URLs())), Now: time.Now, Log: log}
	pages, err := c.People.provide(page, c.apiURL(api))
	if err != nil {
		return nil, err
	}
	d.console = console.New(pages)
	return d, nil
}

// workersOf returns the numbers of the workers of an endpoint, or of that behind a public model.
func (d *parts) workersOf(id fleet.EndpointID) fleet.WorkerCounts {
	_ = d.member.store.View(func(v *state.View) error { // a closed store has none
		if m, ok := v.Model(fleet.ModelID(id)); ok {
			id = m.Endpoint
		}
		return nil
	})
	return d.workers.Counts(id)
}

// local serves everything at this member.
func (d *parts) local() http.Handler { return d.balance.Wrap(d.proxy.Wrap(d.faces())) }

// faces are the API, version 1 of it, that of GraphQL and, below the ids of endpoints, that of jobs.
func (d *parts) faces() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case filesface.Owns(path):
			d.results.ServeHTTP(w, r)
		case jobface.Owns(path):
			d.jobs.ServeHTTP(w, r)
		case login.Owns(path):
			d.login.ServeHTTP(w, r)
		case v1.Owns(path):
			d.v1.ServeHTTP(w, r)
		case graphql.Owns(path):
			d.graphql.ServeHTTP(w, r)
		default:
			d.rest.ServeHTTP(w, r)
		}
	})
}

// alwaysHere tells the paths that every member answers by itself.
func alwaysHere(path string) bool {
	return filesface.Owns(path) || path == "/healthz" || path == "/openapi.json" || path == graphql.SchemaPath || path == "/docs" || strings.HasPrefix(path, "/docs/")
}

// here tells the requests that this member serves, whether it leads or not: what flows from and to the pods of hosts that have a data
// connection with it. Without a leader it serves pods' ports as well as it can.
func (d *parts) here(r *http.Request) bool {
	if here, ours := d.road.Here(r, leaders{d.member}.Leader() != ""); ours {
		return here
	}
	if pod, _, flows := rest.Flow(r); flows {
		return routes.Flows(d.road.Store, d.dispatch.Data().Connected, pod)
	}
	return alwaysHere(r.URL.Path)
}

// anywhere is a replica of which reads see all that was acknowledged, whether it leads or not.
type anywhere struct {
	*replica.Node
	reads *membership.Reads
}

// Barrier implements dispatch.Proposer.
func (a anywhere) Barrier(ctx context.Context) error { return a.reads.Barrier(ctx) }

// leaders tells the forwarder who leads.
type leaders struct{ *member }

// Leads implements forward.Leaders.
func (l leaders) Leads() bool { return l.node.IsLeader() }

// Leader implements forward.Leaders.
func (l leaders) Leader() string {
	leader, ok := l.node.Leader()
	if !ok || leader.ID == l.id {
		return ""
	}
	return leader.Address
}

// Changes implements forward.Leaders.
func (l leaders) Changes() <-chan struct{} { return l.node.LeaderChanges() }

// health tells the daemon's conditions.
func (d *parts) health() []rest.Health {
	lead := rest.Health{Name: "leader", OK: true, Text: "this scheduler leads"}
	if leader, ok := d.member.node.Leader(); !d.member.node.IsLeader() {
		lead.Text = "this scheduler follows " + leader.ID
		if lead.OK = ok && leader.ID != d.member.id; !lead.OK {
			lead.Text = "no leader is known"
		}
	}
	// Without it pods are served as ever: balancers must not take that for a scheduler that does not work.
	jobsLead := rest.Health{Name: "jobs", OK: true, Text: "no leader of the group that has the jobs is known"}
	if leader, ok := d.member.jobs.Leader(); ok {
		jobsLead.Text = "jobs are led by " + leader.ID
	}
	store := rest.Health{Name: "store", OK: d.stalled() < stallLimit}
	if !store.OK {
		store.Text = "the disk does not answer"
	}
	last := rest.Health{Name: "log", OK: true, Text: fmt.Sprintf("applied up to index %d; the log ends at %d",
		d.member.node.AppliedIndex(), d.member.node.LastIndex())}
	disk := rest.Health{Name: "disk", OK: !d.member.node.DiskFull()}
	if !disk.OK {
		disk.Text = "the disk is full: nothing is written until there is room"
	}
	self := rest.Health{Name: "member", OK: !d.presence.Removed()}
	if !self.OK {
		self.Text = "this scheduler was removed from the cluster"
	}
	out := []rest.Health{lead, jobsLead, store, last, disk, self}
	if n := d.behind(); n > 0 {
		out = append(out, rest.Health{Name: "restored", OK: true, Text: fmt.Sprintf("hosts that have not been compared with the restored copy yet: %d", n)})
	}
	return out
}

// stalled returns for how long the slowest call on the disk has been under way.
func (d *parts) stalled() time.Duration {
	return max(d.member.node.Stalled(), d.member.jobs.Stalled())
}

// behind counts the hosts that have not connected since the cluster was restored.
func (d *parts) behind() (n int) {
	_ = d.member.store.View(func(v *state.View) error { // a closed store has none
		if c, ok := v.Cluster(); !ok || c.Lineage == 0 {
			return nil
		}
		for _, h := range v.HostRows() {
			if h.Behind && h.State != fleet.HostGone {
				n++
			}
		}
		return nil
	})
	return n
}

// problem is what the other schedulers are told, in one sentence.
func (d *parts) problem() string {
	if d.stalled() >= stallLimit {
		return "its disk does not answer"
	}
	return ""
}

// serve runs every loop until ctx ends or one fails.
func (d *parts) serve(ctx context.Context, p ports, front *apiServer) error {
	group, ctx := errgroup.WithContext(ctx)
	grpc := d.dispatch.GRPC()
	agentrpc.RegisterPeerServer(grpc, d.peers)
	agentrpc.RegisterRoutesServer(grpc, d.gateways)
	inner := d.innerServer()
	front.letsThrough(d.rest.Vital)
	front.opens(d.counted(d.unlessRemoved(d.console.Wrap(d.forward))))
	group.Go(func() error { return grpc.Serve(p.mux.GRPC()) }) //nolint:contextcheck // Stop ends it
	group.Go(func() error { return d.dispatch.Data().Serve(ctx, p.mux.Data()) })
	group.Go(func() error {
		if err := inner.Serve(p.mux.HTTP()); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error { return d.member.node.WhileLeader(ctx, d.lead) })
	group.Go(func() error { return d.dispatch.Relay(ctx) })
	if d.acme != nil { // apart from d.lead, which must not wait until a program of the operator's has ended
		group.Go(func() error { return d.member.node.WhileLeader(ctx, d.acme.Order) })
	}
	group.Go(func() error { return d.keeper.LeadJobs(ctx) })
	group.Go(func() error { boundGarbage(ctx, d.countJobs); return nil })
	group.Go(func() error { return d.presence.Run(ctx) })
	group.Go(func() error { return d.balancer.Run(ctx) })
	group.Go(func() error { return d.edge(ctx) })
	group.Go(func() error { d.serveMetrics(ctx); return nil })
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-front.ended:
			return front.err
		}
		_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
		d.rest.Close()
		drained := make(chan error, 1)
		go func() { drained <- drain(ctx, inner.Server) }()
		err := errors.Join(front.close(ctx), <-drained)
		grpc.Stop()
		return err
	})
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		d.log.Warn("notify systemd", "err", err)
	}
	defer watchdog.Start(func() bool { return d.stalled() < stallLimit })()
	err := group.Wait()
	d.hooks.Close()
	d.files.Close()
	d.forward.Close()
	d.proxy.Close()
	d.toWorkers.Close()
	d.reads.Close()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// unlessRemoved says to clients of a member that was removed that it was: it has no leader any more to ask.
func (d *parts) unlessRemoved(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !d.presence.Removed() || alwaysHere(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		refuse(w, r, "This scheduler was removed from the cluster. Please ask another one.")
	})
}

// innerConnections bounds the connections that other schedulers have here, which carry one request each.
const innerConnections = 1 << 14

// innerServer serves what other schedulers send on.
func (d *parts) innerServer() *rest.Server {
	refuse := membership.Refuse(d.member.store)
	s := rest.NewServer(forward.Accept(forward.AcceptConfig{
		Leads: d.member.node.IsLeader, Local: d.traced(d.local()), Log: d.log,
		Check: func(conn net.Conn) error {
			who, err := agentrpc.ConnIdentity(conn)
			if err != nil {
				return err
			}
			return refuse(who)
		},
	}), rest.Limits{Connections: innerConnections, PerAddress: innerConnections, Idle: 2 * time.Minute}, d.log)
	s.ConnContext = forward.ConnContext
	return s
}

// lead runs what only the leader does.
func (d *parts) lead(ctx context.Context) error {
	loops, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		d.time.Run, d.dispatch.Lead, d.accountant.Run, d.purger.Run, d.drainer.Run, d.ender.Run, d.clusters.Run, d.rotator.Run, d.service.Run, d.keeper.Run, d.workers.Lead, d.events.Run, d.files.Run,
	} {
		loops.Go(func() error { return run(ctx) })
	}
	return loops.Wait()
}

var _ membership.Node = (*replica.Node)(nil)
