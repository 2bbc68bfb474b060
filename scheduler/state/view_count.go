package state

import "gantry/fleet"

// Counts are how many there are of what metrics tell of.
type Counts struct {
	Hosts  map[fleet.HostState]int // as Host.Shown has it; of those that are gone none
	Alarms int                     // hosts whose identity two machines use
	Behind int                     // hosts that were not compared since the cluster was restored
	Pods   map[fleet.PodStatus]int
	Voters int // members that are to have a vote
	// SickGPUs and CordonedGPUs are in no pod's reach; one that is both counts as cordoned. Those that are gone do not count.
	SickGPUs, CordonedGPUs int
}

// Counts counts. It copies no record.
func (v *View) Counts() Counts {
	c := Counts{Hosts: map[fleet.HostState]int{}, Pods: map[fleet.PodStatus]int{}}
	for _, h := range v.tb.hosts.rows {
		if h.State == fleet.HostGone {
			continue
		}
		c.Hosts[h.Shown()]++
		if h.Alarm != "" {
			c.Alarms++
		}
		for i := range h.Inventory.GPUs {
			switch g := &h.Inventory.GPUs[i]; {
			case g.Cordoned != "":
				c.CordonedGPUs++
			case g.Sick != "":
				c.SickGPUs++
			}
		}
		if h.Behind {
			c.Behind++
		}
	}
	for _, p := range v.tb.pods.rows {
		c.Pods[p.Status]++
	}
	for _, m := range v.tb.members.rows {
		if m.RemovedAt.IsZero() && !m.NonVoter {
			c.Voters++
		}
	}
	return c
}
