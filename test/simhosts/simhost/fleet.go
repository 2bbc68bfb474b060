package simhost

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"gantry/fleet"
)

// Config says what the hosts are. Zero values stand for the defaults.
type Config struct {
	Schedulers []string // host:port of link ports
	// Token gives a fresh one-use join token; see Operator.
	Token func(ctx context.Context) (string, error)
	// Dial opens a connection to a scheduler; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	Hosts   int                     // default 1
	Prefix  string                  // of their names; default "sim"
	GPUs    int                     // of each host; default 8, below 0: none
	GPUType string                  // default an H100
	Total   fleet.Resources         // of each host; default 16 cores, 128 GB and 1 TB for each GPU
	Shape   func(i int) []fleet.GPU // GPUs of a host, instead of GPUs and GPUType

	// Answer gives the output of a job, for the JSON object that a worker gets; nil: workers take no jobs.
	Answer func(job []byte) []byte
	Slots  int // jobs that a worker takes at a time; default 1

	StartAfter time.Duration // from the assignment to running; 0: at once
	Joining    int           // hosts that join, or dial for the first time, at once; default 32
	Log        *slog.Logger  // default: none
}

// DefaultGPU is the type of the hosts' GPUs.
const DefaultGPU = "NVIDIA H100 80GB HBM3"

const (
	defaultJoining = 32
	islandSize     = 8
	nodeSize       = 4
)

// Fleet is a number of simulated hosts. Its methods are safe for concurrent use.
type Fleet struct {
	Config
	hosts  []*Host
	census *census
	gate   chan struct{} // bounds the hosts that join or dial at once

	joined, connected, heartbeats, sessions atomic.Int64
	roots                                   atomic.Pointer[x509.CertPool] // of the cluster, once a host has joined
}

// Count is how far the hosts are.
type Count struct {
	Joined     int   // have a certificate
	Connected  int   // have a session
	Running    int   // pods
	Heartbeats int64 // that were sent, ever
	Sessions   int64 // that were welcomed, ever
}

// New makes hosts that have not joined.
func New(c Config) *Fleet {
	c.Hosts = max(c.Hosts, 1)
	if c.Prefix == "" {
		c.Prefix = "sim"
	}
	if c.GPUs == 0 {
		c.GPUs = 8
	}
	if c.GPUType == "" {
		c.GPUType = DefaultGPU
	}
	c.Slots = max(c.Slots, 1)
	if c.Joining == 0 {
		c.Joining = defaultJoining
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	f := &Fleet{Config: c, census: newCensus(), gate: make(chan struct{}, c.Joining)}
	for i := range c.Hosts {
		f.hosts = append(f.hosts, newHost(f, i))
	}
	return f
}

// gpusOf returns the GPUs of a host: islands of eight and NUMA nodes of four.
func (f *Fleet) gpusOf(i int) []fleet.GPU {
	if f.Shape != nil {
		return f.Shape(i)
	}
	var out []fleet.GPU
	for j := range f.GPUs {
		out = append(out, fleet.GPU{
			UUID: fmt.Sprintf("GPU-%s-%d-%d", f.Prefix, i, j), Type: f.GPUType, MemoryMB: 81_559,
			Island: j / islandSize, NUMA: j / nodeSize, Simulated: true,
		})
	}
	return out
}

func (f *Fleet) totalOf(gpus int) fleet.Resources {
	if f.Total != (fleet.Resources{}) {
		return f.Total
	}
	n := int64(max(gpus, 1))
	return fleet.Resources{MilliCPU: 16_000 * n, MemoryMB: 128_000 * n, DiskGB: 1000 * n}
}

// Join has every host join that has not; it ends with the first that cannot.
func (f *Fleet) Join(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(f.Joining)
	for _, h := range f.hosts {
		group.Go(func() error {
			if ctx.Err() != nil || h.ID() != "" {
				return context.Cause(ctx)
			}
			if err := h.join(ctx); err != nil {
				return fmt.Errorf("%s joins: %w", h.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Run keeps a session of every host that has joined until ctx ends. It returns when all sessions have ended.
func (f *Fleet) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, h := range f.hosts {
		if h.ID() != "" {
			// Of its own: when all sessions end at once, thousands wait for the lock of what they have in common.
			own, end := context.WithCancel(context.WithoutCancel(ctx))
			defer end()
			group.Go(func() { h.run(own) })
			defer context.AfterFunc(ctx, end)()
		}
	}
	group.Wait()
	return context.Cause(ctx)
}

// Count tells how far the hosts are.
func (f *Fleet) Count() Count {
	return Count{
		Joined: int(f.joined.Load()), Connected: int(f.connected.Load()), Running: f.census.running(),
		Heartbeats: f.heartbeats.Load(), Sessions: f.sessions.Load(),
	}
}

// ErrNotYet is what Until fails with, beside the cause of its context's end.
var ErrNotYet = errors.New("the hosts are not there yet")

// Until waits until done says so of the hosts' count.
func (f *Fleet) Until(ctx context.Context, done func(Count) bool) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		c := f.Count()
		if done(c) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %+v: %w", ErrNotYet, c, context.Cause(ctx))
		}
	}
}

const lookEvery = 10 * time.Millisecond

// Hosts returns the hosts in the order in which they were made; Host returns one of them.
func (f *Fleet) Hosts() []*Host { return f.hosts }

// Host returns host i, from 0 on.
func (f *Fleet) Host(i int) *Host { return f.hosts[i] }

// Runs returns what runs now, on all hosts.
func (f *Fleet) Runs() []Run { return f.census.runs() }

// Faults returns what must never be, in words: a pod that ran on two hosts at once, a GPU that two pods had, an overlay
// that a host was told of without having a pod in it.
func (f *Fleet) Faults() []string { return f.census.said() }
