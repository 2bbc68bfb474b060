// Package dispatch is the scheduler's end of the link to the hosts. It enrolls hosts, keeps one
// session with each, sends assignments as a full set and then numbered differences, proposes what
// hosts report, and opens tunnels to them. It decides nothing about placement. Nothing in it is
// durable: what sessions say of the moment is gone with them, and everything else is in the state
// machine before it is acknowledged to a host.
//
// Locks: Server.mu guards the table of sessions, session.mu what is live of one host. Neither is
// held across I/O, and mu is never taken under session.mu.
package dispatch
