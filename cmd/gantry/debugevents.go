package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"gantry/api/admin"
)

const bundleEvents = 20_000 // of a bundle, the newest

// event is something that happened, as a record tells.
type event struct {
	At    time.Time `json:"at"`
	About string    `json:"about"` // what: host, gpu, pod or scheduler
	ID    string    `json:"id"`
	Name  string    `json:"name,omitempty"`
	Text  string    `json:"text"`
}

// events collects what records of hosts, their pods and schedulers say happened, and when.
type events struct{ all []event }

func (e *events) add(at time.Time, about, id, name, format string, args ...any) {
	if !at.IsZero() {
		e.all = append(e.all, event{at.UTC(), about, id, name, fmt.Sprintf(format, args...)})
	}
}

func (e *events) host(h *admin.Host) {
	e.add(h.JoinedAt.Time, "host", h.ID, h.Name, "joined")
	if h.StateSince != nil {
		e.add(h.StateSince.Time, "host", h.ID, h.Name, "is %s since then", h.State)
	}
	if h.Alarm != nil {
		e.add(h.Alarm.At.Time, "host", h.ID, h.Name, "alarm: %s", h.Alarm.Text)
	}
	if d := h.Drain; d != nil {
		e.add(d.Since.Time, "host", h.ID, h.Name, "its drain began: %s", d.Reason)
		if d.Deadline != nil {
			e.add(d.Deadline.Time, "host", h.ID, h.Name, "deadline of its drain")
		}
	}
	for _, g := range h.GoneGPUs {
		e.add(g.CordonedAt.Time, "gpu", g.UUID, h.Name, "was cordoned, and is gone: %s", g.Reason)
	}
}

// pod tells of a pod's start, and of the pod as it is at a time.
func (e *events) pod(at time.Time, host string, p *admin.HostPod) {
	for step, reached := range p.Steps {
		e.add(reached.Time, "pod", p.ID, "", "its start on %s is %s", host, step)
	}
	switch {
	case p.Waits != "":
		e.add(at, "pod", p.ID, "", "%s on %s: %s", p.Status, host, p.Waits)
	case p.Moving:
		e.add(at, "pod", p.ID, "", "%s on %s: moves to %s", p.Status, host, p.To)
	}
}

func (e *events) members(c *admin.Cluster) {
	for _, m := range c.Members {
		e.add(m.JoinedAt.Time, "scheduler", m.ID, m.Name, "joined")
		if m.RemovedAt != nil {
			e.add(m.RemovedAt.Time, "scheduler", m.ID, m.Name, "was removed")
		}
	}
}

// text is the newest events, the oldest of them first.
func (e *events) text() (json.RawMessage, error) {
	slices.SortStableFunc(e.all, func(a, b event) int { return a.At.Compare(b.At) })
	return json.Marshal(map[string]any{"events": append([]event{}, e.all[max(0, len(e.all)-bundleEvents):]...)})
}
