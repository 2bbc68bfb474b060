package workers_test

import (
	"fmt"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/balance"
)

// TestEndedRequestsOfMembers are counted once each: of members that restart or fall silent, too, while one leads. The next leader hears
// what the living have counted.
func TestEndedRequestsOfMembers(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) {
		e.Type, e.Scaler, e.Workers.Idle = fleet.EndpointBalanced, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}, 5
	})
	report := func(member fleet.MemberID, process, completed, failed uint64) {
		t.Helper()
		s.eventually("the endpoint is known", func() bool {
			_ = s.workers.Report(balance.Report{
				Member: member, Process: process, Ended: map[fleet.EndpointID]balance.Ended{s.endpoint: {Completed: completed, Failed: failed}},
			})
			return s.workers.Requests(s.endpoint).Completed > 0
		})
	}
	ended := func(what string, completed, failed uint64) {
		t.Helper()
		if got, want := s.workers.Requests(s.endpoint), (fleet.JobCounts{Completed: completed, Failed: failed}); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	report("a", 1, 5, 1)
	report("a", 1, 5, 1)
	report("b", 7, 2, 0)
	ended("two members, one of which repeats itself", 7, 1)
	report("a", 2, 6, 0)
	ended("one that began anew", 13, 1)
	report("a", 2, 1, 0)
	ended("one that forgot", 14, 1)
	s.Advance(time.Hour)
	report("b", 7, 3, 0)
	ended("one that is silent", 15, 1)
	s.lead()
	report("b", 7, 3, 0)
	ended("the next leader", 3, 0)
	for i := range 300 { // more than are kept apart
		s.Advance(time.Second)
		report(fleet.MemberID(fmt.Sprint("c", i)), 1, 1, 1)
	}
	ended("many members", 303, 300)
	report("c299", 1, 2, 1)
	ended("one of the newest", 304, 300)
	_ = s.workers.Report(balance.Report{Member: "a", Ended: map[fleet.EndpointID]balance.Ended{"another": {Completed: 1}}})
	if got := s.workers.Requests("another"); got != (fleet.JobCounts{}) {
		t.Errorf("an endpoint that is not known: %+v", got)
	}
}
