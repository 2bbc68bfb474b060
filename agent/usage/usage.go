// Package usage reads what the running pods use, again and again, and makes heartbeats of it. Reading goes through the container runtime
// and may take long; heartbeats never wait for it.
package usage

import (
	"context"
	"sync"
	"time"

	"gantry/agent/gpu"
	"gantry/agent/ledger"
	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	usageTimeout = 2 * time.Second
	sampleEvery  = 2 * time.Second
	hurryLeast   = 200 * time.Millisecond
)

// Config is what a Sampler is made from.
type Config struct {
	Runtime    pod.Runtime
	Meter      gpu.Meter // nil: GPUs are not measured
	Ledger     *ledger.Ledger
	Activities func() map[fleet.PodID]reports.Activity
	Hurry      func() // is called when a heartbeat is wanted before its time
	// What metrics tell and heartbeats do not: the host's GPUs, the use of its disk, and through the name of a pod's link its
	// traffic. Nil: it is not read.
	All   func() []string
	Space func() (machine.Disk, error)
	Link  func(fleet.PodID) string
}

// Sampler reads what the pods use.
type Sampler struct {
	Config

	mu  sync.Mutex // guards now
	now Snapshot
}

// Snapshot is what was read last. It does not change.
type Snapshot struct {
	Pods map[fleet.PodID]Sample
	GPUs map[string]fleet.GPUUse // by UUID
	Disk machine.Disk
	At   time.Time     // when the newest round ended; zero: none has
	Took time.Duration // of that round
}

// New makes a Sampler.
func New(c Config) *Sampler { return &Sampler{Config: c} }

// Snapshot returns what was read last.
func (s *Sampler) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// manyUsages is a runtime that reads the use of many pods for less than one by one.
type manyUsages interface {
	// Usages reads what these pods use now. One that cannot be read is left out.
	Usages(ctx context.Context, ids []fleet.PodID) map[fleet.PodID]pod.Usage
}

// Sample is the newest reading of one pod's incarnation.
type Sample struct {
	Incarnation uint64
	at          time.Time
	Use         pod.Usage
	cpuPercent  int32 // between the last two readings
	memPercent  int32
	diskPercent int32
	GPUs        []fleet.GPUUse // in the order of the assignment
	Net         Traffic
}

// Run reads the counters of every running pod again and again until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
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
func (s *Sampler) readAll(ctx context.Context) {
	began := time.Now()
	var running []pod.Record
	for _, rec := range s.Ledger.Records() {
		if Running(rec) {
			running = append(running, rec)
		}
	}
	uses := s.usages(ctx, running)
	var links map[string]Traffic
	if s.Link != nil {
		links = readTraffic()
	}
	now, gpus := make(map[fleet.PodID]Sample, len(uses)), map[string]fleet.GPUUse{}
	for _, rec := range running {
		id := rec.Assignment.Pod
		use, ok := uses[id]
		if !ok {
			continue
		}
		x := s.sample(ctx, rec, use)
		for i, g := range x.GPUs {
			gpus[rec.Assignment.GPUs[i]] = g
		}
		if s.Link != nil {
			x.Net = links[s.Link(id)]
		}
		now[id] = x
	}
	s.measureRest(ctx, gpus)
	var used machine.Disk
	if s.Space != nil {
		used, _ = s.Space() // what cannot be read is 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = Snapshot{Pods: now, GPUs: gpus, Disk: used, At: time.Now(), Took: time.Since(began)}
}

// Running reports whether the pod's process may be running.
func Running(rec pod.Record) bool {
	a := rec.Assignment
	return rec.Begun == a.Incarnation && (rec.Ended == nil || rec.Ended.Incarnation < a.Incarnation)
}

// usages reads what the pods use; those that cannot be read are left out.
func (s *Sampler) usages(ctx context.Context, of []pod.Record) map[fleet.PodID]pod.Usage {
	if many, ok := s.Runtime.(manyUsages); ok {
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
		if use, err := s.Runtime.Usage(one, rec.Assignment.Pod); err == nil {
			out[rec.Assignment.Pod] = use
		}
		cancel()
	}
	return out
}

// measureRest adds the GPUs that no running pod has to what was read of those that one has.
func (s *Sampler) measureRest(ctx context.Context, gpus map[string]fleet.GPUUse) {
	if s.All == nil || s.Meter == nil {
		return
	}
	var rest []string
	for _, uuid := range s.All() {
		if _, known := gpus[uuid]; !known {
			rest = append(rest, uuid)
		}
	}
	if len(rest) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if use := s.Meter.Use(ctx, rest); len(use) == len(rest) {
		for i, uuid := range rest {
			gpus[uuid] = use[i]
		}
	}
}

// HurryWhilePulling asks for heartbeats in quick succession while there is something to tell of a
// pod's start, so that its owner sees it move.
func (s *Sampler) HurryWhilePulling(ctx context.Context) {
	tick := time.NewTicker(hurryLeast)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, a := range s.Activities() {
			if a.Total > 0 || a.Done > 0 {
				s.Hurry()
				break
			}
		}
	}
}

// Heartbeat tells what is known now; it asks nobody.
func (s *Sampler) Heartbeat() *agentrpc.Heartbeat {
	out := &agentrpc.Heartbeat{}
	doing := s.Activities()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.Ledger.Records() {
		id := rec.Assignment.Pod
		live := &agentrpc.PodLive{PodId: string(id)}
		d, busy := doing[id]
		x, sampled := s.now.Pods[id]
		switch {
		case busy:
			live.Activity, live.PullDone, live.PullTotal = d.Words, d.Done, d.Total
		case sampled && x.Incarnation == rec.Assignment.Incarnation:
			live.CpuPercent, live.MemoryPercent, live.DiskPercent = x.cpuPercent, x.memPercent, x.diskPercent
			for _, g := range x.GPUs {
				live.Gpus = append(live.Gpus, &agentrpc.GPUUse{Util: percentOf(float64(g.Util), 100), MemoryUtil: percentOf(float64(g.MemoryUtil), 100)})
			}
		default:
			continue
		}
		out.Pods = append(out.Pods, live)
	}
	return out
}

// sample makes a sample of what a running pod uses.
func (s *Sampler) sample(ctx context.Context, rec pod.Record, use pod.Usage) Sample {
	a := rec.Assignment
	now := Sample{at: time.Now(), Use: use, Incarnation: a.Incarnation}
	if s.Meter != nil && len(a.GPUs) > 0 {
		ctx, cancel := context.WithTimeout(ctx, usageTimeout)
		defer cancel()
		if gpus := s.Meter.Use(ctx, a.GPUs); len(gpus) == len(a.GPUs) {
			now.GPUs = gpus
		}
	}
	s.mu.Lock()
	before := s.now.Pods[a.Pod]
	s.mu.Unlock()
	if limit := a.Limits.MemoryMB * fleet.MB; limit > 0 {
		now.memPercent = percentOf(float64(use.Memory), float64(limit))
	}
	if use.DiskSize > 0 {
		now.diskPercent = percentOf(float64(use.Disk), float64(use.DiskSize))
	}
	if span := now.at.Sub(before.at); before.Incarnation == a.Incarnation && span > 0 && a.Limits.MilliCPU > 0 {
		now.cpuPercent = percentOf(float64(use.CPU-before.Use.CPU), float64(span)*float64(a.Limits.MilliCPU)/1000)
	}
	return now
}

func percentOf(part, whole float64) int32 {
	return int32(min(max(100*part/whole, 0), 100))
}
