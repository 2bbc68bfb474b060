package plane

import (
	"context"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/balance"
	"gantry/scheduler/jobs"
	"gantry/scheduler/replica"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
)

// WithJobs gives the plane a group that has jobs, of one member. Its log and its files are real. It is called before the plane is used.
func (p *Plane) WithJobs() {
	p.t.Helper()
	dir := p.t.TempDir()
	m, err := jobs.Open(dir)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = m.Close() })
	if err := replica.Create(dir); err != nil {
		p.t.Fatal(err)
	}
	node, err := replica.Open(replica.Config{
		Dir: dir, ID: "a", Address: "a", Machine: m, Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { p.t.Error(err) },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := node.Close(); err != nil {
			p.t.Error(err)
		}
	})
	if err := node.Bootstrap(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	for node.Barrier(p.t.Context()) != nil {
		if err := sleep.For(p.t.Context(), time.Millisecond); err != nil {
			p.t.Fatal("the group that has the jobs has no leader:", err)
		}
	}
	p.Jobs = jobs.Group{Node: node, Jobs: m}
}

// DoJob commits a command about jobs.
func (p *Plane) DoJob(cmd jobs.Command) any {
	p.t.Helper()
	value, err := jobs.One[any](p.t.Context(), p.Jobs, cmd)
	if err != nil {
		p.t.Fatalf("%T: %v", cmd, err)
	}
	return value
}

// TakeJob plays a worker that takes the next job of an endpoint, and returns it with its body.
func (p *Plane) TakeJob(endpoint fleet.EndpointID) (queue.From, []byte) {
	p.t.Helper()
	return p.GiveJob(endpoint, "worker00000001")
}

// GiveJob is TakeJob by a worker of the test's choice.
func (p *Plane) GiveJob(endpoint fleet.EndpointID, worker fleet.PodID) (queue.From, []byte) {
	p.t.Helper()
	taken, _ := p.DoJob(jobs.Take{Take: queue.Take{At: queue.At(p.Now()), Endpoint: endpoint, Worker: worker, Max: 1}}).([]jobs.Job)
	if len(taken) != 1 {
		p.t.Fatalf("%d jobs were taken", len(taken))
	}
	_, body, err := p.Jobs.Jobs.Read(taken[0].ID, queue.At(p.Now()), func(j *queue.Job) queue.Body { return j.Input })
	if err != nil {
		p.t.Fatal(err)
	}
	return queue.From{At: queue.At(p.Now()), Job: taken[0].ID, Worker: worker}, body
}

// ReadyWorker plays a worker whose container runs and that asks for its first job.
func (p *Plane) ReadyWorker(id fleet.PodID) {
	p.t.Helper()
	for _, e := range []fleet.Trigger{fleet.EventStarting, fleet.EventRunning} {
		if err := p.Report(id, e); err != nil {
			p.t.Fatal(err)
		}
	}
	p.Do(state.ReadyWorkers{Pods: []fleet.PodID{id}, At: p.Now()})
}

// Chunk plays a worker that sends a chunk of a job's stream.
func (p *Plane) Chunk(from queue.From, number int, chunk string) {
	p.t.Helper()
	p.DoJob(jobs.Chunk{Chunk: queue.Chunk{From: from, Number: uint32(number)}, Content: jobs.Content{Data: []byte(chunk)}}) //nolint:gosec // small
}

// FinishJob plays a worker that ends a job. The output of one that failed is its error.
func (p *Plane) FinishJob(from queue.From, failed bool, output string) {
	p.t.Helper()
	p.DoJob(jobs.Finish{Finish: queue.Finish{From: from, Failed: failed}, Content: jobs.Content{Data: []byte(output)}})
}

// Workers returns what brings jobs and workers of the plane together, and what its service asks about them from now on; it does
// nothing before its Lead. WithJobs comes before it.
func (p *Plane) Workers(tell func(context.Context, queue.ID) error) *workers.Workers {
	w := workers.New(workers.Config{
		Tell: tell, Store: p.store, Node: node{p}, Jobs: p.Jobs, Pods: p.Service, Live: p.hosts.Live, Log: slog.New(slog.DiscardHandler), Now: p.Now,
		Health: func(id fleet.EndpointID, pod fleet.PodID) (balance.Health, bool) {
			if p.balancer == nil {
				return balance.Health{}, false
			}
			return p.balancer.Health(id, pod)
		},
	})
	p.Desks = w
	return w
}

// Balancer returns what brings requests to the plane's workers, whose leader is as of now; it does nothing before its Run. It comes before
// Workers.
func (p *Plane) Balancer(pace balance.Pace, leader func() *workers.Workers) *balance.Balancer {
	p.balancer = balance.New(balance.Config{
		Store: routes.Of(p.store), Member: "member00000001", Open: p.hosts.OpenPort, Leads: func() bool { return true }, Pace: pace, Now: p.Now,
		Tell:    func(_ context.Context, r balance.Report) (balance.Word, error) { return leader().Report(r), nil },
		Changed: func(id fleet.EndpointID) { leader().HealthChanged(id) }, Log: slog.New(slog.DiscardHandler),
	})
	return p.balancer
}
