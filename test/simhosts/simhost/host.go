package simhost

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Host is a simulated host.
type Host struct {
	fleet   *Fleet
	name    string
	number  int // in the fleet
	machine string
	gpus    []fleet.GPU
	wake    chan struct{} // something is to be sent, or the host was cut or mended

	mu         sync.Mutex // guards the fields below
	id         fleet.HostID
	tls        *tls.Config
	boot       int
	cut        bool
	mute       bool
	end        context.CancelCauseFunc // of the present session; nil: there is none
	schedulers []string
	generation uint64
	lineage    uint64
	holdsSet   bool // this run had the full set of generation and lineage
	runID      string
	attempt    uint64
	pods       map[fleet.PodID]*pod
	sequence   uint64 // of the last message of reports
	replies    []*agentrpc.Up
	networks   Networks // as this run was told
	desk       desk
}

// pod is what a host knows of a pod.
type pod struct {
	id    fleet.PodID
	order *agentrpc.Assignment

	began    uint64 // incarnation that was started last
	run      Run    // of it
	running  bool
	ended    bool   // of began
	event    string // the newest to report; empty: none
	at       time.Time
	sequence uint64 // of the message that carried it; 0: not sent in this session
	timer    *time.Timer
}

func newHost(f *Fleet, i int) *Host {
	return &Host{
		fleet: f, name: fmt.Sprintf("%s-%05d", f.Prefix, i), number: i, machine: fmt.Sprintf("machine-%s-%d-%08x", f.Prefix, i, rand.Uint32()),
		gpus: f.gpusOf(i), wake: make(chan struct{}, 1), schedulers: f.Schedulers, pods: map[fleet.PodID]*pod{},
		runID: fleet.NewID(), desk: newDesk(),
	}
}

// ID returns the host's id; empty before it has joined.
func (h *Host) ID() fleet.HostID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// Cut breaks the host's connection, and it dials no more until Mend. Its pods run on.
func (h *Host) Cut() { h.setCut(true) }

// Mend lets the host dial again.
func (h *Host) Mend() { h.setCut(false) }

func (h *Host) setCut(cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cut = cut; cut {
		h.breakOff(errCut)
	}
	h.poke()
}

// Mute makes the host fall silent, with its connection open: nothing is sent until Speak.
func (h *Host) Mute() { h.setMute(true) }

// Speak ends Mute.
func (h *Host) Speak() { h.setMute(false) }

func (h *Host) setMute(mute bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mute = mute
	h.poke()
}

// muted reports whether the host is silent.
func (h *Host) muted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mute
}

// Reboot ends what runs on the host, and its session. The next one tells of another run of its kernel.
func (h *Host) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boot++
	h.holdsSet, h.runID, h.attempt, h.networks = false, fleet.NewID(), 0, Networks{}
	for _, p := range h.pods {
		if p.running {
			h.stop(p, fleet.EventReboot)
		}
	}
	h.breakOff(errRebooted)
}

// Swap gives the host other GPUs and, unless machine is empty, another machine's id, and ends its session. The next one tells of them.
func (h *Host) Swap(machine string, gpus []fleet.GPU) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.machine, h.gpus = cmp.Or(machine, h.machine), gpus
	h.breakOff(errSwapped)
}

// breakOff ends the present session. The caller holds mu.
func (h *Host) breakOff(why error) {
	if h.end != nil {
		h.end(why)
	}
}

func (h *Host) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// full takes a full set of assignments.
func (h *Host) full(set *agentrpc.FullSet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := make(map[fleet.PodID]bool, len(set.GetAssignments()))
	for _, a := range set.GetAssignments() {
		there[fleet.PodID(a.GetPodId())] = true
	}
	for id, p := range h.pods {
		if !there[id] {
			h.forget(p)
		}
	}
	for _, a := range set.GetAssignments() {
		h.order(a)
	}
	h.took(set.GetGeneration())
}

// difference takes what has changed since a generation, or asks for everything.
func (h *Host) difference(d *agentrpc.Difference) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.GetFrom() != h.generation {
		h.reply(&agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}})
		return
	}
	for _, id := range d.GetGone() {
		if p := h.pods[fleet.PodID(id)]; p != nil {
			h.forget(p)
		}
	}
	for _, a := range d.GetPut() {
		h.order(a)
	}
	h.took(d.GetTo())
}

// took acknowledges a generation. The caller holds mu.
func (h *Host) took(generation uint64) {
	h.generation, h.holdsSet = generation, true
	h.checkNetworks()
	h.reply(&agentrpc.Up{Kind: &agentrpc.Up_Applied{Applied: &agentrpc.Applied{Generation: generation}}})
}

// reply queues a message. The caller holds mu.
func (h *Host) reply(up *agentrpc.Up) {
	h.replies = append(h.replies, up)
	h.poke()
}

// order does what one assignment says. The caller holds mu.
func (h *Host) order(a *agentrpc.Assignment) {
	id := fleet.PodID(a.GetPodId())
	p := h.pods[id]
	if p == nil {
		p = &pod{id: id}
		h.pods[id] = p
	}
	if p.order != nil && a.GetIncarnation() < p.order.GetIncarnation() {
		return
	}
	p.order = a
	switch goal := fleet.Goal(a.GetGoal()); {
	case goal == fleet.GoalRun && a.GetVolume() != nil && !a.GetVolume().GetReady():
	case goal == fleet.GoalRun && a.GetIncarnation() > p.began:
		h.halt(p)
		h.start(p)
	case goal == fleet.GoalRun:
	case goal == fleet.GoalGone:
		h.halt(p)
		h.report(p, eventGone)
	case p.running:
		h.stop(p, fleet.EventExited)
	case !p.ended:
		p.began, p.ended = a.GetIncarnation(), true
		h.report(p, string(fleet.EventExited))
	}
}

const eventGone = "gone"

// start runs a pod, now or after the time that is set. The caller holds mu.
func (h *Host) start(p *pod) {
	p.began, p.ended, p.running = p.order.GetIncarnation(), false, true
	p.run = Run{Pod: p.id, Host: h.id, Incarnation: p.began, GPUs: p.order.GetGpus()}
	if v := p.order.GetVolume(); v != nil {
		p.run.Volume = fleet.VolumeID(v.GetVolumeId())
	}
	h.fleet.census.begin(p.run)
	h.desk.ring()
	if h.fleet.StartAfter <= 0 {
		h.report(p, string(fleet.EventRunning))
		return
	}
	h.report(p, string(fleet.EventStarting))
	incarnation := p.began
	p.timer = time.AfterFunc(h.fleet.StartAfter, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if p.running && p.began == incarnation {
			h.report(p, string(fleet.EventRunning))
		}
	})
}

// stop ends a pod and reports how. The caller holds mu.
func (h *Host) stop(p *pod, event fleet.Trigger) {
	h.halt(p)
	p.ended = true
	h.report(p, string(event))
}

// halt ends what runs of a pod, if anything does. The caller holds mu.
func (h *Host) halt(p *pod) {
	if !p.running {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.running = false
	h.fleet.census.end(p.run)
}

// forget drops a pod that the host need not know any more. The caller holds mu.
func (h *Host) forget(p *pod) {
	h.halt(p)
	delete(h.pods, p.id)
}

// report notes what is to be reported of a pod. The caller holds mu.
func (h *Host) report(p *pod, event string) {
	p.event, p.at, p.sequence = event, time.Now(), 0
	h.poke()
}

// incarnation is the one that a pod's report is of.
func (p *pod) incarnation() uint64 {
	if p.event == eventGone {
		return p.order.GetIncarnation()
	}
	return p.began
}
