package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// three makes a cluster of three.
func three(t *testing.T) *world {
	t.Helper()
	bin := build(t, "")
	w := newWorld(t, bin)
	w.join(bin, map[string]any{})
	w.join(bin, map[string]any{})
	w.awaitVoters(3)
	return w
}

// Any member takes any request, and what one acknowledged all of them show.
func TestThreeSchedulersAreOne(t *testing.T) {
	w := three(t)
	lead := w.leader()
	for i, m := range w.all {
		name := fmt.Sprintf("account-%d", i)
		if err := w.account(m, name); err != nil {
			t.Fatal(err)
		}
		for _, other := range w.all {
			if got := w.accounts(other); !strings.Contains(got, name) {
				t.Errorf("%s, acknowledged by %s, is not shown by %s: %s", name, m.api, other.api, got)
			}
		}
	}
	for _, m := range w.all {
		status, c := w.health(m)
		want := "this scheduler leads"
		if m != lead {
			want = "this scheduler follows " + w.id(lead)
		}
		if status != http.StatusOK || c["leader"] != want {
			t.Errorf("health of %s: %d %v", m.api, status, c)
		}
	}
	// A user's key is checked by the leader, and a wrong one refused by it.
	for _, m := range w.all {
		if status, _, err := w.ask(m, w.keys.APIKey, http.MethodGet, "/v2/pods", nil); err != nil || status != http.StatusOK {
			t.Errorf("pods: %d %v", status, err)
		}
		if status, _, err := w.ask(m, "wrong", http.MethodGet, "/v2/pods", nil); err != nil || status != http.StatusUnauthorized {
			t.Errorf("a wrong key: %d %v", status, err)
		}
	}
}

// The leader is killed under load: what was acknowledged stays, and writes go on.
func TestAKilledLeaderLosesNothing(t *testing.T) {
	w := three(t)
	lead := w.leader()
	var others []*machine
	for _, m := range w.all {
		if m != lead {
			others = append(others, m)
		}
	}
	var mu sync.Mutex
	var acked []string
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, m := range others {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("load-%d-%d-", i, n)
				if err := w.account(m, name); err == nil {
					mu.Lock()
					acked = append(acked, name)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acked) }
	w.eventually("writes", func() bool { return count() > 20 })
	lead.kill()
	before := count()
	w.eventually("writes after the leader was killed", func() bool { return count() > before+20 })
	close(stop)
	wg.Wait()
	have := w.accounts(others[0])
	for _, name := range acked {
		if !strings.Contains(have, name) {
			t.Errorf("%s was acknowledged and is gone", name)
		}
	}

	// The dead one is replaced by a new one.
	dead := w.id(lead)
	w.join(build(t, ""), map[string]any{"replaces": dead})
	c := w.awaitVoters(3)
	for _, m := range c.Members {
		if m.ID == dead && m.Removed == "" {
			t.Errorf("the replaced member is still there: %+v", c)
		}
	}
	// It comes back with what it had, and is told.
	lead.start("--raft-timeout", "500ms")
	w.eventually("the removed member knows", func() bool {
		status, c := w.health(lead)
		return status == http.StatusServiceUnavailable && c["member"] == "this scheduler was removed from the cluster"
	})
	if status, _, err := w.ask(lead, w.keys.AdminKey, http.MethodGet, "/admin/v1/accounts", nil); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a removed member answers %d %v", status, err)
	}
}

func TestLeadershipIsHandedOn(t *testing.T) {
	w := three(t)
	lead := w.leader()
	var to *machine
	for _, m := range w.all {
		if m != lead {
			to = m
		}
	}
	w.admin(http.MethodPost, transferPath, map[string]any{"memberId": w.id(to)}, nil)
	w.eventually("the other leads", func() bool { return w.leader() == to })
	w.admin(http.MethodPost, transferPath, map[string]any{}, nil)
	w.eventually("another leads", func() bool { return w.leader() != to })
}

