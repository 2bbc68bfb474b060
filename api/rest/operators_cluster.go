package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Cluster is the control plane as a whole.
type Cluster struct {
	ID      string   `json:"id" doc:"Identifier of the cluster; a restored one has a new one." example:"c4k8v2x7m1q5z9"`
	Level   uint64   `json:"level" doc:"Feature level that is in force: the newest that all schedulers understand."`
	Lineage uint64   `json:"lineage" doc:"Grows when the cluster is restored from a snapshot."`
	Members []Member `json:"members" doc:"The schedulers, those that were removed too."`
	Clock   Clock    `json:"clock" doc:"The time as the leader and the log have it."`
}

// Clock is the time as the leader and the log have it.
type Clock struct {
	Time        Time    `json:"time" doc:"The time by the leader's clock."`
	LogTime     Time    `json:"logTime" doc:"The time by which everything is charged and recorded."`
	Held        *string `json:"held" doc:"Why no charge is settled, no pod ended for want of credit and nothing purged, or null."`
	HeldSince   *Time   `json:"heldSince" doc:"Since when by the log's time, or null."`
	LeapSeconds float64 `json:"leapSeconds" doc:"The most that the two may be apart."`
}

// TransformSchema says which members may be null.
func (Clock) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "heldSince")
}

// ConfirmClockRequest is the body that confirms the leader's clock.
type ConfirmClockRequest struct {
	Time Time `json:"time" doc:"The leader's time as it was shown and found right."`
}

// Member is one scheduler of the cluster.
type Member struct {
	ID        string  `json:"id" doc:"Member identifier." example:"m3x9c5v1b7n2q8"`
	Name      string  `json:"name" doc:"Name."`
	Address   string  `json:"address" doc:"Host and port under which other schedulers and hosts reach it." example:"10.0.0.11:8443"`
	Voter     bool    `json:"voter" doc:"It has a vote at present."`
	NonVoter  bool    `json:"nonVoter" doc:"It is to have no vote until it is promoted."`
	Leader    bool    `json:"leader" doc:"It leads."`
	Reachable bool    `json:"reachable" doc:"It answered within the last seconds."`
	Applied   uint64  `json:"applied" doc:"Entry of the log up to which its copy of the state is."`
	Lag       uint64  `json:"lag" doc:"Entries that it is behind the leader."`
	SilentMs  int64   `json:"silentMs" doc:"Milliseconds since it answered last; 0 for the leader."`
	Version   *string `json:"version" doc:"Version of its program, or null."`
	Level     uint64  `json:"level" doc:"Newest feature level that it understands."`
	Replaces  *string `json:"replaces" doc:"Member that is removed once this one votes, or null."`
	ClockMs   *int64  `json:"clockMs" doc:"Milliseconds that its clock is ahead of the leader's, or null where that is not known."`
	Problem   *string `json:"problem" doc:"What is wrong with it, in a sentence, or null."`
	JoinedAt  Time    `json:"joinedAt" doc:"When it joined."`
	RemovedAt *Time   `json:"removedAt" doc:"When it was removed, or null."`
}

// CreateMemberTokenRequest is the body that makes a token for a new scheduler.
type CreateMemberTokenRequest struct {
	NonVoter   bool   `json:"nonVoter,omitempty" doc:"It gets a copy of the state and no vote, until it is promoted." example:"false"`
	Replaces   string `json:"replaces,omitempty" doc:"Member that is removed once the new one votes." pattern:"^[a-z][a-z0-9]{13}$" patternDescription:"a member id" example:"m3x9c5v1b7n2q8"`
	TTLSeconds int    `json:"ttlSeconds,omitempty" doc:"Seconds until the token ends to work, 60 to 604800." minimum:"60" maximum:"604800" default:"3600" example:"3600"`
}

// TransferRequest is the body that hands leadership on.
type TransferRequest struct {
	MemberID string `json:"memberId,omitempty" doc:"A voter; left out: the most up-to-date one." pattern:"^[a-z][a-z0-9]{13}$" patternDescription:"a member id" example:"m3x9c5v1b7n2q8"`
}

// TransformSchema says which members may be null.
func (Member) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "removedAt")
}

const textNoMember = "404: there is no such member."

func memberIDParam() *huma.Param { return pathParam("Member identifier.", "m3x9c5v1b7n2q8") }

