package simhost

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// jobStream is the scheduler's end of a stream of jobs.
type jobStream struct {
	up   chan *agentrpc.JobsUp
	down chan *agentrpc.JobsDown // closed: the stream ends
}

func (s *scheduler) Jobs(stream agentrpc.Link_JobsServer) error {
	x := jobStream{up: make(chan *agentrpc.JobsUp, 100), down: make(chan *agentrpc.JobsDown)}
	select {
	case s.streams <- x:
	case <-stream.Context().Done():
		return nil
	}
	go func() {
		for {
			up, err := stream.Recv()
			if err != nil {
				return
			}
			x.up <- up
		}
	}()
	for {
		select {
		case m, ok := <-x.down:
			if !ok {
				return errors.New("the test ends it")
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// said waits for what the host says.
func (l *lab) said(x jobStream) *agentrpc.JobsUp {
	l.Helper()
	select {
	case up := <-x.up:
		return up
	case <-time.After(testLimit):
		l.Fatal("the host says nothing of its workers")
		return nil
	}
}

func (l *lab) stream(jobs ...*agentrpc.JobHeld) jobStream {
	l.Helper()
	select {
	case x := <-l.s.streams:
		x.down <- &agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Held{Held: &agentrpc.JobsHeld{Jobs: jobs}}}
		return x
	case <-time.After(testLimit):
		l.Fatal("no stream of jobs came")
		return jobStream{}
	}
}

// TestAWorkerDoesItsJobs, in parts where they are large; it says so until that is kept, and gives back what never came.
func TestAWorkerDoesItsJobs(t *testing.T) {
	large := strings.Repeat("x", partBytes+1)
	l := newLab(t, func(c *Config) { c.Answer = func(job []byte) []byte { return append(job, large...) } })
	x := l.next()
	x.down <- &agentrpc.Down{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 1, Assignments: []*agentrpc.Assignment{
		{PodId: "w", Incarnation: 1, Goal: string(fleet.GoalRun), EndpointId: "e"}, {PodId: "p", Incarnation: 1, Goal: string(fleet.GoalRun)},
	}}}}
	s := l.stream()
	if m := l.said(s); m.GetWants().GetPodId() != "w" || m.GetWants().GetSlots() != 1 {
		t.Fatalf("%v", m)
	}
	for i, part := range []string{"to ", "do"} {
		s.down <- &agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Given{Given: &agentrpc.JobGiven{PodId: "w", JobId: "j", Attempt: 2, Body: []byte(part), More: i == 0}}}
	}
	done := func(s jobStream) {
		t.Helper()
		text := ""
		for more := true; more; {
			m := l.said(s)
			if m.GetWants() != nil {
				continue
			}
			r := m.GetReport()
			if r.GetPodId() != "w" || r.GetJobId() != "j" || r.GetAttempt() != 2 || r.GetKind() != agentrpc.JobReport_DONE || r.GetNumber() != 1 {
				t.Fatalf("%v", m)
			}
			text += string(r.GetBody())
			more = r.GetMore()
		}
		if text != "to do"+large {
			t.Errorf("%d bytes", len(text))
		}
	}
	done(s)
	close(s.down)
	s = l.stream()
	done(s)
	s.down <- &agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Kept{Kept: &agentrpc.JobKept{Number: 1}}}
	close(s.down)
	s = l.stream(&agentrpc.JobHeld{PodId: "w", JobId: "other", Attempt: 1})
	for {
		m := l.said(s)
		if m.GetWants() != nil {
			continue
		}
		if r := m.GetReport(); r.GetKind() != agentrpc.JobReport_REFUSED || r.GetJobId() != "other" {
			t.Errorf("%v", m)
		}
		return
	}
}
