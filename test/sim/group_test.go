package sim

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

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
}

// readJobs reads what a scheduler has applied.
func readJobs(m *jobs.Machine) (out backlog) {
	out = backlog{index: m.Index(), jobs: map[queue.ID]task{}, counts: map[fleet.EndpointID]queue.Counts{}}
	m.View(func(q *queue.Queue) {
		for _, id := range q.Endpoints() {
			out.counts[id] = q.Counts(id)
			all, _ := q.List(id, 0, math.MaxInt, func(*queue.Job) bool { return true })
			for _, j := range all {
				out.jobs[j.ID] = task{j.Copy(), id}
			}
		}
	})
	return out
}

// text is the same for the same jobs; each member keeps bodies in places of its own.
func (b *backlog) text() string {
	all := map[string]task{}
	for id, j := range b.jobs {
		j.Job = j.Copy()
		j.Input.At = 0
		if j.Run != nil {
			j.Run.Output.At = 0
			for k := range j.Run.Chunks {
				j.Run.Chunks[k].At = 0
			}
		}
		all[jobs.IDText(id, false)] = j
	}
	return inWords([]any{b.counts, all})
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

// leadJobs has the leader of the jobs' group hand it to the control plane's, as membership.Keeper.LeadJobs does.
func (p *process) leadJobs(ctx context.Context) error {
	return p.jobs.WhileLeader(ctx, func(ctx context.Context) error {
		for {
			changed := p.node.LeaderChanges()
			if err := p.handJobsOn(ctx); err != nil && ctx.Err() == nil {
				p.world.log.Warn("leadership of the jobs' group was not taken by the control plane's leader", "at", p.name, "err", err)
			}
			select {
			case <-changed:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

func (p *process) handJobsOn(ctx context.Context) error {
	leader, ok := p.node.Leader()
	if !ok || leader.ID == p.id {
		return nil
	}
	if !slices.ContainsFunc(p.jobs.Servers(), func(s replica.Server) bool { return s.Voter && s.ID == leader.ID }) {
		return p.jobs.Promote(ctx, leader)
	}
	return p.jobs.Transfer(ctx, leader.ID)
}

// changeJobs changes the members of the jobs' group, as membership.Keeper does once it leads both: it follows the control plane when a
// member joins, and goes before it when another one leaves.
func (p *process) changeJobs(change func(g *replica.Node) error) error {
	switch {
	case p.jobs.Node == nil:
		return nil
	case !p.jobs.IsLeader():
		return errDown
	}
	return change(p.jobs.Node)
}
