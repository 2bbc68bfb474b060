// Package metrics counts what happens on a host and shows it, with what the host's rooms know, to Prometheus. A scrape reads what is in
// memory: it asks neither the container runtime nor the driver of GPUs. Every label is the host's: a pod's id, a GPU's UUID, a condition's
// code; a series of a pod is there as long as the pod is on the host.
package metrics

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/agent/storage"
	"gantry/fleet"
	"gantry/internal/scrape"
)

const (
	stuckAfter      = time.Minute // without a reading of what the pods use
	metricsTextType = "text/plain; charset=utf-8"
)

// The steps of a start as the histogram names them.
const (
	tookPull    = "pull"
	tookNetwork = "network"
	tookDefine  = "define"
	tookTask    = "task"
	tookStart   = "start"
	tookAll     = "all"
)

// The results of work for network volumes.
const (
	workDone   = "done"
	workFailed = "failed"
)

// Metrics counts what happens on the host. Its methods are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	began    time.Time // ends of before are those of another agent's life

	starts, failures, exits, removals prometheus.Counter
	attempts, stood                   prometheus.Counter
	steps                             *prometheus.HistogramVec
	writes                            prometheus.Histogram
	removedImages                     prometheus.Counter
	modelBytes, removedModels         prometheus.Counter
	modelFetches                      *prometheus.CounterVec
	attachments                       prometheus.Histogram
	storageWork                       *prometheus.CounterVec
	connected, reachable              atomic.Bool
	modelCache                        atomic.Pointer[machine.Disk] // nil: there is none
	imageDisk                         atomic.Pointer[machine.Disk] // nil: not known
}

// New makes Metrics.
func New() *Metrics {
	m := &Metrics{registry: scrape.NewRegistry(), began: time.Now()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	m.starts = counter("gantry_agent_pod_starts_total", "Containers started since the agent started.")
	m.failures = counter("gantry_agent_pod_failures_total", "Pods that failed to start or lost their container, since the agent started.")
	m.exits = counter("gantry_agent_pod_exits_total", "Containers whose process exited, since the agent started.")
	m.removals = counter("gantry_agent_pod_removals_total", "Pods removed from the host completely, since the agent started.")
	m.attempts = counter("gantry_agent_session_attempts_total", "Attempts to reach a scheduler, since the agent started.")
	m.stood = counter("gantry_agent_sessions_total", "Sessions established with a scheduler since the agent started; all but the first are reconnects.")
	m.removedImages = counter("gantry_agent_images_removed_total", "Images removed to make room, since the agent started.")
	m.modelBytes = counter("gantry_agent_model_fetched_bytes_total", "Bytes of models received from the hub, since the agent started.")
	m.removedModels = counter("gantry_agent_models_removed_total", "Models removed to make room, since the agent started.")
	m.modelFetches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gantry_agent_model_fetches_total", Help: "Fetches of models that ended, by result (done, failed), since the agent started.",
	}, []string{"result"})
	m.steps = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "gantry_agent_pod_start_duration_seconds", Help: "How long the steps of starts took that succeeded; pull only where an image was pulled.",
		Buckets: append(prometheus.ExponentialBuckets(0.002, 2, 15), 120, 600, 3600),
	}, []string{"step"})
	m.writes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "gantry_agent_ledger_write_duration_seconds", Help: "How long writes of the ledger took, with the wait for the disk.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	})
	m.attachments = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "gantry_volume_attach_seconds", Help: "How long it took to attach a pod's network volume, where that succeeded.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2, 12),
	})
	m.storageWork = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gantry_storage_work_total", Help: "What was done for network volumes on backends that this host looks after, by work (make, remove, measure) and result (done, failed), since the agent began.",
	}, []string{"work", "result"})
	m.registry.MustRegister(m.attachments, m.storageWork, m.steps, m.writes, m.modelFetches)
	for _, result := range []string{workDone, workFailed} {
		m.modelFetches.WithLabelValues(result)
	}
	for _, step := range []string{tookPull, tookNetwork, tookDefine, tookTask, tookStart, tookAll} {
		m.steps.WithLabelValues(step)
	}
	for _, work := range storage.Kinds() {
		m.storageWork.WithLabelValues(work, workDone)
		m.storageWork.WithLabelValues(work, workFailed)
	}
	return m
}

