package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/faultpoint"
	"gantry/internal/sleep"
)

const (
	partBytes = 256 << 10
	maxGiven  = 22 << 20 // bytes of a job
)

var errIdle = errors.New("the host has no workers")

// link is what is to be said to the scheduler, in this stream or the next. The gate's mutex guards it.
type link struct {
	wants     map[fleet.PodID]*worker // whose slots the scheduler may not know
	unhealthy map[fleet.PodID]*agentrpc.WorkerUnhealthy
	pending   map[*report]struct{} // that were not kept
	queue     []*report            // of them, what was not sent in this stream
	sent      map[uint64]*report   // by number
	added     uint64
	down      chan struct{} // closed while no stream stands
	wake      chan struct{}
	need      chan struct{} // as wake, of who opens streams
}

func newLink() link {
	down := make(chan struct{})
	close(down)
	return link{
		wants: map[fleet.PodID]*worker{}, unhealthy: map[fleet.PodID]*agentrpc.WorkerUnhealthy{}, pending: map[*report]struct{}{},
		down: down, wake: make(chan struct{}, 1), need: make(chan struct{}, 1),
	}
}

// ring wakes who sends, and who opens streams.
func (l *link) ring() {
	for _, c := range []chan struct{}{l.wake, l.need} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (l *link) add(r *report) {
	l.added++
	r.order = l.added
	l.pending[r] = struct{}{}
	l.queue = append(l.queue, r)
	l.ring()
}

func (l *link) drop(r *report) {
	delete(l.pending, r)
	if at := slices.Index(l.queue, r); at >= 0 {
		l.queue = slices.Delete(l.queue, at, at+1)
	}
}

// needed reports whether there is a use for a stream of jobs: a host without workers needs none once it has heard which jobs the cluster
// takes it to have.
func (g *Gate) needed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held == nil || len(g.workers) > 0 || len(g.link.pending) > 0
}

// Begin opens the stream of jobs of a session, again and again while the session stands and there is a use for it. See session.Room.
func (g *Gate) Begin(conn *grpc.ClientConn) (ended func()) {
	ctx, cancel := context.WithCancel(g.ctx)
	g.wg.Go(func() {
		select {
		case g.streaming <- struct{}{}: // that of the session before has ended
			defer func() { <-g.streaming }()
		case <-ctx.Done():
			return
		}
		client := agentrpc.NewLinkClient(conn)
		wait := g.times.backOff
		for ctx.Err() == nil {
			if !g.needed() {
				select {
				case <-g.link.need:
				case <-ctx.Done():
				}
				continue
			}
			stood, err := g.stream(ctx, client)
			if stood {
				wait = g.times.backOff
			}
			g.Log.Debug("the stream of jobs ended", "err", err, "again_in", wait)
			_ = sleep.For(ctx, wait)
			wait = min(2*wait, g.times.most)
		}
	})
	return cancel
}

// stream is one stream of jobs, until it breaks. stood says that the scheduler took it.
func (g *Gate) stream(ctx context.Context, client agentrpc.LinkClient) (stood bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := client.Jobs(ctx)
	if err != nil {
		return false, err
	}
	first, err := s.Recv()
	if err != nil {
		return false, err
	}
	if first.GetHeld() == nil {
		return false, errors.New("the first message does not say which jobs the host has")
	}
	g.begin(first.GetHeld())
	sent := make(chan error, 1)
	g.wg.Go(func() {
		defer cancel()
		sent <- g.send(ctx, s)
	})
	err = g.receive(s)
	cancel()
	faults := errors.Join(err, <-sent)
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.link.down)
	return true, faults
}

// begin takes the first message of a stream: everything that was not kept is said again.
func (g *Gate) begin(held *agentrpc.JobsHeld) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.held == nil
	g.held = map[fleet.PodID][]*agentrpc.JobHeld{}
	clear(g.link.wants)
	for _, h := range held.GetJobs() {
		id := fleet.PodID(h.GetPodId())
		g.held[id] = append(g.held[id], h)
		if first && g.workers[id] == nil {
			g.remember(id, h.GetJobId()) // the pod is not started again yet
		}
	}
	for id, w := range g.workers {
		w.resolve(g.held[id], first)
		w.told, w.ready = 0, false
		w.tell()
	}
	l := &g.link
	l.queue = slices.SortedFunc(maps.Keys(l.pending), func(a, b *report) int { return cmp.Compare(a.order, b.order) })
	l.sent, l.down = map[uint64]*report{}, make(chan struct{})
	l.ring()
}

