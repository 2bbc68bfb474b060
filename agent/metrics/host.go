package metrics

import (
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"gantry/agent/inventory"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/usage"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

// View is what is shown of the host. Its functions answer from memory.
type View struct {
	Records    func() []pod.Record
	Generation func() uint64 // of the newest orders on disk
	Inventory  func() fleet.Inventory
	Tables     *inventory.Tables
	Usage      func() usage.Snapshot
	Networks   func() overlay.Stats
	Backends   func() []volume.Health // of network volumes; nil: none can be mounted
	Heard      func() time.Time       // when a scheduler was heard last; zero: never
	Expiry     func() time.Time       // of the host's certificate; zero: not known
}

// Show lets those who scrape see the host and its pods.
func (m *Metrics) Show(v View) { m.registry.MustRegister(newCollector(m, v)) }

// collector shows what is in memory.
type collector struct {
	View
	metrics *Metrics
	memory  int64 // bytes that the machine has
	descs   map[string]*prometheus.Desc
}

// seen is a series as the scrape describes it.
type seen struct {
	name, help string
	labels     []string
}

var hostSeries = []seen{
	{"gantry_host_info", "1, with the versions of agent, kernel and container runtime.", []string{"version", "kernel", "runtime"}},
	{"gantry_host_cpu_cores", "Processors of the machine.", nil},
	{"gantry_host_cpu_offered_cores", "Processors that pods may have.", nil},
	{"gantry_host_cpu_ordered_cores", "Processors reserved for pods on this host.", nil},
	{"gantry_host_memory_bytes", "Memory of the machine.", nil},
	{"gantry_host_memory_offered_bytes", "Memory that pods may have.", nil},
	{"gantry_host_memory_ordered_bytes", "Memory reserved for pods on this host.", nil},
	{"gantry_host_disk_bytes", "Size of the file system of the agent's data, without its own reserve.", nil},
	{"gantry_host_disk_used_bytes", "Bytes used on the file system of the agent's data.", nil},
	{"gantry_host_disk_offered_bytes", "Disk that pods may have.", nil},
	{"gantry_host_disk_ordered_bytes", "Disk reserved for pods on this host.", nil},
	{"gantry_host_pods", "Pods on the host, by the state of their container (waiting, running, ended) and by goal (run, stop, gone).", []string{"status", "goal"}},
	{"gantry_host_conditions", "1 for each condition of the host, 2 when the host takes no new pods because of it.", []string{"code"}},
	{"gantry_host_table_entries", "Size of a kernel table that all pods of the host share; absent while unknown.", []string{"table"}},
	{"gantry_host_table_used_entries", "Entries used of that table; absent while unknown.", []string{"table"}},
	{"gantry_host_images", "Images on the host, at most 200.", nil},
	{"gantry_host_image_disk_bytes", "Size of the file system of the images; absent while unknown.", nil},
	{"gantry_host_image_disk_used_bytes", "Bytes used on the file system of the images; images are removed when it is too full.", nil},
	{"gantry_host_model_cache_bytes", "Bytes that the cache of models may have; absent where there is none.", nil},
	{"gantry_host_model_cache_used_bytes", "Bytes of the cache of models, with those of models being fetched; absent where there is none.", nil},
	{"gantry_volume_backend_up", "1 while the backend of network volumes that is mounted here answers, 0 while it does not.", []string{"backend"}},
	{"gantry_host_gpu_info", "1 for each GPU.", []string{"gpu", "type"}},
	{"gantry_host_gpu_healthy", "1 while the GPU takes pods, 0 while it is out of placement.", []string{"gpu"}},
	{"gantry_host_gpu_memory_bytes", "Memory of the GPU.", []string{"gpu"}},
	{"gantry_host_gpu_utilization_ratio", "How busy the GPU is, 0 to 1; absent while it cannot be read.", []string{"gpu"}},
	{"gantry_host_gpu_memory_utilization_ratio", "How busy the GPU's memory is, 0 to 1; absent while it cannot be read.", []string{"gpu"}},
}

var agentSeries = []seen{
	{"gantry_agent_session_connected", "1 while the agent has a session with a scheduler.", nil},
	{"gantry_agent_session_heard_timestamp_seconds", "When a scheduler was last heard; 0: never.", nil},
	{"gantry_agent_containerd_reachable", "1 if containerd answered the newest check, which runs every 10 s.", nil},
	{"gantry_agent_sample_timestamp_seconds", "When the pods' resource use was last sampled; 0: never.", nil},
	{"gantry_agent_sample_duration_seconds", "Duration of the newest sample of the pods' resource use.", nil},
	{"gantry_agent_ledger_generation", "Generation of the newest assignments on disk.", nil},
	{"gantry_agent_certificate_expiry_timestamp_seconds", "When the host's certificate expires.", nil},
}

var podLabel = []string{"pod"}

var podSeries = []seen{
	{"gantry_pod_cpu_seconds_total", "Processor time of the pod's container since it was created.", podLabel},
	{"gantry_pod_cpu_limit_cores", "Processors that the pod may use.", podLabel},
	{"gantry_pod_memory_bytes", "Memory of the pod without reclaimable cache.", podLabel},
	{"gantry_pod_memory_limit_bytes", "Memory that the pod may use.", podLabel},
	{"gantry_pod_disk_bytes", "Bytes written by the container and kept; absent while unreadable.", podLabel},
	{"gantry_pod_disk_limit_bytes", "Bytes that the container may write and keep; absent while unknown.", podLabel},
	{"gantry_pod_network_receive_bytes_total", "Bytes received by the pod since its network was created.", podLabel},
	{"gantry_pod_network_transmit_bytes_total", "Bytes sent by the pod since its network was created.", podLabel},
	{"gantry_pod_gpu_utilization_ratio", "How busy the pod's GPUs are, 0 to 1, on average; absent without GPUs.", podLabel},
	{"gantry_pod_gpu_memory_utilization_ratio", "How busy the memory of the pod's GPUs is, 0 to 1, on average; absent without GPUs.", podLabel},
}

func newCollector(m *Metrics, v View) *collector {
	s := &collector{View: v, metrics: m, descs: map[string]*prometheus.Desc{}}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		s.memory = int64(info.Totalram) * int64(info.Unit) //nolint:gosec // below 2^63
	}
	for _, group := range [][]seen{hostSeries, networkSeries, agentSeries, podSeries} {
		for _, x := range group {
			s.descs[x.name] = prometheus.NewDesc(x.name, x.help, x.labels, nil)
		}
	}
	return s
}

