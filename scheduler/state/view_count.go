package state

import (
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
)

// Counts are how many there are of what metrics tell of.
type Counts struct {
	Hosts  map[fleet.HostState]int // as Host.Shown has it; of those that are gone none
	Alarms int                     // hosts whose identity two machines use
	Behind int                     // hosts that were not compared since the cluster was restored
	Pods   map[fleet.PodStatus]int
	Voters int // members that are to have a vote
	// SickGPUs and CordonedGPUs are in no pod's reach; one that is both counts as cordoned. Those that are gone do not count.
	SickGPUs, CordonedGPUs int
	BackupAt               time.Time // of when the newest back-up is; zero: there was none
	GPUs                   map[string]GPUStock
	Drains                 Drains
}

// GPUStock is what there is of a GPU type on hosts that take new pods: in service, free of that, and the most of each on one host.
type GPUStock struct{ All, Free, AllOnHost, FreeOnHost int }

// Drains are those that have pods left that run.
type Drains struct {
	Overdue int           // whose deadline is over
	Oldest  time.Duration // since the oldest began; 0: there is none
}

// Counts counts at a time. It copies no record.
func (v *View) Counts(now time.Time) Counts {
	c := Counts{Hosts: map[fleet.HostState]int{}, Pods: maps.Clone(v.tb.statuses), GPUs: map[string]GPUStock{}}
	v.Fleet().All(c.stock)
	for _, h := range v.tb.hosts.Rows {
		if h.State != fleet.HostGone {
			c.host(h, v.tb.onHost[h.ID], now)
		}
	}
	for _, m := range v.tb.members.Rows {
		if m.RemovedAt.IsZero() && !m.NonVoter {
			c.Voters++
		}
	}
	if cluster := v.tb.cluster.Rows[onlyKey]; cluster != nil {
		c.BackupAt = cluster.BackupAt
	}
	return c
}

// host counts a host with its pods.
func (c *Counts) host(h *fleet.Host, pods []*fleet.Pod, now time.Time) {
	c.Hosts[h.Shown()]++
	if h.Alarm != "" {
		c.Alarms++
	}
	if h.Behind {
		c.Behind++
	}
	for i := range h.Inventory.GPUs {
		switch g := &h.Inventory.GPUs[i]; {
		case g.Cordoned != "":
			c.CordonedGPUs++
		case g.Sick != "":
			c.SickGPUs++
		}
	}
	if h.Eligibility != fleet.EligibilityDraining || h.Drain == nil || !slices.ContainsFunc(pods, func(p *fleet.Pod) bool { return p.Status.Active() }) {
		return
	}
	c.Drains.Oldest = max(c.Drains.Oldest, now.Sub(h.Drain.Since))
	if end := h.Drain.Deadline; !end.IsZero() && end.Before(now) {
		c.Drains.Overdue++
	}
}

// stock counts the GPUs of a host that takes pods.
func (c *Counts) stock(on *place.Candidate) {
	if takes, _ := on.Host.Takes(); !takes {
		return
	}
	all, free := map[string]int{}, map[string]int{}
	for i := range on.Host.Inventory.GPUs {
		if g := &on.Host.Inventory.GPUs[i]; g.Out() == "" {
			all[g.Type]++
		}
	}
	for i := range on.FreeGPUs {
		free[on.FreeGPUs[i].Type]++
	}
	for id, n := range all {
		s := c.GPUs[id]
		s.All, s.AllOnHost = s.All+n, max(s.AllOnHost, n)
		s.Free, s.FreeOnHost = s.Free+free[id], max(s.FreeOnHost, free[id])
		c.GPUs[id] = s
	}
}
