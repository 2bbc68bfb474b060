package fleet

import "time"

// MemberID identifies a member of the control plane, which is one gantry-scheduler. It is never used
// again after the member was removed.
type MemberID string

// Member is the record of a member of the control plane.
type Member struct {
	ID       MemberID  `cbor:"1,keyasint"`
	Name     string    `cbor:"2,keyasint"`           // for people
	Address  string    `cbor:"3,keyasint"`           // host:port of its link port
	NonVoter bool      `cbor:"4,keyasint,omitempty"` // has a copy of the state, and no vote for as long as this is set
	Level    uint64    `cbor:"5,keyasint,omitempty"` // newest feature level that it understands
	Version  string    `cbor:"6,keyasint,omitempty"` // of its program
	JoinedAt time.Time `cbor:"7,keyasint"`
	// RemovedAt is when it was removed; zero while it is a member. The record stays, so that its
	// certificate is refused.
	RemovedAt time.Time `cbor:"8,keyasint,omitzero"`
	Replaces  MemberID  `cbor:"9,keyasint,omitempty"` // removed once this one votes; empty: none
}

// MemberView is a member's record with what the leader knows of it.
type MemberView struct {
	Member    Member
	Voter     bool // it has a vote at present
	Leader    bool
	Reachable bool          // it answered within the last seconds
	Applied   uint64        // index up to which it has applied the log
	Lag       uint64        // entries that it is behind the leader
	Silent    time.Duration // since it answered last; 0 for the leader
	Problem   string        // in one sentence; empty: none
	// Clock is how far its clock is ahead of the leader's; nil: that is not known, or it leads.
	Clock *time.Duration

	Certificate NodeCertificate // as it said last
}

// ClusterView is the control plane as a whole.
type ClusterView struct {
	ID      string
	Lineage uint64
	Level   uint64 // feature level that is in force
	Members []MemberView
	Clock   ClockView
}

// ClockView is the time as the leader and the log have it.
type ClockView struct {
	Now   time.Time     // by the leader's clock
	Log   time.Time     // by which everything is charged and recorded
	Held  string        // why nothing final is done, in words; empty: it is
	Since time.Time     // the log's time since which it is held; zero: it is not
	Leap  time.Duration // the most that the two may be apart
}
