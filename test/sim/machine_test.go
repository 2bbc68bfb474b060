package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// machine is a host's hardware with its kernel and container runtime. It outlives every agent.
type machine struct {
	name     string
	instance string
	watch    watcher
	gates    gates
	programs sync.WaitGroup

	mu        sync.Mutex // guards the fields below; taken before the watcher's locks
	rng       *rand.Rand
	boot, pid int
	// programsBegun is how many workers' programs there were.
	programsBegun uint64
	kernel        *netctl.FakeKernel
	away          chan struct{}     // not nil while the container runtime does not answer; closed when it comes back
	left          chan struct{}     // closed when the container runtime goes away
	slow          bool              // pulls take ten times as long
	images        map[string]string // digests by reference, as pulled last
	layers        map[string]string // references by digest
	boxes         map[fleet.PodID]*box
	// attached are network volumes, until the kernel ends.
	attached map[fleet.PodID]fleet.VolumeID
	tunnel   *simTunnel
}

// watcher is told what processes do, while the machine's lock is held.
type watcher interface {
	began(m *machine, spec pod.ContainerSpec)
	ended(m *machine, spec pod.ContainerSpec)
	// ordered is called when an agent ends a running process.
	ordered(m *machine, spec pod.ContainerSpec, how string)
	// superseded reports whether the state wants another incarnation of the pod.
	superseded(id fleet.PodID, incarnation uint64) bool
	broke(format string, args ...any)

	// froze is called when a worker is made to stand still, or to go on.
	froze(id fleet.PodID, frozen bool)

	// took, answered and dropped say what became of a job in a worker's program: it was given it, was answered after it said how it
	// ended, forgot it. The machine's lock is not held.
	took(p *program, job string)
	answered(p *program, job string, status int, success bool)
	unanswered(p *program, job string, after time.Duration, err error)
	dropped(p *program, job string)
}

// box is a container.
type box struct {
	spec pod.ContainerSpec
	pod.Container
	done     chan struct{} // closed when the process has ended
	rebooted bool          // the machine was rebooted under it
	program  *program      // nil: it is no worker
}

// behavior is what an image's process does; it is read from the image's name.
type behavior struct {
	kind  string        // steady, moving, polite, stubborn, done, fail, oom, missing, broken, slow
	after time.Duration // for done, fail and oom
}

// image names an image that behaves so, unlike all others with another number.
func image(kind string, seconds, number int) string {
	return fmt.Sprintf("registry.sim/%s/%d/%d", kind, seconds, number)
}

func behaviorOf(ref string) behavior {
	parts := strings.Split(ref, "/")
	if len(parts) != 4 {
		return behavior{kind: "missing"}
	}
	seconds, _ := strconv.Atoi(parts[2])
	return behavior{parts[1], time.Duration(seconds) * time.Second}
}

func newMachine(name string, seed uint64, w watcher) *machine {
	return &machine{
		name: name, instance: fmt.Sprintf("%04x", seed&0xffff), watch: w, rng: rand.New(rand.NewPCG(seed, 2)), boot: 1,
		kernel: netctl.NewFakeKernel(), left: make(chan struct{}), images: map[string]string{}, layers: map[string]string{}, boxes: map[fleet.PodID]*box{},
		attached: map[fleet.PodID]fleet.VolumeID{}, tunnel: &simTunnel{},
	}
}

// setAway takes the container runtime away or brings it back. Processes run on.
func (m *machine) setAway(away bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case away && m.away == nil:
		m.away = make(chan struct{})
		close(m.left)
	case !away && m.away != nil:
		close(m.away)
		m.away, m.left = nil, make(chan struct{})
	}
}

func (m *machine) setSlow(slow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow = slow
}

// reboot ends every process and loses the kernel's state. Containers stay defined.
func (m *machine) reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boot++
	m.kernel, m.tunnel = netctl.NewFakeKernel(), &simTunnel{}
	clear(m.attached)
	for _, b := range m.boxes {
		m.exit(b, 137, false)
		b.Container, b.rebooted = pod.Container{Exists: true, Incarnation: b.Incarnation}, true
	}
}

// exit ends a process that runs; mu is held.
func (m *machine) exit(b *box, code int, oom bool) {
	if b.Task != pod.TaskRunning {
		return
	}
	b.Task, b.ExitCode, b.ExitedAt, b.OOMKilled = pod.TaskStopped, code, time.Now(), oom
	close(b.done)
	if b.program != nil {
		b.program.term()
		b.program.die()
	}
	m.watch.ended(m, b.spec)
}

// later ends the very process that runs now after d.
func (m *machine) later(b *box, d time.Duration, code int, oom bool) {
	pid := b.PID
	time.AfterFunc(d, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.boxes[b.spec.Pod] == b && b.PID == pid {
			m.exit(b, code, oom)
		}
	})
}

// census returns the pods whose process runs, by incarnation, and those that have a container.
func (m *machine) census() (running map[fleet.PodID]uint64, boxes []fleet.PodID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	running = map[fleet.PodID]uint64{}
	for id, b := range m.boxes {
		boxes = append(boxes, id)
		if b.Task == pod.TaskRunning {
			running[id] = b.Incarnation
		}
	}
	slices.Sort(boxes)
	return running, boxes
}

// bound returns the pods that have a container which was not merely left over by a reboot.
func (m *machine) bound() map[fleet.PodID]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[fleet.PodID]uint64{}
	for id, b := range m.boxes {
		if !b.rebooted || b.Task == pod.TaskRunning {
			out[id] = b.Incarnation
		}
	}
	return out
}

// networks returns the pods that have a network namespace.
func (m *machine) networks() []string {
	m.mu.Lock()
	kernel := m.kernel
	m.mu.Unlock()
	st, err := netctl.NewFake(kernel, m.instance).Observed(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, p := range st.Config.Pods {
		out = append(out, p.ID)
	}
	return append(out, st.Partial...)
}
