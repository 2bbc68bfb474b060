package workers

import (
	"fmt"
	"io"
	"net/http"
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

// TestASuccessCountsThoughTheJobWasGivenAgain: the next try was refused, or came, while the worker was at the one before.
func TestASuccessCountsThoughTheJobWasGivenAgain(t *testing.T) {
	const done, refused, lost = agentrpc.JobReport_DONE, agentrpc.JobReport_REFUSED, agentrpc.JobReport_LOST
	givenUp := func(l *lab) {
		l.leave()
		l.note(func() { l.held = nil })
		l.comeBack()
		l.holds("it is given up", func() bool { return len(l.gate.workers[podID].late) == 1 })
	}
	for name, c := range map[string]struct {
		before func(l *lab)
		while  func(l *lab) // the worker speaks
		want   []agentrpc.JobReport_Kind
	}{
		"given in a stream that broke": {func(l *lab) {
			givenUp(l)
			l.leave()
			l.note(func() {
				l.held = []*agentrpc.JobHeld{{PodId: podID, JobId: "j", Attempt: 2}}
				l.away, l.mute = false, true
			})
			l.said(1)
			l.note(func() { l.mute = false })
		}, nil, []agentrpc.JobReport_Kind{refused, done}},
		"no poll for it": {func(l *lab) {
			givenUp(l)
			l.note(func() { l.mute = true })
			l.give("j", 2, `{"id":"j"}`)
			l.said(1)
			l.note(func() { l.mute = false })
		}, nil, []agentrpc.JobReport_Kind{refused, done}},
		"no poll for it, and the refusal is kept": {func(l *lab) {
			l.give("j", 2, `{"id":"j"}`)
			l.said(1)
			l.holds("it is kept", func() bool { return len(l.gate.link.pending) == 0 })
		}, nil, []agentrpc.JobReport_Kind{refused, done}},
		"given meanwhile": {nil, func(l *lab) {
			l.give("j", 2, `{"id":"j"}`)
			l.holds("it is there", func() bool { return l.gate.workers[podID].jobs["j"].attempt == 2 })
		}, []agentrpc.JobReport_Kind{done}},
		"lost meanwhile": {func(l *lab) {
			l.note(func() { l.mute = true })
			for range 2 {
				l.answers(200, "GET", "ping/w?runpod_version=1", "")
			}
			l.said(1)
		}, func(l *lab) {
			l.leave()
			l.comeBack()
			l.holds("it is given up", func() bool { return len(l.gate.workers[podID].late) == 1 })
		}, []agentrpc.JobReport_Kind{lost, lost, done}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.connected()
			l.takes("j")
			if c.before != nil {
				c.before(l)
			}
			body, rest := io.Pipe()
			var wg sync.WaitGroup
			wg.Go(func() {
				r, err := http.NewRequest(http.MethodPost, l.base+"/v2/endpoint1/job-done/w/j", body)
				must(t, err)
				r.ContentLength = int64(len(`{"output":1}`))
				got, err := client.Do(r)
				must(t, err)
				if got.StatusCode != http.StatusOK {
					t.Errorf("answered %d", got.StatusCode)
				}
				must(t, got.Body.Close())
			})
			_, err := io.WriteString(rest, `{"output"`)
			must(t, err)
			l.holds("the worker speaks", func() bool { j := l.gate.workers[podID].jobs["j"]; return j != nil && j.busy > 0 })
			if c.while != nil {
				c.while(l)
			}
			_, err = io.WriteString(rest, ":1}")
			must(t, err)
			must(t, rest.Close())
			wg.Wait()
			if said := kinds(l.scheduler); fmt.Sprint(said) != fmt.Sprint(c.want) || string(l.said(len(said)).GetBody()) != "1" {
				t.Errorf("said %v; want %v", said, c.want)
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
