package agent

import (
	"context"
	"sync"
	"time"

	"gantry/agent/gpu"
	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
)

const (
	usageTimeout = 2 * time.Second
	sampleEvery  = 2 * time.Second
	hurryLeast   = 200 * time.Millisecond
)

// sampler reads what the pods use and makes heartbeats of it. Reading goes through the container
// runtime and may take long; heartbeats never wait for it.
type sampler struct {
	runtime pod.Runtime
	meter   gpu.Meter // nil: GPUs are not measured
	ledger  *ledger.Ledger
	reports *reports
	hurry   chan struct{} // a heartbeat is wanted before its time

	mu   sync.Mutex // guards last
	last map[fleet.PodID]sample
}

// sample is the newest reading of one pod's incarnation.
type sample struct {
	incarnation uint64
	at          time.Time
	cpu         time.Duration // since the start
	cpuPercent  int32         // between the last two readings
	memPercent  int32
	gpus        []fleet.GPUUse // in the order of the assignment
}

func newSampler(rt pod.Runtime, m gpu.Meter, l *ledger.Ledger, r *reports) *sampler {
	return &sampler{runtime: rt, meter: m, ledger: l, reports: r, hurry: make(chan struct{}, 1), last: map[fleet.PodID]sample{}}
}

// run reads the counters of every running pod again and again until ctx ends.
func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s.readAll(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// readAll takes one sample of each running pod. A pod that cannot be read keeps none.
func (s *sampler) readAll(ctx context.Context) {
	now := map[fleet.PodID]sample{}
	for _, rec := range s.ledger.Records() {
		if x, ok := s.read(ctx, rec); ok {
			now[rec.Assignment.Pod] = x
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = now
}

// hurryWhilePulling asks for heartbeats in quick succession while there is something to tell of a
// pod's start, so that its owner sees it move.
func (s *sampler) hurryWhilePulling(ctx context.Context) {
	tick := time.NewTicker(hurryLeast)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, a := range s.reports.activities() {
			if a.total > 0 || a.done > 0 {
				select {
				case s.hurry <- struct{}{}:
				default:
				}
				break
			}
		}
	}
}

// heartbeat tells what is known now; it asks nobody.
func (s *sampler) heartbeat() *link.Heartbeat {
	out := &link.Heartbeat{}
	doing := s.reports.activities()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.ledger.Records() {
		id := rec.Assignment.Pod
		live := &link.PodLive{PodId: string(id)}
		d, busy := doing[id]
		x, sampled := s.last[id]
		switch {
		case busy:
			live.Activity, live.PullDone, live.PullTotal = d.words, d.done, d.total
		case sampled && x.incarnation == rec.Assignment.Incarnation:
			live.CpuPercent, live.MemoryPercent = x.cpuPercent, x.memPercent
			for _, g := range x.gpus {
				live.Gpus = append(live.Gpus, &link.GPUUse{Util: percent(float64(g.Util), 100), MemoryUtil: percent(float64(g.MemoryUtil), 100)})
			}
		default:
			continue
		}
		out.Pods = append(out.Pods, live)
	}
	return out
}

// read takes a sample of a running pod.
func (s *sampler) read(ctx context.Context, rec pod.Record) (sample, bool) {
	a := rec.Assignment
	if rec.Begun != a.Incarnation || (rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation) {
		return sample{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	use, err := s.runtime.Usage(ctx, a.Pod)
	if err != nil {
		return sample{}, false
	}
	now := sample{at: time.Now(), cpu: use.CPU, incarnation: a.Incarnation}
	if s.meter != nil && len(a.GPUs) > 0 {
		if gpus := s.meter.Use(ctx, a.GPUs); len(gpus) == len(a.GPUs) {
			now.gpus = gpus
		}
	}
	s.mu.Lock()
	before, ok := s.last[a.Pod]
	s.mu.Unlock()
	if limit := a.Limits.MemoryMB * mb; limit > 0 {
		now.memPercent = percent(float64(use.Memory), float64(limit))
	}
	if span := now.at.Sub(before.at); ok && before.incarnation == a.Incarnation && span > 0 && a.Limits.MilliCPU > 0 {
		now.cpuPercent = percent(float64(now.cpu-before.cpu), float64(span)*float64(a.Limits.MilliCPU)/1000)
	}
	return now, true
}

func percent(part, whole float64) int32 {
	return int32(min(max(100*part/whole, 0), 100))
}
