package chaos

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/chaos/history"
	"gantry/test/simhosts/simhost"
)

// resumes is how long writes may fail when a leader is lost: reliability.md promises 5 s.
const resumes = 5 * time.Second

// goesOn waits until writes that began after from are acknowledged, and checks how long there were none.
func (l *load) goesOn(t *testing.T, from, limit time.Duration) {
	t.Helper()
	if err := until(limit+upTime, func() error {
		if n := l.h.Writes(from); n < 10 {
			return fmt.Errorf("%d writes were acknowledged", n)
		}
		return nil
	}); err != nil {
		t.Errorf("after the fault: %v", err)
		return
	}
	gap := l.h.Gap(from, l.h.Now())
	t.Logf("no write was acknowledged for %v", gap.Round(time.Millisecond))
	if gap > limit {
		t.Errorf("no write was acknowledged for %v, allowed are %v", gap, limit)
	}
}

func TestRow01LeaderKilled(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()
	every := time.NewTicker(pick(time.Millisecond, 5*time.Second))
	defer every.Stop()
	for kills := 0; kills < pick(3, 60); kills++ {
		<-every.C
		leader, err := c.awaitLeader(upTime)
		must(t, err)
		from := l.h.Now()
		must(t, leader.proc.Kill())
		l.goesOn(t, from, resumes)
		must(t, c.begin(leader))
		if err := until(upTime, c.whole); err != nil {
			t.Fatal(err)
		}
		l.warm(t, 40) // the next one meets traffic, too
	}
	l.end(t, began, pick(100, 5000))
	c.sameState(t)
}

// rest makes pods on simulated hosts that no client works on, and returns where they run. They are gone after the test.
func (c *cluster) rest(t *testing.T, n int) map[fleet.PodID]simhost.Run {
	t.Helper()
	out := map[fleet.PodID]simhost.Run{}
	for i := range n {
		var p v2.Pod
		must(t, c.user(http.MethodPost, "/v2/pods", simPod(fmt.Sprintf("rests-%d", i)), &p))
		t.Cleanup(func() { must(t, c.user(http.MethodDelete, "/v2/pods/"+p.ID, nil, nil)) })
		_, err := c.podBecomes(p.ID, fleet.StatusRunning)
		must(t, err)
		out[fleet.PodID(p.ID)] = simhost.Run{}
	}
	for _, r := range c.simsRun() {
		if _, ours := out[r.Pod]; ours {
			out[r.Pod] = r
		}
	}
	return out
}

// reached fails while no session with the agent of a pod stands: the pod's log is read through that.
func (c *cluster) reached(p v2.Pod, through *member) error {
	got := c.web.call(context.Background(), ask{
		base: through.api(), key: c.keys.APIKey, limit: 2 * time.Second,
		method: http.MethodGet, path: "/v2/pods/" + p.ID + "/logs?source=container&follow=false",
	})
	if got.result != history.OK || bytes.Contains(got.body, []byte("event: error")) {
		return fmt.Errorf("the log of pod %s: %s %s", p.ID, got.note, got.body)
	}
	return nil
}

func TestRow02AllKilledTwoReturn(t *testing.T) {
	c, _ := withAgents(t)
	before := c.rest(t, 6)
	proof, mark, pid, err := c.startPod("rests")
	must(t, err)
	t.Cleanup(func() {
		must(t, c.user(http.MethodDelete, "/v2/pods/"+proof.ID, nil, nil))
		must(t, dies(mark))
	})
	must(t, c.reached(proof, c.members[1]))
	l := c.startLoad(t)
	l.warm(t, 50)
	for _, m := range c.members {
		must(t, m.proc.Kill())
	}
	// Long enough for the hosts' pauses between two tries to grow as far as they do.
	time.Sleep(pick(4*time.Second, time.Minute))
	from := l.h.Now()
	for _, m := range c.members[1:] {
		must(t, c.begin(m))
	}
	l.goesOn(t, from, 2*resumes)
	back := from + 2*resumes // reliability.md promises this to hosts
	await(t, back-l.h.Now(), c.simsConnected)
	t.Logf("the simulated hosts are back after %v", (l.h.Now() - from).Round(time.Millisecond))
	await(t, back-l.h.Now(), func() error { return c.reached(proof, c.members[1]) })
	t.Logf("the agents are back after %v", (l.h.Now() - from).Round(time.Millisecond))
	l.end(t, from, 30)
	for _, r := range c.simsRun() {
		if was, ours := before[r.Pod]; ours && (was.Host != r.Host || was.Incarnation != r.Incarnation) {
			t.Errorf("pod %s ran on %s (%d) and runs on %s (%d)", r.Pod, was.Host, was.Incarnation, r.Host, r.Incarnation)
		}
		delete(before, r.Pod)
	}
	if len(before) > 0 {
		t.Errorf("pods that ran before and do not run now: %v", slices.Collect(maps.Keys(before)))
	}
	if now, err := runs(mark); err != nil || now != pid {
		t.Errorf("the process %d of the real pod is %d now, %v", pid, now, err)
	}
	c.sameState(t)
}

// cutPower kills a member and takes what it had not synced. The machine's next boot has another name, as after any
// real power cut; only the mark beside the state file tells.
func cutPower(m *member) error {
	if err := m.proc.Kill(); err != nil {
		return err
	}
	if err := m.disk.Cut(); err != nil {
		return err
	}
	mark := filepath.Join(m.data, "raft", "state.db.mark")
	if _, err := os.Stat(mark); err != nil {
		return nil //nolint:nilerr // it was not on the disk yet
	}
	return os.WriteFile(mark, []byte("open another-boot\n"), 0o600)
}

func TestRow03PowerCut(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 50)
	began := l.h.Now()
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	t.Log("the leader loses power")
	must(t, cutPower(leader))
	if leader.disk.Lost() == 0 {
		t.Error("the power cut took nothing, which proves nothing")
	}
	l.goesOn(t, began, resumes)
	must(t, c.begin(leader))
	await(t, upTime, c.whole)

	for range pick(1, 10) {
		t.Log("all lose power")
		from := l.h.Now()
		for _, m := range c.members {
			must(t, m.proc.Kill())
		}
		for _, m := range c.members {
			must(t, cutPower(m))
			must(t, c.begin(m))
		}
		l.goesOn(t, from, 2*resumes)
		await(t, upTime, c.whole)
	}
	l.end(t, began, 50)
	c.sameState(t)
}

func TestRow09PausedLeader(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 50)
	began := l.h.Now()
	for range pick(1, 6) {
		leader, err := c.awaitLeader(upTime)
		must(t, err)
		from := l.h.Now()
		must(t, leader.proc.Pause())
		next, err := c.awaitLeader(upTime, c.others(leader)...)
		must(t, err)
		if next == leader {
			t.Fatal("the paused member leads by what the others say")
		}
		time.Sleep(pick(time.Second, 30*time.Second)) // the pause itself is the fault
		leader.proc.Resume()
		l.goesOn(t, from, resumes+callTime) // clients that ask the paused one wait for it
		await(t, upTime, c.whole)
	}
	await(t, upTime, c.simsConnected)
	for _, m := range c.members {
		v, err := c.view(m)
		must(t, err)
		if v.ID == "" {
			t.Error("no cluster")
		}
	}
	l.end(t, began, 50)
	for _, f := range c.sims { // nothing is taken for lost because a clock stood still
		for i := range f.Count().Joined {
			h, err := c.host(string(f.Host(i).ID()))
			if err != nil || h.State != fleet.HostReady {
				t.Errorf("host %s is %s, %v", h.Name, h.State, err)
			}
		}
	}
	c.sameState(t)
}
