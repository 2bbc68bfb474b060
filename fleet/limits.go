package fleet

import "fmt"

// Limit is something of which an account may have so much and no more.
type Limit int

// The limits. The numbers are of the program alone: names are what is stored and shown.
const (
	LimitPods      Limit = iota // pods that are not terminated
	LimitRunning                // of those, the ones that run, are being started, or are not there yet
	LimitGPUs                   // of pods that run
	LimitVCPUs                  // of CPU pods that run; those of GPU pods come with their GPUs
	LimitVolumes                // network volumes, with those of which something is left after their deletion
	LimitVolumeGB               // of network volumes
	LimitSpecBytes              // of the specifications of pods that are not terminated: texts, arguments, environment
	LimitEndpoints              // serverless endpoints
	LimitWorkers                // of pods that run, the ones that are workers of endpoints
	LimitClusters               // clusters
	LimitSpend                  // USD per hour; Counts have it in nano-dollars
	limitEnd
)

// MaxLimit is the largest value of a limit; it is as good as none.
const MaxLimit = 1_000_000_000_000

// mostSpend is the highest limit of spending, in dollars, that fits in nano-dollars.
const mostSpend = 9_000_000_000

// Counts are numbers of what there are limits of, by Limit.
type Counts [limitEnd]int64

// Limits are values of limits by their names; those that are not named are what they are elsewhere.
type Limits map[string]int64

// limitFacts are the name of each limit, what it counts, and its value where nobody set another.
var limitFacts = [limitEnd]struct {
	name, what string
	value      int64
}{
	LimitPods:      {"pods", "pods that are not terminated", 1000},
	LimitRunning:   {"runningPods", "pods that run", 200},
	LimitGPUs:      {"gpus", "GPUs of pods that run", 1600},
	LimitVCPUs:     {"vcpus", "vCPUs of CPU pods that run", 6400},
	LimitVolumes:   {"networkVolumes", "network volumes", 500},
	LimitVolumeGB:  {"networkVolumeGB", "GB of network volumes", 1_000_000},
	LimitSpecBytes: {"specificationBytes", "bytes of pods' specifications", 64 << 20},
	LimitEndpoints: {"endpoints", "endpoints", 100},
	// Workers are running pods, too: that bounds them where nobody set this one.
	LimitWorkers:  {"workers", "workers of endpoints", MaxLimit},
	LimitClusters: {"clusters", "clusters", 50},
	LimitSpend:    {"spendPerHour", "USD per hour", 10_000},
}

// AllLimits returns every limit, in the order in which they are shown.
func AllLimits() []Limit {
	out := make([]Limit, limitEnd)
	for i := range out {
		out[i] = Limit(i)
	}
	return out
}

// LimitNamed returns the limit with a name.
func LimitNamed(name string) (Limit, bool) {
	for _, l := range AllLimits() {
		if l.String() == name {
			return l, true
		}
	}
	return 0, false
}

// String returns the name of the limit.
func (l Limit) String() string { return limitFacts[l].name }

// What says what the limit counts, for people.
func (l Limit) What() string { return limitFacts[l].what }

// Of returns the value of a limit: the first that names it, or the one that holds where nobody set another.
func (l Limit) Of(all ...Limits) int64 {
	for _, some := range all {
		if value, ok := some[l.String()]; ok {
			return value
		}
	}
	return limitFacts[l].value
}

// Shown returns a count in the unit of the limit's value.
func (l Limit) Shown(count int64) float64 {
	if l == LimitSpend {
		return Money(count).USD()
	}
	return float64(count)
}

// Check refuses what there is too much of: more on top of used, where a limit is below the sum.
func (l Limit) Check(limit, used, more int64) error {
	most := limit
	if l == LimitSpend {
		most = min(limit, mostSpend) * int64(Dollar)
	}
	if more <= 0 || used <= most-more {
		return nil
	}
	return &Error{Code: CodeQuota, Msg: fmt.Sprintf(
		"The account may have no more %s: its limit (%s) is %d, %s in use, and %s more asked for.", l.What(), l, limit, l.text(used), l.text(more),
	)}
}

func (l Limit) text(count int64) string {
	if l == LimitSpend {
		return fmt.Sprintf("%.3f", Money(count).USD())
	}
	return fmt.Sprint(count)
}