func (a *API) registerCluster() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/cluster", id: "getCluster", tag: "Operators", summary: "Get the schedulers",
		text:  "Returns the schedulers of the cluster as their leader sees them.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: exampleCluster(),
	}, a.cluster)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/tokens", id: "createMemberToken", tag: "Operators", summary: "Make a token for a scheduler",
		text: "Makes a token with which one scheduler may join, once. It gets a vote by itself when it has caught up, unless it is to have none. 404: there is " +
			"no such member to be replaced.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, errors: []int{http.StatusNotFound},
		in: CreateMemberTokenRequest{Replaces: "m3x9c5v1b7n2q8", TTLSeconds: 3600}, out: JoinToken{Token: "one-use-text", ExpiresAt: exampleTime(60)},
	}, a.createMemberToken)
	member := func(method, path, id, summary, text string) route {
		return route{
			method: method, path: "/admin/v1/cluster/members/{id}" + path, id: id, tag: "Operators", summary: summary, text: text + " " + textNoMember,
			scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{memberIDParam()},
		}
	}
	handle(a, member(http.MethodPost, "/promote", "promoteMember", "Give a scheduler a vote",
		"Gives a scheduler a vote once it has caught up, and lets it keep one."), a.onMember(Service.PromoteMember))
	handle(a, member(http.MethodPost, "/demote", "demoteMember", "Take a scheduler's vote",
		"The scheduler keeps its copy of the state, without a vote until it is promoted. 400: it is the last voter, or too few would be left."), a.onMember(Service.DemoteMember))
	remove := member(http.MethodDelete, "", "removeMember", "Remove a scheduler for good",
		"Takes a scheduler out for ever: its certificate is refused from now on. 400: it is the last voter, or the voters that answer would be no majority "+
			"without it, unless forced.")
	remove.params = append(remove.params, flagParam("force", "Remove it although too few voters answer. The last voter stays even so.", false))
	handle(a, remove, a.removeMember)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/transfer", id: "transferLeadership", tag: "Operators", summary: "Hand leadership on",
		text:  "Hands leadership to another voter. 400: the member is no voter. 404: there is no such member.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, errors: []int{http.StatusNotFound}, in: TransferRequest{MemberID: "m3x9c5v1b7n2q8"},
	}, a.transferLeadership)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/cluster/clock", id: "confirmClock", tag: "Operators", summary: "Confirm the leader's clock",
		text: "Sets the log's time to that of the leader's clock, also back. Charges that ran before go on through the time that is passed over. 400: the " +
			"leader's clock says another time by now.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, in: ConfirmClockRequest{Time: exampleTime(60)},
	}, a.confirmClock)
}

func (a *API) confirmClock(ctx context.Context, _ *call, in *ConfirmClockRequest) (*none, error) {
	return nil, a.svc.ConfirmClock(ctx, in.Time.Time)
}

func (a *API) cluster(ctx context.Context, _ *call, _ *none) (*Cluster, error) {
	return show(clusterRecord)(a.svc.Cluster(ctx))
}

func (a *API) createMemberToken(ctx context.Context, _ *call, in *CreateMemberTokenRequest) (*JoinToken, error) {
	ttl := defaultTokenTTL
	if in.TTLSeconds > 0 {
		ttl = time.Duration(in.TTLSeconds) * time.Second
	}
	text, expires, err := a.svc.CreateMemberToken(ctx, in.NonVoter, fleet.MemberID(in.Replaces), ttl)
	if err != nil {
		return nil, err
	}
	return &JoinToken{Token: text.Reveal(), ExpiresAt: Time{expires}}, nil
}

// onMember does something with a member that has no answer.
func (a *API) onMember(f func(Service, context.Context, fleet.MemberID) error) func(context.Context, *call, *none) (*none, error) {
	return func(ctx context.Context, c *call, _ *none) (*none, error) {
		id, err := pathID[fleet.MemberID](c, "member")
		if err != nil {
			return nil, err
		}
		fleet.Touch(ctx) // a change of members has steps, and an error tells only of the last
		return nil, f(a.svc, ctx, id)
	}
}

func (a *API) removeMember(ctx context.Context, c *call, in *none) (*none, error) {
	force := c.args.flag("force", false)
	return a.onMember(func(svc Service, ctx context.Context, id fleet.MemberID) error {
		return svc.RemoveMember(ctx, id, force)
	})(ctx, c, in)
}

func (a *API) transferLeadership(ctx context.Context, _ *call, in *TransferRequest) (*none, error) {
	fleet.Touch(ctx)
	return nil, a.svc.TransferLeadership(ctx, fleet.MemberID(in.MemberID))
}

func clusterRecord(v fleet.ClusterView) Cluster {
	out := Cluster{ID: v.ID, Level: v.Level, Lineage: v.Lineage, Members: []Member{}, Clock: Clock{
		Time: Time{v.Clock.Now}, LogTime: Time{v.Clock.Log}, Held: textOrNull(v.Clock.Held), HeldSince: timeOrNull(v.Clock.Since),
		LeapSeconds: v.Clock.Leap.Seconds(),
	}}
	for _, m := range v.Members {
		r := m.Member
		out.Members = append(out.Members, Member{
			ID: string(r.ID), Name: r.Name, Address: r.Address, Voter: m.Voter, NonVoter: r.NonVoter, Leader: m.Leader, Reachable: m.Reachable,
			Applied: m.Applied, Lag: m.Lag, SilentMs: m.Silent.Milliseconds(), Version: textOrNull(r.Version), Level: r.Level,
			Replaces: textOrNull(string(r.Replaces)), Problem: textOrNull(m.Problem), ClockMs: clockMs(m), JoinedAt: Time{r.JoinedAt}, RemovedAt: timeOrNull(r.RemovedAt),
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

func exampleCluster() Cluster {
	clock := Clock{Time: exampleTime(60), LogTime: exampleTime(60), LeapSeconds: 600}
	return Cluster{ID: "c4k8v2x7m1q5z9", Level: 4, Clock: clock, Members: []Member{{
		ID: "m3x9c5v1b7n2q8", Name: "sched-1", Address: "10.0.0.11:8443", Voter: true, Leader: true, Reachable: true, Applied: 81231,
		Version: textOrNull("1.2.0"), Level: 4, JoinedAt: exampleTime(0),
	}}}
}
