package sim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/replica"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
)

func jobsDir(dir string) string { return filepath.Join(dir, "jobs") }

// createJobs makes the member's part in the group that has the jobs, which has none.
func (m *member) createJobs() error {
	if !m.world.serverless {
		return nil
	}
	return errors.Join(os.MkdirAll(jobsDir(m.dir), 0o700), replica.Create(jobsDir(m.dir)))
}

// openJobs opens it. Its log is on the disk on which the control plane's is.
func (p *process) openJobs() (err error) {
	w := p.world
	if !w.serverless {
		return nil
	}
	if p.jobs.Jobs, err = jobs.Open(jobsDir(p.dir)); err != nil {
		return err
	}
	p.jobRaft = w.jobRafts.open(p.addr)
	p.jobs.Node, err = replica.Open(replica.Config{
		Dir: jobsDir(p.dir), ID: p.id, Address: p.addr, Machine: p.jobs.Jobs, Transport: p.jobRaft, Log: w.log.With("at", p.name, "group", "jobs"),
		Fatal: p.fatal, HeartbeatTimeout: raftTimeout, HangLimit: hangLimit, DiskUsed: p.disk.used,
		WrapLog:           func(l replica.Log) replica.Log { return simLog{l, p.disk} },
		SnapshotThreshold: w.snapshotEvery, SnapshotInterval: snapshotInterval, TrailingLogs: w.trailing,
	})
	if err != nil {
		return errors.Join(err, p.jobRaft.Close(), p.jobs.Jobs.Close())
	}
	return nil
}

// newWorkers wires what brings jobs and workers together, as gantry-scheduler does.
func (p *process) newWorkers() {
	if p.jobs.Node == nil {
		return
	}
	p.workers = workers.New(workers.Config{
		Store: p.store, Node: p.node, Jobs: p.jobs, Pods: p.service, Live: p.dispatch.Live, Tell: p.tell, Log: p.world.log.With("at", p.name), Now: p.now,
	})
	p.service.Desks = p.workers
}

// tell is a webhook's receiver, which refuses every third call.
func (p *process) tell(_ context.Context, id queue.ID) error {
	if _, _, _, err := p.service.EndedJob(id); fleet.CodeOf(err) != fleet.CodeNotFound && err != nil {
		return err
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.world.hooked++
	if p.world.hooked%3 == 0 {
		return errors.New("the receiver of the webhook is away")
	}
	return nil
}

// closeJobs closes it behind a process that is dead, once what it applied is known.
func (p *process) closeJobs() error {
	if p.jobs.Node == nil {
		return nil
	}
	err := p.jobs.Close()
	p.world.learnJobs(p)
	return errors.Join(err, p.jobs.Jobs.Close())
}

// task is a job as one scheduler has it.
type task struct {
	queue.Job
	endpoint fleet.EndpointID
}

// backlog is what there is of jobs at one index.
type backlog struct {
	index  uint64
	jobs   map[queue.ID]task
	counts map[fleet.EndpointID]queue.Counts
	image  queue.Image
}

// readJobs reads what a scheduler has applied.
func readJobs(m *jobs.Machine) (out backlog) {
	out = backlog{jobs: map[queue.ID]task{}, counts: map[fleet.EndpointID]queue.Counts{}}
	out.index = m.Index()
	m.View(func(q *queue.Queue) { out.image = q.Image() })
	for _, e := range out.image.Endpoints {
		out.counts[e.ID] = e.Counts
		for i := range e.Jobs {
			out.jobs[e.Jobs[i].ID] = task{e.Jobs[i], e.ID}
		}
	}
	return out
}

// text is the same for the same jobs; each member keeps bodies in places of its own.
func (b *backlog) text() string {
	for _, e := range b.image.Endpoints {
		for i := range e.Jobs {
			j := &e.Jobs[i]
			j.Input.At = 0
			if j.Run != nil {
				j.Run.Output.At = 0
				for k := range j.Run.Chunks {
					j.Run.Chunks[k].At = 0
				}
			}
		}
	}
	text, err := json.Marshal(b.image)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// learnJobs takes over what a scheduler has applied of jobs, if nobody has applied more.
func (w *world) learnJobs(p *process) {
	if p.jobs.Node == nil {
		return
	}
	w.mu.Lock()
	known := w.backlog.index
	w.mu.Unlock()
	if p.jobs.Jobs.Index() <= known {
		return
	}
	now := readJobs(p.jobs.Jobs)
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.index > w.backlog.index {
		w.backlog = now
	}
}

// jobsNow returns the jobs as the scheduler has them that has applied most.
func (w *world) jobsNow() backlog {
	for _, p := range w.lived() {
		w.learnJobs(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backlog
}

// lived returns all processes that were not cleared up behind.
func (w *world) lived() (out []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if p := w.lives[m]; p != nil {
			out = append(out, p)
		}
	}
	return out
}
