package plane

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/state"
)

var _ scheduler.Members = (*members)(nil)

// The schedulers of a Plane. The first leads, the third has no vote.
const (
	Leader   fleet.MemberID = "member00000001"
	Follower fleet.MemberID = "member00000002"
	Reserve  fleet.MemberID = "member00000003"
)

// level is what a Plane tells to be in force, whatever this program's is.
const level = 1

// members are the schedulers as the test plays them. Their records are in the state; what a leader knows beside that is
// kept here.
type members struct {
	p *Plane

	mu     sync.Mutex
	votes  map[fleet.MemberID]bool
	silent map[fleet.MemberID]bool
	leader fleet.MemberID
}

func newMembers(p *Plane) *members {
	return &members{
		p: p, votes: map[fleet.MemberID]bool{Leader: true, Follower: true}, silent: map[fleet.MemberID]bool{}, leader: Leader,
	}
}

// seed are the commands that make the members' records.
func (m *members) seed() (out []state.Command) {
	for i, id := range []fleet.MemberID{Leader, Follower, Reserve} {
		out = append(out, state.PutMember{Member: fleet.Member{
			ID: id, Name: fmt.Sprintf("sched-%d", i+1), Address: fmt.Sprintf("10.0.0.1%d:8443", i+1), NonVoter: id == Reserve,
			Level: level, Version: "1.2.0", JoinedAt: m.p.Now(),
		}})
	}
	return out
}

// SetSilent makes a scheduler answer nobody, or answer again.
func (p *Plane) SetSilent(id fleet.MemberID, silent bool) {
	p.members.mu.Lock()
	defer p.members.mu.Unlock()
	p.members.silent[id] = silent
}

