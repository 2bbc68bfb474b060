package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gantry/fleet"
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

func TestRow02AllKilledTwoReturn(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 50)
	for _, m := range c.members {
		must(t, m.proc.Kill())
	}
	before, err := c.simRuns()
	must(t, err)
	from := l.h.Now()
	for _, m := range c.members[1:] {
		must(t, c.begin(m))
	}
	l.goesOn(t, from, 2*resumes)
	await(t, 2*resumes, c.simsConnected)
	after, err := c.simRuns()
	must(t, err)
	kept := 0
	for pod := range before {
		kept += after[pod]
	}
	if kept == 0 {
		t.Errorf("none of %d pods that ran before runs now", len(before))
	}
	l.end(t, from, 30)
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
