package simhost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

const (
	jobsAgain = 100 * time.Millisecond // before another stream of jobs, after one broke
	partBytes = 256 << 10
)

// held names a job that a worker has.
type held struct {
	pod fleet.PodID
	job string
}

// done is a job that a worker has done, or gave back, and of which the cluster has not said that it knows.
type done struct {
	held
	attempt uint32
	kind    agentrpc.JobReport_Kind
	output  []byte
}

// desk is what a host says of the jobs of its workers. The host's mutex guards it.
type desk struct {
	wake   chan struct{} // capacity 1
	unkept map[held]done
	unsent []held              // of them, in this stream
	told   map[fleet.PodID]int // slots that the scheduler counts with, in this stream
	sent   map[uint64]held     // by number, in this stream
}

func newDesk() desk {
	return desk{wake: make(chan struct{}, 1), unkept: map[held]done{}, told: map[fleet.PodID]int{}}
}

func (d *desk) ring() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// work keeps a stream of jobs until ctx ends.
func (h *Host) work(ctx context.Context, c agentrpc.LinkClient) {
	for ctx.Err() == nil {
		err := h.jobs(ctx, c)
		h.fleet.Log.Debug("the stream of jobs ended", "host", h.name, "err", err)
		_ = sleep.For(ctx, jobsAgain)
	}
}

// jobs is one stream of jobs, until it breaks.
func (h *Host) jobs(ctx context.Context, c agentrpc.LinkClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.Jobs(ctx)
	if err != nil {
		return err
	}
	first, err := s.Recv()
	if err != nil {
		return err
	}
	if first.GetHeld() == nil {
		return errors.New("the first message does not say which jobs the host has")
	}
	h.resume(first.GetHeld())
	sent := make(chan error, 1)
	go func() { defer cancel(); sent <- h.sendJobs(ctx, s) }()
	err = h.takeJobs(s)
	cancel()
	return errors.Join(err, <-sent)
}

// resume begins a stream: what was not kept is said again, and jobs that never came here are given back.
func (h *Host) resume(has *agentrpc.JobsHeld) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := &h.desk
	for _, j := range has.GetJobs() {
		key := held{fleet.PodID(j.GetPodId()), j.GetJobId()}
		if _, there := d.unkept[key]; !there {
			d.unkept[key] = done{key, j.GetAttempt(), agentrpc.JobReport_REFUSED, nil}
		}
	}
	d.unsent, d.sent = slices.Collect(maps.Keys(d.unkept)), map[uint64]held{}
	clear(d.told)
	d.ring()
}

// sendJobs says what workers want and have done until the stream ends.
func (h *Host) sendJobs(ctx context.Context, s agentrpc.Link_JobsClient) error {
	var number uint64
	for {
		wants, all := h.unsaid(&number)
		for _, w := range wants {
			if err := s.Send(&agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Wants{Wants: w}}); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		for i, d := range all {
			first := number - uint64(len(all)) + 1
			if err := sendDone(s, first+uint64(i), d); err != nil { //nolint:gosec // small
				return fmt.Errorf("send: %w", err)
			}
		}
		if len(wants)+len(all) > 0 {
			continue
		}
		select {
		case <-h.desk.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unsaid returns what was not said in this stream, and counts the jobs in number.
func (h *Host) unsaid(number *uint64) (wants []*agentrpc.WorkerWants, all []done) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := &h.desk
	for id, p := range h.pods {
		told, ready := d.told[id]
		if !p.running || p.order.GetEndpointId() == "" || ready && told > h.fleet.Slots/2 {
			continue
		}
		d.told[id] = h.fleet.Slots
		wants = append(wants, &agentrpc.WorkerWants{PodId: string(id), Slots: int32(h.fleet.Slots)}) //nolint:gosec // at most 1,000
	}
	for _, key := range d.unsent {
		if one, there := d.unkept[key]; there {
			*number++
			d.sent[*number] = key
			all = append(all, one)
		}
	}
	d.unsent = nil
	return wants, all
}

// sendDone sends what became of a job, in parts.
func sendDone(s agentrpc.Link_JobsClient, number uint64, d done) error {
	for more := true; more; {
		part := d.output[:min(len(d.output), partBytes)]
		d.output = d.output[len(part):]
		more = len(d.output) > 0
		if err := s.Send(&agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Report{Report: &agentrpc.JobReport{
			Number: number, PodId: string(d.pod), JobId: d.job, Attempt: d.attempt, Kind: d.kind, Body: part, More: more,
		}}}); err != nil {
			return err
		}
	}
	return nil
}

// takeJobs does at once what workers are given, until the stream ends.
func (h *Host) takeJobs(s agentrpc.Link_JobsClient) error {
	var body []byte // of the job whose parts come
	for {
		m, err := s.Recv()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		switch {
		case m.GetGiven().GetMore():
			body = append(body, m.GetGiven().GetBody()...)
		case m.GetGiven() != nil:
			h.did(m.GetGiven(), h.fleet.Answer(append(body, m.GetGiven().GetBody()...)))
			body = nil
		case m.GetKept() != nil:
			h.mu.Lock()
			delete(h.desk.unkept, h.desk.sent[m.GetKept().GetNumber()])
			delete(h.desk.sent, m.GetKept().GetNumber())
			h.mu.Unlock()
		}
	}
}

// did notes that a job is done.
func (h *Host) did(m *agentrpc.JobGiven, output []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := held{fleet.PodID(m.GetPodId()), m.GetJobId()}
	h.desk.unkept[key] = done{key, m.GetAttempt(), agentrpc.JobReport_DONE, output}
	h.desk.unsent = append(h.desk.unsent, key)
	h.desk.told[key.pod]--
	h.desk.ring()
}
