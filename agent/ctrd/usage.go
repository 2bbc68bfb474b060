package ctrd

import (
	"context"
	"fmt"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/typeurl/v2"

	"gantry/agent/pod"
	"gantry/fleet"
)

// Usage reads what the pod uses now. A pod without a running process is an error of class Retry. What is
// not known of its disk is left out.
func (r *Runtime) Usage(ctx context.Context, id fleet.PodID) (pod.Usage, error) {
	out, err := r.usage(ctx, id)
	if err != nil {
		return out, err
	}
	if d, err := r.cfg.Disks.Usage(ctx, string(id)); err == nil {
		out.Disk, out.DiskSize = d.Used, d.Size
	}
	return out, nil
}

func (r *Runtime) usage(ctx context.Context, id fleet.PodID) (pod.Usage, error) {
	const op = "read the pod's use"
	resp, err := r.client.TaskService().Metrics(r.in(ctx), &tasks.MetricsRequest{Filters: []string{"id==" + string(id)}})
	if err != nil {
		return pod.Usage{}, fault(op, native(err))
	}
	if len(resp.Metrics) == 0 || resp.Metrics[0].Data == nil {
		return pod.Usage{}, &pod.Error{Class: pod.Retry, Sentence: "the pod does not run"}
	}
	data, err := typeurl.UnmarshalAny(resp.Metrics[0].Data)
	if err != nil {
		return pod.Usage{}, fault(op, err)
	}
	switch m := data.(type) {
	case *cgroup1.Metrics:
		mem := m.GetMemory()
		return load(m.GetCPU().GetUsage().GetTotal(), mem.GetUsage().GetUsage(), mem.GetTotalInactiveFile()), nil
	case *cgroup2.Metrics:
		mem := m.GetMemory()
		return load(m.GetCPU().GetUsageUsec()*1000, mem.GetUsage(), mem.GetInactiveFile()), nil
	}
	return pod.Usage{}, fault(op, fmt.Errorf("metrics of type %T", data))
}

func load(cpuNanos, memory, reclaimable uint64) pod.Usage {
	return pod.Usage{CPU: time.Duration(cpuNanos), Memory: int64(memory - min(memory, reclaimable))}
}
