package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// ClusterService shows and changes the schedulers of the cluster.
type ClusterService interface {
	// Cluster returns the schedulers of the cluster.
	Cluster(ctx context.Context) (fleet.ClusterView, error)
	// CreateMemberToken returns the text of a one-use token for a new scheduler; replaces may be empty.
	CreateMemberToken(ctx context.Context, nonVoter bool, replaces fleet.MemberID, ttl time.Duration) (fleet.Secret, time.Time, error)
	PromoteMember(ctx context.Context, id fleet.MemberID) error
	DemoteMember(ctx context.Context, id fleet.MemberID) error
	RemoveMember(ctx context.Context, id fleet.MemberID, force bool) error
	// TransferLeadership hands leadership to a voter; an empty id: to the most up-to-date one.
	TransferLeadership(ctx context.Context, id fleet.MemberID) error
	// ConfirmClock sets the log's time to the leader's, which was seen at a time and found right.
	ConfirmClock(ctx context.Context, at time.Time) error
}

const textNoMember = "404: there is no such member."

func memberIDParam() *huma.Param { return pathParam("Member identifier.", "m3x9c5v1b7n2q8") }

func (a *API) registerCluster() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/cluster", id: "getCluster", tag: "Operators", summary: "Get the schedulers",
		text:  "Returns the schedulers of the cluster as their leader sees them.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: exampleCluster(),
	}, cluster)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/tokens", id: "createMemberToken", tag: "Operators", summary: "Make a token for a scheduler",
		text: "Makes a token with which one scheduler may join, once. It gets a vote by itself when it has caught up, unless it is to have none. 404: there is " +
			"no such member to be replaced.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, errors: []int{http.StatusNotFound},
		in: admin.CreateMemberTokenRequest{Replaces: "m3x9c5v1b7n2q8", TTLSeconds: 3600}, out: admin.JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, createMemberToken)
	member := func(method, path, id, summary, text string) route {
		return route{
			method: method, path: "/admin/v1/cluster/members/{id}" + path, id: id, tag: "Operators", summary: summary, text: text + " " + textNoMember,
			scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{memberIDParam()},
		}
	}
	on(a, member(http.MethodPost, "/promote", "promoteMember", "Give a scheduler a vote",
		"Gives a scheduler a vote once it has caught up, and lets it keep one."), onMember(ClusterService.PromoteMember))
	on(a, member(http.MethodPost, "/demote", "demoteMember", "Take a scheduler's vote",
		"The scheduler keeps its copy of the state, without a vote until it is promoted. 400: it is the last voter, or too few would be left."), onMember(ClusterService.DemoteMember))
	remove := member(http.MethodDelete, "", "removeMember", "Remove a scheduler for good",
		"Takes a scheduler out for ever: its certificate is refused from now on. 400: it is the last voter, or the voters that answer would be no majority "+
			"without it, unless forced.")
	remove.params = append(remove.params, flagParam("force", "Remove it although too few voters answer. The last voter stays even so.", false))
	on(a, remove, byID("member", removeMember))
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/transfer", id: "transferLeadership", tag: "Operators", summary: "Hand leadership on",
		text:  "Hands leadership to another voter. 400: the member is no voter. 404: there is no such member.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, errors: []int{http.StatusNotFound}, in: admin.TransferRequest{MemberID: "m3x9c5v1b7n2q8"},
	}, transferLeadership)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/clock", id: "confirmClock", tag: "Operators", summary: "Confirm the leader's clock",
		text: "Sets the log's time to that of the leader's clock, also back. Charges that ran before go on through the time that is passed over. 400: the " +
			"leader's clock says another time by now.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, in: admin.ConfirmClockRequest{Time: exampleTime(60)},
	}, confirmClock)
}

func confirmClock(ctx context.Context, svc ClusterService, _ *call, in *admin.ConfirmClockRequest) (*none, error) {
	return nil, svc.ConfirmClock(ctx, in.Time.Time)
}

