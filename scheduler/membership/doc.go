// Package membership is what schedulers say to each other besides Raft: how a new one joins, how one gets a fresh
// certificate, and how far each is (Server); the leader's loop that brings Raft's configuration to what the
// records of the members say (Keeper); and what a member does to be known and to stay known (Presence).
//
// The records in the state are the truth about who is a member. The configurations of both Raft groups, the control plane's
// and that of the jobs, follow them.
package membership
