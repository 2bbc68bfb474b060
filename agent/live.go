package agent

import (
	"context"
	"sync"
	"time"

	"gantry/agent/gpu"
	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/agent/session"
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
	reports *reports.Reports
	hurry   session.Bell // a heartbeat is wanted before its time
	// What metrics tell and heartbeats do not: the host's GPUs, the use of its disk, and through the name of a
	// pod's link its traffic. Nil: it is not read.
	all   func() []string
	space func() (diskUse, error)
	link  func(fleet.PodID) string

	mu     sync.Mutex // guards the fields below
	last   map[fleet.PodID]sample
	gpus   map[string]fleet.GPUUse // by UUID
	used   diskUse
	readAt time.Time     // when the newest round ended; zero: none has
	took   time.Duration // of that round
}

// manyUsages is a runtime that reads the use of many pods for less than one by one.
type manyUsages interface {
	// Usages reads what these pods use now. One that cannot be read is left out.
	Usages(ctx context.Context, ids []fleet.PodID) map[fleet.PodID]pod.Usage
}

// sample is the newest reading of one pod's incarnation.
type sample struct {
	incarnation uint64
	at          time.Time
	use         pod.Usage
	cpuPercent  int32 // between the last two readings
	memPercent  int32
	diskPercent int32
	gpus        []fleet.GPUUse // in the order of the assignment
	net         traffic
}

func newSampler(rt pod.Runtime, m gpu.Meter, l *ledger.Ledger, r *reports.Reports) *sampler {
	return &sampler{runtime: rt, meter: m, ledger: l, reports: r, hurry: session.NewBell(), last: map[fleet.PodID]sample{}}
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
	began := time.Now()
	var running []pod.Record
	for _, rec := range s.ledger.Records() {
		if runs(rec) {
			running = append(running, rec)
		}
	}
	uses := s.usages(ctx, running)
	var links map[string]traffic
	if s.link != nil {
		links = readTraffic()
	}
	now, gpus := make(map[fleet.PodID]sample, len(uses)), map[string]fleet.GPUUse{}
	for _, rec := range running {
		id := rec.Assignment.Pod
		use, ok := uses[id]
		if !ok {
			continue
		}
		x := s.sample(ctx, rec, use)
		for i, g := range x.gpus {
			gpus[rec.Assignment.GPUs[i]] = g
		}
		if s.link != nil {
			x.net = links[s.link(id)]
		}
		now[id] = x
	}
	s.measureRest(ctx, gpus)
	var used diskUse
	if s.space != nil {
		used, _ = s.space() // what cannot be read is 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.gpus, s.used, s.readAt, s.took = now, gpus, used, time.Now(), time.Since(began)
}

// newest returns when the use of the pods was last read; the zero time before the first round.
func (s *sampler) newest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readAt
}

// runs reports whether the pod's process may be running.
func runs(rec pod.Record) bool {
	a := rec.Assignment
	return rec.Begun == a.Incarnation && (rec.Ended == nil || rec.Ended.Incarnation < a.Incarnation)
}

// usages reads what the pods use; those that cannot be read are left out.
func (s *sampler) usages(ctx context.Context, of []pod.Record) map[fleet.PodID]pod.Usage {
	if many, ok := s.runtime.(manyUsages); ok {
		ids := make([]fleet.PodID, len(of))
		for i, rec := range of {
			ids[i] = rec.Assignment.Pod
		}
		ctx, cancel := context.WithTimeout(ctx, usageTimeout)
		defer cancel()
		return many.Usages(ctx, ids)
	}
	out := map[fleet.PodID]pod.Usage{}
	for _, rec := range of {
		one, cancel := context.WithTimeout(ctx, usageTimeout)
		if use, err := s.runtime.Usage(one, rec.Assignment.Pod); err == nil {
			out[rec.Assignment.Pod] = use
		}
		cancel()
	}
	return out
}

// measureRest adds the GPUs that no running pod has to what was read of those that one has.
func (s *sampler) measureRest(ctx context.Context, gpus map[string]fleet.GPUUse) {
	if s.all == nil || s.meter == nil {
		return
	}
	var rest []string
	for _, uuid := range s.all() {
		if _, known := gpus[uuid]; !known {
			rest = append(rest, uuid)
		}
	}
	if len(rest) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if use := s.meter.Use(ctx, rest); len(use) == len(rest) {
		for i, uuid := range rest {
			gpus[uuid] = use[i]
		}
	}
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
		for _, a := range s.reports.Activities() {
			if a.Total > 0 || a.Done > 0 {
				s.hurry.Ring()
				break
			}
		}
	}
}

// heartbeat tells what is known now; it asks nobody.
func (s *sampler) heartbeat() *link.Heartbeat {
	out := &link.Heartbeat{}
	doing := s.reports.Activities()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.ledger.Records() {
		id := rec.Assignment.Pod
		live := &link.PodLive{PodId: string(id)}
		d, busy := doing[id]
		x, sampled := s.last[id]
		switch {
		case busy:
			live.Activity, live.PullDone, live.PullTotal = d.Words, d.Done, d.Total
		case sampled && x.incarnation == rec.Assignment.Incarnation:
			live.CpuPercent, live.MemoryPercent, live.DiskPercent = x.cpuPercent, x.memPercent, x.diskPercent
			for _, g := range x.gpus {
				live.Gpus = append(live.Gpus, &link.GPUUse{Util: percentOf(float64(g.Util), 100), MemoryUtil: percentOf(float64(g.MemoryUtil), 100)})
			}
		default:
			continue
		}
		out.Pods = append(out.Pods, live)
	}
	return out
}

// sample makes a sample of what a running pod uses.
func (s *sampler) sample(ctx context.Context, rec pod.Record, use pod.Usage) sample {
	a := rec.Assignment
	now := sample{at: time.Now(), use: use, incarnation: a.Incarnation}
	if s.meter != nil && len(a.GPUs) > 0 {
		ctx, cancel := context.WithTimeout(ctx, usageTimeout)
		defer cancel()
		if gpus := s.meter.Use(ctx, a.GPUs); len(gpus) == len(a.GPUs) {
			now.gpus = gpus
		}
	}
	s.mu.Lock()
	before, ok := s.last[a.Pod]
	s.mu.Unlock()
	if limit := a.Limits.MemoryMB * mb; limit > 0 {
		now.memPercent = percentOf(float64(use.Memory), float64(limit))
	}
	if use.DiskSize > 0 {
		now.diskPercent = percentOf(float64(use.Disk), float64(use.DiskSize))
	}
	if span := now.at.Sub(before.at); ok && before.incarnation == a.Incarnation && span > 0 && a.Limits.MilliCPU > 0 {
		now.cpuPercent = percentOf(float64(use.CPU-before.use.CPU), float64(span)*float64(a.Limits.MilliCPU)/1000)
	}
	return now
}

func percentOf(part, whole float64) int32 {
	return int32(min(max(100*part/whole, 0), 100))
}
