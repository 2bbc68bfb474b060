package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type endpointCmd struct {
	Create endpointCreateCmd `cmd:"" help:"Create an endpoint, whose workers answer jobs or HTTP requests."`
	List   listCmd           `cmd:"" help:"List your endpoints."`
	Get    endpointGetCmd    `cmd:"" help:"Show an endpoint: its jobs, its workers, and why jobs wait."`
	Update endpointUpdateCmd `cmd:"" help:"Change an endpoint. What its workers are made from is changed step by step."`
	Delete deleteAskingCmd   `cmd:"" help:"Delete endpoints with their jobs."`

	Workers  endpointWorkersCmd  `cmd:"" help:"List an endpoint's workers: what each does, and what it waits for."`
	Logs     endpointLogsCmd     `cmd:"" help:"Show the log of a worker."`
	Releases endpointReleasesCmd `cmd:"" help:"List what changed an endpoint's workers, and how far the newest change has come."`
}

var endpoints = noun[v2.Endpoint, v2.EndpointList]{
	kind: "endpoint", loss: "all its jobs", all: (*client.Client).Endpoints, one: (*client.Client).Endpoint, remove: (*client.Client).DeleteEndpoint,
	items:   func(l v2.EndpointList) []v2.Endpoint { return l.Endpoints },
	thing:   func(e v2.Endpoint) thing { return thing{e.ID, e.Name} },
	columns: []string{"ID", "NAME", "IMAGE", "COMPUTE", "WORKERS", "~SCALING", "~VERSION", "AGE"},
	row: func(e v2.Endpoint, now time.Time) []string {
		return []string{
			e.ID, e.Name, e.Image, endpointCompute(e), fmt.Sprintf("%d to %d", e.Workers.Min, e.Workers.Max), scalingText(e.Scaling),
			fmt.Sprint(e.Version), age(now, e.CreatedAt.Time),
		}
	},
}

// endpointRef is an endpoint on the command line.
type endpointRef struct {
	Endpoint string `arg:"" placeholder:"ENDPOINT" help:"Id of the endpoint, or its name where only one has it."`
}

// endpointCompute shows what one worker has, with all choices.
func endpointCompute(e v2.Endpoint) string {
	switch {
	case e.GPU != nil:
		return fmt.Sprintf("%d × %s", e.GPU.Count, strings.Join(e.GPU.Pools, ", "))
	case len(e.CPU) > 0:
		var out []string
		for _, c := range e.CPU {
			out = append(out, compute(v2.Pod{CPU: &c}))
		}
		return strings.Join(out, ", ")
	}
	return "-"
}

func scalingText(s v2.Scaling) string {
	switch {
	case s.QueueDelay != nil:
		return fmt.Sprintf("jobs wait %g s", *s.QueueDelay)
	case s.RequestCount != nil:
		return fmt.Sprintf("%d to a worker", *s.RequestCount)
	}
	return s.Type
}

type endpointGetCmd struct{ endpointRef }

// Run shows an endpoint. Who may not see its jobs sees the rest.
func (cmd endpointGetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		e, err := c.Endpoint(ctx, id)
		if err != nil || !a.forPeople() {
			return reply(a, e, err, nil)
		}
		var health *v2.EndpointHealth
		if got, err := c.EndpointHealth(ctx, id); err == nil {
			health = &got.Value
		}
		return a.page(endpointSheet(e.Value, health))
	})
}

func endpointSheet(e v2.Endpoint, health *v2.EndpointHealth) string {
	jobs, workers := "", ""
	if health != nil {
		jobs, workers = jobsText(health.Jobs), workersText(health.Workers)+"; "
	}
	asked, limit, retries, fails := "Jobs", "Jobs may run", fmt.Sprint(e.Retries), secondsText(e.FailAfter)
	if e.Type == "LOAD_BALANCER" { // which repeats nothing, and where nothing waits for long
		asked, limit, retries, fails = "Requests", "Answers within", "", ""
	}
	fields := [][2]string{
		{"Id", e.ID},
		{"Name", e.Name},
		{"Type", e.Type},
		{"Reason", string(e.Reason)},
		{"Rollout", rolloutText(e.Rollout)},
		{asked, jobs},
		{"Workers", fmt.Sprintf("%s%d to %d", workers, e.Workers.Min, e.Workers.Max)},
		{"Scaling", scalingText(e.Scaling)},
		{"Idle for", secondsText(e.Workers.IdleTimeout)},
		{"FlashBoot", e.FlashBoot},
		{"Image", e.Image},
		{"Args", e.Args},
		{"Compute", endpointCompute(e)},
		{"Disk", fmt.Sprintf("%d GB", e.Disk)},
		{"Ports", strings.Join(e.Ports, ", ")},
		{"Env", strings.Join(slices.Sorted(maps.Keys(e.Env)), ", ")}, // names alone: values are often secret
		{"Registry", string(e.Registry)},
		{"Template", string(e.Template)},
		{"Data centers", strings.Join(e.DataCenterIDs, ", ")},
		{"Volumes", strings.Join(e.NetworkVolumes, ", ")},
		{"Models", strings.Join(e.Models, ", ")},
		{limit, orAny(time.Duration(e.Timeout) * time.Millisecond)},
		{"Retries", retries},
		{"Fails after", fails},
		{"Webhooks", webhooksText(e.WebhookSigned)},
		{"Version", fmt.Sprint(e.Version)},
		{"Created", when(&e.CreatedAt)},
	}
	if e.GPU != nil {
		fields = append(fields, [2]string{"Without", strings.Join(e.GPU.ExcludedTypes, ", ")},
			[2]string{"CUDA", first(strings.Join(e.GPU.AllowedCUDA, ", "), string(e.GPU.MinCUDA))})
	}
	switch at := e.RequestURLs; {
	case at == nil:
	case at.Base != "":
		fields = append(fields, [2]string{"Address", at.Base}, [2]string{"Longest wait", (time.Duration(e.WaitTimeout) * time.Second).String()},
			[2]string{"Largest body", fmt.Sprintf("%d MB", e.MaxBody)})
	default:
		fields = append(fields, [2]string{"Run", at.Run}, [2]string{"Run and wait", at.RunSync})
	}
	return sheet(fields)
}

