// Package dispatch is the scheduler's end of the link to the hosts. It enrolls hosts, keeps one
// session with each, sends assignments as a full set and then numbered differences, proposes what
// hosts report, and opens tunnels to them. It decides nothing about placement. Nothing in it is
// durable: what sessions say of the moment is gone with them, and everything else is in the state
// machine before it is acknowledged to a host.
//
// A host is there while it has a session, and for as long after its last word as a session may be silent and a
// host may take to come back. One identity has one session: another of the same run of an agent takes its place,
// one of another run is refused, and raises an alarm when the first is heard again.
//
// A scheduler that does not lead passes sessions on to the leader (Relay, and hostsServer at the leader's end): it answers heartbeats
// and knows whether the host is silent. What the leader promises of a session holds whatever the way.
//
// What hosts are told beside their pods comes from feeds (scheduler/feed), each of which has a line in every session.
//
// Locks: Server.mu guards the table of sessions, session.mu what is live of one host. Neither is
// held across I/O, and mu is never taken under session.mu. Locks of feeds are taken last, also inside a view.
package dispatch
