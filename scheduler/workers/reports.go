package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

// MaxBytes is what all bodies of an account's jobs may have.
const MaxBytes = 20 * fleet.GB

const (
	maxReason = 1024             // bytes
	perByte   = time.Microsecond // that a large result may take longer, since it takes turns with others
)

// reader hears what a host says of its workers.
type reader struct {
	w    *Workers
	line *line
	room *semaphore.Weighted // bytes of the reports that come and are being committed; while there is no room, nothing is received

	part  *agentrpc.JobReport // the one whose parts come; nil: none
	tasks sync.WaitGroup
}

// run hears until the stream ends, or the host breaks the protocol.
func (r *reader) run(ctx context.Context, stream Stream) error {
	defer r.tasks.Wait()
	for {
		up, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := up.GetKind().(type) {
		case *agentrpc.JobsUp_Wants:
			r.wants(ctx, m.Wants)
		case *agentrpc.JobsUp_Unhealthy:
			r.unhealthy(m.Unhealthy)
		case *agentrpc.JobsUp_Report:
			if err := r.report(ctx, m.Report); err != nil {
				return err
			}
		}
	}
}

// wants notes how many jobs a worker would take. The first time says that it is ready.
func (r *reader) wants(ctx context.Context, m *agentrpc.WorkerWants) {
	id, slots := fleet.PodID(m.GetPodId()), min(max(int(m.GetSlots()), 0), maxSlots)
	ready := true
	_, err := r.w.withLine(r.line, id, func(d *desk, k *worker, p *fleet.Pod) bool {
		if k.slots == 0 && slots > 0 && !k.busy && len(k.given) == 0 && p.Ready.IsZero() {
			k.since = r.w.Now()
		}
		more := slots > k.slots
		k.slots, ready = slots, !p.Ready.IsZero()
		return more && r.w.wait(d.id)
	})
	if ready || err != nil {
		return
	}
	r.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, proposing)
		defer cancel()
		if _, err := r.w.Node.Propose(ctx, state.ReadyWorkers{Pods: []fleet.PodID{id}, At: r.w.Now()}); err != nil {
			r.w.Log.Warn("note that a worker is ready", "pod", id, "err", err)
		}
	})
}

// unhealthy has a worker replaced that found itself unfit.
func (r *reader) unhealthy(m *agentrpc.WorkerUnhealthy) {
	_, _ = r.w.withLine(r.line, fleet.PodID(m.GetPodId()), func(d *desk, k *worker, p *fleet.Pod) bool { // another leader is told again
		r.w.Log.Warn("a worker is unfit", "endpoint", d.id, "pod", p.ID, "check", m.GetCheck(), "reason", m.GetReason())
		k.leave = true
		return true
	})
}

// wait reports whether jobs of an endpoint wait.
func (w *Workers) wait(id fleet.EndpointID) (some bool) {
	w.Jobs.Jobs.View(func(q *queue.Queue) { some = q.Next(id) != nil })
	return some
}

// report takes a report, or a part of one. Errors: the host breaks the protocol.
func (r *reader) report(ctx context.Context, m *agentrpc.JobReport) error {
	if r.part != nil && r.part.GetNumber() != m.GetNumber() {
		return status.Error(codes.InvalidArgument, "a report came between the parts of another one")
	}
	if len(r.part.GetBody())+len(m.GetBody()) > jobs.MaxBody {
		return status.Error(codes.InvalidArgument, "a report is too large")
	}
	more := int64(len(m.GetBody()))
	if r.part == nil {
		r.part, more = m, more+leastReport
	} else {
		if has := r.part.GetBody(); len(has)+len(m.GetBody()) > cap(has) { // append alone would copy 20 MB five times
			r.part.Body = slices.Grow(has, max(len(has), len(m.GetBody())))
		}
		r.part.Body = append(r.part.Body, m.GetBody()...)
		r.part.More = m.GetMore()
	}
	if err := r.room.Acquire(ctx, more); err != nil {
		return err
	}
	if r.part.GetMore() {
		return nil
	}
	whole := r.part
	r.part = nil
	size := int64(len(whole.GetBody()) + leastReport)
	r.tasks.Go(func() {
		defer r.room.Release(size)
		kept := &agentrpc.JobKept{Number: whole.GetNumber()}
		err := r.commit(ctx, whole)
		switch code := fleet.CodeOf(err); {
		case err == nil:
		case code == fleet.CodeUnavailable || code == fleet.CodeInternal:
			r.line.end() // it comes again, in the next stream
			return
		default:
			kept.Error = err.Error()
		}
		r.line.queue(message{kept: kept})
	})
	return nil
}