// Describe implements prometheus.Collector.
func (s *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		for i, l := range labels {
			labels[i] = strings.ToValidUTF8(l, "") // the library takes nothing else
		}
		out <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, v, labels...)
	}
	records, inv, use := s.Records(), s.Inventory(), s.Usage()
	s.host(gauge, inv)
	s.Tables.Each(func(label string, used, size int64) {
		gauge("gantry_host_table_used_entries", float64(used), label)
		gauge("gantry_host_table_entries", float64(size), label)
	})
	s.ordered(gauge, records)
	gauge("gantry_host_disk_bytes", float64(use.Disk.Size))
	gauge("gantry_host_disk_used_bytes", float64(use.Disk.Used))
	gauge("gantry_agent_sample_timestamp_seconds", stamp(use.At))
	gauge("gantry_agent_sample_duration_seconds", use.Took.Seconds())
	for _, g := range inv.GPUs {
		s.gpu(gauge, g, use.GPUs)
	}
	s.agent(gauge)
	s.network(out, gauge)
	for _, rec := range records {
		x, ok := use.Pods[rec.Assignment.Pod]
		if ok && usage.Running(rec) && x.Incarnation == rec.Assignment.Incarnation {
			s.pod(out, gauge, rec, x)
		}
	}
}

type emit func(name string, v float64, labels ...string)

func (s *collector) host(gauge emit, inv fleet.Inventory) {
	gauge("gantry_host_info", 1, inv.AgentVersion, inv.Kernel, inv.Runtime)
	gauge("gantry_host_cpu_cores", float64(runtime.NumCPU()))
	gauge("gantry_host_cpu_offered_cores", float64(inv.Total.MilliCPU)/1000)
	gauge("gantry_host_memory_bytes", float64(s.memory))
	gauge("gantry_host_memory_offered_bytes", float64(inv.Total.MemoryMB*fleet.MB))
	gauge("gantry_host_disk_offered_bytes", float64(inv.Total.DiskGB*fleet.GB))
	gauge("gantry_host_images", float64(len(inv.Images)))
	if cache := s.metrics.modelCache.Load(); cache != nil {
		gauge("gantry_host_model_cache_bytes", float64(cache.Size))
		gauge("gantry_host_model_cache_used_bytes", float64(cache.Used))
	}
	if disk := s.metrics.imageDisk.Load(); disk != nil {
		gauge("gantry_host_image_disk_bytes", float64(disk.Size))
		gauge("gantry_host_image_disk_used_bytes", float64(disk.Used))
	}
	codes := map[string]float64{}
	for _, n := range inv.Conditions {
		v := 1.0
		if n.Severe {
			v = 2
		}
		codes[n.Code] = max(codes[n.Code], v)
	}
	if s.Backends != nil {
		for _, h := range s.Backends() {
			gauge("gantry_volume_backend_up", flag(h.Down.IsZero()), string(h.Backend))
		}
	}
	for code, v := range codes {
		gauge("gantry_host_conditions", v, code)
	}
}

