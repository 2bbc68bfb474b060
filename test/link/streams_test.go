package link

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gantry/agent"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/state"
)

// running is a container runtime whose containers run until they are removed. Their ports are this machine's.
type running struct {
	none
	mu   sync.Mutex
	pods map[fleet.PodID]pod.Container
}

func (r *running) change(id fleet.PodID, do func(*pod.Container)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.pods[id]
	do(&c)
	r.pods[id] = c
	return nil
}

func (r *running) Look(_ context.Context, id fleet.PodID) (pod.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[id], nil
}

func (r *running) Image(context.Context, string) (string, error) { return "sha256:image", nil }

func (r *running) Define(_ context.Context, s pod.ContainerSpec) error {
	return r.change(s.Pod, func(c *pod.Container) { c.Exists, c.Incarnation = true, s.Incarnation })
}

func (r *running) Task(_ context.Context, id fleet.PodID) error {
	return r.change(id, func(c *pod.Container) { c.Task = pod.TaskCreated })
}

func (r *running) Start(_ context.Context, id fleet.PodID) (time.Time, error) {
	now := time.Now()
	return now, r.change(id, func(c *pod.Container) { c.Task, c.StartedAt, c.PID = pod.TaskRunning, now, 1 })
}

func (r *running) Wait(ctx context.Context, _ fleet.PodID) error { <-ctx.Done(); return ctx.Err() }

func (r *running) Usage(context.Context, fleet.PodID) (pod.Usage, error) { return pod.Usage{}, nil }

func (r *running) Deaf(fleet.PodID, int) bool { return false }

func (r *running) Remove(_ context.Context, id fleet.PodID) error {
	return r.change(id, func(c *pod.Container) { *c = pod.Container{} })
}

// echo is a connection to the pod's port, through a scheduler.
type echo struct {
	through *scheduler
	fleet.Stream
}

func (e echo) alive() error {
	const word = "are you there?"
	if _, err := io.WriteString(e.Stream, word); err != nil {
		return err
	}
	got := make([]byte, len(word))
	if _, err := io.ReadFull(e.Stream, got); err != nil {
		return err
	}
	if string(got) != word {
		return fmt.Errorf("%q came back", got)
	}
	return nil
}

const thePod = fleet.PodID("pod00000000001")

// podOn makes a host with a pod that has an http port, which is one of this machine at any address, and waits until the pod runs.
func (w *world) podOn(all []*scheduler, port int) *host {
	w.Helper()
	return w.podBy(all, port, func(h *host) { h.start(all[0].addr) })
}

// runs has the pods of a host's agent run, on addresses of this machine.
func runs(c *agent.Config) {
	c.Containers = &running{pods: map[fleet.PodID]pod.Container{}}
	c.PickSubnet = func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("127.88.0.0/20"), nil }
}

// podBy is podOn of a host whose agent start starts.
func (w *world) podBy(all []*scheduler, port int, start func(*host)) *host {
	w.Helper()
	h := w.newHost(all[0].addr)
	h.conf = runs
	start(h)
	w.soon("the host is ready", h.is(fleet.HostReady))
	for _, s := range all {
		if s.dispatch.Data().Connected(h.id) {
			w.Error("a host without pods has a data connection")
		}
	}
	now := time.Now()
	w.propose(state.PutAccount{Account: fleet.Account{ID: "acme", Name: "Acme", CreatedAt: now}})
	w.propose(state.CreatePods{Pods: []state.NewPod{{HostEpoch: h.record().Epoch, Pod: fleet.Pod{
		ID: thePod, Account: "acme", Host: h.id, CreatedAt: now, Need: fleet.Resources{MilliCPU: 1000, MemoryMB: 100, DiskGB: 1},
		Spec: fleet.PodSpec{Name: "pod", Image: "image", Ports: []fleet.Port{{Number: port, Protocol: "http"}}, Cloud: fleet.CloudSecure},
	}}}})
	w.soon("the pod runs", func() (ok bool) {
		must(w, w.store.View(func(v *state.View) error {
			p, _ := v.Pod(thePod)
			ok = p.Status == fleet.StatusRunning
			return nil
		}))
		return ok
	})
	for _, s := range all {
		w.soon("the host is connected", func() bool { return s.dispatch.Data().Connected(h.id) })
	}
	return h
}

// TestStreamsBreakOnlyWithTheirOwnScheduler opens connections to a pod through each of three schedulers. The leader changes twice, and
// one scheduler dies: those that ran through it break, and no other one does.
func TestStreamsBreakOnlyWithTheirOwnScheduler(t *testing.T) {
	const each = 40
	w := newWorld(t)
	var all []*scheduler
	for range 3 {
		all = append(all, w.newScheduler(loopback, dispatch.Config{}))
	}
	all[0].begin()
	// Pods have addresses of this machine's loopback: where a pod listens on all of them, the test does.
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	port := ln.Addr().(*net.TCPAddr).Port
	h := w.podOn(all, port)
	var streams []echo
	for _, s := range all {
		for range each {
			stream, err := s.dispatch.OpenPort(w.ctx, h.id, thePod, port)
			must(t, err)
			streams = append(streams, echo{s, stream})
		}
	}
	lives := func(after string, dead *scheduler) {
		t.Helper()
		broken := 0
		for _, e := range streams {
			if err := e.alive(); (err == nil) == (e.through == dead) {
				t.Errorf("%s: a stream through %s: %v", after, e.through.addr, err)
			} else if err != nil {
				broken++
			}
		}
		t.Logf("%s: %d of %d streams broke", after, broken, len(streams))
	}
	lives("before", nil)
	epoch := h.record().Epoch
	for _, turn := range []int{1, 2} {
		all[turn-1].resign()
		all[turn].begin()
		w.soon("the host follows", func() bool { return all[turn].dispatch.Reachable(h.id) && h.record().Epoch > epoch })
		epoch = h.record().Epoch
		lives("the leader changed", nil)
	}
	all[0].endData()
	w.soon("the host notices", func() bool { return !all[0].dispatch.Data().Connected(h.id) })
	lives("a scheduler died", all[0])
	for _, e := range streams {
		_ = e.Close()
	}
}
