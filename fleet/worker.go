package fleet

import (
	"cmp"
	"strconv"
	"time"
)

// WorkerStatus is what a worker of an endpoint does, as its owner sees it.
type WorkerStatus string

// The statuses.
const (
	WorkerRunning      WorkerStatus = "RUNNING"      // it has a job
	WorkerIdle         WorkerStatus = "IDLE"         // it waits for one
	WorkerInitializing WorkerStatus = "INITIALIZING" // it has not asked for one yet
	WorkerUnhealthy    WorkerStatus = "UNHEALTHY"    // those before it crashed, and it has not asked for a job yet
)

// WorkerCounts are numbers of an endpoint's workers by what they do. Those that are frozen are idle; those that
// could not be started are among Throttled and Unhealthy.
type WorkerCounts struct {
	Idle, Running, Initializing, Throttled, Unhealthy int
}

// Add counts one worker.
func (c *WorkerCounts) Add(s WorkerStatus) {
	switch s {
	case WorkerRunning:
		c.Running++
	case WorkerIdle:
		c.Idle++
	case WorkerInitializing:
		c.Initializing++
	case WorkerUnhealthy:
		c.Unhealthy++
	}
}

// Total is the number of all of them.
func (c *WorkerCounts) Total() int {
	return c.Idle + c.Running + c.Initializing + c.Throttled + c.Unhealthy
}

// WorkerView is a worker of an endpoint.
type WorkerView struct {
	PodView
	Status WorkerStatus
	Stale  bool // of an earlier release than the newest
	Note   WorkerNote
}

// WorkerNote is what is known of a worker of an endpoint that balances.
type WorkerNote struct {
	Reason    string        // what is wrong with it; empty: nothing
	ColdStart time.Duration // from its first answer that it gets ready to the first that it is; 0: not known
}

// Rollout says how far the newest release of an endpoint has come.
type Rollout struct {
	Latest, Total int // workers of the newest release, and all
}

// InProgress reports whether there are workers of earlier releases.
func (r Rollout) InProgress() bool { return r.Latest < r.Total }

// EndpointView is an endpoint's record with what is live of it.
type EndpointView struct {
	Endpoint
	Reason  string // why jobs wait, in one sentence; empty: none need wait
	URL     string // at which requests reach its workers; empty: at none
	Rollout Rollout
}

// EndpointWorkers are the workers of an endpoint.
type EndpointWorkers struct {
	Endpoint Endpoint
	Workers  []WorkerView // oldest first
	Counts   WorkerCounts
}

// Pull says how far the host has come with getting the image; empty: that is not known, or not what it does.
func (l *Live) Pull() string {
	if l == nil || l.PullTotal <= 0 {
		return ""
	}
	return cmp.Or(l.Activity, "pulling image") + " " + strconv.FormatInt(min(l.PullDone, l.PullTotal)*100/l.PullTotal, 10) + " %"
}
