package simhost

import (
	"fmt"
	"slices"
	"sync"

	"gantry/fleet"
)

// maxFaults bounds the faults that are remembered.
const maxFaults = 100

// Run is a pod that runs on a host.
type Run struct {
	Pod         fleet.PodID
	Host        fleet.HostID
	Incarnation uint64
	GPUs        []string
	Volume      fleet.VolumeID // network volume; empty: none
}

// census knows what runs on all hosts, and notices what runs twice.
type census struct {
	mu     sync.Mutex // guards the fields below
	pods   map[fleet.PodID][]Run
	gpus   map[string]fleet.PodID
	faults []string
}

func newCensus() *census {
	return &census{pods: map[fleet.PodID][]Run{}, gpus: map[string]fleet.PodID{}}
}

// begin notes that a pod runs.
func (c *census) begin(r Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.pods[r.Pod] {
		c.fault("pod %s runs on %s (%d) and on %s (%d)", r.Pod, other.Host, other.Incarnation, r.Host, r.Incarnation)
	}
	c.pods[r.Pod] = append(c.pods[r.Pod], r)
	for _, uuid := range r.GPUs {
		if other, taken := c.gpus[uuid]; taken {
			c.fault("GPU %s has the pods %s and %s", uuid, other, r.Pod)
		}
		c.gpus[uuid] = r.Pod
	}
}

// end notes that a pod runs no more on a host.
func (c *census) end(r Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.pods[r.Pod], func(other Run) bool {
		return other.Host == r.Host && other.Incarnation == r.Incarnation
	})
	if c.pods[r.Pod] = left; len(left) == 0 {
		delete(c.pods, r.Pod)
	}
	for _, uuid := range r.GPUs {
		if c.gpus[uuid] == r.Pod {
			delete(c.gpus, uuid)
		}
	}
}

// removed notes that a host removed a network volume.
func (c *census) removed(v fleet.VolumeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, runs := range c.pods {
		if slices.ContainsFunc(runs, func(r Run) bool { return r.Volume == v }) {
			c.fault("network volume %s is removed while pod %s runs with it", v, id)
		}
	}
}

// found remembers a fault that a host noticed.
func (c *census) found(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault(format, args...)
}

// fault remembers a fault. The caller holds mu.
func (c *census) fault(format string, args ...any) {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

func (c *census) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faults)
}

func (c *census) running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, runs := range c.pods {
		n += len(runs)
	}
	return n
}

func (c *census) runs() []Run {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Run
	for _, runs := range c.pods {
		out = append(out, runs...)
	}
	return out
}
