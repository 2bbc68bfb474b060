package chaos

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"gantry/test/chaos/history"
)

func TestRow05SlowDisk(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	t.Log("the leader's disk is slow")
	leader.disk.Slow(pick(200*time.Millisecond, 2*time.Second))
	l.warm(t, 10)
	leader.disk.Heal()
	await(t, upTime, c.whole)

	leader, err = c.awaitLeader(upTime)
	must(t, err)
	follower := c.others(leader)[0]
	t.Log("a follower's disk is slow")
	from := l.h.Now()
	follower.disk.Slow(pick(500*time.Millisecond, 2*time.Second))
	l.warm(t, 50)
	l.goesOn(t, from, resumes)
	follower.disk.Heal()
	l.end(t, began, 60)
	c.sameState(t)
}

func TestRow06HungDisk(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	leader.disk.Hang()
	endOnHungDisk(t, leader)
	_, err = c.awaitLeader(resumes, c.others(leader)...)
	must(t, err)
	l.goesOn(t, began, 10*time.Second+resumes)

	// What systemd does: it is started again, and must not lead before its disk answers.
	must(t, c.begin(leader))
	from := l.h.Now()
	l.warm(t, 50)
	l.goesOn(t, from, resumes)
	if now, err := c.leader(c.others(leader)...); err != nil || now == leader {
		t.Errorf("the member on the hung disk leads, %v", err)
	}
	leader.disk.Release()
	l.end(t, began, 60)
	c.sameState(t)
}

// watchdogTime is longer than a process with a hung disk takes to end of itself.
const watchdogTime = 8 * time.Second

// endOnHungDisk waits until a member ends because its disk hangs. Rarely a page of its log's database is not in
// memory just then: the thread that needs it cannot be stopped, for which the garbage collector waits, and with it the
// whole process. It says nothing more to anybody, nor to systemd's watchdog, which is what ends it.
func endOnHungDisk(t *testing.T, m *member) {
	t.Helper()
	await(t, watchdogTime+5*time.Second, func() error {
		if m.proc.Alive() && m.proc.Unfed() < watchdogTime {
			return fmt.Errorf("on a hung disk: %s runs on, and fed its watchdog %v ago", m.name, m.proc.Unfed())
		}
		return nil
	})
	if m.proc.Alive() {
		t.Log("the process is frozen: its watchdog ends it")
		must(t, m.proc.Kill())
	}
	if code, err := m.proc.Wait(time.Second); err != nil || code == 0 {
		t.Errorf("the process ended as if all were well: code %d, %v", code, err)
	}
}

// condition reads one condition of a member's health; empty: all is well.
func (c *cluster) condition(m *member, name string) (string, error) {
	got := c.web.call(context.Background(), ask{base: m.api(), method: http.MethodGet, path: "/healthz?verbose=true", limit: 5 * time.Second})
	if got.status == 0 {
		return "", fmt.Errorf("health of %s: %s", m.name, got.note)
	}
	if !strings.Contains(string(got.body), name) {
		return "", fmt.Errorf("health of %s tells nothing of %s: %s", m.name, name, got.body)
	}
	return string(got.body), nil
}

func TestRow07FullDisk(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	pids := map[string]int{}
	for _, m := range c.members {
		pids[m.name] = m.proc.PID()
	}

	t.Log("the leader's disk is 97 % full")
	leader.disk.Lie(97)
	await(t, 2*resumes, func() error {
		now, err := c.leader(c.others(leader)...)
		if err == nil && now == leader {
			err = fmt.Errorf("%s still leads", leader.name)
		}
		return err
	})
	if text, err := c.condition(leader, `"name":"disk","ok":false`); err != nil {
		t.Errorf("health: %s, %v", text, err)
	}
	from := l.h.Now()
	l.goesOn(t, from, resumes)

	t.Log("all disks are 97 % full")
	for _, m := range c.members {
		m.disk.Lie(97)
	}
	await(t, 2*resumes, func() error {
		from := l.h.Now()
		time.Sleep(500 * time.Millisecond) // within which nothing may be acknowledged
		if n := l.h.Writes(from); n > 0 {
			return fmt.Errorf("%d writes were acknowledged", n)
		}
		return nil
	})
	a := ask{base: c.members[0].api(), key: c.keys.APIKey, method: http.MethodPost, path: "/v2/pods", body: simPod("full")}
	if got := c.web.call(context.Background(), a); got.result == history.OK || got.status/100 != 5 {
		t.Errorf("a write on full disks answers %d %s", got.status, got.body)
	}
	await(t, 2*resumes, func() error {
		return c.web.read(context.Background(), ask{base: c.members[0].api(), key: c.keys.APIKey, method: http.MethodGet, path: "/v2/pods"}, nil)
	})

	t.Log("there is room again")
	for _, m := range c.members {
		m.disk.Heal()
	}
	from = l.h.Now()
	l.goesOn(t, from, 2*resumes)
	for _, m := range c.members {
		if m.proc.PID() != pids[m.name] || !m.proc.Alive() {
			t.Errorf("%s did not live through it", m.name)
		}
	}

	t.Log("every write to the leader's disk fails, although there seemed to be room")
	leader, err = c.awaitLeader(upTime)
	must(t, err)
	from = l.h.Now()
	leader.disk.Full(true)
	l.goesOn(t, from, 2*resumes)
	leader.disk.Heal()
	l.end(t, began, 60)
	c.sameState(t)
}
