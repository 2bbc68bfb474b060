package main

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/api/problem"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/scheduler"
	"gantry/scheduler/state"
)

// metrics is what Prometheus is told of this scheduler.
type metrics struct {
	registry *prometheus.Registry
	writes   prometheus.Histogram
	api      *scrape.Requests
	pods     *scrape.Requests // of visitors of pods' pages
	shares   shares
}

func newMetrics() *metrics {
	m := &metrics{registry: scrape.NewRegistry()}
	m.writes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "gantry_scheduler_log_write_duration_seconds", Help: "How long writes of the log took, with the wait for the disk.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	m.registry.MustRegister(m.writes)
	face := func(name string) *scrape.Requests {
		return scrape.NewRequests(prometheus.WrapRegistererWith(prometheus.Labels{"face": name}, m.registry), "gantry_scheduler_http")
	}
	m.api, m.pods = face("api"), face("pod")
	m.shares.register(m.registry)
	return m
}

// wrote counts a write of the log.
func (m *metrics) wrote(took time.Duration) { m.writes.Observe(took.Seconds()) }

// tellOf lets those who scrape see the scheduler. It is called once.
func (m *metrics) tellOf(d *parts, certs *pki.Store) { m.registry.MustRegister(newSight(d, certs)) }

// serveMetrics answers scrapers until ctx ends.
func (d *parts) serveMetrics(ctx context.Context) {
	if d.scraped != "" {
		scrape.Server{Addr: d.scraped, Registry: d.metrics.registry, Log: d.log, Secure: d.scrape.Source()}.Run(ctx)
	}
}

// counted counts what clients of this scheduler are answered, be it by the leader. A request to the API gets its id here, so that
// the logs of both schedulers have the same.
func (d *parts) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, toPod, _ := proxy.ParseHost(r.Host, d.domain); toPod {
			d.metrics.pods.Serve(next, w, r)
			return
		}
		id, begun := problem.ChooseRequestID(r), time.Now()
		r.Header.Set("X-Request-Id", id)
		method, path, client := r.Method, r.URL.Path, r.RemoteAddr
		status := d.metrics.api.Serve(next, w, r)
		level := slog.LevelDebug
		if status < http.StatusBadRequest && status != 0 && method != http.MethodGet && method != http.MethodHead {
			level = slog.LevelInfo // what has changed something, which takes a key
		}
		d.log.Log(r.Context(), level, "request answered", "request", id, "method", method, "path", path, "status", status, "client", client, "took", time.Since(begun).String())
	})
}

// traced has the log of the leader show a request that another scheduler sent on, under the id that it has there.
func (d *parts) traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, toPod, _ := proxy.ParseHost(r.Host, d.domain); !toPod {
			d.log.Debug("request came by way of another scheduler", "request", problem.ChooseRequestID(r), "method", r.Method, "path", r.URL.Path, "client", r.RemoteAddr)
		}
		next.ServeHTTP(w, r)
	})
}

// sight reads what is in memory, and nothing of the state while the disk does not answer: a scrape never waits for it.
type sight struct {
	d     *parts
	certs *pki.Store
	descs map[string]*prometheus.Desc
}