// ordered tells what the orders of the pods sum up to. Of a pod that is being removed nothing is ordered.
func (s *collector) ordered(gauge emit, records []pod.Record) {
	var sum fleet.Resources
	number := map[[2]string]int{}
	for _, status := range []string{"waiting", "running", "ended"} {
		for _, goal := range []fleet.Goal{fleet.GoalRun, fleet.GoalStop, fleet.GoalGone} {
			number[[2]string{status, string(goal)}] = 0
		}
	}
	for _, rec := range records {
		a, status := rec.Assignment, "waiting"
		switch {
		case usage.Running(rec):
			status = "running"
		case rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation:
			status = "ended"
		}
		if key := [2]string{status, string(a.Goal)}; a.Goal == fleet.GoalRun || a.Goal == fleet.GoalStop || a.Goal == fleet.GoalGone {
			number[key]++
		}
		if a.Goal != fleet.GoalGone {
			sum.MilliCPU += a.Limits.MilliCPU
			sum.MemoryMB += a.Limits.MemoryMB
			sum.DiskGB += a.Limits.DiskGB
		}
	}
	for key, n := range number {
		gauge("gantry_host_pods", float64(n), key[0], key[1])
	}
	gauge("gantry_host_cpu_ordered_cores", float64(sum.MilliCPU)/1000)
	gauge("gantry_host_memory_ordered_bytes", float64(sum.MemoryMB*fleet.MB))
	gauge("gantry_host_disk_ordered_bytes", float64(sum.DiskGB*fleet.GB))
}

func (s *collector) gpu(gauge emit, g fleet.GPU, use map[string]fleet.GPUUse) {
	gauge("gantry_host_gpu_info", 1, g.UUID, g.Type)
	gauge("gantry_host_gpu_healthy", flag(g.Sick == ""), g.UUID)
	gauge("gantry_host_gpu_memory_bytes", float64(g.MemoryMB*fleet.MB), g.UUID)
	if u, ok := use[g.UUID]; ok {
		gauge("gantry_host_gpu_utilization_ratio", ratio(u.Util), g.UUID)
		gauge("gantry_host_gpu_memory_utilization_ratio", ratio(u.MemoryUtil), g.UUID)
	}
}

func (s *collector) agent(gauge emit) {
	gauge("gantry_agent_session_connected", flag(s.metrics.connected.Load()))
	gauge("gantry_agent_session_heard_timestamp_seconds", stamp(s.Heard()))
	gauge("gantry_agent_containerd_reachable", flag(s.metrics.reachable.Load()))
	gauge("gantry_agent_ledger_generation", float64(s.Generation()))
	if ends := s.Expiry(); !ends.IsZero() {
		gauge("gantry_agent_certificate_expiry_timestamp_seconds", stamp(ends))
	}
}

func (s *collector) pod(out chan<- prometheus.Metric, gauge emit, rec pod.Record, x usage.Sample) {
	a := rec.Assignment
	id := string(a.Pod)
	counter := func(name string, v float64) {
		out <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, v, id)
	}
	counter("gantry_pod_cpu_seconds_total", x.Use.CPU.Seconds())
	gauge("gantry_pod_cpu_limit_cores", float64(a.Limits.MilliCPU)/1000, id)
	gauge("gantry_pod_memory_bytes", float64(x.Use.Memory), id)
	gauge("gantry_pod_memory_limit_bytes", float64(a.Limits.MemoryMB*fleet.MB), id)
	if x.Use.DiskSize > 0 {
		gauge("gantry_pod_disk_bytes", float64(x.Use.Disk), id)
		gauge("gantry_pod_disk_limit_bytes", float64(x.Use.DiskSize), id)
	}
	counter("gantry_pod_network_receive_bytes_total", float64(x.Net.Received))
	counter("gantry_pod_network_transmit_bytes_total", float64(x.Net.Sent))
	if n := float64(len(x.GPUs)); n > 0 {
		var busy, memory float64
		for _, g := range x.GPUs {
			busy += ratio(g.Util)
			memory += ratio(g.MemoryUtil)
		}
		gauge("gantry_pod_gpu_utilization_ratio", busy/n, id)
		gauge("gantry_pod_gpu_memory_utilization_ratio", memory/n, id)
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func ratio(percent int) float64 { return float64(min(max(percent, 0), 100)) / 100 }

// stamp is a time as Prometheus writes it; 0 stands for one that is not known.
func stamp(t time.Time) float64 { return float64(agentrpc.Nanoseconds(t)) / 1e9 }