func cluster(ctx context.Context, svc ClusterService, _ *call, _ *none) (*admin.Cluster, error) {
	return show(clusterRecord)(svc.Cluster(ctx))
}

func createMemberToken(ctx context.Context, svc ClusterService, _ *call, in *admin.CreateMemberTokenRequest) (*admin.JoinToken, error) {
	ttl := defaultTokenTTL
	if in.TTLSeconds > 0 {
		ttl = time.Duration(in.TTLSeconds) * time.Second
	}
	text, expires, err := svc.CreateMemberToken(ctx, in.NonVoter, fleet.MemberID(in.Replaces), ttl)
	if err != nil {
		return nil, err
	}
	return &admin.JoinToken{Token: v2.Hidden(text), ExpiresAt: v2.At(expires)}, nil
}

// onMember does something with a member that has no answer.
func onMember(f func(ClusterService, context.Context, fleet.MemberID) error) func(context.Context, ClusterService, *call, *none) (*none, error) {
	return byID("member", func(ctx context.Context, svc ClusterService, id fleet.MemberID, _ *call, _ *none) (*none, error) {
		fleet.Touch(ctx) // a change of members has steps, and an error tells only of the last
		return nil, f(svc, ctx, id)
	})
}

func removeMember(ctx context.Context, svc ClusterService, id fleet.MemberID, c *call, _ *none) (*none, error) {
	fleet.Touch(ctx)
	return nil, svc.RemoveMember(ctx, id, c.args.flag("force", false))
}

func transferLeadership(ctx context.Context, svc ClusterService, _ *call, in *admin.TransferRequest) (*none, error) {
	fleet.Touch(ctx)
	return nil, svc.TransferLeadership(ctx, fleet.MemberID(in.MemberID))
}

func clusterRecord(v fleet.ClusterView) admin.Cluster {
	out := admin.Cluster{ID: v.ID, Level: v.Level, Lineage: v.Lineage, Members: []admin.Member{}, Clock: admin.Clock{
		Time: v2.At(v.Clock.Now), LogTime: v2.At(v.Clock.Log), Held: v2.Text(v.Clock.Held), HeldSince: v2.AtOrNull(v.Clock.Since),
		LeapSeconds: v.Clock.Leap.Seconds(),
	}}
	for _, m := range v.Members {
		r := m.Member
		out.Members = append(out.Members, admin.Member{
			ID: string(r.ID), Name: r.Name, Address: r.Address, Voter: m.Voter, NonVoter: r.NonVoter, Leader: m.Leader, Reachable: m.Reachable,
			Applied: m.Applied, Lag: m.Lag, SilentMs: m.Silent.Milliseconds(), Version: v2.Text(r.Version), Level: r.Level,
			Replaces: v2.Text(r.Replaces), Problem: v2.Text(m.Problem), ClockMs: clockMs(m), JoinedAt: v2.At(r.JoinedAt), RemovedAt: v2.AtOrNull(r.RemovedAt),
		})
	}
	return out
}

// clockMs is how far ahead a member's clock is; null: it is not known.
func clockMs(m fleet.MemberView) *int64 {
	switch {
	case m.Leader:
		return new(int64)
	case m.Clock == nil:
		return nil
	}
	ms := m.Clock.Milliseconds()
	return &ms
}

func exampleCluster() admin.Cluster {
	clock := admin.Clock{Time: exampleTime(60), LogTime: exampleTime(60), LeapSeconds: 600}
	return admin.Cluster{ID: "c4k8v2x7m1q5z9", Level: 4, Clock: clock, Members: []admin.Member{{
		ID: "m3x9c5v1b7n2q8", Name: "sched-1", Address: "10.0.0.11:8443", Voter: true, Leader: true, Reachable: true, Applied: 81231,
		Version: "1.2.0", Level: 4, JoinedAt: exampleTime(0),
	}}}
}