func webhooksText(signed bool) string {
	if signed {
		return "signed"
	}
	return ""
}

func secondsText(n int) string {
	if n == 0 {
		return ""
	}
	return (time.Duration(n) * time.Second).String()
}

func orAny(d time.Duration) string {
	if d == 0 {
		return "any time"
	}
	return d.String()
}

// jobsText counts an endpoint's jobs; what there is none of is left out, but not how many wait.
func jobsText(j v2.EndpointJobs) string {
	out := fmt.Sprintf("%d in the queue", j.InQueue)
	for _, n := range []struct {
		n    uint64
		what string
	}{{uint64(max(0, j.InProgress)), "in progress"}, {j.Completed, "completed"}, {j.Failed, "failed"}, {j.Retried, "given out again"}} {
		if n.n > 0 {
			out += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return out
}

// workersText counts workers by what they do.
func workersText(w v2.EndpointWorkers) string {
	var out []string
	for _, n := range []struct {
		n    int
		what string
	}{
		{w.Running, "running"}, {w.Idle, "idle"}, {w.Initializing, "initializing"}, {w.Throttled, "without room"}, {w.Unhealthy, "unhealthy"},
	} {
		if n.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n.n, n.what))
		}
	}
	return first(strings.Join(out, ", "), "none")
}

// rolloutText says how far a release has come; empty: there is none under way.
func rolloutText(r *v2.Rollout) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d workers are of the newest release", r.WorkersOnLatest, r.WorkersTotal)
}

type endpointWorkersCmd struct{ endpointRef }

// Run lists workers.
func (cmd endpointWorkersCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		workers, err := c.Workers(ctx, id)
		return reply(a, workers, err, func(l v2.WorkerList) string { return workerTable(l, a.now()) })
	})
}

func workerTable(l v2.WorkerList, now time.Time) string {
	var rows [][]string
	for _, w := range l.Workers {
		status := w.Status
		if w.IsFrozen {
			status += ", frozen"
		}
		if w.IsStale {
			status += ", stale"
		}
		gpu := first(string(w.GPUTypeID), "-")
		if w.GPUCount > 1 {
			gpu = fmt.Sprintf("%d × %s", w.GPUCount, gpu)
		}
		rows = append(rows, []string{w.ID, status, fmt.Sprint(w.Version), gpu, first(string(w.DataCenterID), "-"), age(now, w.CreatedAt.Time), string(w.Reason)})
	}
	return table([]string{"ID", "STATUS", "VERSION", "GPU", "~DATA CENTER", "AGE", "REASON"}, rows)
}

type endpointLogsCmd struct {
	endpointRef
	Worker string `arg:"" optional:"" placeholder:"WORKER" help:"Id of the worker; without it, the newest one's log."`
	logFlags
}

// Run shows the log of a worker.
func (cmd endpointLogsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.read(a, func(q client.LogQuery, on client.LogEvents) error {
		return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
			worker := cmd.Worker
			if worker == "" {
				all, err := c.Workers(ctx, id)
				if err != nil {
					return err
				}
				if len(all.Value.Workers) == 0 {
					return errors.New("the endpoint has no workers now; gantry endpoint get says why")
				}
				worker = all.Value.Workers[len(all.Value.Workers)-1].ID
			}
			return c.WorkerLogs(ctx, id, worker, q, on)
		})
	})
}

type endpointReleasesCmd struct{ endpointRef }

// Run lists releases.
func (cmd endpointReleasesCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		releases, err := c.Releases(ctx, id)
		return reply(a, releases, err, func(l v2.ReleaseList) string { return releaseTable(l, a.now()) })
	})
}

func releaseTable(l v2.ReleaseList, now time.Time) string {
	var rows [][]string
	for _, r := range l.Releases {
		var changed []string
		for _, d := range r.Diff {
			changed = append(changed, d.Field)
		}
		rows = append(rows, []string{
			fmt.Sprint(r.Version), first(strings.Join(changed, ", "), "-"), fmt.Sprint(r.WorkerCount), first(string(r.CreatedBy), "-"), age(now, r.CreatedAt.Time),
		})
	}
	return table([]string{"VERSION", "CHANGED", "WORKERS", "~KEY", "AGE"}, rows)
}
