// Package history records what clients asked of a cluster and what they were told, and checks that one pod at a time
// behaves as if its calls had happened one after the other, each at some moment between its start and its end.
//
// A call whose outcome its client never learned may have happened at any moment after its start, or never.
package history

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is what a call asks for.
type Kind string

// The kinds of calls. All but reads are writes.
const (
	Create Kind = "create" // with the client's key
	Rename Kind = "rename"
	Read   Kind = "read"
	Remove Kind = "remove"
)

// Result is what the client was told.
type Result string

// The results of calls.
const (
	OK      Result = "ok"
	Refused Result = "refused" // surely not done
	Unknown Result = "unknown"
)

// Call is one call of one client.
type Call struct {
	Client     int
	Via        string // the scheduler that was asked
	Kind       Kind
	Key        string // the client's key, by which calls of one pod belong together
	Pod        string // id; what a successful create was told
	Name       string // what a write sets, or a read saw
	Absent     bool   // the answer says that there is no such pod any more
	Result     Result
	Note       string // for people
	Start, End time.Duration
}

// String describes the call in one line.
func (c Call) String() string {
	name := c.Name
	if c.Absent {
		name = "(absent)"
	}
	return fmt.Sprintf("%9.3fs-%9.3fs client %d via %s: %s %s %s -> %s %s",
		c.Start.Seconds(), c.End.Seconds(), c.Client, c.Via, c.Kind, c.Pod, name, c.Result, c.Note)
}

// History is what was recorded. It may be used from any goroutine.
type History struct {
	began time.Time

	mu    sync.Mutex // guards what follows
	calls []Call
}

// New begins a history.
func New() *History { return &History{began: time.Now()} }

// Now is the time since the history began, by a clock that never jumps.
func (h *History) Now() time.Duration { return time.Since(h.began) }

// Add records a call that has ended.
func (h *History) Add(c Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, c)
}

// Calls returns a copy, in the order of the calls' ends.
func (h *History) Calls() []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// late is how much later than it ended a call may have been recorded.
const late = time.Second

// writesFrom returns the ends of the acknowledged writes that ended at from or later, and how many of them also began
// then. It looks at no more of the history than it must: it is asked all the time.
func (h *History) writesFrom(from time.Duration) (ends []time.Duration, began int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range slices.Backward(h.calls) {
		if c.End < from-late {
			break
		}
		if c.Kind == Read || c.Result != OK || c.End < from {
			continue
		}
		ends = append(ends, c.End)
		if c.Start >= from {
			began++
		}
	}
	slices.Sort(ends)
	return ends, began
}

// Writes counts the acknowledged writes that began at from or later.
func (h *History) Writes(from time.Duration) int {
	_, n := h.writesFrom(from)
	return n
}

// Gap is the longest time between two acknowledged writes, and between from or to and one.
func (h *History) Gap(from, to time.Duration) time.Duration {
	last, longest := from, time.Duration(0)
	ends, _ := h.writesFrom(from)
	for _, end := range ends {
		if end <= to {
			longest, last = max(longest, end-last), end
		}
	}
	return max(longest, to-last)
}

// pod is the model's state: a pod that the calls of one key made.
type pod struct {
	exists, gone bool
	id           string // empty: made by a create whose client was never told
	name         string
}

// step says whether a pod may answer a call as it did, and what it is afterwards.
func step(p pod, c Call) (bool, pod) {
	if c.Result == Refused {
		return true, p
	}
	unknown := c.Result == Unknown
	switch c.Kind {
	case Create:
		if !p.exists {
			return !c.Absent, pod{exists: true, id: c.Pod, name: c.Name}
		}
		if !unknown && p.id != "" && p.id != c.Pod {
			return false, p // one key, two pods
		}
		p.id = cmp.Or(p.id, c.Pod)
		return true, p
	case Rename:
		if unknown || p.exists && !p.gone {
			if p.exists && !p.gone {
				p.name = c.Name
			}
			return true, p
		}
		return false, p
	case Read:
		if unknown {
			return true, p
		}
		if c.Absent {
			return !p.exists || p.gone, p
		}
		// A pod that is ordered to go is shown until it has gone.
		return p.exists && p.name == c.Name, p
	case Remove:
		if !unknown && (!p.exists || c.Absent && !p.gone) {
			return false, p
		}
		p.gone = p.gone || p.exists
		return true, p
	}
	return false, p
}

var model = porcupine.Model{
	Init: func() any { return pod{} },
	Step: func(state, input, _ any) (bool, any) { return step(state.(pod), input.(Call)) }, //nolint:forcetypeassert // ours
}

// Check returns what is wrong with the history. It gives up, with an error, after the limit.
func (h *History) Check(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	byKey := map[string][]Call{}
	ofPod := map[string]string{}
	var faults []error
	for _, c := range h.Calls() {
		byKey[c.Key] = append(byKey[c.Key], c)
		if c.Kind == Create && c.Result == OK {
			if key, ok := ofPod[c.Pod]; ok && key != c.Key {
				faults = append(faults, fmt.Errorf("keys %s and %s both made pod %s", key, c.Key, c.Pod))
			}
			ofPod[c.Pod] = c.Key
		}
	}
	for key, calls := range byKey {
		var ops []porcupine.Operation
		for _, c := range calls {
			if c.Kind == Read && c.Result != OK || c.Result == Refused {
				continue // it did nothing and tells nothing
			}
			end := int64(c.End)
			if c.Result == Unknown {
				end = math.MaxInt64
			}
			ops = append(ops, porcupine.Operation{ClientId: c.Client, Input: c, Call: int64(c.Start), Return: end})
		}
		switch porcupine.CheckOperationsTimeout(model, ops, max(time.Until(deadline), time.Millisecond)) {
		case porcupine.Ok:
		case porcupine.Illegal:
			faults = append(faults, fmt.Errorf("the calls with key %s have no order in which they make sense:\n%s", key, list(calls)))
		case porcupine.Unknown:
			faults = append(faults, fmt.Errorf("the calls with key %s could not be checked in time", key))
		}
	}
	return errors.Join(faults...)
}

func list(calls []Call) string {
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Compare(a.Start, b.Start) })
	var out strings.Builder
	for _, c := range calls {
		out.WriteString("  " + c.String() + "\n")
	}
	return out.String()
}