// send says what there is to say until the stream ends.
func (g *Gate) send(ctx context.Context, s grpc.BidiStreamingClient[agentrpc.JobsUp, agentrpc.JobsDown]) error {
	var number uint64
	for {
		short, r := g.next()
		for _, m := range short {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		switch {
		case r != nil:
			number++
			if err := g.sendReport(s, r, number); err != nil {
				return err
			}
		case len(short) == 0:
			select {
			case <-g.link.wake:
			case <-time.After(g.times.idle):
				if !g.needed() {
					return errIdle
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// next returns what is to be sent next: all that is short, and one report.
func (g *Gate) next() (short []*agentrpc.JobsUp, r *report) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &g.link
	for id, w := range l.wants {
		if n := w.slots(); n != w.told || !w.ready {
			w.told, w.ready = n, true
			short = append(short, &agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Wants{
				Wants: &agentrpc.WorkerWants{PodId: string(id), Slots: int32(n)}, //nolint:gosec // at most maxConns times maxSlots
			}})
		}
	}
	clear(l.wants)
	for _, m := range l.unhealthy {
		short = append(short, &agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Unhealthy{Unhealthy: m}})
	}
	clear(l.unhealthy)
	if len(l.queue) > 0 {
		r, l.queue = l.queue[0], l.queue[1:]
	}
	return short, r
}

// sendReport sends a report in parts.
func (g *Gate) sendReport(s grpc.BidiStreamingClient[agentrpc.JobsUp, agentrpc.JobsDown], r *report, number uint64) error {
	body, err := g.spool.body(r)
	kind, reason := r.kind, ""
	if err != nil {
		g.Log.Error("read a worker's result that was kept", "pod", r.Pod, "job", r.Job, "err", err)
		kind, reason = agentrpc.JobReport_DISCARDED, "the host lost the result"
	}
	g.mu.Lock()
	if reason == "" {
		reason = r.Reason
	}
	attempt := r.Attempt
	g.link.sent[number] = r
	g.mu.Unlock()
	for more := true; more; {
		part := body[:min(len(body), partBytes)]
		body = body[len(part):]
		more = len(body) > 0
		if err := s.Send(&agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Report{Report: &agentrpc.JobReport{
			Number: number, PodId: string(r.Pod), JobId: r.Job, Attempt: attempt, Kind: kind, Body: part, More: more, Chunk: r.chunk,
			Reason: reason, Refresh: r.Refresh,
		}}}); err != nil {
			return err
		}
	}
	faultpoint.Hit("worker.result.sent")
	return nil
}

// receive takes what a scheduler says until the stream ends.
func (g *Gate) receive(s grpc.BidiStreamingClient[agentrpc.JobsUp, agentrpc.JobsDown]) error {
	var body []byte // of the job whose parts come
	var open *agentrpc.JobGiven
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		switch kind := m.GetKind().(type) {
		case *agentrpc.JobsDown_Given:
			if open != nil && (open.GetPodId() != kind.Given.GetPodId() || open.GetJobId() != kind.Given.GetJobId()) {
				return errors.New("the parts of a job are not one behind the other")
			}
			if len(body)+len(kind.Given.GetBody()) > maxGiven {
				return fmt.Errorf("a job has more than %d bytes", maxGiven)
			}
			body, open = append(body, kind.Given.GetBody()...), kind.Given
			if !kind.Given.GetMore() {
				g.give(kind.Given, body)
				body, open = nil, nil
			}
		case *agentrpc.JobsDown_Stop:
			g.mu.Lock()
			if w := g.workers[fleet.PodID(kind.Stop.GetPodId())]; w != nil {
				w.stop(kind.Stop.GetJobId())
			}
			g.mu.Unlock()
		case *agentrpc.JobsDown_Kept:
			g.taken(kind.Kept)
		}
	}
}

// give hands a job to its worker. One that is not there never sees it.
func (g *Gate) give(m *agentrpc.JobGiven, body []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := fleet.PodID(m.GetPodId())
	if w := g.workers[id]; w != nil {
		w.give(m, body)
		return
	}
	g.link.add(newReport(id, &job{id: m.GetJobId(), attempt: m.GetAttempt()}, agentrpc.JobReport_REFUSED))
}

// taken takes the answer to a report.
func (g *Gate) taken(m *agentrpc.JobKept) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.link.sent[m.GetNumber()]
	if r == nil {
		return
	}
	delete(g.link.sent, m.GetNumber())
	if m.GetError() != "" {
		g.Log.Info("what a worker said was not taken", "pod", r.Pod, "job", r.Job, "err", m.GetError())
	}
	g.settle(r)
}