// Models implements models.Metrics.
func (m *Metrics) Models(used, size int64) { m.modelCache.Store(&machine.Disk{Used: used, Size: size}) }

// Fetched implements models.Metrics.
func (m *Metrics) Fetched(bytes int64) { m.modelBytes.Add(float64(bytes)) }

// ModelFetch implements models.Metrics.
func (m *Metrics) ModelFetch(ok bool) {
	result := workFailed
	if ok {
		result = workDone
	}
	m.modelFetches.WithLabelValues(result).Inc()
}

// ModelsRemoved implements models.Metrics.
func (m *Metrics) ModelsRemoved(models int) { m.removedModels.Add(float64(models)) }

// Reported counts what a report tells.
func (m *Metrics) Reported(r pod.Report) {
	if r.At.Before(m.began) {
		return
	}
	switch r.Event {
	case fleet.EventRunning:
		m.started(r.Steps)
	case fleet.EventFailed:
		m.failures.Inc()
	case fleet.EventExited:
		m.exits.Inc()
	case pod.EventGone:
		m.removals.Inc()
	}
}

// started counts a start. One that this agent did not make from its first step on has no steps to tell.
func (m *Metrics) started(steps map[fleet.Step]time.Time) {
	if steps[fleet.StepReceived].IsZero() || steps[fleet.StepStarted].IsZero() {
		return
	}
	m.starts.Inc()
	for _, s := range []struct {
		name     string
		from, to fleet.Step
	}{
		{tookPull, fleet.StepPulling, fleet.StepPulled},
		{tookNetwork, fleet.StepPulled, fleet.StepNetworked},
		{tookDefine, fleet.StepNetworked, fleet.StepDefined},
		{tookTask, fleet.StepDefined, fleet.StepTasked},
		{tookStart, fleet.StepTasked, fleet.StepStarted},
		{tookAll, fleet.StepReceived, fleet.StepStarted},
	} {
		from, to := steps[s.from], steps[s.to]
		if !from.IsZero() && !to.Before(from) {
			m.steps.WithLabelValues(s.name).Observe(to.Sub(from).Seconds())
		}
	}
}

// Worked counts a piece of work for network volumes.
func (m *Metrics) Worked(kind string, failed bool) {
	result := workDone
	if failed {
		result = workFailed
	}
	m.storageWork.WithLabelValues(kind, result).Inc()
}

// Attempt counts a try to reach a scheduler.
func (m *Metrics) Attempt() {
	m.attempts.Inc()
}

// Session notes that a session stands; the function that it returns notes the end.
func (m *Metrics) Session() (ended func()) {
	m.stood.Inc()
	m.connected.Store(true)
	return func() { m.connected.Store(false) }
}

// Answered notes whether the container runtime answered a question.
func (m *Metrics) Answered(err error) {
	m.reachable.Store(err == nil)
}

// Room notes how many bytes are used of the disk of images, and how many may be.
func (m *Metrics) Room(used, size int64) {
	m.imageDisk.Store(&machine.Disk{Size: size, Used: used})
}

// Collected notes that images were removed to make room.
func (m *Metrics) Collected(images int) {
	m.removedImages.Add(float64(images))
}

// Attached notes how long it took to attach a network volume.
func (m *Metrics) Attached(took time.Duration) { m.attachments.Observe(took.Seconds()) }

// Written notes how long a write of the ledger took.
func (m *Metrics) Written(took time.Duration) { m.writes.Observe(took.Seconds()) }

// Server is what answers scrapers at addr, in the clear unless secure reads what shows who may ask. sampled is when the use of the pods
// was read last.
func (m *Metrics) Server(addr string, secure func() (scrape.Material, error), sampled func() time.Time, log *slog.Logger) scrape.Server {
	return scrape.Server{Addr: addr, Registry: m.registry, Healthz: healthz(sampled), Log: log, Secure: secure}
}

// healthz says whether the agent still goes round. Whether a scheduler or containerd can be reached is no
// question of its health: starting it anew would not help.
func healthz(sampled func() time.Time) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metricsTextType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if last := sampled(); !last.IsZero() && time.Since(last) > stuckAfter {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("what the pods use was not read since " + last.UTC().Format(time.RFC3339) + "\n"))
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	}
}
