package workers

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"gantry/internal/agentrpc"
)

// TestASuccessOfAJobThatWasGivenUpIsSent: the heartbeats did not name it, or the cluster gave it to another worker meanwhile.
func TestASuccessOfAJobThatWasGivenUpIsSent(t *testing.T) {
	const done, lost = agentrpc.JobReport_DONE, agentrpc.JobReport_LOST
	missing := func(l *lab) {
		for range 2 {
			l.answers(200, "GET", "ping/w?runpod_version=1", "")
		}
		if r := l.said(1); r.GetKind() != lost {
			l.Fatalf("said %v", r)
		}
	}
	elsewhere := func(l *lab) {
		l.leave()
		l.note(func() { l.held = nil })
		l.comeBack()
	}
	for name, c := range map[string]struct {
		give func(l *lab)
		want []agentrpc.JobReport_Kind
	}{
		"lost": {func(l *lab) {
			missing(l)
			l.holds("it is kept", func() bool { return len(l.gate.link.pending) == 0 })
			l.answers(200, "POST", "job-done/w/j?", `{"error":"late"}`)
		}, []agentrpc.JobReport_Kind{lost, done}},
		"about to be lost": {func(l *lab) {
			l.note(func() { l.mute = true })
			missing(l)
			l.note(func() { l.mute = false })
		}, []agentrpc.JobReport_Kind{lost, done}},
		"given to another worker": {elsewhere, []agentrpc.JobReport_Kind{done}},
		"given to another worker while the agent was away": {func(l *lab) {
			l.stopAgent()
			l.note(func() { l.held = nil })
			l.start(false)
			l.connected()
			l.holds("it knows", func() bool { return l.gate.workers[podID].known })
		}, []agentrpc.JobReport_Kind{done}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.connected()
			l.takes("j")
			c.give(l)
			l.answers(200, "POST", "job-stream/w/j?isStream=false", `{"output":"late"}`)
			l.answers(200, "POST", "job-done/w/j?", `{"output":1}`)
			last := l.said(len(c.want))
			if fmt.Sprint(kinds(l.scheduler)) != fmt.Sprint(c.want) || string(last.GetBody()) != "1" || last.GetJobId() != "j" || last.GetAttempt() > 1 {
				t.Errorf("said %v; want %v", l.reports, c.want)
			}
		})
	}
}

// TestASuccessThatWaitedIsSent, though the agent was started again, does not know the job, and the cluster gave it to another worker.
func TestASuccessThatWaitedIsSent(t *testing.T) {
	l := newLab(t)
	l.connected()
	l.takes("j")
	l.leave()
	l.stopAgent()
	l.note(func() { l.held = nil })
	l.start(false)
	var wg sync.WaitGroup
	wg.Go(func() { l.answers(200, "POST", "job-done/w/j?", `{"output":1}`) })
	l.holds("the result is on disk", func() bool { return len(l.files()) > 0 })
	l.comeBack()
	wg.Wait()
	if r := l.said(1); r.GetKind() != agentrpc.JobReport_DONE || r.GetAttempt() != 0 || len(l.reports) != 1 {
		t.Errorf("said %v", l.reports)
	}
}

// TestJobsThatWereGivenUpAreForgotten in the end, and so are those that a worker invents.
func TestJobsThatWereGivenUpAreForgotten(t *testing.T) {
	l := newLab(t)
	l.connected()
	w := l.gate.workers[podID]
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	for n := range 3 * maxLate {
		w.giveUp(&job{id: fmt.Sprint("j", n), attempt: 1})
	}
	if len(w.late) != maxLate || w.recall("j0") != nil || w.recall(fmt.Sprint("j", 3*maxLate-1)) == nil {
		t.Errorf("%d are remembered", len(w.late))
	}
	if w.recall("stranger") != nil {
		t.Error("a worker that began with the agent has a job of nobody")
	}
	w.old = true
	found := 0
	for n := range 2 * maxUnsure {
		if w.recall(fmt.Sprint("stranger", n)) != nil {
			found++
		}
	}
	if found != maxUnsure || w.recall("") != nil {
		t.Errorf("%d strangers", found)
	}
}

// holds waits until something is so in the gate.
func (l *lab) holds(what string, f func() bool) {
	l.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		l.gate.mu.Lock()
		ok := f()
		l.gate.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(limit) {
			l.Fatal("not in time: " + what)
		}
	}
}

func kinds(s *scheduler) (out []agentrpc.JobReport_Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.reports {
		out = append(out, r.GetKind())
	}
	return out
}