// View returns all members.
func (m *members) View(ctx context.Context) (fleet.ClusterView, error) {
	var out fleet.ClusterView
	if err := (node{m.p}).Barrier(ctx); err != nil {
		return out, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.p.store.View(func(v *state.View) error {
		cluster, _ := v.Cluster()
		out.ID, out.Lineage, out.Level = cluster.ID, cluster.Lineage, level
		for _, r := range v.Members() {
			view := m.view(r)
			if r.RemovedAt.IsZero() && view.Reachable {
				view.Certificate = certificate(cluster, m.p.Now())
			}
			out.Members = append(out.Members, view)
		}
		return nil
	})
	return out, err
}

// certificate is what a scheduler says that follows the cluster's CAs.
func certificate(c state.Cluster, now time.Time) (out fleet.NodeCertificate) {
	cas, err := pki.ParseTrust(c.Trusted())
	if err != nil {
		return out
	}
	out.CA, out.EndsAt = pki.DigestOf(cas[0]).String(), now.Add(30*24*time.Hour)
	for _, ca := range cas {
		out.Trusts = append(out.Trusts, pki.DigestOf(ca).String())
	}
	return out
}

// view returns what the leader knows of a member; the caller holds mu.
func (m *members) view(r fleet.Member) fleet.MemberView {
	out := fleet.MemberView{Member: r}
	if !r.RemovedAt.IsZero() {
		return out
	}
	out.Voter, out.Leader, out.Reachable = m.votes[r.ID], m.leader == r.ID, !m.silent[r.ID]
	out.Applied = 1000
	if !out.Reachable {
		out.Applied, out.Lag, out.Silent = 900, 100, 90*time.Second
		out.Problem = "It does not answer."
	}
	return out
}

// change runs fn on the record of a member that was not removed.
func (m *members) change(ctx context.Context, id fleet.MemberID, fn func(r fleet.Member) error) error {
	if err := (node{m.p}).Barrier(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var r fleet.Member
	err := m.p.store.View(func(v *state.View) error {
		var ok bool
		if r, ok = v.Member(id); !ok || !r.RemovedAt.IsZero() {
			return fleet.NotFound("member")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return fn(r)
}

func (m *members) propose(cmd state.Command) error {
	res, err := m.p.apply(cmd)
	if err != nil {
		return err
	}
	return res[0].Err
}

// Promote gives a member a vote.
func (m *members) Promote(ctx context.Context, id fleet.MemberID) error {
	return m.change(ctx, id, func(r fleet.Member) error {
		r.NonVoter, m.votes[id] = false, true
		return m.propose(state.PutMember{Member: r})
	})
}

// Demote takes a member's vote.
func (m *members) Demote(ctx context.Context, id fleet.MemberID) error {
	return m.change(ctx, id, func(r fleet.Member) error {
		if err := m.spare(id, false); err != nil {
			return err
		}
		delete(m.votes, id)
		r.NonVoter = true
		return m.propose(state.PutMember{Member: r})
	})
}

// Remove takes a member out for ever.
func (m *members) Remove(ctx context.Context, id fleet.MemberID, force bool) error {
	return m.change(ctx, id, func(fleet.Member) error {
		if err := m.spare(id, force); err != nil {
			return err
		}
		delete(m.votes, id)
		return m.propose(state.RemoveMember{Member: id, At: m.p.Now()})
	})
}

// spare refuses to lose a vote that is needed; the caller holds mu.
func (m *members) spare(id fleet.MemberID, force bool) error {
	left, answering := 0, 0
	for voter := range m.votes {
		if voter == id {
			continue
		}
		left++
		if !m.silent[voter] {
			answering++
		}
	}
	switch {
	case !m.votes[id]:
		return nil
	case left == 0:
		return fleet.BreaksRule("The last voter cannot be taken out.")
	case !force && 2*answering <= left:
		return fleet.BreaksRule("The voters that answer would be no majority.")
	}
	return nil
}

// Transfer hands leadership on.
func (m *members) Transfer(ctx context.Context, id fleet.MemberID) error {
	if id == "" {
		m.mu.Lock()
		for _, voter := range slices.Sorted(maps.Keys(m.votes)) {
			if voter != m.leader && !m.silent[voter] {
				id = voter
				break
			}
		}
		m.mu.Unlock()
		if id == "" {
			return fleet.BreaksRule("There is no other voter that answers.")
		}
	}
	return m.change(ctx, id, func(fleet.Member) error {
		if !m.votes[id] {
			return fleet.BreaksRule("The member has no vote.")
		}
		m.leader = id
		return nil
	})
}

// SaveSnapshot is the service's, except where the test lets it fail after some bytes.
func (p *Plane) SaveSnapshot(ctx context.Context, w io.Writer) error {
	p.mu.Lock()
	after := p.cutSnapshot
	p.mu.Unlock()
	if after <= 0 {
		return p.Service.SaveSnapshot(ctx, w)
	}
	return p.Service.SaveSnapshot(ctx, &cutWriter{w, after})
}

// CutSnapshot lets every snapshot fail after some bytes.
func (p *Plane) CutSnapshot(after int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutSnapshot = after
}

type cutWriter struct {
	w    io.Writer
	left int
}

// Write writes what is left, and then fails.
func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) <= c.left {
		c.left -= len(b)
		return c.w.Write(b)
	}
	n, err := c.w.Write(b[:c.left])
	c.left = 0
	if err == nil {
		err = fleet.Unavailable("the copy was lost", nil)
	}
	return n, err
}

// AddGateway makes a gateway.
func (p *Plane) AddGateway(id fleet.GatewayID) {
	now, hash := p.Now(), []byte("hash")
	p.Do(state.PutToken{At: now, Token: fleet.JoinToken{ID: "gt", Hash: hash, Role: fleet.TokenGateway, ExpiresAt: now.Add(time.Hour)}})
	p.Do(state.JoinGateway{Token: "gt", Hash: hash, At: now, Gateway: fleet.Gateway{ID: id, Name: "edge-1", Address: "192.0.2.9:8444", JoinedAt: now}})
}