var series = []struct {
	name, help string
	labels     []string
}{
	{"gantry_scheduler_info", "1, with the scheduler's id and the version of its program.", []string{"member", "version"}},
	{"gantry_scheduler_leads", "1 while this scheduler leads.", nil},
	{"gantry_scheduler_leader_known", "1 while this scheduler leads or knows who does.", nil},
	{"gantry_scheduler_term", "Term of Raft; it grows with every election.", nil},
	{"gantry_scheduler_voters", "Schedulers that have a vote.", nil},
	{"gantry_scheduler_voters_wanted", "Schedulers that should have a vote.", nil},
	{"gantry_scheduler_voters_answering", "Voters that answer the leader, including itself; absent on followers.", nil},
	{"gantry_scheduler_log_last_index", "Last index of the log.", nil},
	{"gantry_scheduler_log_applied_index", "Index up to which the log is applied.", nil},
	{"gantry_scheduler_log_unsnapshotted_bytes", "Bytes of the log since the newest snapshot.", nil},
	{"gantry_scheduler_log_stalled_seconds", "Age of the slowest running call of log or state; 0: none.", nil},
	{"gantry_scheduler_disk_used_ratio", "Used share of the data folder's disk, 0 to 1, when last read.", nil},
	{"gantry_scheduler_disk_full", "1 while writes are refused because the disk is full.", nil},
	{"gantry_scheduler_hosts", "Hosts by state; absent while the disk does not answer.", []string{"state"}},
	{"gantry_scheduler_host_sessions", "Sessions of hosts, by way: direct (with the leader), through (that others pass on to the leader), passed (that this scheduler passes on).", []string{"way"}},
	{"gantry_scheduler_host_alarms", "Hosts whose identity is used by two machines; absent while the disk does not answer.", nil},
	{"gantry_scheduler_hosts_behind", "Hosts that were not compared since the cluster was restored; absent while the disk does not answer.", nil},
	{"gantry_scheduler_gpus_out", "GPUs out of placement: unhealthy, or cordoned by an operator; absent while the disk does not answer.", []string{"reason"}},
	{"gantry_scheduler_drains_overdue", "Hosts past the deadline of their drain with pods still running; absent while the disk does not answer.", nil},
	{"gantry_scheduler_drain_oldest_seconds", "Age of the oldest drain of a host with pods still running; 0: none; absent while the disk does not answer.", nil},
	{"gantry_scheduler_gpus", "GPUs in service on hosts that take pods, by type; absent while the disk does not answer.", []string{"type"}},
	{"gantry_scheduler_gpus_free", "GPUs among these that no pod holds; absent while the disk does not answer.", []string{"type"}},
	{"gantry_scheduler_gpus_on_host", "The most GPUs of the type that are in service on one host that takes pods; absent while the disk does not answer.", []string{"type"}},
	{"gantry_scheduler_gpus_free_on_host", "The most GPUs of the type that are free on one host; absent while the disk does not answer.", []string{"type"}},
	{"gantry_scheduler_gpus_stranded", "Free GPUs that no pod can have, by what their hosts have too little of: cpu, memory or disk.", []string{"type", "why"}},
	{"gantry_scheduler_pods", "Pods by status; absent while the disk does not answer.", []string{"status"}},
	{"gantry_scheduler_backup_timestamp_seconds", "When the newest complete back-up was taken; 0: none was reported; absent while the disk does not answer.", nil},
	{"gantry_scheduler_billing_run_timestamp_seconds", "When this scheduler last finished a billing run, of which the leader makes one every 5 s; 0: never.", nil},
	{"gantry_scheduler_clock_held", "1 while irreversible actions are on hold because the schedulers' clocks disagree; absent on followers.", nil},
	{"gantry_scheduler_clock_ahead_seconds", "How far the leader's clock is ahead of the log's time, by which everything is charged; absent on followers.", nil},
	{"gantry_scheduler_clock_offset_seconds", "How far each scheduler's clock is ahead of the leader's, as the leader measures it; absent for schedulers that do not answer.", []string{"member"}},
	{"gantry_scheduler_certificate_expiry_timestamp_seconds", "When this scheduler's certificate expires.", nil},
	{"gantry_scheduler_user_certificate_expiry_timestamp_seconds", "When a certificate for users expires, by its first name; 0 while it is ordered and not issued.", []string{"name"}},
	{"gantry_scheduler_ca_expiry_timestamp_seconds", "When the certificate of the cluster's CA expires.", nil},
}

func newSight(d *parts, certs *pki.Store) *sight {
	s := &sight{d: d, certs: certs, descs: map[string]*prometheus.Desc{}}
	for _, x := range series {
		s.descs[x.name] = prometheus.NewDesc(x.name, x.help, x.labels, nil)
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *sight) Describe(out chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *sight) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, v, labels...)
	}
	d, node := s.d, s.d.member.node
	leads := node.IsLeader()
	_, known := node.Leader()
	stalled := node.Stalled()
	gauge("gantry_scheduler_info", 1, d.member.id, version)
	gauge("gantry_scheduler_leads", flag(leads))
	gauge("gantry_scheduler_leader_known", flag(leads || known))
	gauge("gantry_scheduler_term", float64(node.Term()))
	voters := 0
	for _, m := range node.Servers() {
		if m.Voter {
			voters++
		}
	}
	gauge("gantry_scheduler_voters", float64(voters))
	if n := d.keeper.Answering(); leads && n > 0 {
		gauge("gantry_scheduler_voters_answering", float64(n))
	}
	gauge("gantry_scheduler_log_last_index", float64(node.LastIndex()))
	gauge("gantry_scheduler_log_unsnapshotted_bytes", float64(node.LogBytes()))
	gauge("gantry_scheduler_log_stalled_seconds", stalled.Seconds())
	gauge("gantry_scheduler_disk_used_ratio", float64(node.DiskUsed())/100)
	gauge("gantry_scheduler_disk_full", flag(node.DiskFull()))
	gauge("gantry_scheduler_billing_run_timestamp_seconds", stamp(d.accountant.LastRun()))
	direct, through, passed := d.dispatch.HostSessions()
	for way, n := range map[string]int{"direct": direct, "through": through, "passed": passed} {
		gauge("gantry_scheduler_host_sessions", float64(n), way)
	}
	if leads {
		gauge("gantry_scheduler_clock_offset_seconds", 0, d.member.id)
		for id, off := range d.keeper.Offsets() {
			gauge("gantry_scheduler_clock_offset_seconds", off.Seconds(), string(id))
		}
	}
	if leaf, err := s.certs.Leaf(); err == nil {
		gauge("gantry_scheduler_certificate_expiry_timestamp_seconds", stamp(leaf.NotAfter))
	}
	if cas, err := s.certs.Trusted(); err == nil { // the first signs
		gauge("gantry_scheduler_ca_expiry_timestamp_seconds", stamp(cas[0].NotAfter))
	}
	for name, ends := range d.tlsFront.Ends() {
		gauge("gantry_scheduler_user_certificate_expiry_timestamp_seconds", stamp(ends), strings.ToValidUTF8(name, ""))
	}
	if stalled < stallLimit {
		s.state(gauge)
	}
}

