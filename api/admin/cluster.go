package admin

import (
	"gantry/api/v2"
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
	Time        v2.Time  `json:"time" doc:"The time by the leader's clock."`
	LogTime     v2.Time  `json:"logTime" doc:"The time by which everything is charged and recorded."`
	Held        v2.Text  `json:"held" doc:"Why no charge is settled, no pod ended for want of credit and nothing purged, or null."`
	HeldSince   *v2.Time `json:"heldSince" doc:"Since when by the log's time, or null."`
	LeapSeconds float64  `json:"leapSeconds" doc:"The most that the two may be apart."`
}

// ConfirmClockRequest is the body that confirms the leader's clock.
type ConfirmClockRequest struct {
	Time v2.Time `json:"time" doc:"The leader's time as it was shown and found right."`
}

// Member is one scheduler of the cluster.
type Member struct {
	ID        string   `json:"id" doc:"Member identifier." example:"m3x9c5v1b7n2q8"`
	Name      string   `json:"name" doc:"Name."`
	Address   string   `json:"address" doc:"Host and port under which other schedulers and hosts reach it." example:"10.0.0.11:8443"`
	Voter     bool     `json:"voter" doc:"It has a vote at present."`
	NonVoter  bool     `json:"nonVoter" doc:"It is to have no vote until it is promoted."`
	Leader    bool     `json:"leader" doc:"It leads."`
	Reachable bool     `json:"reachable" doc:"It answered within the last seconds."`
	Applied   uint64   `json:"applied" doc:"Entry of the log up to which its copy of the state is."`
	Lag       uint64   `json:"lag" doc:"Entries that it is behind the leader."`
	SilentMs  int64    `json:"silentMs" doc:"Milliseconds since it answered last; 0 for the leader."`
	Version   v2.Text  `json:"version" doc:"Version of its program, or null."`
	Level     uint64   `json:"level" doc:"Newest feature level that it understands."`
	Replaces  v2.Text  `json:"replaces" doc:"Member that is removed once this one votes, or null."`
	ClockMs   *int64   `json:"clockMs" doc:"Milliseconds that its clock is ahead of the leader's, or null where that is not known."`
	Problem   v2.Text  `json:"problem" doc:"What is wrong with it, in a sentence, or null."`
	JoinedAt  v2.Time  `json:"joinedAt" doc:"When it joined."`
	RemovedAt *v2.Time `json:"removedAt" doc:"When it was removed, or null."`
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

// Backup tells of a copy of the state that is kept.
type Backup struct {
	SavedAt v2.Time `json:"savedAt" doc:"Of when the copy is, as its header says."`
}
