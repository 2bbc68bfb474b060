package dispatch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// TestWhatAReportSaysIsTakenOverOrLeftOut: digests that are some, exit codes that were sent, a log that is too long.
func TestWhatAReportSaysIsTakenOverOrLeftOut(t *testing.T) {
	short, long := "sha256:"+strings.Repeat("a", 64), "sha512:"+strings.Repeat("b", 128)
	at := time.Unix(100, 0)
	one := 1
	for name, c := range map[string]struct {
		in   *agentrpc.PodReport
		want state.PodReport
	}{
		"plain":             {&agentrpc.PodReport{Event: "running"}, state.PodReport{Event: fleet.EventRunning}},
		"a digest":          {&agentrpc.PodReport{Event: "running", Digest: short}, state.PodReport{Event: fleet.EventRunning, Digest: short}},
		"a longer digest":   {&agentrpc.PodReport{Event: "running", Digest: long}, state.PodReport{Event: fleet.EventRunning, Digest: long}},
		"no digest":         {&agentrpc.PodReport{Event: "running", Digest: "sha256:" + strings.Repeat("A", 64)}, state.PodReport{Event: fleet.EventRunning}},
		"an exit code":      {&agentrpc.PodReport{Event: "exited", HasExitCode: true, ExitCode: 1}, state.PodReport{Event: fleet.EventExited, ExitCode: &one}},
		"one that was none": {&agentrpc.PodReport{Event: "exited", ExitCode: 1}, state.PodReport{Event: fleet.EventExited}},
		"a long log": {
			&agentrpc.PodReport{Event: "failed", LogTail: "x" + strings.Repeat("y", maxTail)},
			state.PodReport{Event: fleet.EventFailed, LogTail: strings.Repeat("y", maxTail)},
		},
		"a time": {&agentrpc.PodReport{Event: "gone", AtNs: at.UnixNano()}, state.PodReport{Event: state.ReportGone, At: at.Add(time.Second)}},
		"steps": {
			&agentrpc.PodReport{Event: "running", StepsNs: map[string]int64{"started": at.UnixNano(), "defined": at.UnixNano()}},
			state.PodReport{Event: fleet.EventRunning, Steps: map[fleet.Step]time.Time{fleet.StepStarted: at.Add(time.Second), fleet.StepDefined: at.Add(time.Second)}},
		},
	} {
		c.in.PodId, c.want.Pod = "p", "p"
		if d := cmp.Diff([]state.PodReport{c.want}, decodeReports([]*agentrpc.PodReport{c.in}, time.Second)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestAlarmsComeOnceAMinute, and what is remembered of them is bounded.
func TestAlarmsComeOnceAMinute(t *testing.T) {
	s := &Server{alarmed: map[alarm]time.Time{}}
	now := time.Unix(1000, 0)
	one := alarm{"h1", "a"}
	for i, c := range []struct {
		a     alarm
		after time.Duration
		want  bool
	}{
		{one, 0, true}, {one, alarmEvery - 1, false}, {alarm{"h2", "a"}, 0, true}, {alarm{"h1", "b"}, 0, true}, {one, alarmEvery, true}, {one, alarmEvery + 1, false},
	} {
		if got := s.mayRaise(c.a, now.Add(c.after)); got != c.want {
			t.Errorf("%d: %v after %v: %v", i, c.a, c.after, got)
		}
	}
	clear(s.alarmed)
	for i := range maxAlarmed {
		if !s.mayRaise(alarm{fleet.HostID(rune(i + 1)), "x"}, now) {
			t.Fatalf("alarm %d of a host is not raised", i)
		}
	}
	if s.mayRaise(one, now.Add(alarmEvery-1)) || len(s.alarmed) != maxAlarmed {
		t.Errorf("%d alarms are remembered", len(s.alarmed))
	}
	if !s.mayRaise(one, now.Add(alarmEvery)) || len(s.alarmed) != 1 {
		t.Errorf("%d alarms are remembered after a minute", len(s.alarmed))
	}
}

// TestWhoCountsAsAbsent: whose time is over and who has no session, of a new leader's hosts all at once.
func TestWhoCountsAsAbsent(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &Server{
		sessions: map[fleet.HostID]*session{"here": {}}, settled: settling{by: now.Add(time.Minute)},
		absent: map[fleet.HostID]time.Time{"here": now.Add(-time.Hour), "late": now, "later": now.Add(1), "new": {}},
	}
	if got := s.due(now); !cmp.Equal(got, []fleet.HostID{"late"}) {
		t.Errorf("due: %v", got)
	}
	s.settled.by = now
	if got := s.due(now); len(got) != 2 {
		t.Errorf("when hosts have had their time: %v", got)
	}
	for i := range 2 * maxMarks {
		s.absent[fleet.HostID(rune(i+1))] = now
	}
	if got := s.due(now); len(got) != maxMarks {
		t.Errorf("%d at once", len(got))
	}
}

// TestHostsThatComeGiveOthersTime, but not for ever, and none once it is over.
func TestHostsThatComeGiveOthersTime(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for name, c := range map[string]struct{ now, want int }{
		"early": {1, 10}, "a bit later": {5, 14}, "near the end of all": {9, 15}, "when it is over": {10, 10}, "afterwards": {12, 10},
	} {
		s := settling{by: at(10), most: at(15)}
		if s.came(at(c.now), 9*time.Second); !s.by.Equal(at(c.want)) {
			t.Errorf("%s: by %v", name, s.by.Sub(start))
		}
	}
}

// queue is a Node whose answers a test gives.
type queue struct {
	Proposer
	leads   bool
	answers []error
	asked   int
}

func (q *queue) Propose(context.Context, ...state.Command) ([]entry.Result, error) {
	err := q.answers[min(q.asked, len(q.answers)-1)]
	q.asked++
	return []entry.Result{{Value: q.asked}}, err
}

func (q *queue) IsLeader() bool { return q.leads }

// TestACommandOfASessionWaitsForItsTurn while nothing was done, on a leader, and for a time only.
func TestACommandOfASessionWaitsForItsTurn(t *testing.T) {
	full := fleet.Unavailable("the queue is full", nil)
	var e *fleet.Error
	if !errors.As(full, &e) {
		t.Fatal("another error")
	}
	e.NothingDone = true
	unknown, plain := fleet.Unavailable("outcome unknown", nil), errors.New("disk")
	for name, c := range map[string]struct {
		q     queue
		asked int
		want  error
	}{
		"at once":              {queue{leads: true, answers: []error{nil}}, 1, nil},
		"the third time":       {queue{leads: true, answers: []error{full, full, nil}}, 3, nil},
		"outcome unknown":      {queue{leads: true, answers: []error{full, unknown}}, 2, unknown},
		"another error":        {queue{leads: true, answers: []error{plain}}, 1, plain},
		"it leads no more":     {queue{answers: []error{full}}, 1, full},
		"it stays full":        {queue{leads: true, answers: []error{full}}, 0, full},
		"it never is its turn": {queue{leads: true, answers: []error{nil}}, 0, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Server{Config: Config{Node: &c.q}, turns: make(chan struct{}, 1)}
			if name == "it never is its turn" {
				s.turns <- struct{}{}
			}
			began := time.Now()
			value, err := s.inTurn(t.Context(), nil)
			waited := time.Since(began) // in virtual time
			switch name {
			case "it stays full":
				if !errors.Is(err, c.want) || waited < turnLimit || waited > turnLimit+turnAgain {
					t.Errorf("%s: %v after %v", name, err, waited)
				}
			case "it never is its turn":
				if fleet.CodeOf(err) != fleet.CodeUnavailable || c.q.asked != 0 || waited != turnLimit {
					t.Errorf("%s: %v after %v", name, err, waited)
				}
			default:
				if !errors.Is(err, c.want) || c.q.asked != c.asked || c.want == nil && value != c.asked || len(s.turns) != 0 {
					t.Errorf("%s: %v, %v, asked %d times", name, value, err, c.q.asked)
				}
			}
		})
	}
}