// stock is what metrics tell of the state, all of one index, so that its parts fit each other.
type stock struct {
	index  uint64
	counts state.Counts
	gpus   []fleet.GPUCapacity
}

func stockOf(store *state.Store) (out stock, err error) {
	err = store.View(func(v *state.View) error {
		out.index, out.counts = v.Index(), v.Counts(time.Now())
		out.gpus, _ = scheduler.CapacityOf(v)
		return nil
	})
	return out, err
}

// state tells of what the state has.
func (s *sight) state(gauge func(name string, v float64, labels ...string)) {
	has, err := stockOf(s.d.member.store)
	if err != nil {
		return // it is being closed
	}
	c := has.counts
	gauge("gantry_scheduler_log_applied_index", float64(has.index))
	gauge("gantry_scheduler_voters_wanted", float64(c.Voters))
	if s.d.member.node.IsLeader() {
		clock := s.d.time.View()
		gauge("gantry_scheduler_clock_held", flag(clock.Held != ""))
		gauge("gantry_scheduler_clock_ahead_seconds", clock.Now.Sub(clock.Log).Seconds())
	}
	gauge("gantry_scheduler_backup_timestamp_seconds", stamp(c.BackupAt))
	gauge("gantry_scheduler_drains_overdue", float64(c.Drains.Overdue))
	gauge("gantry_scheduler_drain_oldest_seconds", c.Drains.Oldest.Seconds())
	for id, s := range c.GPUs {
		gauge("gantry_scheduler_gpus", float64(s.All), id)
		gauge("gantry_scheduler_gpus_free", float64(s.Free), id)
		gauge("gantry_scheduler_gpus_on_host", float64(s.AllOnHost), id)
		gauge("gantry_scheduler_gpus_free_on_host", float64(s.FreeOnHost), id)
	}
	gauge("gantry_scheduler_host_alarms", float64(c.Alarms))
	gauge("gantry_scheduler_hosts_behind", float64(c.Behind))
	gauge("gantry_scheduler_gpus_out", float64(c.SickGPUs), "sick")
	gauge("gantry_scheduler_gpus_out", float64(c.CordonedGPUs), "cordoned")
	strandedGPUs(has.gpus, gauge)
	for _, h := range []fleet.HostState{
		fleet.HostJoining, fleet.HostReady, fleet.HostCordoned, fleet.HostDraining, fleet.HostUnreachable, fleet.HostFenced,
	} {
		gauge("gantry_scheduler_hosts", float64(c.Hosts[h]), string(h))
	}
	for _, p := range fleet.PodStatuses() {
		gauge("gantry_scheduler_pods", float64(c.Pods[p]), string(p))
	}
}

// strandedGPUs tells how many free GPUs of each type no pod can have.
func strandedGPUs(gpus []fleet.GPUCapacity, gauge func(name string, v float64, labels ...string)) {
	for _, g := range gpus {
		name := strings.ToValidUTF8(g.Type, "")
		for _, why := range fleet.Shortages() {
			gauge("gantry_scheduler_gpus_stranded", float64(g.Stranded[why]), name, string(why))
		}
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// stamp is a time as Prometheus writes it; 0 stands for one that is not known.
func stamp(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}
