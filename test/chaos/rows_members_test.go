package chaos

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"gantry/test/chaos/history"
)

// expel removes a member for good.
func (c *cluster) expel(t *testing.T, m *member, query string) {
	t.Helper()
	must(t, c.admin(http.MethodDelete, "/admin/v1/cluster/members/"+m.id+query, nil, nil))
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o == m })
}

// add makes another member, which joins.
func (c *cluster) add(t *testing.T, token map[string]any) *member {
	t.Helper()
	m, err := c.newMember()
	must(t, err)
	text, err := c.memberToken(token)
	must(t, err)
	must(t, c.joinWith(m, text))
	must(t, c.begin(m))
	c.members = append(c.members, m)
	return m
}

func TestRow31Membership(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 20)
	began := l.h.Now()

	t.Log("a fourth joins")
	from := l.h.Now()
	c.add(t, map[string]any{})
	await(t, upTime, c.whole)
	l.goesOn(t, from, resumes)

	t.Log("the leader is removed")
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	from = l.h.Now()
	c.expel(t, leader, "")
	l.goesOn(t, from, resumes)
	await(t, upTime, c.whole)

	t.Log("a removed one is started again: it must not take part")
	must(t, leader.proc.Kill())
	must(t, c.begin(leader))
	from = l.h.Now()
	l.warm(t, 50)
	if leader.proc.Alive() {
		got := c.web.call(t.Context(), ask{base: leader.api(), key: c.keys.APIKey, method: http.MethodGet, path: "/v2/pods"})
		if got.result == history.OK {
			t.Errorf("a removed scheduler answers with %d", got.status)
		}
	}
	l.goesOn(t, from, resumes)
	must(t, leader.proc.Kill())

	t.Log("old data does not join")
	text, err := c.memberToken(map[string]any{})
	must(t, err)
	if err := c.joinWith(leader, text); err == nil || !strings.Contains(err.Error(), "holds the data") {
		t.Errorf("joining with a folder of old data: %v", err)
	}

	t.Log("a dead one is replaced")
	dead := c.members[0]
	must(t, dead.proc.Kill())
	from = l.h.Now()
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o == dead })
	c.add(t, map[string]any{"replaces": dead.id})
	await(t, upTime, func() error {
		v, err := c.view(c.members[0])
		for _, m := range v.Members {
			if m.ID == dead.id && m.RemovedAt == nil {
				return fmt.Errorf("%s is still a member", dead.name)
			}
		}
		return err
	})
	await(t, upTime, c.whole)
	l.goesOn(t, from, resumes)
	l.end(t, began, 100)
	c.sameState(t)
}

func TestRow08RebuiltFromPeers(t *testing.T) {
	c := shared(t)
	l := c.startLoad(t)
	l.warm(t, 50)
	began := l.h.Now()
	leader, err := c.awaitLeader(upTime)
	must(t, err)
	victim := c.others(leader)[0]
	must(t, victim.proc.Kill())
	must(t, damage(victim))
	must(t, c.begin(victim))
	if code, err := victim.proc.Wait(upTime); err != nil || code == 0 {
		t.Errorf("with a damaged log it ended with %d, %v", code, err)
	}
	if said := victim.proc.Tail(4 << 10); !strings.Contains(said, "rebuild") {
		t.Errorf("it does not say what to do: %s", said)
	}
	args := []string{"rebuild", "--data-dir", victim.data}
	for _, m := range c.others(victim) {
		args = append(args, "--scheduler", m.link())
	}
	must(t, victim.tool(args...))
	victim.id = ""
	must(t, c.begin(victim))
	await(t, upTime, c.whole)
	l.end(t, began, 50)
	c.sameState(t)
}