// commit records what a report says. What makes no difference any more is no error.
func (r *reader) commit(ctx context.Context, m *agentrpc.JobReport) error {
	id, ok := jobs.ParseID(m.GetJobId())
	if !ok {
		return fleet.Invalid("job_id", "must be the id of a job")
	}
	w, pod := r.w, fleet.PodID(m.GetPodId())
	ends := m.GetKind() == agentrpc.JobReport_DONE || m.GetKind() == agentrpc.JobReport_FAILED || m.GetKind() == agentrpc.JobReport_DISCARDED
	job, missing := w.Jobs.Jobs.Get(id, queue.At(w.Now()))
	newest := m.GetAttempt() == 0 || int(m.GetAttempt()) == job.Attempt() // not one that the worker had before
	ours, err := w.withLine(r.line, pod, func(_ *desk, k *worker, _ *fleet.Pod) bool {
		if of, told := k.given[id]; told && newest && (ends || m.GetKind() == agentrpc.JobReport_LOST || m.GetKind() == agentrpc.JobReport_REFUSED) {
			of.back = true
			k.given[id] = of
		}
		leaves := !k.leave && m.GetRefresh()
		k.leave = k.leave || leaves
		return leaves // else the commit has it looked at
	})
	if err != nil || !ours { // of a worker that is none of this host's
		return err
	}
	if fleet.CodeOf(missing) == fleet.CodeNotFound {
		return nil // a job that is no more
	}
	if missing != nil {
		return missing
	}
	if job.Run == nil || !slices.Contains(job.Run.Workers, pod) { // the worker was never given it
		return nil
	}
	from := queue.From{At: queue.At(w.Now()), Job: id, Worker: pod, Attempt: int(m.GetAttempt())}
	cmd, err := r.command(ctx, m, from, &job)
	if err == nil && cmd != nil {
		_, err = w.propose(ctx, cmd)
	}
	if ends && refused(err) {
		// What cannot be kept ends the job all the same, with the reason.
		_, err = w.propose(ctx, jobs.Finish{Finish: queue.Finish{From: from, Failed: true, Error: "the result could not be kept", Reason: err.Error()}})
	}
	if err == nil && ends {
		_, _ = w.withLine(r.line, pod, func(d *desk, k *worker, p *fleet.Pod) bool { // else nobody counts any more
			k.done = true
			crashed := d.crashes > 0
			if p.Release == d.version {
				d.worked()
			}
			return crashed
		})
	}
	if err == nil && m.GetKind() == agentrpc.JobReport_UNSTOPPED {
		w.unstopped(r.line, pod)
	}
	return err
}

// refused reports whether a command was refused for good.
func refused(err error) bool {
	switch fleet.CodeOf(err) {
	case fleet.CodeLimited, fleet.CodeTooLarge, fleet.CodeStale:
		return err != nil
	}
	return false
}

// command is what a report asks to be recorded; nil: nothing. Large bodies are committed before it.
func (r *reader) command(ctx context.Context, m *agentrpc.JobReport, from queue.From, job *jobs.Job) (jobs.Command, error) {
	reason := strings.ToValidUTF8(m.GetReason()[:min(len(m.GetReason()), maxReason)], "")
	body := m.GetBody()
	switch m.GetKind() {
	case agentrpc.JobReport_LOST:
		return jobs.Lost{Lost: queue.Lost{From: from, Reason: "the worker lost the job: " + reason}}, nil
	case agentrpc.JobReport_REFUSED:
		return jobs.Lost{Lost: queue.Lost{From: from, Untouched: true}}, nil
	case agentrpc.JobReport_DISCARDED:
		return jobs.Finish{Finish: queue.Finish{From: from, Failed: true, Error: "the result was discarded", Reason: reason}}, nil
	case agentrpc.JobReport_UNSTOPPED:
		return nil, nil
	case agentrpc.JobReport_FAILED:
		var text string
		if json.Unmarshal(body, &text) == nil {
			body = []byte(text)
		}
	case agentrpc.JobReport_DONE, agentrpc.JobReport_PROGRESS, agentrpc.JobReport_CHUNK:
		if !json.Valid(body) {
			return nil, fleet.Invalid("body", "must be JSON")
		}
		body = bytes.TrimSpace(body)
	default:
		return nil, fleet.Invalid("kind", "is not known")
	}
	var cost fleet.Money
	if m.GetKind() == agentrpc.JobReport_DONE && job.Sale != nil && !job.Status.Ended() {
		var err error
		if body, cost, err = r.w.sold(ctx, job, body); fleet.CodeOf(err) == fleet.CodeInvalid {
			r.w.Log.Warn("a result of a public model cannot be used", "model", string(job.Sale.Model), "pod", string(from.Worker), "err", err)
			return jobs.Finish{Finish: queue.Finish{From: from, Failed: true, Error: "the result of the model cannot be used"}}, nil
		} else if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, proposing+time.Duration(len(body))*perByte)
	defer cancel()
	content, err := r.w.Jobs.Content(ctx, job.Account, from.Job, body, MaxBytes, from.At)
	if err != nil {
		return nil, err
	}
	switch m.GetKind() {
	case agentrpc.JobReport_PROGRESS:
		return jobs.Progress{Progress: queue.Progress{From: from}, Content: content}, nil
	case agentrpc.JobReport_CHUNK:
		return jobs.Chunk{Chunk: queue.Chunk{From: from, Number: m.GetChunk()}, Content: content}, nil
	}
	return jobs.Finish{Finish: queue.Finish{From: from, Failed: m.GetKind() == agentrpc.JobReport_FAILED, Cost: cost}, Content: content}, nil
}

// unstopped replaces a worker that cannot be told to stop a job, when it has no other.
func (w *Workers) unstopped(l *line, pod fleet.PodID) {
	busy := false
	w.Jobs.Jobs.View(func(q *queue.Queue) { busy = len(q.Running(pod)) > 0 })
	if !busy {
		_, _ = w.withLine(l, pod, func(_ *desk, k *worker, _ *fleet.Pod) bool { k.leave = true; return true }) // else the next leader is asked
	}
}
