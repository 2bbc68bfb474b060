// Package reports keeps the newest report of each pod and tells it to schedulers until the pod is gone from the host and that is
// recorded.
package reports

import (
	"context"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const maxReports = 64 // of one message, which becomes one log entry

// Reports keeps the newest report of each pod for as long as the host knows the pod, and tells it to
// each session anew: a report may have been lost on its way, and a control plane that was restored
// from an old copy learns from it what has happened since. What is lost with the process is found
// again by the machines, which report anew after a restart.
type Reports struct {
	wake  func()           // there is something to tell
	count func(pod.Report) // every report

	mu       sync.Mutex // guards the fields below
	newest   map[fleet.PodID]newestReport
	sequence uint64
	activity map[fleet.PodID]Activity
}

type newestReport struct {
	report   pod.Report
	sequence uint64    // of the message that carried it; 0: not sent in this session
	sent     time.Time // when it was sent for the first time; zero: never
}

// Activity is what is done for a pod that starts.
type Activity struct {
	Words       string // "": nothing
	Done, Total int64  // bytes
}

// New makes Reports. wake is called when Next has something to tell, and count with every report.
func New(wake func(), count func(pod.Report)) *Reports {
	return &Reports{
		wake: wake, count: count, newest: map[fleet.PodID]newestReport{}, activity: map[fleet.PodID]Activity{},
	}
}

// Report implements pod.Reporter.
func (r *Reports) Report(rep pod.Report) {
	r.count(rep)
	r.mu.Lock()
	r.newest[rep.Pod] = newestReport{report: rep}
	r.mu.Unlock()
	r.wake()
}

// Activity implements pod.Reporter.
func (r *Reports) Activity(id fleet.PodID, words string, done, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if words == "" {
		delete(r.activity, id)
		return
	}
	r.activity[id] = Activity{pod.Readable(words, pod.MaxReason), done, total}
}

// Forget implements pod.Reporter.
func (r *Reports) Forget(id fleet.PodID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.activity, id)
	delete(r.newest, id)
}

// Begin makes every report unsent again. Of pods that the host has forgotten only those are left that
// say just this.
func (r *Reports) Begin(known func(fleet.PodID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.newest {
		if !known(id) && p.report.Event != pod.EventGone {
			delete(r.newest, id)
			continue
		}
		p.sequence = 0
		r.newest[id] = p
	}
	r.wake()
}

// unsent returns a message with reports that were not sent yet, at most maxReports, or nil when there
// are none. When more are left it wakes the session.
func (r *Reports) unsent(now time.Time) *agentrpc.Reports {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*agentrpc.PodReport
	for id, p := range r.newest {
		if p.sequence != 0 {
			continue
		}
		if len(out) == maxReports {
			r.wake()
			break
		}
		p.sequence = r.sequence + 1
		if p.sent.IsZero() {
			p.sent = now
		}
		r.newest[id] = p
		out = append(out, encodeReport(p.report, p.sent))
	}
	if len(out) == 0 {
		return nil
	}
	r.sequence++
	return &agentrpc.Reports{Sequence: r.sequence, Pods: out}
}

// Next returns a message with reports that were not sent yet in this session, or nil.
func (r *Reports) Next() *agentrpc.Up {
	unsent := r.unsent(time.Now())
	if unsent == nil {
		return nil
	}
	unsent.SentNs = time.Now().UnixNano()
	return &agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: unsent}}
}

// TakeKept takes an acknowledgement.
func (r *Reports) TakeKept(_ context.Context, m *agentrpc.Down_ReportsKept) (*agentrpc.Up, error) {
	r.kept(m.ReportsKept.GetSequence())
	return nil, nil
}

// kept drops what was sent up to the sequence number and closes a pod's life here.
func (r *Reports) kept(sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.newest {
		if p.sequence != 0 && p.sequence <= sequence && p.report.Event == pod.EventGone {
			delete(r.newest, id)
		}
	}
}

// Activities are what is done for pods that start.
func (r *Reports) Activities() map[fleet.PodID]Activity {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[fleet.PodID]Activity, len(r.activity))
	for id, a := range r.activity {
		out[id] = a
	}
	return out
}

// encodeReport encodes a report that was first sent at the time sent. Only one that tells of a start
// which this agent has made tells its steps.
func encodeReport(r pod.Report, sent time.Time) *agentrpc.PodReport {
	out := &agentrpc.PodReport{
		PodId: string(r.Pod), Incarnation: r.Incarnation, Event: string(r.Event), Reason: pod.Readable(r.Reason, pod.MaxReason),
		AtNs: agentrpc.Nanoseconds(r.At), LogTail: pod.Readable(r.LogTail, podlog.MaxTail), Digest: r.Digest, StepsNs: map[string]int64{},
	}
	if r.ExitCode != nil {
		out.HasExitCode, out.ExitCode = true, int32(*r.ExitCode) //nolint:gosec // an exit code has 8 bits
	}
	for step, at := range r.Steps {
		if !at.IsZero() {
			out.StepsNs[string(step)] = at.UnixNano()
		}
	}
	if len(r.Steps) > 0 {
		out.StepsNs[string(fleet.StepReported)] = sent.UnixNano()
	}
	return out
}