// A member whose data is damaged does not start, says what to do, and that helps.
func TestADamagedMemberIsRebuilt(t *testing.T) {
	w := three(t)
	lead := w.leader()
	bad := w.all[0]
	if bad == lead {
		bad = w.all[1]
	}
	before := w.id(bad)
	bad.kill()
	log := filepath.Join(bad.dir, "raft", "raft.db")
	if err := os.WriteFile(log, []byte(strings.Repeat("nonsense", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	bad.start()
	if err := bad.ended(); err == nil || !strings.Contains(bad.log.String(), "rebuild") {
		t.Errorf("a start on damaged data: %v\n%s", err, bad.log)
	}
	bad.kill()
	args := []string{"rebuild", "--data-dir", bad.dir}
	for _, m := range w.running() {
		args = append(args, "--scheduler", m.link)
	}
	bad.must(args...)
	if w.id(bad) == before {
		t.Error("the rebuilt member has its old id")
	}
	bad.start()
	w.awaitVoters(3)
	if err := w.account(bad, "after the rebuild"); err != nil {
		t.Error(err)
	}
}

// A member whose whole replica is gone, as when a disk is not mounted, must not vote: what it acknowledged would be
// lost with it.
func TestAMemberWithoutItsReplicaDoesNotVote(t *testing.T) {
	w := three(t)
	lead := w.leader()
	var others []*machine
	for _, m := range w.all {
		if m != lead {
			others = append(others, m)
		}
	}
	lost, away := others[0], others[1]
	away.kill()
	if err := w.account(lead, "acknowledged"); err != nil {
		t.Fatal(err)
	}
	lead.kill()
	lost.kill()
	folder := filepath.Join(lost.dir, "raft")
	if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	away.start()
	for range 2 { // a start that was refused leaves nothing behind that the next one takes for a replica
		lost.start()
		if err := lost.ended(); err == nil || !strings.Contains(lost.log.String(), "gantry-scheduler rebuild") {
			t.Fatalf("a start without a replica: %v\n%s", err, lost.log)
		}
		lost.kill()
	}
	lead.start()
	w.eventually("the two that are left have a leader", func() bool { return len(w.running()) == 2 && w.leader() != nil })
	if got := w.accounts(away); !strings.Contains(got, "acknowledged") {
		t.Errorf("an acknowledged write is gone: %s", got)
	}
	lost.must("rebuild", "--data-dir", lost.dir, "--scheduler", lead.link, "--scheduler", away.link)
	lost.start()
	w.awaitVoters(3)
}

// What has joined is not joined once more, also before it ran.
func TestAFolderJoinsOnce(t *testing.T) {
	bin := build(t, "")
	w := newWorld(t, bin)
	m, out, err := w.tryJoin(bin, map[string]any{})
	if err != nil {
		t.Fatal(err, out)
	}
	id := w.id(m)
	if out, err := w.joins(m, map[string]any{}); err == nil || !strings.Contains(out, "already") {
		t.Errorf("joined twice: %v %s", err, out)
	}
	if w.id(m) != id {
		t.Error("it has another identity")
	}
	// A log that is lost does not come back: that does not run, and is begun anew.
	if err := os.Remove(filepath.Join(m.dir, "raft", "raft.db")); err != nil {
		t.Fatal(err)
	}
	if out, err := w.joins(m, map[string]any{}); err == nil || !strings.Contains(out, "has joined a cluster") {
		t.Errorf("joined twice: %v %s", err, out)
	}
	m.start()
	if err := m.ended(); err == nil || !strings.Contains(m.log.String(), "gantry-scheduler rebuild") {
		t.Errorf("a start without a replica: %v\n%s", err, m.log)
	}
	m.kill()
	m.must("rebuild", "--data-dir", m.dir, "--scheduler", w.all[0].link)
	m.start()
	w.all = append(w.all, m)
	w.awaitVoters(2)
}

// A member moves to another address.
func TestAMemberMoves(t *testing.T) {
	w := three(t)
	moving := w.all[2]
	if moving == w.leader() {
		moving = w.all[1]
	}
	moving.stop()
	moving.link = freePort(t)
	moving.start("--address", moving.link)
	w.eventually("its new address is known", func() bool {
		for _, m := range w.view().Members {
			if m.ID == w.id(moving) {
				return m.Address == moving.link
			}
		}
		return false
	})
	w.awaitVoters(3)
}

func TestMembershipRefusals(t *testing.T) {
	w := three(t)
	lead := w.leader()
	only := w.id(lead)
	var others []*machine
	for _, m := range w.all {
		if m != lead {
			others = append(others, m)
		}
	}
	// With one of three down, none of the two that are left can go without force.
	others[0].kill()
	w.eventually("a removal is refused", func() bool {
		status, out, err := w.ask(lead, w.keys.AdminKey, http.MethodDelete, memberPath+w.id(others[1]), nil)
		return err == nil && status == http.StatusBadRequest && strings.Contains(string(out), "would be left only 1 answer")
	})
	// The dead one can.
	w.admin(http.MethodDelete, memberPath+w.id(others[0]), nil, nil)
	w.admin(http.MethodDelete, memberPath+w.id(others[1]), nil, nil)
	w.awaitVoters(1)
	status, out, err := w.ask(lead, w.keys.AdminKey, http.MethodDelete, memberPath+only, nil)
	if err != nil || status != http.StatusBadRequest || !strings.Contains(string(out), "last scheduler") {
		t.Errorf("the last one: %d %s %v", status, out, err)
	}
	// A used token, and a folder that is in use.
	m, _, err := w.tryJoin(build(t, ""), map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	w.all = append(w.all, m)
	w.awaitVoters(2)
	if out, err := m.does("join", "--data-dir", m.dir, "--token-file", "/dev/null", "--address", m.link, "--scheduler", lead.link); err == nil {
		t.Errorf("joined twice: %s", out)
	}
}
