package chaos

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"gantry/test/chaos/history"
	"gantry/test/chaos/lab"
)

// stepsDown is how long a leader without a majority may go on answering.
const stepsDown = 2 * time.Second

// silent checks that a member answers neither a read nor a write of its own.
func (c *cluster) silent(t *testing.T, m *member) {
	t.Helper()
	var calls sync.WaitGroup
	for _, a := range []ask{
		{method: http.MethodGet, path: "/v2/pods"},
		{method: http.MethodPost, path: "/v2/pods", body: simPod("nowhere")},
	} {
		a.base, a.key = m.api(), c.keys.APIKey
		calls.Go(func() {
			if got := c.web.call(context.Background(), a); got.result == history.OK {
				t.Errorf("%s, which is cut off, answers %s %s with %d", m.name, a.method, a.path, got.status)
			} else if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
				t.Errorf("%s, which is cut off, answers %s %s with %s, Retry-After %q", m.name, a.method, a.path, got.note, got.header.Get("Retry-After"))
			}
		})
	}
	calls.Wait()
}

func TestRow04Partitions(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()
	for _, part := range []struct {
		name string
		cut  func(t *testing.T, leader *member, rest []*member)
	}{
		{"MinorityLeader", func(t *testing.T, leader *member, rest []*member) {
			from := l.h.Now()
			must(t, lab.Split(places(leader), places(rest...)))
			_, err := c.awaitLeader(resumes, rest...)
			must(t, err)
			time.Sleep(stepsDown) // by when it must have stopped answering
			c.silent(t, leader)
			l.goesOn(t, from, resumes)
		}},
		{"ThreeParts", func(t *testing.T, leader *member, rest []*member) {
			must(t, lab.Split(places(leader), places(rest[0]), places(rest[1])))
			time.Sleep(stepsDown)
			from := l.h.Now()
			c.silent(t, rest[0])
			if n := l.h.Writes(from); n > 0 {
				t.Errorf("%d writes were acknowledged without a majority", n)
			}
			must(t, suite.lab.HealAll())
			healed := l.h.Now()
			l.goesOn(t, healed, resumes+callTime)
		}},
		{"Bridge", func(t *testing.T, leader *member, rest []*member) {
			from := l.h.Now()
			must(t, leader.place.Cut(rest[0].place))
			must(t, rest[0].place.Cut(leader.place))
			l.goesOn(t, from, resumes)
			first, err := c.awaitLeader(upTime, rest[1])
			must(t, err)
			// Whoever is cut off from the leader must not depose it again and again.
			changes := 0
			for end := time.Now().Add(pick(2*time.Second, 30*time.Second)); time.Now().Before(end); {
				now, err := c.leader(rest[1])
				if err == nil && now != first {
					changes, first = changes+1, now
				}
			}
			if changes > 1 {
				t.Errorf("the leader changed %d times", changes)
			}
		}},
		{"MuteLeader", func(t *testing.T, leader *member, rest []*member) {
			from := l.h.Now()
			must(t, leader.place.Mute(places(rest...)...))
			_, err := c.awaitLeader(resumes, rest...)
			must(t, err)
			l.goesOn(t, from, resumes)
		}},
		{"DeafLeader", func(t *testing.T, leader *member, rest []*member) {
			from := l.h.Now()
			must(t, leader.place.Deaf(places(rest...)...))
			_, err := c.awaitLeader(resumes, rest...)
			must(t, err)
			l.goesOn(t, from, resumes)
		}},
	} {
		t.Run(part.name, func(t *testing.T) {
			leader, err := c.awaitLeader(upTime)
			must(t, err)
			part.cut(t, leader, c.others(leader))
			must(t, errors.Join(suite.lab.HealAll(), until(upTime, c.whole)))
		})
	}
	l.end(t, began, 100)
	c.sameState(t)
}
