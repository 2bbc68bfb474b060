package workers

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

const (
	partBytes = 256 << 10
	maxSlots  = 1000 // of one worker
	// maxHeld is how many bytes of reports of one host come or are being committed, each with leastReport besides its body; at least one's.
	maxHeld     = 24 << 20
	leastReport = 64 << 10
)

// message is something for a host: a job, that a job is to be stopped, or that a report was kept.
type message struct {
	pod  fleet.PodID
	job  queue.ID
	stop bool
	kept *agentrpc.JobKept
}

// line is the stream of one host. What is sent waits in a list: it holds no bodies, and not more than the host's workers want and say.
type line struct {
	host    fleet.HostID
	session <-chan struct{} // closed: that of the host is over
	end     context.CancelFunc
	wake    chan struct{} // capacity 1

	mu   sync.Mutex
	list []message
}

// stands reports whether the host has the session that the stream belongs to. One that has fallen silent may count as lost soon.
func (l *line) stands() bool {
	select {
	case <-l.session:
		return false
	default:
		return true
	}
}

// queue adds a message. It does not wait.
func (l *line) queue(m message) {
	l.mu.Lock()
	l.list = append(l.list, m)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the messages that wait.
func (l *line) next() []message {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.list
	l.list = nil
	return out
}

// Stream is what a host and the leader speak over; see agentrpc.Link_JobsServer.
type Stream interface {
	Context() context.Context
	Send(*agentrpc.JobsDown) error
	Recv() (*agentrpc.JobsUp, error)
}

// Serve serves the stream of a host until it, the host's session, which closes a channel then, or leadership ends. A later stream of the
// host ends an earlier one.
func (w *Workers) Serve(host fleet.HostID, session <-chan struct{}, stream Stream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w.mu.Lock()
	leads, over := w.run != nil, w.over
	w.mu.Unlock()
	if !leads {
		return status.Error(codes.Unavailable, "this scheduler does not lead")
	}
	l := &line{host: host, session: session, end: cancel, wake: make(chan struct{}, 1)}
	if err := w.Jobs.Barrier(ctx); err != nil {
		return err
	}
	held, err := w.join(l)
	if err != nil {
		return err
	}
	defer w.leave(l)
	if err := stream.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Held{Held: held}}); err != nil {
		return err
	}
	r := &reader{w: w, line: l, room: semaphore.NewWeighted(maxHeld)}
	received := make(chan error, 1)
	w.start(func(context.Context) { received <- r.run(ctx, stream) }) // Recv returns once this call has
	for {
		select {
		case <-l.wake:
			for _, m := range l.next() {
				if err := w.send(l, stream, m); err != nil {
					return err
				}
			}
		case err := <-received:
			return err
		case <-session:
			return status.Error(codes.Unavailable, "the host's session is over")
		case <-over:
			return status.Error(codes.Unavailable, "this scheduler does not lead any more")
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "another stream of the host has begun, or this one is to begin anew")
		}
	}
}

// join takes a host's stream in, and returns what its workers have.
func (w *Workers) join(l *line) (*agentrpc.JobsHeld, error) {
	held := &agentrpc.JobsHeld{}
	var pods []*fleet.Pod
	err := w.Store.View(func(v *state.View) error {
		for _, p := range v.HostPods(l.host) {
			if p.Owner.Kind == fleet.OwnerEndpoint && p.Status.Active() {
				pods = append(pods, &p)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run == nil {
		return nil, status.Error(codes.Unavailable, "this scheduler does not lead")
	}
	if old := w.lines[l.host]; old != nil {
		old.end()
	}
	w.lines[l.host] = l
	for _, p := range pods {
		k := w.desk(fleet.EndpointID(p.Owner.ID)).worker(p.ID, w.Now())
		k.line, k.slots, k.given = l, 0, map[queue.ID]telling{}
		w.Jobs.Jobs.View(func(q *queue.Queue) {
			for _, j := range q.Running(p.ID) {
				w.note(k, j.ID)
				held.Jobs = append(held.Jobs, &agentrpc.JobHeld{
					PodId: string(p.ID), JobId: jobs.IDText(j.ID, j.Policy.Sync), Attempt: uint32(j.Attempt()), Chunks: j.Run.Chunk, //nolint:gosec // small
				})
			}
		})
	}
	return held, nil
}

// leave forgets a stream that has ended.
func (w *Workers) leave(l *line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines[l.host] == l {
		delete(w.lines, l.host)
	}
	for _, d := range w.desks {
		for _, k := range d.workers {
			if k.line == l {
				k.line, k.slots = nil, 0
			}
		}
	}
}

// send sends one message.
func (w *Workers) send(l *line, stream Stream, m message) error {
	switch {
	case m.kept != nil:
		return stream.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Kept{Kept: m.kept}})
	case m.stop:
		job, err := w.Jobs.Jobs.Get(m.job, queue.At(w.Now()))
		text := jobs.IDText(m.job, err == nil && job.Policy.Sync)
		return stream.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Stop{Stop: &agentrpc.JobStop{PodId: string(m.pod), JobId: text}}})
	}
	job, input, err := w.Jobs.Jobs.Read(m.job, queue.At(w.Now()), func(j *queue.Job) queue.Body { return j.Input })
	if err != nil || job.Worker() != m.pod || job.Status != queue.InProgress {
		// It has ended meanwhile. The host counts with the slot still.
		_, _ = w.withLine(l, m.pod, func(_ *desk, k *worker, _ *fleet.Pod) bool { k.slots++; return true }) // else nobody counts any more
		return nil
	}
	text := jobs.IDText(job.ID, job.Policy.Sync)
	body := append([]byte(`{"id":"`+text+`",`), input[min(1, len(input)):]...)
	for {
		n := min(len(body), partBytes)
		err := stream.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Given{Given: &agentrpc.JobGiven{
			PodId: string(m.pod), JobId: text, Attempt: uint32(job.Attempt()), Body: body[:n], More: n < len(body), //nolint:gosec // small
		}}})
		if body = body[n:]; err != nil || len(body) == 0 {
			return err
		}
	}
}

// errOver says that what came over a stream counts for nothing: another leader, or another stream of the host, has to hear it.
var errOver = fleet.Unavailable("the stream is over", nil)

// withLine calls fn with a worker of a line's host, which may have ended, and its endpoint; others are left alone, and it reports false. fn
// must not wait; it reports whether the endpoint is to be looked at.
// Errors: errOver, the state's.
func (w *Workers) withLine(l *line, id fleet.PodID, fn func(d *desk, k *worker, p *fleet.Pod) bool) (ours bool, err error) {
	var pod fleet.Pod
	var there bool
	if err := w.Store.View(func(v *state.View) error { pod, there = v.Pod(id); return nil }); err != nil {
		return false, err
	}
	ours = there && pod.Host == l.host && pod.Owner.Kind == fleet.OwnerEndpoint
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.run == nil || w.lines[l.host] != l:
		return false, errOver
	case !ours:
		return false, nil
	}
	d := w.desk(fleet.EndpointID(pod.Owner.ID))
	k := d.worker(id, w.Now())
	isNew := k.line != l
	k.line = l
	if fn(d, k, &pod) || isNew {
		w.kickLocked(d.id)
	}
	return true, nil
}
