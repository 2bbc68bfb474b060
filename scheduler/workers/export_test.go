package workers

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/jobs"
)

// Kick has an endpoint looked at.
func (w *Workers) Kick(id fleet.EndpointID) { w.kick(id) }

// GiveAfter gives an endpoint's jobs, and starts and ends workers, with what was seen before something else happened; nobody else looks at
// the endpoint meanwhile.
func (w *Workers) GiveAfter(ctx context.Context, id fleet.EndpointID, before, meanwhile func()) error {
	w.mu.Lock()
	d := w.desk(id)
	for d.busy && ctx.Err() == nil { // a look is under way
		w.mu.Unlock()
		time.Sleep(time.Millisecond)
		w.mu.Lock()
	}
	d.busy = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		d.busy = false
		w.mu.Unlock()
		w.kick(id)
	}()
	before()
	s, err := w.see(d)
	if err != nil {
		return err
	}
	meanwhile()
	err = errors.Join(w.bury(ctx, d, &s), w.stopJobs(d, &s), w.give(ctx, d, &s))
	_, scaled := w.scale(ctx, d, &s)
	return errors.Join(err, scaled)
}

// Hold offers the next job of an endpoint to a worker, as while a command is being committed, until accept is called.
func (w *Workers) Hold(id fleet.EndpointID) (pod fleet.PodID, accept func(taken []jobs.Job, sure bool)) {
	d, o := w.next(id)
	if o == nil {
		return "", nil
	}
	return o.pod, func(taken []jobs.Job, sure bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.accept(d, o, taken, sure)
		w.kickLocked(id)
	}
}

// Leads reports whether Lead has begun.
func (w *Workers) Leads() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run != nil
}

// PartsTaken returns how many parts of a report that does not end are taken from a host of whose reports so many bytes are being
// committed, before nothing more is received.
func PartsTaken(committing int64, part int) (n int) {
	r := &reader{room: semaphore.NewWeighted(maxHeld)}
	if !r.room.TryAcquire(committing) {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for r.report(ctx, &agentrpc.JobReport{Number: 1, Body: make([]byte, part), More: true}) == nil {
		n++
	}
	return n
}
