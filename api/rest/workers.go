package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/v2"
	"gantry/fleet"
)

func (a *API) registerWorkers(n *endpointNoun) {
	rt := n.operation(http.MethodGet, "/{id}/workers", "", "", "Lists the workers of an endpoint that run or start, oldest first, with the numbers "+
		"of all by status. 404: the account has no such endpoint.", nil)
	rt.id, rt.summary, rt.out = "listEndpointWorkers", "List an endpoint's workers", exampleWorkers()
	on(a, rt, byID(n.kind(), a.listWorkers))
	rt = n.operation(http.MethodGet, "/{id}/releases", "", "", "Lists the versions of what an endpoint's workers are made from, oldest first: the last "+
		"20. 404: the account has no such endpoint.", nil)
	rt.id, rt.summary, rt.out = "listEndpointReleases", "List an endpoint's releases", exampleReleases()
	on(a, rt, byID(n.kind(), listReleases))
	a.registerLog(route{
		path: "/v2/serverless/{id}/workers/{workerId}/logs", id: "getWorkerLogs", tag: n.tag, summary: "Read or follow a worker's log",
		text: "Streams the worker's log as server-sent events. " + textLogs +
			"404: the account has no such endpoint, or that no such worker: one that has ended leaves no log." + textLogErrors,
		scope: auth.Read(n.group), params: []*huma.Param{n.id, workerIDParam()},
	}, a.workerLogs)
}

func workerIDParam() *huma.Param {
	p := pathParam("Worker identifier.", "w4n8k0zq5r7d2a")
	p.Name = "workerId"
	return p
}

func (a *API) listWorkers(ctx context.Context, svc EndpointService, id fleet.EndpointID, c *call, _ *none) (*v2.WorkerList, error) {
	of, err := svc.EndpointWorkers(ctx, c.who, id)
	if err != nil {
		return nil, err
	}
	out := &v2.WorkerList{Workers: []v2.Worker{}, EndpointVersion: of.Endpoint.Version(), Summary: v2.WorkerSummary{
		Running: of.Counts.Running, Idle: of.Counts.Idle, Initializing: of.Counts.Initializing, Throttled: of.Counts.Throttled,
		Unhealthy: of.Counts.Unhealthy, Total: of.Counts.Total(),
	}}
	for i := range of.Workers {
		out.Workers = append(out.Workers, workerRecord(&of.Workers[i], a.now()))
	}
	return out, nil
}

// workerRecord shows a worker as of now.
func workerRecord(w *fleet.WorkerView, now time.Time) v2.Worker {
	p := w.Pod
	out := v2.Worker{
		ID: string(p.ID), Status: string(w.Status), IsStale: w.Stale, IsFrozen: !p.Frozen.IsZero(), Version: p.Release,
		Image: v2.Text(p.Spec.Image), DataCenterID: v2.Text(p.DataCenter),
		StartedAt: v2.AtOrNull(p.StartedAt), CreatedAt: v2.At(p.CreatedAt), Reason: statusReason(&w.PodView),
	}
	if g := p.Spec.GPU; g != nil {
		out.GPUCount, out.GPUTypeID = g.Count, v2.Text(g.Type)
	}
	if w.Note.ColdStart > 0 {
		out.ColdStart = new(w.Note.ColdStart.Milliseconds())
	}
	if out.Reason == "" {
		out.Reason = v2.Text(w.Note.Reason)
	}
	if out.StartedAt != nil {
		out.Uptime = new(max(0, int64(now.Sub(p.StartedAt)/time.Second)))
	} else if out.Reason == "" {
		out.Reason = v2.Text(w.Live.Pull())
	}
	return out
}

func rolloutRecord(r fleet.Rollout) v2.Rollout {
	out := v2.Rollout{InProgress: r.InProgress(), WorkersOnLatest: r.Latest, WorkersTotal: r.Total, PercentOnLatest: 100}
	if r.Total > 0 {
		out.PercentOnLatest = r.Latest * 100 / r.Total
	}
	return out
}

func listReleases(ctx context.Context, svc EndpointService, id fleet.EndpointID, c *call, _ *none) (*v2.ReleaseList, error) {
	of, err := svc.EndpointWorkers(ctx, c.who, id)
	if err != nil {
		return nil, err
	}
	out := &v2.ReleaseList{Releases: []v2.Release{}, EndpointVersion: of.Endpoint.Version()}
	workers := map[uint64]int{}
	for _, w := range of.Workers {
		workers[w.Pod.Release]++
	}
	for _, r := range of.Endpoint.Releases {
		one := v2.Release{
			ID: r.ID, Version: r.Version, Source: "MANUAL", CreatedBy: v2.Text(r.By), WorkerCount: workers[r.Version], CreatedAt: v2.At(r.At),
			Diff: []v2.FieldChange{},
		}
		for _, change := range r.Changes {
			one.Diff = append(one.Diff, v2.FieldChange{Field: change.Field, Old: json.RawMessage(change.Old), New: json.RawMessage(change.New)})
		}
		out.Releases = append(out.Releases, one)
	}
	out.Rollout = rolloutRecord(fleet.Rollout{Latest: workers[out.EndpointVersion], Total: len(of.Workers)})
	return out, nil
}

func (a *API) workerLogs(ctx context.Context, c *call) error {
	id, err := pathID[fleet.EndpointID](c, "serverless endpoint")
	if err != nil {
		return err
	}
	worker := fleet.PodID(c.args.text("workerId"))
	if !fleet.ValidID(string(worker)) {
		return fleet.NotFound("worker")
	}
	return a.sendLog(ctx, c, func(ctx context.Context, sink fleet.LogSink) error {
		return part[EndpointService](a).WorkerLogs(ctx, c.who, id, worker, c.logQuery(), sink)
	})
}

func exampleWorkers() v2.WorkerList {
	return v2.WorkerList{
		Workers: []v2.Worker{{
			ID: "w4n8k0zq5r7d2a", Status: string(fleet.WorkerRunning), Version: 1, Image: "docker.io/library/nginx:1.29", GPUCount: 1,
			GPUTypeID: "NVIDIA H100 80GB HBM3", DataCenterID: "EU-RO-1", Uptime: new(int64(42)), StartedAt: new(exampleTime(1)), CreatedAt: exampleTime(0),
		}},
		Summary: v2.WorkerSummary{Running: 1, Total: 1}, EndpointVersion: 1,
	}
}

func exampleReleases() v2.ReleaseList {
	change := v2.FieldChange{Field: "image", Old: json.RawMessage(`"worker:1"`), New: json.RawMessage(`"worker:2"`)}
	return v2.ReleaseList{
		Releases: []v2.Release{
			{ID: "r2b6n8e4m7x1c9", Version: 1, Source: "MANUAL", CreatedAt: exampleTime(0), Diff: []v2.FieldChange{}},
			{ID: "r7x1c9v2b6n8e4", Version: 2, Source: "MANUAL", WorkerCount: 1, CreatedAt: exampleTime(1), Diff: []v2.FieldChange{change}},
		},
		Rollout: rolloutRecord(fleet.Rollout{Latest: 1, Total: 1}), EndpointVersion: 2,
	}
}
